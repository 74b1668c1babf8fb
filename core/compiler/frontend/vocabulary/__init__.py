"""The functions that the compiler knows: a row each."""
