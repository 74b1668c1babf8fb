"""Survival: times on a grid, curves and tests of counts, Cox models of sums over risk sets."""
