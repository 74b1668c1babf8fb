"""Simulated models on several tiers: cuts over changing links, cascades."""
