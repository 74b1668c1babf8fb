"""Rows on disk, and rows of other packages, by random access: one module a format."""
