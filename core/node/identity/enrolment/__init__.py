"""How a node gets its certificate, renews it, and keeps the deny list."""
