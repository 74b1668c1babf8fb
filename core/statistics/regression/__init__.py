"""Generalized linear models by Newton's method on sums over sites."""
