"""Values of a program while it is written: what they are, copies of them, and arguments to draw."""

from __future__ import annotations

import copy
import io
import random
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from types import BuiltinFunctionType, FunctionType, ModuleType, NoneType
from typing import Any

import numpy as np

#: Element types that programs have.
DTYPES = (
    *("float64", "float32", "int64", "int32", "bool", "uint8", "float16", "uint32"),
    *("int8", "int16", "uint16", "uint64", "complex128", "complex64"),
)
_WEIGHTS = (10, 4, 5, 3, 3, 2, 2, 1, 1, 1, 1, 1, 2, 1)
_KNOWN = frozenset(map(np.dtype, DTYPES))
#: Larger ones teach nothing more, and take longer.
SIZE_MAX = 64
_INT_MAX = 2**40


@contextmanager
def quiet() -> Iterator[None]:
    with np.errstate(all="ignore"), warnings.catch_warnings(), redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


def is_number(value: Any) -> bool:
    return isinstance(value, bool | int | float | complex | np.bool_ | np.number)


def is_python(value: Any) -> bool:
    return type(value) in (bool, int, float)


def is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray)


def is_data(value: Any) -> bool:
    """Whether it is an object of one of the program's own classes."""
    return getattr(type(value), "__module__", "") == "program" and not isinstance(value, type)


def is_returnable(value: Any, depth: int = 8) -> bool:
    """Whether a compiled function may give it."""
    if is_number(value) or is_array(value):
        return True
    if isinstance(value, list | tuple):
        fits = len(value) <= 12 and depth > 0  # It may hold itself.
        return fits and all(is_returnable(v, depth - 1) for v in value)
    if isinstance(value, dict):
        return depth > 0 and all(is_returnable(v, depth - 1) for v in value.values())
    return False


def is_sane(value: Any, depth: int = 4) -> bool:
    """Whether a program should have it: nothing that the language has not, and nothing large."""
    if isinstance(value, bool | float | complex | str) or value is None:
        return True
    if isinstance(value, int):
        return abs(value) < _INT_MAX
    if isinstance(value, np.ndarray | np.generic):
        return value.dtype in _KNOWN and value.size <= SIZE_MAX
    if isinstance(value, list | tuple):
        fits = len(value) <= SIZE_MAX and depth > 0  # It may hold itself.
        return fits and all(is_sane(v, depth - 1) for v in value)
    if isinstance(value, dict):
        return depth > 0 and all(is_sane(v, depth - 1) for v in value.values())
    if is_data(value) and hasattr(value, "__dict__"):
        return depth > 0 and is_sane(vars(value), depth - 1)
    return True


def kind(value: Any, depth: int = 8) -> Any:
    """Class, element type, shape, structure: what a block has to leave as it is."""
    if isinstance(value, np.ndarray | np.generic):
        return type(value), value.dtype, value.shape
    if not depth:  # It may hold itself.
        return type(value)
    if isinstance(value, list | tuple):
        return type(value), tuple(kind(v, depth - 1) for v in value)
    if isinstance(value, dict):
        return type(value), tuple((k, kind(v, depth - 1)) for k, v in value.items())
    if is_data(value) and hasattr(value, "__dict__"):
        return type(value), kind(vars(value), depth - 1)
    return type(value)


def same_kind(a: Any, b: Any) -> bool:
    return bool(type(a) is type(b) and kind(a) == kind(b))


def copied(env: dict[str, Any]) -> dict[str, Any]:
    """The values copied; functions, classes and modules are the same."""
    memo: dict[int, Any] = {}
    return {n: v if n == "__builtins__" else _copy(v, memo) for n, v in env.items()}


#: What is not copied.
_ATOMS = (
    *(bool, int, float, complex, str, np.generic, NoneType),
    *(FunctionType, BuiltinFunctionType, ModuleType),
)


def _copy(value: Any, memo: dict[int, Any]) -> Any:
    if isinstance(value, _ATOMS):
        return value
    if id(value) in memo:
        return memo[id(value)]
    made: Any
    if isinstance(value, np.ndarray):
        made = value.copy()
    elif type(value) is list:
        made = memo[id(value)] = []
        made += [_copy(v, memo) for v in value]
    elif type(value) is dict:
        made = memo[id(value)] = {}
        made |= {k: _copy(v, memo) for k, v in value.items()}
    elif type(value) is tuple:
        made = tuple(_copy(v, memo) for v in value)
    elif is_data(value):
        made = copy.deepcopy(value, memo)
    else:
        return value
    memo[id(value)] = made
    return made


# -- what programs are called with

