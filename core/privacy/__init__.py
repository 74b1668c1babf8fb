"""Privacy of updates: mechanisms, secure aggregation, and the limits of what a task may ask."""
