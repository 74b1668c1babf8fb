"""Signed bundles: the keys that sign, and what a device accepts."""
