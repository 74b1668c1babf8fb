"""Which names a branch or loop changes, and which of those anybody still wants (HIR -> HIR).

Backwards over the statements, as in any textbook: what is live before a statement is what it reads
and what is live after it, less what it surely writes. A loop carries a name only when the body
assigns it and the next round, the test or what follows reads it: a name that the body merely uses
as scratch may change its type from round to round.

A name that a nested function reads is live everywhere: the function may be called at any time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from . import hir

#: Methods that change a list, dict or set; calling one on a name counts as assigning the name.
MUTATORS = frozenset(
    (
        *("append", "extend", "insert", "pop", "remove", "clear", "update", "setdefault"),
        *("popitem", "add", "discard", "sort", "reverse"),
    )
)


def annotate(
    body: hir.Block, parameters: set[str]
) -> tuple[hir.Block, frozenset[str], frozenset[str]]:
    """The body with its branches and loops annotated, the names local to the function, those that
    it takes from outside.
    """
    walk = _Walk()
    walk.nodes(body)
    assigned = frozenset(walk.assigned | parameters)
    annotator = _Annotator(frozenset(walk.captured), assigned, walk.changed | walk.updated)
    annotated, _ = annotator.block(body, frozenset((hir.RESULT,)) | annotator.pinned)
    return annotated, assigned, frozenset(walk.reads | walk.captured) - assigned


def captures(body: hir.Block) -> frozenset[str]:
    """The names that functions defined in a body read."""
    walk = _Walk()
    walk.nodes(body)
    return frozenset(walk.captured)


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
    """Collects, over any piece of HIR: the names that it reads and assigns.

    Also those whose list or dict it changes, and those that functions defined in it read.
    """

    def __init__(self) -> None:
        self.reads: set[str] = set()
        self.assigned: set[str] = set()
        self.changed: set[str] = set()
        self.captured: set[str] = set()
        #: Names that are bound otherwise than by `op=`, which may change an array in place.
        self.rebound: set[str] = set()
        self.updated: set[str] = set()

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
            if isinstance(node.target, hir.Name):
                self.updated.add(node.target.name)
                self.assigned.add(node.target.name)
            else:
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
            self.rebound.add(node.name)
        elif kind is hir.FunctionDef:
            self.captured |= node.reads
            self.nodes(node.parameters.defaults)
            self.nodes(node.parameters.keyword_defaults)
        elif kind is hir.Comprehension:
            self.comprehension(node)
        elif kind.__module__ == hir.__name__:
            self.other(node)

    def other(self, node: Any) -> None:
        if isinstance(node, hir.Define | hir.Named | hir.Import):
            self.assigned.add(node.name)
            self.rebound.add(node.name)
        elif isinstance(node, hir.Delete | hir.Enter):
            self.target(node.target)
        elif isinstance(node, hir.Call):
            function = node.function
            if isinstance(function, hir.Attribute) and function.name in MUTATORS:
                self.changed.update(_root(function.value))
        for slot in node.__slots__:
            self.nodes(getattr(node, slot))

    def comprehension(self, node: hir.Comprehension) -> None:
        inner = _Walk()
        for part in (node.key, node.value, node.generators):
            if part is not None:
                inner.nodes(part)
        self.reads |= inner.reads - node.names
        self.assigned |= inner.assigned - node.names
        self.changed |= inner.changed - node.names
        self.rebound |= inner.rebound - node.names
        self.captured |= inner.captured - node.names

    def target(self, target: Any) -> None:
        self.assigned.update(names_of(target))
        self.rebound.update(names_of(target))
        if isinstance(target, hir.Subscript):
            self.changed.update(_root(target))
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


_Live = frozenset[str]


class _Annotator:
    """Annotates one function. `pinned` names are always live; `local` names are its own."""

    def __init__(self, pinned: _Live, local: _Live, in_place: set[str]) -> None:
        self.pinned = pinned
        self.local = local
        self.in_place = in_place

    def changed(self, *nodes: Any) -> tuple[_Live, tuple[str, ...]]:
        """The names that code assigns or changes, and those of the latter kind."""
        walk = _Walk()
        for node in nodes:
            walk.nodes(node)
        stored = walk.changed & self.local
        return frozenset(walk.assigned | stored), tuple(sorted(stored))

    def block(self, block: hir.Block, live: _Live) -> tuple[hir.Block, _Live]:
        out: list[hir.Statement] = []
        for statement in reversed(block):
            statement, live = self.statement(statement, live)
            out.append(statement)
        return tuple(reversed(out)), live

    def statement(self, node: hir.Statement, live: _Live) -> tuple[hir.Statement, _Live]:
        if isinstance(node, hir.If):
            then, live_then = self.block(node.then, live)
            otherwise, live_otherwise = self.block(node.otherwise, live)
            names, stored = self.changed(node.then, node.otherwise)
            changed, dead = tuple(sorted(names & live)), tuple(sorted(names - live))
            node = hir.If(node.loc, node.test, then, otherwise, changed, dead, stored)
            return node, live_then | live_otherwise | _reads(node.test)
        if isinstance(node, hir.While | hir.For):
            return self.loop(node, live)
        if isinstance(node, hir.Assign):
            written = frozenset(n for t in node.targets for n in names_of(t)) - self.pinned
            stores = _reads(*(t for t in node.targets if not isinstance(t, hir.Name))) - written
            if isinstance(node.value, hir.Call | hir.Binary) and self.in_place & written:
                node = replace(node, changed=True)
            return node, (live - written) | _reads(node.value) | stores
        if isinstance(node, hir.SetFlag | hir.Import):
            return node, live - (frozenset((node.name,)) - self.pinned)
        if isinstance(node, hir.Define):
            return node, (live - (frozenset((node.name,)) - self.pinned)) | _reads(node)
        return node, live | _reads(node)

    def loop(self, node: hir.While | hir.For, live: _Live) -> tuple[hir.Statement, _Live]:
        """`around` is what is live at the loop's head, there being another round or none."""
        head = frozenset((node.stop,)) if node.stop else frozenset()
        if isinstance(node, hir.While):
            head, bound = head | _reads(node.test), frozenset[str]()
            names, stored = self.changed(node.body)
        else:
            bound = frozenset(names_of(node.target))
            names, stored = self.changed(node.body)
            names |= bound
        _, first = self.block(node.body, frozenset())
        around = live | head | (first - (bound - self.pinned))
        body, _ = self.block(node.body, around)
        carried, dead = tuple(sorted(names & around)), tuple(sorted(names - around))
        walk = _Walk()
        walk.nodes(node.body)
        rebound = frozenset(walk.rebound) | bound
        made = replace(node, body=body, carried=carried, dead=dead, stored=stored, rebound=rebound)
        return made, around | (_reads(node.iterable) if isinstance(node, hir.For) else frozenset())
