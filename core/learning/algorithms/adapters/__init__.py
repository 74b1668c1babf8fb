"""Algorithms for models with adapters."""
