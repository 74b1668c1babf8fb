import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))  # fuzz.py is run as a script beside it
