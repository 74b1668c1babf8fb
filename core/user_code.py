"""Functions in users' Python files."""

from __future__ import annotations

import importlib.util
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .errors import DelianError


def load_function(file: Path, name: str, hint: str = "") -> Callable[..., Any]:
    """A function of a user's Python file, which is run. Raises DelianError, with the hint, when
    there is none.
    """
    spec = importlib.util.spec_from_file_location(f"delian_user_{file.stem}", file)
    if spec is None or spec.loader is None or not file.is_file():
        raise DelianError(f"{file}: no such Python file", hint)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up by its name
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as e:
        raise DelianError(
            f"{file}: running it failed: {type(e).__name__}: {e}", "try it with plain Python first"
        ) from e
    found = getattr(module, name, None)
    if not isinstance(found, types.FunctionType):
        raise DelianError(f"{file}: there is no function `{name}` in it", hint)
    return found
