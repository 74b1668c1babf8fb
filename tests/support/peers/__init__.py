"""Hostile peers, played against real daemons."""
