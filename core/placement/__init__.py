"""One model on several tiers: where it is cut, how its parts run, cascades, split training."""
