"""Names of source files that are the same wherever the files lie.

A program's lines go with it as "file:line" (`ir.Op.locs`). In memory the file is a path, so that
errors show the line; in bytes it is a name that an import would know:
`delian/core/learning/nn/layers.py`, `mymodels/nets.py` of a package, `model.py` of a file by
itself. So a bundle, and all that is hashed from it, is the same from another checkout, another
user's home or another machine. Read back, Delian's own names are paths again, and others are found
where Python looks for modules, the folder that one is in first (`linecache`).
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

_PACKAGE = Path(__file__).parents[2]
_OWN = "delian/"


@lru_cache(1024)
def name_of(file: str) -> str:
    """The name of a file, by its path. What is no absolute path is a name already."""
    path = Path(file)
    if not path.is_absolute():
        return file
    if path.is_relative_to(_PACKAGE):
        return _OWN + path.relative_to(_PACKAGE).as_posix()
    root = path.parent
    while (root / "__init__.py").is_file() and root != root.parent:
        root = root.parent
    return path.relative_to(root).as_posix()


@lru_cache(1024)
def path_of(name: str) -> str:
    """Where a file of Delian is that has this name; other names stay as they are."""
    own = Path(name.removeprefix(_OWN))
    if not name.startswith(_OWN) or own.is_absolute() or ".." in own.parts:
        return name
    path = _PACKAGE / own
    return str(path) if path.is_file() else name
