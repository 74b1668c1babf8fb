"""The steps from one shape of the tables to the next; each names the one before it."""
