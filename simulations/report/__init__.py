"""The report of a run: HTML with figures, and JSON."""
