"""A traced program, and what may be traced: what callers of the front end hold without it.

The front end (`frontend`) is a large thing to import, and a caller that has a program already, from
a bundle or from an earlier call, does not need it.
"""

from __future__ import annotations

import functools
import math
import operator
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from ..common.errors import DelianError
from . import tree
from .complex_numbers import is_complex, opened
from .faults import Fault, Said
from .ir import Function, ListType, TensorType

Kind = Literal[
    "grad",
    "value_and_grad",
    "vjp",
    "jvp",
    "linearize",
    "jacfwd",
    "jacrev",
    "vmap",
    "checkpoint",
    "custom_vjp",
    "mixed_precision",
]


class Transform:
    """A derivative of a function, or the function over many lanes.

    `api` makes them callable outside a program.

    `extra` are the (in_axes, out_axes) of a vmap, the (forward, reverse) of a custom_vjp,
    the (dtype, None) of mixed_precision, the (every, None) of checkpoint.
    """

    __slots__ = ("argnums", "extra", "f", "has_aux", "kind")

    def __init__(
        self,
        kind: Kind,
        f: Any,
        argnums: int | tuple[int, ...] = 0,
        has_aux: bool = False,
        extra: tuple[Any, Any] = (0, 0),
    ) -> None:
        self.kind = kind
        self.f = f
        self.argnums = argnums
        self.has_aux = has_aux
        self.extra = extra


if TYPE_CHECKING:
    _AnyValue = Any  # to type checkers, `Static(3)` stands where the function takes an int
else:
    _AnyValue = object


class Static(_AnyValue):  # type: ignore[misc]
    """An argument that specialises the program: a size, a flag, a name, a function."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Static) and _alike(self.value, other.value)

    def __hash__(self) -> int:
        return hash((Static, self.value))

    def __repr__(self) -> str:
        return f"Static({self.value!r})"


def _alike(a: Any, b: Any) -> bool:
    """Equal and of one type all through: 1, 1.0 and True make different programs."""
    if isinstance(a, tuple | list):
        same = type(a) is type(b) and len(a) == len(b)
        return same and all(_alike(x, y) for x, y in zip(a, b, strict=True))
    return same_static(a, b)


#: What a single number is in Python: a set of bits, for it may be one of several.
BOOL, INT, FLOAT, SCALAR, ARRAY = 1, 2, 4, 8, 16
_PRESENT: tuple[Callable[[Any], Any], ...] = tuple(
    np.ndarray.item if k < SCALAR else np.asarray if k == ARRAY else lambda v: v[()]
    for k in range(2 * ARRAY)
)


class Seen:
    """An array, list, dict or set that a program read from outside, as it was then.

    An array that cannot be written to is not looked at again.
    """

    __slots__ = ("content", "owner")

    def __init__(self, owner: Any) -> None:
        self.owner = owner
        self.content = _content(owner)

    def current(self) -> bool:
        """Whether it is still as it was."""
        owner, was = self.owner, self.content
        if isinstance(owner, np.ndarray):
            return was is None or was == _content(owner)
        if isinstance(owner, set):
            return bool(owner == was)
        if len(owner) != len(was):
            return False
        if isinstance(owner, dict):
            keys, values = was.keys(), was.values()
            same = all(map(operator.is_, owner, keys))
            return same and all(map(operator.is_, owner.values(), values))
        return all(map(operator.is_, owner, was))


def _content(owner: Any) -> Any:
    if isinstance(owner, np.ndarray):
        if is_frozen(owner):
            return None
        return owner.dtype, owner.shape, owner.tobytes()
    return owner.copy()


def is_frozen(array: Any) -> bool:
    """Whether neither an array nor what it is a view of can be written to."""
    while isinstance(array, np.ndarray):
        if array.flags.writeable:
            return False
        array = array.base
    return array is None or (isinstance(array, bytes) or _is_read_only(array))


def _is_read_only(buffer: Any) -> bool:
    return isinstance(buffer, memoryview) and buffer.readonly


@dataclass(frozen=True, slots=True)
class Pack:
    """Leaves of nested lists that a program has as one array."""

    first: int
    """Number of the first leaf; the others follow it."""
    shape: tuple[int, ...]
    """Of the lists."""
    dtype: Any
    """Of the array, as NumPy has it."""

    @property
    def size(self) -> int:
        return math.prod(self.shape)


class Item(NamedTuple):
    """What a list, dict or object of the caller's holds in one place after a call."""

    kind: Literal["kept", "given", "known", "new"]
    of: Any
    """The key of an item that it held before; the path of what is among the arguments; a value;
    the number of a value that the program gives.
    """


