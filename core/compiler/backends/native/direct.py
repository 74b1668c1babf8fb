"""Calls of compiled functions without Python code between the caller and the program (`direct.c`).

Looking through arguments, making results and calling C by ctypes takes tens of microseconds, more
than many programs do. A function that is called again and again with flat arguments (arrays,
Python's numbers) gets a plan of its program instead, and a function in C that follows it.
Whatever the plan does not describe it answers with NotImplemented, and the call goes the long way.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Any

import numpy as np

from ....common.errors import DelianError
from ... import tree
from ...ir import TensorType
from ...traced import ARRAY, BOOL, FLOAT, INT, SCALAR, Static, Traced
from .toolchain import cache
from .toolchain.artifact import Assembled, Facts
from .toolchain.toolchain import Toolchain, find

if TYPE_CHECKING:
    from .program import NativeProgram

#: The working memory that a plan has on the stack (DL_ARENA_HERE).
_ARENA_HERE = 4096
_METH_FASTCALL = 0x80
_OBJECT = ctypes.py_object
_POINTER, _INT64 = ctypes.c_void_p, ctypes.c_int64

# The enumerations of direct.c.
_ARRAY, _FLOAT, _INT, _BOOL, _SAME = range(5)
_NEW, _SCALAR, _F64, _F32, _I64, _I32, _TRUTH, _HIDDEN, _CHANGED = range(9)
_NUMBERS = {float: (_FLOAT, "f8"), int: (_INT, "i8"), bool: (_BOOL, "?")}
_PYTHON = {
    (FLOAT, "f8"): _F64,
    (FLOAT, "f4"): _F32,
    (INT, "i8"): _I64,
    (INT, "i4"): _I32,
    (BOOL, "b1"): _TRUTH,
}


def _structure(name: str, *fields: tuple[str, Any]) -> Any:
    return type(name, (ctypes.Structure,), {"_fields_": list(fields)})


def _table(kind: Any, rows: Sequence[Any]) -> Any:
    return (kind * len(rows))(*rows)


def _each(kind: Any, *names: str) -> list[tuple[str, Any]]:
    return [(name, kind) for name in names]


_Argument = _structure(
    "_Argument",
    ("kind", _INT64),
    ("what", _POINTER),
    ("shape", _POINTER),
    *_each(_INT64, "axes", "bytes", "param", "changed"),
)
_Result = _structure(
    "_Result", ("kind", _INT64), ("made_of", _POINTER), ("bytes", _INT64), ("donor", _INT64)
)
_Outside = _structure("_Outside", *_each(_POINTER, "owner", "name", "value"))
_COUNTED = ("arguments", "params", "results", "outside", "constants")
_OBJECTS = (
    *("array_type", "float_type", "int_type", "bool_type"),
    *("empty", "no_key", "not_implemented", "none", "yes", "no"),
    *("arena", "current", "finish"),
)
_Plan = _structure(
    "_Plan",
    *_each(_POINTER, "entry", "arguments", "results", "outside", "constants"),
    *_each(_INT64, *(f"{name}_count" for name in _COUNTED)),
    *_each(_INT64, "arena_bytes", "list_bytes_max", "fault", "shown"),
    *_each(_POINTER, *_OBJECTS),
)
_Method = _structure(
    "_Method",
    ("name", ctypes.c_char_p),
    ("f", _POINTER),
    ("flags", ctypes.c_int),
    ("doc", _POINTER),
)
_Array = _structure(
    "_Array",
    ("count", ctypes.c_ssize_t),
    *_each(_POINTER, "type", "data"),
    ("axes", ctypes.c_int),
    *_each(_POINTER, "shape", "strides", "base", "dtype"),
    ("flags", ctypes.c_int),
)


def direct_call(
    traced: Traced, program: NativeProgram, leaves: Sequence[Any]
) -> Callable[..., Any] | None:
    """A function in C that calls the program with arguments like these leaves.

    It gives what the compiled function gives, or NotImplemented for other arguments, for errors
    that the program meets, and where a name that was read from outside has changed. None where
    there is no such function: for trees as arguments, on several threads, without a compiler.
    """
    flat = all(c.kind is None for c in traced.in_structure.children)
    captured = traced.changed and any(isinstance(s.owner, np.ndarray) for s in traced.seen)
    if not flat or traced.packs or traced.packed_results or captured or program.threads != 1:
        return None
    made = _library()
    if made is None:
        return None
    arguments = _arguments(traced, leaves)
    results = _results(traced, program)
    if arguments is None or results is None:
        return None
    return _function(made, _planned(traced, program, arguments, results))


@dataclass(frozen=True, slots=True)
class _Described:
    """Rows of a table of direct.c, and the objects that they point to."""

    rows: list[tuple[Any, ...]]
    held: list[Any]


def _arguments(traced: Traced, leaves: Sequence[Any]) -> _Described | None:
    types = [t for t in traced.function.param_types if isinstance(t, TensorType)]
    first = len(traced.function.body.results) - traced.hidden - len(traced.changed)
    changed = {param: first + k for k, param in enumerate(traced.changed)}
    rows: list[tuple[Any, ...]] = []
    held: list[Any] = []
    param = 0
    for k, leaf in enumerate(leaves):
        if k in traced.static:
            if type(leaf) not in (int, bool, str, Static):
                return None
            rows.append((_SAME, id(leaf), 0, 0, 0, -1, -1))
            held.append(leaf)
            continue
        type_ = types[param]
        dtype = type_.dtype.numpy
        new = changed.get(param, -1)
        if type(leaf) is np.ndarray:
            if leaf.dtype != dtype or leaf.shape != type_.shape or not leaf.flags.c_contiguous:
                return None
            shape = (ctypes.c_ssize_t * leaf.ndim)(*leaf.shape)
            held += [leaf.dtype, shape]
            where = ctypes.addressof(shape)
            row = (_ARRAY, id(leaf.dtype), where, leaf.ndim, leaf.nbytes, param, new)
        else:
            kind, wanted = _NUMBERS.get(type(leaf), (-1, ""))
            if kind < 0 or type_.shape != () or dtype != np.dtype(wanted) or new >= 0:
                return None
            row = (kind, 0, 0, 0, dtype.itemsize, param, -1)
        rows.append(row)
        param += 1
    return _Described(rows, held)


def _results(traced: Traced, program: NativeProgram) -> _Described | None:
    shown = len(program.layouts) - traced.hidden - len(traced.changed)
    donors = {j: i for i, j in program.donated.items()}
    rows: list[tuple[Any, ...]] = []
    held: list[Any] = []
    for k, (dtype, shape) in enumerate(program.layouts):
        made_of = shape, dtype
        held.append(made_of)
        if k >= shown + len(traced.changed):
            kind = _HIDDEN
        elif k >= shown:
            kind = _CHANGED
        elif traced.kinds[k] == ARRAY:
            kind = _NEW
        elif traced.kinds[k] >= SCALAR:
            kind = _SCALAR
        else:
            kind = _PYTHON.get((traced.kinds[k], dtype.str[1:]), -1)
            if kind < 0 or shape != ():
                return None
        donor = donors.get(k, -1)
        if donor >= 0 and (kind != _CHANGED or donor != traced.changed[k - shown]):
            return None  # What the caller gave away, and may be no array that can be written.
        size = int(np.prod(shape)) * dtype.itemsize
        rows.append((kind, id(made_of), size, donor))
    return _Described(rows, held)


def _planned(
    traced: Traced, program: NativeProgram, arguments: _Described, results: _Described
) -> tuple[Any, ...]:
    """The plan's address, and everything that it points to."""
    outside = traced.outside
    simple = not traced.seen and all(type(owner) is dict for owner, _, _ in outside)
    named = [(id(o), id(name), id(value)) for o, name, value in outside] if simple else []
    tables: dict[str, Any] = {
        "arguments": _table(_Argument, arguments.rows),
        "results": _table(_Result, results.rows),
        "outside": _table(_Outside, named),
        "constants": _table(_POINTER, program.constant_pointers),
    }
    large = program.report.arena_bytes > _ARENA_HERE
    structure = traced.out_structure
    single = structure.kind is None
    flat = structure.kind is tuple and all(c.kind is None for c in structure.children)
    objects: dict[str, Any] = {
        "array_type": np.ndarray,
        "float_type": float,
        "int_type": int,
        "bool_type": bool,
        "empty": np.empty,
        "no_key": (),
        "not_implemented": NotImplemented,
        "none": None,
        "yes": True,
        "no": False,
        "arena": functools.partial(program.arena, program.report.arena_bytes) if large else None,
        "current": None if simple else traced.current,
        "finish": None if single or flat else functools.partial(tree.unflatten, structure),
    }
    functions = ("arena", "current", "finish")
    plan = _Plan(
        entry=program.entry_address,
        **{name: ctypes.addressof(table) for name, table in tables.items()},
        **{f"{name}_count": len(table) for name, table in tables.items()},
        params_count=len(traced.function.body.params),
        arena_bytes=program.report.arena_bytes,
        list_bytes_max=program.list_bytes_max(),
        fault=len(results.rows) - traced.hidden if traced.hidden else -1,
        shown=-1 if single else len(results.rows) - traced.hidden - len(traced.changed),
        **{n: 0 if o is None and n in functions else id(o) for n, o in objects.items()},
    )
    held = (plan, tables, objects, arguments.held, results.held, traced, program)
    return ctypes.addressof(plan), held