_FLOATS = ("0.5", "-1.5", "2.5", "0.0", "1.0", "-0.25", "3.0", "-2.0")
_INTS = ("3", "-2", "0", "1", "7", "2", "-5", "4")
_ODD_FLOATS = ("float('nan')", "float('inf')", "-float('inf')", "-0.0", "1e300", "5e-324")
_ODD_INTS = ("2**31", "-2**31", "2**53 + 1", "2**62", "-2**63", "2**63 - 1", "255", "65536")
_SHAPES = ((3,), (4,), (6,), (2, 3), (3, 4), (3, 3), (), (1,), (2, 2, 2), (3, 1), (0,), (0, 3))
_SHAPE_WEIGHTS = (6, 6, 5, 6, 3, 4, 2, 2, 2, 1, 1, 1)
_ODD_OF = {
    "float64": ("np.nan", "np.inf", "-np.inf", "-0.0", "1e300"),
    "float32": ("np.nan", "np.inf", "-np.inf", "-0.0", "1e30"),
    "float16": ("np.nan", "np.inf", "-np.inf", "-0.0", "60000.0"),
    "int64": ("2**62", "-2**63", "2**63 - 1"),
    "int32": ("2**31 - 1", "-2**31"),
    "int16": ("2**15 - 1", "-2**15"),
    "int8": ("127", "-128"),
    "uint64": ("2**64 - 1", "2**63"),
    "uint32": ("2**32 - 1", "0"),
    "uint16": ("2**16 - 1", "0"),
    "uint8": ("255", "250"),
    "bool": ("True",),
    "complex128": ("complex(np.nan, 1)", "complex(1, -np.inf)", "complex(-0.0, 0)"),
    "complex64": ("complex(np.nan, 1)", "complex(1, -np.inf)", "complex(-0.0, 0)"),
}


def number_text(rng: random.Random, dtype: str, odd: float) -> str:
    """A number of an element type: small, and mostly a half, so that no rounding decides."""
    if rng.random() < odd:
        return rng.choice(_ODD_OF[dtype])
    if dtype == "bool":
        return rng.choice(("True", "False"))
    if dtype.startswith("complex"):
        re, im = (number_text(rng, "float64", 0.0) for _ in range(2))
        return f"complex({re}, {im})"
    if dtype.startswith("float"):
        return str(rng.randrange(-8, 9) / rng.choice((1, 2, 2, 4)))
    return str(rng.randrange(0 if dtype.startswith("uint") else -6, 8))


def array_text(rng: random.Random, dtype: str, shape: tuple[int, ...], odd: float) -> str:
    if 0 in shape:
        return f"np.zeros({shape}, np.{_class_of(dtype)})"

    def nested(sizes: tuple[int, ...]) -> str:
        if not sizes:
            return number_text(rng, dtype, odd)
        return "[" + ", ".join(nested(sizes[1:]) for _ in range(sizes[0])) + "]"

    return f"np.array({nested(shape)}, np.{_class_of(dtype)})"


def _class_of(dtype: str) -> str:
    return "bool_" if dtype == "bool" else dtype


def draw_dtype(rng: random.Random) -> str:
    return rng.choices(DTYPES, _WEIGHTS)[0]


def draw_shape(rng: random.Random) -> tuple[int, ...]:
    return rng.choices(_SHAPES, _SHAPE_WEIGHTS)[0]


def argument(rng: random.Random, calls: int, extreme: bool) -> tuple[str, list[str]]:
    """The kind of an argument, and as many texts of one type as there are calls."""
    what = rng.choices(
        ("array", "int", "float", "bool", "complex", "scalar", "list", "dict", "tuple"),
        (12, 4, 4, 2, 1.5, 4, 2, 1.5, 1),
    )[0]
    odd = 0.25 if extreme else 0.0
    if what in ("list", "dict", "tuple"):
        parts = [argument(rng, calls, extreme)[1] for _ in range(rng.randrange(1, 4))]
        return what, [_joined(what, texts) for texts in zip(*parts, strict=True)]
    if what == "array":
        dtype, shape = draw_dtype(rng), draw_shape(rng)
        form = rng.choices(("{}", "{}.T", "{}[::-1]"), (12, 1, 1))[0]
        form = form if shape else "{}"
        texts = [form.format(array_text(rng, dtype, shape, odd)) for _ in range(calls)]
    elif what == "scalar":
        dtype = draw_dtype(rng)
        made = [number_text(rng, dtype, odd) for _ in range(calls)]
        texts = [f"np.{_class_of(dtype)}({text})" for text in made]
    else:
        texts = [python_text(rng, what, odd) for _ in range(calls)]
    return what, texts


def python_text(rng: random.Random, what: str, odd: float) -> str:
    """A bool, int, float or complex number of Python's."""
    if what == "complex":
        return number_text(rng, "complex128", odd)
    if what == "bool":
        return rng.choice(("True", "False"))
    small, extreme = (_INTS, _ODD_INTS) if what == "int" else (_FLOATS, _ODD_FLOATS)
    return rng.choice(extreme if rng.random() < odd else small)


def _joined(what: str, texts: tuple[str, ...]) -> str:
    if what == "list":
        return f"[{', '.join(texts)}]"
    if what == "tuple":
        return f"({', '.join(texts)},)"
    pairs = zip(("a", "b", "c"), texts, strict=False)
    return "{" + ", ".join(f"{key!r}: {text}" for key, text in pairs) + "}"
