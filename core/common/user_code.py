"""Functions and classes in users' Python files.

A user's file is compiled from what was read of it, each time that it is loaded, and so are the
modules that it imports, unless they are Python's own or of an installed package. Python's usual
loader takes a file of one size and second for the one that it has compiled, and leaves
`__pycache__` next to it. What was read is what tracebacks, `inspect` and the front end show
(`linecache`), however the file has changed since; the front end of each function what that was made
of, where the file was read again.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import linecache
import os
import sys
import time
import traceback
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from .errors import DelianError, is_own
from .foreign_formats import refuse_file

_T = TypeVar("_T")

#: A Python file of a user's is not larger: this is a data file.
SOURCE_BYTES_MAX = 4 << 20
_PYTHON = Path(os.__file__).parent
_INSTALLED = frozenset(("site-packages", "dist-packages"))
#: SHA-256 of what was read, by file.
_read: dict[str, str] = {}
_since_ns = time.time_ns()


def load_function(file: Path, name: str, hint: str = "") -> Callable[..., Any]:
    """A function of a user's Python file, which is run. Raises DelianError."""
    found = getattr(_run(file, hint), name, None)
    if not isinstance(found, types.FunctionType):
        raise DelianError(f"{file}: there is no function `{name}` in it", hint)
    return found


def load_class(file: Path, base: type[_T], name: str = "", hint: str = "") -> type[_T]:
    """The class of this name in a user's Python file, or the only one there that extends `base`.

    Runs the file. Raises DelianError, with a hint, when there is no such class or more than one.
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


def sources() -> Mapping[str, str]:
    """SHA-256 of the users' code that this process has run, by file.

    Files that were loaded here, and other modules that belong neither to Python, nor to an
    installed package, nor to Delian, as they are now. Empty where one has changed since this
    process began: then the code that ran is unknown.
    """
    found = dict(_read)
    for module in [*sys.modules.values()]:
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and file not in found and _is_users(file):
            found[file] = _unchanged(Path(file))
    return found


def show_lines_of(function: types.FunctionType) -> None:
    """Makes the lines that are shown of a function's file those that it was made of.

    One file may have been read several times; and Python's own loader may have loaded it since, as
    `importlib.reload` does.
    """
    path, loader = function.__code__.co_filename, function.__globals__.get("__loader__")
    if isinstance(loader, _Loader) and loader.path == path:
        loader.show()
    elif path in _read:
        linecache.cache.pop(path, None)


def _unchanged(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
            return digest if os.fstat(stream.fileno()).st_mtime_ns < _since_ns else ""
    except OSError:
        return ""


def _is_users(file: str) -> bool:
    """Whether a file is code of a user's own."""
    path = Path(file)
    foreign = path.is_relative_to(_PYTHON) or not _INSTALLED.isdisjoint(path.parts)
    return path.is_absolute() and not foreign and not is_own(file)


class _Loader(SourceFileLoader):
    """Loads a file from one reading. It has no time of change, so Python caches no code."""

    _content: bytes | None = None

    def path_stats(self, path: str) -> NoReturn:
        raise OSError("it is compiled each time")

    def get_data(self, path: str) -> bytes:
        if path != self.path:
            return super().get_data(path)
        if self._content is None:
            self._content = _bytes_of(Path(path))
            _read[path] = hashlib.sha256(self._content).hexdigest()
            self.show()
        return self._content

    def show(self) -> None:
        """Makes what was read the lines that are shown of this file."""
        if self._content is not None:
            _show(self.path, self._content)


def _bytes_of(file: Path) -> bytes:
    """Raises DelianError for a file that is too large, OSError for one that cannot be read."""
    with file.open("rb") as stream:
        content = stream.read(SOURCE_BYTES_MAX + 1)
    if len(content) > SOURCE_BYTES_MAX:
        raise DelianError(
            f"{file} is larger than the {SOURCE_BYTES_MAX >> 20} MiB that a Python file may have",
            "is it a Python file at all? Numbers belong into a data file",
        )
    return content


def _show(path: str, content: bytes) -> None:
    """Shows this text as the file's lines. An entry without a time of change stays as it is."""
    try:
        lines = io.StringIO(importlib.util.decode_source(content)).readlines()
    except (SyntaxError, UnicodeDecodeError):  # Python says so when it compiles it
        return
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += "\n"
    linecache.cache[path] = (len(content), None, lines, path)


class _Finder:
    """Finds the modules that Python finds by itself, and has users' own loaded as their file is."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or type(spec.loader) is not SourceFileLoader:
            return None
        if not _is_users(spec.loader.path):
            return None
        spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


@contextmanager
def _users_imports() -> Iterator[None]:
    finder = _Finder()
    usual = sys.meta_path.index(PathFinder) if PathFinder in sys.meta_path else len(sys.meta_path)
    sys.meta_path.insert(usual, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


def _run(file: Path, hint: str) -> types.ModuleType:
    if file.suffix != ".py" or not file.is_file():
        refuse_file(file, "model")
        raise DelianError(f"{file}: no such Python file", hint)
    name, path = f"delian_user_{file.stem}", str(file.absolute())
    loader = _Loader(name, path)
    try:
        loader.get_data(path)
    except OSError as error:
        raise DelianError(f"{file}: cannot be read: {error.strerror or error}", hint) from None
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up by its name
    try:
        with _users_imports():
            loader.exec_module(module)
    except (Exception, SystemExit) as e:
        lines = [f.lineno for f in traceback.extract_tb(e.__traceback__) if f.filename == path]
        if isinstance(e, SyntaxError) and e.filename == path:
            lines.append(e.lineno)
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
            f"the file is run by itself, and modules next to it are not found: put {missing} into"
            " it, or on PYTHONPATH"
        )
    return "try it with plain Python first"
