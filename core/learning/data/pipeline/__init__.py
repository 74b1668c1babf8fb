"""What happens to rows between a source and training: map, batch, shuffle, prefetch, cache."""
