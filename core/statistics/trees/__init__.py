"""Trees from sums: bins of features, histograms of gradients, the choice of splits, models.

A site adds up histograms of its rows; everything that is chosen is chosen from their totals.
"""
