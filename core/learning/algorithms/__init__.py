"""The built-in algorithms, one file a paper."""
