"""Changes in place: memory with versions, and the views of it.

The IR has values and no memory. A NumPy array that may be changed is therefore a `Memory`: the IR
value that it holds at the moment, and a version that each change replaces. Every name, list entry
and view that shares the array's memory is a `Tensor` of the same `Memory`, so each of them sees a
change:

    x = np.zeros(4)          x: memory m, m.value = zeros
    v = x[1:3]               v: memory m through a lens (a window), which can get and put
    v += 1                   m.value = put(m.value, get(m.value) + 1), m has a new version
    x.sum()                  reads m.value, the new one

- A view holds a chain of lenses, each with `get(value)` and `put(value, part)`: a window, a stride,
  a reversal, a reshape, a transpose. Reading a view whose memory has a newer version computes it
  again. Whether a reshape is a view is NumPy's own answer about the strides (`layout_of`).
- An array has a memory of its own where NumPy makes a new one: the results of operators and
  functions, arrays that are made, arguments. What no rule here covers has none, and a change of it
  is refused.
- Where paths meet (`branches`, `loops`) a memory that was changed is a result of the branch or is
  carried by the loop, like a name. Changes within a region are undone when the region is left: the
  construct that built it puts the joined value in place.
- Where a name is bound to different arrays on two paths, it becomes a new array that *may be* one
  of those (`Guard`): it is an error to change it, or to read it after one of them was changed,
  while any of them is still in use.

A right-hand side is a value, so overlapping assignments (`x[1:] = x[:-1]`) are what NumPy makes of
them. Derivatives need no rule: the program stays functional.
"""

from __future__ import annotations

import gc
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING, Any
from weakref import ref

import numpy as np

from ....common.errors import ProgramError
from ...ir import TensorType, Value
from ...traced import ARRAY
from ..values import Tensor, describe
from .views_of_arrays import Lens, Reshape

if TYPE_CHECKING:
    from ..scope import Scope
    from ..specialise import Specialiser


#: Numbers arrays and changes in the order in which they are made.
_serial = count(1)


class Memory:
    """What one array of the running program holds.

    Attributes:
        value: what it holds now.
        version: another one after each change; it is kept in `clock`, which outlives the memory.
        scope: where `value` was computed.
        born: when the array was made, to distinguish a region's arrays from those around it.
        guard: other arrays that it may be, or None.
        argument: the parameter's name, for an array that the caller passed.
        fixed: why it cannot be changed, or "".
        row_major: its elements are known to lie in row-major order.
    """

    __slots__ = (
        "__weakref__",
        "argument",
        "born",
        "clock",
        "fixed",
        "guard",
        "row_major",
        "s",
        "scope",
        "value",
    )

    def __init__(self, s: Specialiser, value: Value, born: int, row_major: bool) -> None:
        self.s = s
        self.value = value
        self.clock = [born]
        self.scope: Scope = s.scope
        self.born = born
        self.guard: Guard | None = None
        self.argument = ""
        self.fixed = ""
        self.row_major = row_major

    @property
    def version(self) -> int:
        return self.clock[0]

    @version.setter
    def version(self, version: int) -> None:
        self.clock[0] = version

    def read(self, x: Tensor) -> Value:
        """The value of a tensor that lies in this memory."""
        if self.guard is not None:
            self.guard.check()
        if not x.lenses:
            return self.value
        if x.seen == self.version:
            return x.held
        value = self.value
        for lens in x.lenses:
            value = lens.get(self.s, value)
        if self.s.scope is self.scope:  # Elsewhere it would be a value of that region alone.
            x.held, x.seen = value, self.version
        return value


