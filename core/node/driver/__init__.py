"""The driver: runs a state machine on an event loop, over its journal."""