class Filled(NamedTuple):
    """A list, dict or dataclass object among the arguments that the function changes."""

    path: tuple[Any, ...]
    """From the tuple of arguments, by indices, keys and attributes."""
    name: str
    keys: tuple[Any, ...]
    """Of its items after the call, in order."""
    items: tuple[Item, ...]
    gone: tuple[Any, ...]
    """Of an object, the attributes that were deleted."""
    grows: bool
    """Whether it has more items after the call."""


@dataclass(frozen=True, slots=True)
class Traced:
    """A specialised program."""

    function: Function
    """The IR; its parameters are the arguments' leaves in order, static ones left out."""
    in_structure: tree.Structure
    """Of the tuple of arguments, static leaves included."""
    out_structure: tree.Structure
    """Of the result."""
    static: frozenset[int]
    """Which leaves of the arguments are static."""
    outside: tuple[tuple[Any, str, Any], ...]
    """What was read from closures, globals and modules: (mapping or cell, name, value)."""
    kinds: tuple[int, ...] = ()
    """Of each leaf of the result, what Python would give: see `as_python`."""
    seen: tuple[Seen, ...] = ()
    """The arrays, lists, dicts and sets that were read from outside, as they were."""
    changed: tuple[int, ...] = ()
    """The parameters that the function changes in place. What they hold afterwards follows the
    function's own results, in this order.
    """
    faults: tuple[Fault, ...] = ()
    """The errors that the program may meet (`faults`)."""
    hidden: int = 0
    """How many results follow those of `changed`: of `said`, the fault code, its numbers."""
    packs: tuple[Pack, ...] = ()
    """Leaves of the arguments that are one parameter of the program."""
    packed_results: tuple[Pack, ...] = ()
    """Leaves of the result that are one result of the program."""
    said: tuple[Said, ...] = ()
    """The calls of print and loggers that Python makes once the program has run."""
    filled: tuple[Filled, ...] = ()
    """The lists, dicts and objects among the arguments that the function changes. Where there are
    any, the program's result is the tuple of the function's own and of what they hold.
    """

    def arguments(self, *args: Any) -> list[Any]:
        """The leaves that the program takes, of arguments like those that it was traced for."""
        leaves, structure = flatten(tuple(args))
        if structure != self.in_structure:
            raise DelianError(
                f"`{self.function.name}` takes arguments of another structure: {structure}",
                "pass arguments like those that it was compiled for",
            )
        return self.passed(leaves)

    def passed(self, leaves: Sequence[Any]) -> list[Any]:
        """What the program takes of the leaves of its arguments."""
        if not self.packs:
            return [v for k, v in enumerate(leaves) if k not in self.static]
        out: list[Any] = []
        packs = {p.first: p for p in self.packs}
        k = 0
        while k < len(leaves):
            if (pack := packs.get(k)) is not None:
                values = np.array(leaves[k : k + pack.size], pack.dtype)
                out.append(values.reshape(pack.shape))
                k += pack.size
                continue
            if k not in self.static:
                out.append(leaves[k])
            k += 1
        return out

    def _leaves(self, arrays: Sequence[Any], present: bool) -> list[Any]:
        """The leaves of the result; `present`: as Python has them."""
        packs = {p.first: p for p in self.packed_results}
        out: list[Any] = []
        for array in arrays[: len(arrays) - len(self.changed)]:
            kind = self.kinds[len(out)] if present else ARRAY
            if len(out) in packs:
                flat = np.asarray(array).ravel()
                out += flat.tolist() if kind < SCALAR else list(flat)
            else:
                out.append(_PRESENT[kind](np.asarray(array)))
        return out

    def checked(self, arrays: Sequence[Any]) -> Sequence[Any]:
        """The program's visible results, once Python has made the calls that the program came to.

        Raises the error that the program met, as Python does.
        """
        if not self.hidden:
            return arrays
        held, end = arrays[len(arrays) - self.hidden :], 0
        for said in self.said:
            came, *numbers = held[said.first : (end := said.first + 1 + len(said.kinds))]
            if came:
                said.call(
                    [_PRESENT[k](np.asarray(v)) for k, v in zip(said.kinds, numbers, strict=True)]
                )
        if end < self.hidden and (number := int(held[end])):
            fault, held = self.faults[number - 1], held[end + 1 :]
            error = fault.error([_PRESENT[kind](np.asarray(held[k])) for k, kind in fault.held])
            if error is not None:
                raise error
        return arrays[: len(arrays) - self.hidden]

    def result(self, arrays: Sequence[Any]) -> Any:
        """The program's results (`checked` before) as the function's result."""
        if self.packed_results:
            return tree.unflatten(self.out_structure, self._leaves(arrays, False))
        return tree.unflatten(self.out_structure, arrays[: len(arrays) - len(self.changed)])

    def as_python(self, arrays: Sequence[Any]) -> Any:
        """The program's results as the function's result: numbers where Python gives numbers.

        A leaf that is one of several kinds, as the program takes its path, is a NumPy scalar, or a
        Python number where no path gives another one.
        """
        if self.packed_results:
            return tree.unflatten(self.out_structure, self._leaves(arrays, True))
        arrays = arrays[: len(arrays) - len(self.changed)]
        if self.kinds.count(ARRAY) != len(self.kinds):
            arrays = [
                _PRESENT[k](v) for k, v in zip(self.kinds, map(np.asarray, arrays), strict=True)
            ]
        return tree.unflatten(self.out_structure, arrays)

    def current(self) -> bool:
        """Whether everything that was read from outside is still what it was.

        A name, an attribute or an item is compared by identity; an array by its bytes.
        """
        for owner, name, value in self.outside:
            if isinstance(owner, dict):  # None stands for no value too.
                if owner.get(name) is not value:
                    return False
            elif isinstance(owner, types.CellType):
                if owner.cell_contents is not value:
                    return False
            elif not same_static(getattr(owner, name, None), value):
                return False
        return all(seen.current() for seen in self.seen)


