"""Passes: IR to IR with the same results. `lowering` and `schedule` are the native back end's."""
