"""Who a node is, who says so, and what it may do."""
