"""What is understood of a user's data, and what is wrong with it."""
