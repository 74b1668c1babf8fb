"""What is done with modules around their import: Keras's, cumulative averages, losses, sources."""
