"""Views of an array: a part of it, or an order of its elements, to be read and to be written.

A lens has `get(whole)`, what the view holds, and `put(whole, part)`, the whole with another part in
its place (Foster et al., "Combinators for bidirectional tree transformations", 2007). A view of an
array is a chain of them (`stores`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ...ir import DType, Value

if TYPE_CHECKING:
    from ..specialise import Specialiser


class Lens(Protocol):
    """A part of an array, or an order of its elements: `get` reads it and `put` writes it."""

    def get(self, s: Specialiser, whole: Value) -> Value: ...

    def put(self, s: Specialiser, whole: Value, part: Value) -> Value: ...

    def of(self, layout: Any) -> Any:
        """The same view of an array of NumPy's with the memory layout in question."""


@dataclass(frozen=True, slots=True)
class Window:
    """A window: along each axis `sizes` elements from a start, known or of the program."""

    starts: tuple[int | Value, ...]
    sizes: tuple[int, ...]

    def get(self, s: Specialiser, whole: Value) -> Value:
        if all(type(a) is int for a in self.starts):
            stop = tuple(a + n for a, n in zip(self.starts, self.sizes, strict=True))  # type: ignore[operator]
            return s.emit("slice", whole, start=self.starts, stop=stop, step=(1,) * len(stop))
        return s.emit("dynamic_slice", whole, *self.places(s), sizes=self.sizes)

    def put(self, s: Specialiser, whole: Value, part: Value) -> Value:
        if self.sizes == whole.shape:
            return part
        if 0 in self.sizes:
            return whole
        return s.emit("dynamic_update", whole, part, *self.places(s))

    def places(self, s: Specialiser) -> list[Value]:
        return [s.scope.number(a, DType.I64) if type(a) is int else a for a in self.starts]  # type: ignore[misc]

    def of(self, layout: Any) -> Any:
        pairs = zip(self.starts, self.sizes, strict=True)
        starts = [(a if type(a) is int else 0, n) for a, n in pairs]
        return layout[tuple(slice(a, a + n) for a, n in starts)]


@dataclass(frozen=True, slots=True)
class Stride:
    """Every `step`-th element along each axis, forward."""

    start: tuple[int, ...]
    stop: tuple[int, ...]
    step: tuple[int, ...]

    def get(self, s: Specialiser, whole: Value) -> Value:
        return s.emit("slice", whole, start=self.start, stop=self.stop, step=self.step)

    def put(self, s: Specialiser, whole: Value, part: Value) -> Value:
        if 0 in part.shape:
            return whole
        rows = list(zip(self.start, self.step, part.shape, whole.shape, strict=True))
        last = [a + (n - 1) * k for a, k, n, _ in rows]
        spread = s.emit(
            "pad",
            part,
            s.scope.number(0, part.dtype),
            low=self.start,
            high=tuple(size - 1 - end for end, (*_, size) in zip(last, rows, strict=True)),
            interior=tuple(k - 1 for k in self.step),
        )
        mask: Value | None = None
        for axis, (a, k, n, size) in enumerate(rows):
            if (a, k, n) == (0, 1, size):
                continue
            hit = np.zeros(size, np.bool_)
            hit[a : a + (n - 1) * k + 1 : k] = True
            row = s.emit("constant", value=_frozen(hit))
            row = s.emit("broadcast", row, shape=whole.shape, dims=(axis,))
            mask = row if mask is None else s.emit("and", mask, row)
        return part if mask is None else s.emit("select", mask, spread, whole)

    def of(self, layout: Any) -> Any:
        return layout[tuple(map(slice, self.start, self.stop, self.step))]


def _frozen(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    array.setflags(write=False)
    return array


@dataclass(frozen=True, slots=True)
class Reverse:
    """Some axes from their ends."""

    axes: tuple[int, ...]

    def get(self, s: Specialiser, whole: Value) -> Value:
        return s.emit("reverse", whole, axes=self.axes)

    def put(self, s: Specialiser, whole: Value, part: Value) -> Value:
        return self.get(s, part)

    def of(self, layout: Any) -> Any:
        return np.flip(layout, self.axes)


@dataclass(frozen=True, slots=True)
class Reshape:
    """The same elements in another shape."""

    shape: tuple[int, ...]

    def get(self, s: Specialiser, whole: Value) -> Value:
        return s.emit("reshape", whole, shape=self.shape)

    def put(self, s: Specialiser, whole: Value, part: Value) -> Value:
        return s.emit("reshape", part, shape=whole.shape)

    def of(self, layout: Any) -> Any:
        made = layout.view()
        made.shape = self.shape  # Raises where NumPy would have to copy.
        return made


@dataclass(frozen=True, slots=True)
class Transpose:
    """The axes in another order."""

    perm: tuple[int, ...]

    def get(self, s: Specialiser, whole: Value) -> Value:
        return s.emit("transpose", whole, perm=self.perm)

    def put(self, s: Specialiser, whole: Value, part: Value) -> Value:
        back = sorted(range(len(self.perm)), key=lambda k: self.perm[k])
        return s.emit("transpose", part, perm=tuple(back))

    def of(self, layout: Any) -> Any:
        return layout.transpose(self.perm)
