"""The coordinator's protocol: state machines without I/O."""
