"""Control flow over abstract values: branches, loops, raised errors."""
