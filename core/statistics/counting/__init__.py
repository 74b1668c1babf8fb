"""What sites count: cells of categories, and brackets of quantiles, none with too few rows."""
