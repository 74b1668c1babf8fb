"""Commands of daemons and of their operators: runs, nodes, tokens, the broker, the record."""
