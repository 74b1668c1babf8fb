"""A small model on the device, a large one above: hard examples, and which model answers."""
