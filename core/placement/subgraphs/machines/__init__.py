"""Partitioned execution without I/O: an asker, a server, and what the two have in common."""
