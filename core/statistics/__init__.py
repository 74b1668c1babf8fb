"""Exact answers about data at many sites, from sums alone: a method is rounds of small sums.

    a question (`question.py`)  ->  steps  ->  each site's sums of its rows (`sums.py`)
                                <-  the total over all sites, under masks

A method is one file in `methods/`. Its `ask` runs where the question is asked and sees totals; its
`measure` runs at a site and sees that site's rows. Nothing else leaves a site.
"""