class Guard:
    """Arrays that a joined one may share its memory with, and their versions when it was made.

    Attributes:
        strides: those that it may have as a view of one of them, by `born`; None: not known.
        born: of its own array. direct: of those that a path has, which may be others in turn.
        kin: of other joined arrays, made before, that it may be one with: they may both be one
            that is not in use any more.
    """

    __slots__ = ("born", "clocks", "direct", "kin", "s", "shared", "sources", "strides")

    def __init__(
        self,
        own: Memory,
        memories: Iterable[Memory],
        shared: bool = False,
        strides: Mapping[int, set[tuple[int, ...]]] | None = None,
    ) -> None:
        self.s = own.s
        self.born = own.born
        self.direct: frozenset[int] = frozenset()
        self.kin: frozenset[int] = frozenset()
        own.guard = self
        own.s.guards.append(ref(own))
        self.strides = strides
        kept = list(memories)
        self.sources = {m.born: ref(m) for m in kept}
        clocks = [m.clock for m in kept]
        #: An array that is gone by now may have been changed before.
        self.clocks = [(clock, clock[0]) for clock in clocks]
        self.shared = shared

    def alone(self) -> bool:
        """Whether the joined array may be changed.

        It may where it shares its memory with none that is still in use.
        """
        if not self.shared and self._is_one():
            gc.collect()  # A cycle of references must not decide what compiles.
        return not self.shared and not self._is_one()

    def _is_one(self) -> bool:
        """Whether it may be one with an array that is in use."""
        return any(self.live()) or any(self.born in other.kin for other in guards(self.s))

    def live(self) -> Iterator[Memory]:
        for found in self.sources.values():
            memory = found()
            if memory is not None:
                yield memory

    def check(self) -> None:
        """Raises when the array may have been changed by another name."""
        if any(clock[0] != version for clock, version in self.clocks):
            raise self.s.error(
                "DL111",
                "this array may be one that was changed in place since: only the running program"
                " knows which array its name was bound to",
                "copy it where the name is bound: x.copy()",
            )


# Arrays and views


def fresh(s: Specialiser, value: Value, row_major: bool = False) -> Tensor:
    """An array with memory of its own; the `Memory` is made when something needs it."""
    made = Tensor(value, kind=ARRAY)
    made.own = next(_serial) if not row_major else -next(_serial)
    return made


def is_array(x: Tensor) -> bool:
    """Whether it can be changed in place: an array that has a memory, and not a number."""
    return x.memory is not None or x.own != 0


def memory_of(s: Specialiser, x: Tensor) -> Memory | None:
    """The memory that a tensor lies in; None where it is a number or not known."""
    if x.memory is None and x.own:
        x.memory = Memory(s, x.held, abs(x.own), x.own < 0)
        x.memory.scope = _NOWHERE  # Its views are computed again in each scope but this.
    return x.memory


#: The scope of a memory that was not changed yet: any, so nothing is held back.
_NOWHERE: Any = object()


def view(s: Specialiser, x: Tensor, value: Value, lenses: Sequence[Lens]) -> Tensor:
    """`value`, which these lenses get from a tensor, as a view of that tensor."""
    if x.value is value and x.value.shape == value.shape and not lenses:
        return x
    made = Tensor(value, kind=x.kind)
    memory = memory_of(s, x)
    if memory is not None:
        made.memory, made.lenses, made.seen = memory, (*x.lenses, *lenses), memory.version
    return made


def alias(s: Specialiser, x: Tensor) -> Tensor:
    """Another tensor object for the same memory."""
    return view(s, x, x.value, ())


def reshaped(s: Specialiser, x: Tensor, value: Value, contiguous: bool = False) -> Tensor:
    """A reshape as NumPy makes it: a view where the strides allow it, else a copy.

    Where the memory layout is not known, it is an array that may be either.

    `contiguous`: it is a view of contiguous memory alone (`ravel`).
    """
    if value.shape == x.shape and not (contiguous and len(x.shape) == 1):
        return view(s, x, value, ())
    memory = memory_of(s, x)
    if memory is None:
        return Tensor(value, kind=x.kind)
    lens = Reshape(value.shape)
    sure = memory.row_major or len(memory.value.shape) < 2
    if not sure and not contiguous and _moves_ones_alone(x.shape, value.shape):
        return view(s, x, value, (lens,))
    if not sure or (contiguous and memory.argument and not memory.row_major):
        return guarded(s, value, [x])
    layout = layout_of(memory, x.lenses)
    try:
        made = lens.of(layout)
    except AttributeError:
        return fresh(s, value, row_major=True)
    if contiguous and not layout.flags.c_contiguous:
        return fresh(s, value, row_major=True)
    del made
    return view(s, x, value, (lens,))


