"""What NumPy's functions and operators become in the IR."""
