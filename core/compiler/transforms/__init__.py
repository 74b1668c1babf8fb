"""Transforms of programs: derivatives, `vmap`, mixed precision, checkpoints."""
