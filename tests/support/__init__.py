"""What tests of several folders share; `tests` is on the path of pytest and of its workers."""
