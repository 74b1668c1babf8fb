"""Which names a branch or loop changes, and which of those anybody still wants (HIR -> HIR).

Backwards over the statements, as in any textbook: what is live before a statement is what it reads and what is live
after it, less what it surely writes. A loop carries a name only when the body assigns it and the next round, the test or
what follows reads it: a name that the body merely uses as scratch may change its type from round to round.

A name that a nested function reads is live everywhere: the function may be called at any time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from . import hir

#: Methods that change a list, dict or set; calling one on a name counts as assigning the name.
MUTATORS = frozenset(
    ("append", "extend", "insert", "pop", "remove", "clear", "update", "setdefault", "popitem")
    + ("add", "discard", "sort", "reverse")
)


def annotate(
    body: hir.Block, parameters: set[str]
) -> tuple[hir.Block, frozenset[str], frozenset[str]]:
    """The body with its branches and loops annotated, the names local to the function, those that it takes from outside."""
    walk = _Walk()
    walk.nodes(body)
    pinned = frozenset(walk.captured)
    annotated, _ = _block(body, frozenset((hir.RESULT,)) | pinned, pinned)
    assigned = frozenset(walk.assigned | parameters)
    return annotated, assigned, frozenset(walk.reads | walk.captured) - assigned


def names_of(target: Any) -> Iterator[str]:
    """The names that a target binds."""
    if isinstance(target, hir.Name):
        yield target.name
    elif isinstance(target, hir.Starred):
        yield from names_of(target.value)
    elif isinstance(target, hir.Sequence):
        for item in target.items:
            yield from names_of(item)


class _Walk:
    """Collects, over any piece of HIR: the names that it reads, assigns, and that functions defined in it read."""

    def __init__(self) -> None:
        self.reads: set[str] = set()
        self.assigned: set[str] = set()
        self.captured: set[str] = set()

    def nodes(self, node: Any) -> None:
        kind = type(node)
        if kind is hir.Name:
            self.reads.add(node.name)
        elif kind is tuple:
            for item in node:
                self.nodes(item)
        elif kind is hir.Assign:
            for target in node.targets:
                self.target(target)
            self.nodes(node.value)
        elif kind is hir.Update:
            self.nodes(node.target)
            self.target(node.target)
            self.nodes(node.value)
        elif kind is hir.For:
            self.target(node.target)
            self.nodes(node.iterable)
            self.nodes(node.body)
            self.reads.update((node.stop,) if node.stop else ())
        elif kind is hir.While:
            self.nodes(node.test)
            self.nodes(node.body)
            self.reads.update((node.stop,) if node.stop else ())
        elif kind is hir.SetFlag:
            self.assigned.add(node.name)
        elif kind is hir.FunctionDef:
            self.captured |= node.reads
            self.nodes(node.parameters.defaults)
            self.nodes(node.parameters.keyword_defaults)
        elif kind is hir.Comprehension:
            self.comprehension(node)
        elif kind.__module__ == hir.__name__:
            self.other(node)

    def other(self, node: Any) -> None:
        if isinstance(node, hir.Define | hir.Named):
            self.assigned.add(node.name)
        elif isinstance(node, hir.Call):
            function = node.function
            if isinstance(function, hir.Attribute) and function.name in MUTATORS:
                self.assigned.update(_root(function.value))
        for slot in node.__slots__:
            self.nodes(getattr(node, slot))

    def comprehension(self, node: hir.Comprehension) -> None:
        inner = _Walk()
        for part in (node.key, node.value, node.generators):
            if part is not None:
                inner.nodes(part)
        self.reads |= inner.reads - node.names
        self.assigned |= inner.assigned - node.names
        self.captured |= inner.captured - node.names

    def target(self, target: Any) -> None:
        self.assigned.update(names_of(target))
        if isinstance(target, hir.Subscript):
            self.assigned.update(_root(target))
            self.nodes(target)
        elif isinstance(target, hir.Sequence):
            for item in target.items:
                self.target(item)


def _root(node: Any) -> Iterator[str]:
    """The name at the root of `name[...][...]`."""
    while isinstance(node, hir.Subscript):
        node = node.value
    if isinstance(node, hir.Name):
        yield node.name


def _reads(*nodes: Any) -> frozenset[str]:
    walk = _Walk()
    for node in nodes:
        walk.nodes(node)
    return frozenset(walk.reads | walk.captured)


def _assigned(*nodes: Any) -> frozenset[str]:
    walk = _Walk()
    for node in nodes:
        walk.nodes(node)
    return frozenset(walk.assigned)


_Live = frozenset[str]


def _block(block: hir.Block, live: _Live, pinned: _Live) -> tuple[hir.Block, _Live]:
    out: list[hir.Statement] = []
    for statement in reversed(block):
        statement, live = _statement(statement, live, pinned)
        out.append(statement)
    return tuple(reversed(out)), live


def _statement(node: hir.Statement, live: _Live, pinned: _Live) -> tuple[hir.Statement, _Live]:
    if isinstance(node, hir.If):
        then, live_then = _block(node.then, live, pinned)
        otherwise, live_otherwise = _block(node.otherwise, live, pinned)
        names = _assigned(node.then, node.otherwise)
        changed, dead = tuple(sorted(names & live)), tuple(sorted(names - live))
        node = hir.If(node.loc, node.test, then, otherwise, changed, dead)
        return node, live_then | live_otherwise | _reads(node.test)
    if isinstance(node, hir.While):
        head = _reads(node.test) | (frozenset((node.stop,)) if node.stop else frozenset())
        body, around = _loop(node.body, head, live, pinned)
        names = _assigned(node.body, node.test)
        carried, dead = tuple(sorted(names & around)), tuple(sorted(names - around))
        return replace(node, body=body, carried=carried, dead=dead), around
    if isinstance(node, hir.For):
        head = frozenset((node.stop,)) if node.stop else frozenset()
        bound = frozenset(names_of(node.target))
        body, around = _loop(node.body, head, live, pinned, bound)
        names = _assigned(node.body) | bound
        carried, dead = tuple(sorted(names & around)), tuple(sorted(names - around))
        node = replace(node, body=body, carried=carried, dead=dead)
        return node, around | _reads(node.iterable)
    if isinstance(node, hir.Assign):
        written = frozenset(n for t in node.targets for n in names_of(t))
        stores = _reads(*(t for t in node.targets if not isinstance(t, hir.Name))) - written
        return node, (live - (written - pinned)) | _reads(node.value) | stores
    if isinstance(node, hir.SetFlag):
        return node, live - {node.name}
    if isinstance(node, hir.Define):
        return node, (live - (frozenset((node.name,)) - pinned)) | _reads(node)
    return node, live | _reads(node)


def _loop(
    body: hir.Block, head: _Live, live: _Live, pinned: _Live, bound: _Live = frozenset()
) -> tuple[hir.Block, _Live]:
    """The annotated body, and what is live at the loop's head, there being another round or none."""
    _, first = _block(body, frozenset(), pinned)
    around = live | head | (first - (bound - pinned))
    annotated, _ = _block(body, around, pinned)
    return annotated, around
