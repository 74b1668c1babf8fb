"""Pages of the documentation that are made from the code; tests/house/generated.py writes them."""
