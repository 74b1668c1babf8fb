"""The device's protocol: a state machine without I/O."""
