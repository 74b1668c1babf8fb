"""The edge's protocol: a state machine without I/O."""
