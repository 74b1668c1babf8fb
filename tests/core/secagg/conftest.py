"""Lets the tests of sessions import what they share, `secure_federation`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
