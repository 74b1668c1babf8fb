"""Functions and classes in users' Python files."""

from __future__ import annotations

import importlib.util
import sys
import traceback
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from .errors import DelianError

_T = TypeVar("_T")


def load_function(file: Path, name: str, hint: str = "") -> Callable[..., Any]:
    """A function of a user's Python file, which is run. Raises DelianError, with the hint, when
    there is none.
    """
    found = getattr(_run(file, hint), name, None)
    if not isinstance(found, types.FunctionType):
        raise DelianError(f"{file}: there is no function `{name}` in it", hint)
    return found


def load_class(file: Path, base: type[_T], name: str = "", hint: str = "") -> type[_T]:
    """The class of this name in a user's Python file, which is run, or the only one in it that
    extends `base`. Raises DelianError, with the hint, when there is none, or one too many.
    """
    module = _run(file, hint)
    found = [
        each
        for each in vars(module).values()
        if isinstance(each, type) and issubclass(each, base) and each.__module__ == module.__name__
    ]
    if name:
        found = [each for each in found if each.__name__ == name]
    if len(found) > 1:
        names = ", ".join(each.__name__ for each in found)
        raise DelianError(
            f"{file}: several classes in it extend {base.__name__}: {names}",
            f"say which, as {file.name}:{found[-1].__name__} on a command line; {hint}",
        )
    if not found:
        wanted = f"class `{name}`" if name else "class"
        raise DelianError(f"{file}: there is no {wanted} in it that extends {base.__name__}", hint)
    return found[0]


def _run(file: Path, hint: str) -> types.ModuleType:
    spec = importlib.util.spec_from_file_location(f"delian_user_{file.stem}", file)
    if spec is None or spec.loader is None or not file.is_file():
        raise DelianError(f"{file}: no such Python file", hint)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up by its name
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as e:
        lines = [
            f.lineno
            for f in traceback.extract_tb(e.__traceback__)
            if Path(f.filename) == file.absolute()
        ]
        where = f"{file}:{lines[-1]}" if lines else str(file)
        raise DelianError(
            f"{where}: running it failed: {type(e).__name__}: {e}", _mended(e, file)
        ) from e
    return module


def _mended(fault: BaseException, file: Path) -> str:
    """What to do about a file that does not run."""
    missing = fault.name if isinstance(fault, ModuleNotFoundError) else None
    if missing and ((file.parent / f"{missing}.py").is_file() or (file.parent / missing).is_dir()):
        return (
            f"the file is run by itself, and modules beside it are not found: put {missing} into"
            " it, or on PYTHONPATH"
        )
    return "try it with plain Python first"
