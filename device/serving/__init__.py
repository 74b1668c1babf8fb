"""Models at work on a device: personal, split and cascade models, split training."""
