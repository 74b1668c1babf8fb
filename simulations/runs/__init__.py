"""Runs of scenarios and their results: one run, comparisons, sweeps, questions."""
