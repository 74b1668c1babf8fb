"""Python's own functions, called while compiling on values that are known.

Such a call is made once, wherever it stands: in a branch that is not taken, in a program that is
called again. So it must change nothing (`operator.iadd(items, more)`, `x.cumsum(out=y)`).
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import operators
from ..values import Tensor, describe, is_static
from ..vocabulary import vocabulary_table
from . import containers

if TYPE_CHECKING:
    from ..specialise import Specialiser

#: There is no answer of Python's.
NO = object()
#: Modules whose functions are pure: with known arguments they are simply called.
_PURE_MODULES = frozenset(("math", "cmath", "operator", "_operator", "numpy"))
_PURE_PACKAGES = frozenset(f"scipy.{n}" for n in ("fft", "linalg", "signal", "special"))
_PURE_BUILTINS = frozenset(
    ("ascii", "bin", "chr", "format", "hash", "hex", "issubclass", "oct", "ord")
)
#: NumPy's functions that read or change the world, apart from all of numpy.random.
_IMPURE_NUMPY = frozenset(
    (
        *("load", "save", "savez", "savez_compressed", "loadtxt", "savetxt", "genfromtxt"),
        *("fromfile", "memmap", "fromregex", "seterr", "seterrcall", "set_printoptions"),
        *("setbufsize", "info", "show_config", "get_include", "test", "errstate", "printoptions"),
        *("copyto", "place", "put", "putmask", "put_along_axis", "fill_diagonal"),
    )
)


def call(
    s: Specialiser,
    f: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    what: str,
) -> Any:
    """`f(*args, **kwargs)`; refused where it changes what it is given. what: for messages."""
    owner = getattr(f, "__self__", None)
    held = [(v, _copied(v)) for v in _changeable((owner, *args, *kwargs.values()))]
    try:
        result = operators.python(s, lambda: f(*args, **kwargs), what)
    finally:
        changed = [v for v, content in held if _put_back(v, content)]
    if changed:
        text = f"{what} would change {describe(changed[0])}, which is known while compiling"
        hint = "change it by a statement, x[i] = v or x += v, or by a method of its own"
        raise s.error("DL111", text, hint)
    return result


def by_python(
    s: Specialiser, f: Any, args: Sequence[Any], kwargs: Mapping[str, Any], name: str
) -> Any:
    """What a pure function gives for known arguments; NO where Python cannot be asked.

    Raises:
        ProgramError: DL107, single integers alone are not known.
    """
    if not is_pure(f):
        return NO
    if is_static((tuple(args), dict(kwargs))):
        return call(s, f, args, kwargs, f"`{name}`")
    rest = [v for v in (*args, *kwargs.values()) if not is_static(v)]
    if all(type(v) is Tensor and v.shape == () and not v.dtype.is_float for v in rest):
        hint = vocabulary_table.hint(f)
        raise s.needs_static(rest[0], f"an argument of `{name}`", hint)
    return NO


def is_numpy(f: Any) -> bool:
    """Whether a function is of NumPy's modules."""
    return (getattr(f, "__module__", None) or "").split(".")[0] == "numpy"


def twin(f: Any) -> Any:
    """What to call for a function of a package that need not be imported; None where nothing is.

    The source of one of `scipy.fft` only says which back end does it: NumPy's function does it. No
    masked array is an argument of a program.
    """
    home, name = str(getattr(f, "__module__", "")), getattr(f, "__name__", "")
    if home.startswith("numpy.ma") and name == "isMaskedArray":
        return lambda x: False
    return getattr(np.fft, name, None) if home.startswith("scipy.fft.") else None


def is_pure(f: Any) -> bool:
    """Whether a call with known arguments may be made while compiling."""
    if isinstance(f, np.ufunc):
        return True
    name = getattr(f, "__name__", "")
    module = getattr(f, "__module__", None) or ""
    if module == "builtins":
        return name in _PURE_BUILTINS
    if ".".join(module.split(".")[:2]) in _PURE_PACKAGES:
        return owner_of(f) is None
    if module.startswith("numpy.random") or (is_numpy(f) and name in _IMPURE_NUMPY):
        return False
    return module.split(".")[0] in _PURE_MODULES and owner_of(f) is None


def owner_of(f: Any) -> Any:
    """The object that a method belongs to; a function of a module has none."""
    owner = getattr(f, "__self__", None)
    return None if isinstance(owner, types.ModuleType) else owner


def _changeable(values: Sequence[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, tuple):
            yield from _changeable(value)
        elif isinstance(value, list | dict | set) or (
            isinstance(value, np.ndarray) and value.flags.writeable
        ):
            yield value


def _copied(value: Any) -> Any:
    return value.copy() if isinstance(value, np.ndarray) else containers.copied(value)


def _put_back(value: Any, content: Any) -> bool:
    """Whether a value has changed, which is undone."""
    if not isinstance(value, np.ndarray):
        if containers.alike(containers.copied(value), content):
            return False
        containers.fill(value, content)
        return True
    if value.tobytes() == content.tobytes():
        return False
    value[...] = content
    return True


__all__ = ["NO", "by_python", "call", "is_numpy", "is_pure", "owner_of"]
