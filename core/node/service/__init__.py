"""What a daemon does around its node: identity, tasks, health, metrics, uplinks."""
