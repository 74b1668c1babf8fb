"""Running the parts of a cut program on several tiers: machines without I/O, and what they say."""