def _function(made: _Made, plan: tuple[Any, ...]) -> Callable[..., Any]:
    found: Callable[..., Any] = made.new(ctypes.addressof(made.method), plan, None)
    return found


@dataclass(frozen=True, slots=True)
class _Made:
    """The loaded helper: its method, and Python's function that makes a callable of it."""

    library: ctypes.CDLL
    method: Any
    new: Callable[..., Any]


@functools.cache
def _library() -> _Made | None:
    """The helper, built or found in the cache; None where it cannot work."""
    toolchain = find() if _is_known_python() else None
    if toolchain is None:
        return None
    key = cache.key_of(toolchain, [("direct", "")])
    path, _ = cache.shared_object(key, toolchain, functools.partial(_source, toolchain))
    try:
        library = ctypes.CDLL(str(path))
        address = ctypes.cast(library.call, _POINTER).value
        new = ctypes.pythonapi.PyCFunction_NewEx
    except (OSError, AttributeError) as error:
        raise DelianError(
            f"direct calls of programs do not load: {error}", f"delete {path}: it is made again"
        ) from error
    new.argtypes = [_POINTER, _OBJECT, _POINTER]
    new.restype = _OBJECT
    return _Made(library, _Method(b"call", address, _METH_FASTCALL, None), new)


def _source(toolchain: Toolchain) -> Assembled:
    text = resources.files(__package__).joinpath("c", "direct.c").read_text(encoding="utf-8")
    target = toolchain.target
    version = cache.emitter_version()
    facts = Facts(target.name, target.machine, toolchain.version, toolchain.flags, version, ())
    return Assembled(text, facts)


def _is_known_python() -> bool:
    """Whether objects and arrays have the fields that direct.c reads: CPython with its lock."""
    if sys.implementation.name != "cpython" or sys.platform == "win32":
        return False
    if object.__basicsize__ != 2 * ctypes.sizeof(_POINTER):
        return False
    whole = np.arange(6.0).reshape(2, 3)
    turned = whole.T
    turned.flags.writeable = False
    return all(map(_is_known_array, (whole, turned, np.zeros((), np.int8), np.empty((0, 4)))))


def _is_known_array(array: np.ndarray[Any, Any]) -> bool:
    seen = _Array.from_address(id(array))
    if (seen.type, seen.data, seen.axes) != (id(np.ndarray), array.ctypes.data, array.ndim):
        return False
    sizes = (ctypes.c_ssize_t * array.ndim).from_address(seen.shape) if array.ndim else ()
    if tuple(sizes) != array.shape or seen.dtype != id(array.dtype):
        return False
    flags = array.flags
    wanted = flags.c_contiguous | flags.aligned << 8 | flags.writeable << 10
    return bool(seen.flags & 0x501 == wanted)
