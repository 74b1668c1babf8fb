"""Training steps that are cut between tiers: the sides of a step, and turns of it over links."""
