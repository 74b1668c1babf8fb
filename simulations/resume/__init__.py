"""Runs that go on after they were stopped."""
