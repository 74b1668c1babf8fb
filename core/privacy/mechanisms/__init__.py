"""What an update goes through: clip, noise, compression, the ring; and its account."""
