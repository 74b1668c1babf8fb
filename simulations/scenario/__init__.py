"""Scenarios: their keys, their files, and what is compiled from them."""
