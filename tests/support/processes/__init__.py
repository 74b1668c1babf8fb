"""Real processes and a shaped link between them, for tests and benchmarks of placement."""

import os
from pathlib import Path


def python_path() -> str:
    """PYTHONPATH of a child process that imports `support`."""
    return os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
