"""HIR: a function's syntax as data, and its rewriting before types are known."""
