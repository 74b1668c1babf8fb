"""Comprehensions, generator expressions and generator functions.

The items of a generator are computed when it is gone through, all of them at once. That is what
Python does where they are all asked for in one go (`list`, `sum`); elsewhere a loop may not change
what the generator reads (`iteration`), nor the generator what it has given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .. import operators, statements
from ..hir import hir, liveness
from ..values import Frame, Once
from . import iteration, unroll_limits
from .watches import Watch

if TYPE_CHECKING:
    from ..specialise import Specialiser


def comprehension(s: Specialiser, node: hir.Comprehension, frame: Frame) -> Any:
    """A list, set or dict of items that are computed one by one; of a generator, an iterator."""
    # A generator takes its first source where it stands, and runs where it is gone through.
    return of_source(s, node, frame, s.eval(node.generators[0].iterable, frame))


def of_source(s: Specialiser, node: hir.Comprehension, frame: Frame, first: Any) -> Any:
    """A comprehension whose first source is computed already."""
    inner = Frame({}, node.names, frame, frame.module, frame.cells, inner=True)
    out: list[Any] = []

    def generate(depth: int) -> None:
        if depth == len(node.generators):
            parts = [s.eval(part, inner) for part in (node.key, node.value) if part]
            out.append(tuple(parts) if node.key else parts[0])
            return
        generator = node.generators[depth]
        source = s.eval(generator.iterable, inner) if depth else first
        s.at(generator.iterable.loc)
        with unroll_limits.unrolled(s, node.loc):
            for item in iteration.live(s, source):
                unroll_limits.count(s)
                statements.assign(s, generator.target, item, inner)
                if all(s.static_condition(c, inner) for c in generator.conditions):
                    generate(depth + 1)

    def make() -> list[Any]:
        generate(0)
        return out if node.kind is list else iteration.without_names(s, out, inner)

    if node.kind is tuple:
        sources, names = iteration.sources_of(first), liveness.reads_of(node)
        made = Once(make, s.region, sources, True, (first,), frame, names)
        made.node = node
        return made
    make()
    s.at(node.loc)
    if node.kind is list:
        return s.own(out)
    what = "an item of a set" if node.key is None else "a dict's key"
    s.hashable(tuple(v if node.key is None else v[0] for v in out), what)
    return s.own(operators.python(s, lambda: node.kind(out), "a comprehension"))


#: The name in a generator's frame of what it has given.
_ITEMS = "$items"


@dataclass(frozen=True, slots=True)
class _Given:
    """Items, and what each was when it was given; region: where the generator is gone through."""

    region: object
    items: tuple[Any, ...] = ()
    watches: tuple[Watch, ...] = ()


def generator(s: Specialiser, run: Callable[[], Any], frame: Frame, reads: Sequence[Any]) -> Once:
    """The iterator that a call of a generator function gives. run: runs its body in the frame."""
    names = frame.vars

    def make() -> list[Any]:
        frame.vars = {**names, _ITEMS: _Given(s.region)}
        run()
        given: _Given = frame.vars[_ITEMS]
        for watch in given.watches:
            if what := watch.change():
                text = f"a generator changes {what} after it gave it"
                raise s.error("DL111", text, "give a copy: `yield list(values)`, `yield x.copy()`")
        return iteration.without_names(s, list(given.items), frame)

    return Once(make, s.region, computes=True, reads=tuple(reads))


def give(s: Specialiser, node: hir.Yield, frame: Frame) -> None:
    """`yield value`, `yield from value`."""
    value = s.eval(node.value, frame)
    s.at(node.loc)
    for item in iteration.items(s, value) if node.each else (value,):
        given: _Given = frame.vars[_ITEMS]
        if given.region is not s.region:
            text = "only the running program knows whether a generator comes to this `yield`"
            hint = "give every item, with a truth that says whether it counts"
            raise s.static_needed(text, hint)
        watches = (*given.watches, Watch(s, item))
        frame.vars[_ITEMS] = _Given(given.region, (*given.items, item), watches)


__all__ = ["comprehension", "generator", "give", "of_source"]
