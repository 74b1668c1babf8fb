"""Calls of the hand-written kernels (`c/`): which one, with which tiles."""
