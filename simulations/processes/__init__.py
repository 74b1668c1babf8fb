"""Scenarios on real daemons of this machine."""
