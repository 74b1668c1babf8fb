"""Tables: files and frames as columns, what columns are, and columns as numbers that models take.

`table_files` reads a file as columns, `columns` finds numbers in text, `tables` says what is
learnt, `encoding` turns columns into features.
"""

from __future__ import annotations
