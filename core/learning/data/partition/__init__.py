"""How examples are dealt out to devices: `Deal` says how, `partitioners` does it.

Partitioners (`label_skew`, `amounts`) give one array of row numbers a device. They see labels or
names only, never examples. `shifts` changes what devices have: noise, rotations, other labels.
"""

from __future__ import annotations
