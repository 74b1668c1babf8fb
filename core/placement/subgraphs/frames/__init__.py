"""Streams of frames between a node and the one above it: both ends, what carries them, probes."""
