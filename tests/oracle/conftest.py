"""Puts the folder above on the path: the package is `oracle`, also for its processes."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
