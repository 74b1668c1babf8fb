"""Derivatives and `vmap` inside a program."""
