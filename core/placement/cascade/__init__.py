"""A small model on the device and a large one above: which examples are hard, and who answers."""
