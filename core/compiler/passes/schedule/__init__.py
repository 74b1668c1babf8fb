"""Fused loops in their order, and a place in memory for each tensor."""
