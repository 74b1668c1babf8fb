"""Commands of models on several tiers: profiles, cuts, cascades."""
