"""Questions about the data of many sites."""