def _is_leaf(value: Any) -> bool:
    return isinstance(value, TensorType | ListType | Static)


def flatten(args: Any) -> tuple[list[Any], tree.Structure]:
    """`tree.flatten` for leaves that may be types or `Static`; a complex number is two leaves.

    Raises DelianError where the arguments are nested without end.
    """
    try:
        leaves, structure = tree.flatten(args, _is_leaf)
    except RecursionError:
        raise DelianError(
            "an argument is nested too deeply, or holds itself", "pass arrays, and shallow lists"
        ) from None
    if not any(map(is_complex, leaves)):
        return leaves, structure
    pairs = [opened(v) if is_complex(v) else v for v in leaves]
    return tree.flatten(tree.unflatten(structure, pairs), _is_leaf)


def has_own_operators(array: Any) -> bool:
    """Whether it is a subclass's array, such as a matrix, with operators other than NumPy's."""
    return isinstance(array, np.ndarray) and type(array) not in (np.ndarray, np.memmap)


def same_static(a: Any, b: Any) -> bool:
    """Whether two static leaves are one and the same for the compiler."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ndarray | np.generic):
        return bool(a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes())
    if isinstance(a, float):
        return repr(a) == repr(b)  # 0.0 and -0.0 differ, NaN and NaN do not.
    try:
        return bool(a == b)
    except (TypeError, ValueError):
        return False


def name_of(f: Any) -> str:
    """What a callable is called."""
    if isinstance(f, Transform):
        return f"{f.kind}_{name_of(f.f)}"
    if isinstance(f, functools.partial):
        return name_of(f.func)
    name: str = getattr(f, "__name__", None) or type(f).__name__
    return "lambda" if name == "<lambda>" else name
