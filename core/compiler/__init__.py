"""The compiler: Python to typed IR to machine code, with derivatives of any order."""
