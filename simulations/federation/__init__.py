"""A federation in one process: virtual time, network, nodes, training."""
