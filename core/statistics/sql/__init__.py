"""Questions in SQL: which rows, which columns, which aggregates; checked before anything runs.

`expressions.py` reads conditions and expressions and refuses what is not on its list;
`rows_data.py` runs them at a site, on the tables that its owner offers; `select_statement.py` makes
a question of a SELECT.
"""