def _moves_ones_alone(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    return [n for n in a if n != 1] == [n for n in b if n != 1]


def layout_of(memory: Memory, lenses: Sequence[Lens]) -> Any:
    """An array of NumPy's with the strides of a view. Its elements are never looked at."""
    shape = memory.value.shape
    strides: list[int] = []
    step = 1
    for n in reversed(shape):
        strides.insert(0, step)
        step *= max(n, 1)
    byte = np.zeros(1, np.uint8)
    layout = np.lib.stride_tricks.as_strided(byte, shape, strides)
    for lens in lenses:
        layout = lens.of(layout)
    return layout


def guarded(s: Specialiser, value: Value, others: Iterable[Any]) -> Tensor:
    """An array that may share memory with some tensors.

    It is not changed, and is not read once one of them was.
    """
    memories = [m for o in others if type(o) is Tensor and (m := memory_of(s, o)) is not None]
    made = Tensor(value, kind=ARRAY)
    if memories:
        made.memory = elsewhere(s, value)
        guard = Guard(made.memory, sources_of(memories), shared=True)
        guard.direct = frozenset(m.born for m in memories)
        guard.kin = kin(s, guard.direct, made.memory.born)
    return made


def elsewhere(s: Specialiser, value: Value) -> Memory:
    """The memory of an array that may be one of others."""
    memory = Memory(s, value, next(_serial), False)
    memory.scope = _NOWHERE
    return memory


def guards(s: Specialiser) -> list[Guard]:
    """Those of the joined arrays that are in use."""
    found = [(r, m) for r in s.guards if (m := r()) is not None]
    s.guards = [r for r, _ in found]
    return [m.guard for _, m in found if m.guard is not None]


def kin(s: Specialiser, direct: Collection[int], before: int | None = None) -> frozenset[int]:
    """The joined arrays, made before, that may be one of some arrays, all by `born`."""
    return frozenset(
        g.born for g in guards(s) if g.direct & set(direct) and (before is None or g.born < before)
    )


def sources_of(memories: Iterable[Memory]) -> list[Memory]:
    """Memories and those that they may be themselves."""
    out: list[Memory] = []
    for memory in memories:
        out.append(memory)
        if memory.guard is not None:
            out += memory.guard.live()
    return out


# Changes


def put(s: Specialiser, x: Tensor, new: Value) -> None:
    """Changes what a tensor holds, and with it what all that share its memory see."""
    memory = changeable(s, x)
    wholes = [memory.value]
    for lens in x.lenses[:-1]:
        wholes.append(lens.get(s, wholes[-1]))
    for lens, whole in zip(reversed(x.lenses), reversed(wholes), strict=x.lenses != ()):
        new = lens.put(s, whole, new)
    if s.faults is not None and s.faults.pending():
        new = s.faults.kept(new, memory.value)
    set_value(s, memory, new)


def changeable(s: Specialiser, x: Tensor) -> Memory:
    """The memory of a tensor that is about to be changed; refuses where it cannot be."""
    memory = memory_of(s, x)
    if memory is None or x.kind != ARRAY:
        raise s.error("DL111", *_immutable(x))
    if memory.guard is not None:
        memory.guard.check()
        if not memory.guard.alone():
            raise s.error(
                "DL111",
                f"this array ({describe(x)}) may be one of several, and only the running program"
                " knows which of them a change in place would change",
                "copy it first: x = x.copy()",
            )
    if memory.fixed:
        raise s.error("DL111", memory.fixed, "copy it first: x = x.copy()")
    return memory


def _immutable(x: Tensor) -> tuple[str, str]:
    if x.kind != ARRAY:
        if x.kind & ARRAY:
            return (
                f"this ({describe(x)}) may be an array or a number, and only an array is changed in"
                " place",
                "make it one of them on each path: np.array(x), or float(x)",
            )
        return (
            f"a number ({describe(x)}) cannot be changed in place",
            "NumPy's numbers are not arrays: assign a new one to the name",
        )
    return (
        f"this array ({describe(x)}) cannot be changed in place: it came from outside the function,"
        " or only the running program knows whose memory it is",
        "copy it first: x = x.copy(), or choose with np.where(mask, new, old)",
    )


def set_value(s: Specialiser, memory: Memory, value: Value) -> None:
    """Puts a new value in a memory; the log can undo it."""
    s.changes.append((ref(memory), memory.value, memory.version, memory.scope))
    memory.value, memory.version, memory.scope = value, next(_serial), s.scope


def changed_since(s: Specialiser, at: tuple[int, int]) -> bool:
    """Whether an array that was made before `mark` has been changed since, and is still in use."""
    place, born = at
    hidden = () if s.faults is None else s.faults.unseen
    memories = (found() for found, *_ in s.changes[place:])
    return any(m is not None and m.born <= born and m not in hidden for m in memories)


#: What regions changed: a memory and its (value, version, scope) at the region's end.
Changed = dict[Memory, tuple[Value, int, Any]]


def mark(s: Specialiser) -> tuple[int, int]:
    """Where a region begins: in the log, and among the arrays."""
    return len(s.changes), next(_serial)


def undo(s: Specialiser, at: tuple[int, int]) -> Changed:
    """Undoes what was changed since of the arrays made before; gives what those held last."""
    place, born = at
    changed: Changed = {}
    for found, value, version, scope in reversed(s.changes[place:]):
        memory = found()
        if memory is None or memory.born > born:
            continue
        if memory not in changed:
            changed[memory] = memory.value, memory.version, memory.scope
        memory.value, memory.version, memory.scope = value, version, scope
    del s.changes[place:]
    return dict(sorted(changed.items(), key=lambda item: item[0].born))


@contextmanager
def replayed(changed: Changed) -> Iterator[None]:
    """Within a region that was left: its changes as they were at its end."""
    before = {m: (m.value, m.version, m.scope) for m in changed}
    for memory, state in changed.items():
        memory.value, memory.version, memory.scope = state
    try:
        yield
    finally:
        for memory, state in before.items():
            memory.value, memory.version, memory.scope = state


def refuse_changes(s: Specialiser, changed: Changed) -> ProgramError:
    """The error of a region that cannot give back an array that it changed."""
    memory = next(iter(changed))
    return s.error(
        "DL111",
        f"an array ({memory.value.type}) from outside is changed in place within a derivative, a"
        " vmap, the test of a loop or a function of its own",
        "copy it there (x = x.copy()) and return it",
    )


def all_changed(regions: Iterable[Changed]) -> list[Memory]:
    """The arrays that any of some regions changed, in the order in which they were made."""
    found = {m: None for changed in regions for m in changed}
    return sorted(found, key=lambda m: m.born)


def type_of(memory: Memory) -> TensorType:
    """The type of the whole array in a memory, of which tensors may be views."""
    return memory.value.tensor


def plain(x: Tensor) -> Tensor:
    """A tensor's present value, without its memory: for operations on it."""
    return x.like(x.value)


def check_overlap(s: Specialiser, target: Tensor, value: Any) -> None:
    """Refuses what NumPy copies without a buffer.

    That is a vector into another of the same memory with a stride of its own, where the result
    depends on the order.
    """
    vectors = type(value) is Tensor and len(target.shape) == len(value.shape) == 1
    if not vectors or value.type.size < 2 or not (is_array(value) and is_array(target)):
        return
    memory, other = memory_of(s, target), memory_of(s, value)
    if memory is None or other is None or memory not in sources_of([other]):
        return
    own = layout_of(memory, target.lenses).strides
    theirs: Iterable[tuple[int, ...]] | None = None
    if memory is other:
        theirs = [layout_of(memory, value.lenses).strides]
    elif other.guard is not None and other.guard.strides is not None and not value.lenses:
        theirs = other.guard.strides.get(memory.born)
    if theirs is not None and all(own == t or own[0] * t[0] < 0 for t in theirs):
        return
    raise s.error(
        "DL111",
        "NumPy's result of this assignment within one array depends on the order of its elements",
        "copy what is assigned: x[::2] = x[:3].copy()",
    )
