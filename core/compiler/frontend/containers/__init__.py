"""Lists, dicts and sets of a program, and lists of numbers as arrays."""
