"""Training and evaluation over rows that are read in windows, for data that need not fit memory."""
