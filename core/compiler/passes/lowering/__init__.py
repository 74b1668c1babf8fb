"""Rewriting into operations that the native back end is good at."""
