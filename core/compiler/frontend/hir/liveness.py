"""Which names a branch or loop changes, and which of those are read later (HIR -> HIR).

Backwards over the statements, as in any textbook: what is live before a statement is what it reads
and what is live after it, less what it surely writes. A loop carries a name only when the body
assigns it and the next round, the test or what follows reads it: a name that the body merely uses
as scratch may change its type from round to round.

A name that a nested function reads is live everywhere: the function may be called at any time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, is_dataclass, replace
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
    body: hir.Block,
    parameters: set[str],
    unreached: Iterable[hir.Block] = (),
    all_live: bool = False,
) -> tuple[hir.Block, frozenset[str], frozenset[str]]:
    """The annotated body, the names local to the function, the names that it takes from outside.

    Branches and loops of the body are annotated. unreached: more code of the function, which binds
    names too. all_live: all names of the body are read after it, as those of a class are.
    """
    dead = _Walk({})
    dead.nodes(tuple(unreached))
    annotator = _Annotator(body, parameters | dead.assigned)
    if all_live:
        annotator.pinned |= annotator.local
    annotated = annotator.block(body, frozenset((hir.RESULT,)) | annotator.pinned)
    return annotated, annotator.local, annotator.outside


def captures(body: hir.Block) -> frozenset[str]:
    """The names that functions defined in a body read."""
    walk = _Walk({})
    walk.nodes(body)
    return frozenset(walk.captured)


def reads_of(node: Any) -> frozenset[str]:
    """The names that a piece of code reads, those that functions in it read among them."""
    found = _Walk({}).of(node)
    return frozenset(found.reads | found.captured)


def names_of(target: Any) -> Iterator[str]:
    """The names that a target binds."""
    if isinstance(target, hir.Name):
        yield target.name
    elif isinstance(target, hir.Starred):
        yield from names_of(target.value)
    elif isinstance(target, hir.Sequence):
        for item in target.items:
            yield from names_of(item)


def computed_of(target: hir.Target) -> tuple[hir.Expr, ...]:
    """What is computed of a place that nothing is stored in."""
    if isinstance(target, hir.Subscript):
        return target.value, target.index
    return (target.value,) if isinstance(target, hir.Attribute) else ()


class _Walk:
    """Collects, over any piece of HIR: the names that it reads and assigns.

    Also those whose list or dict it changes, and those that functions defined in it read. `known`
    holds, by identity, what pieces within it have been found to do.
    """

    def __init__(self, known: dict[int, _Walk]) -> None:
        self.known = known
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
        elif kind in _PARTS:
            own = _OWN.get(kind)
            if own is not None:
                own(self, node)
            look = self.part if kind in _ASKED else self.nodes
            for slot in _PARTS[kind]:
                look(getattr(node, slot))

    def part(self, node: Any) -> None:
        """A piece of code that is asked about by itself too."""
        self.add(self.of(node))

    def of(self, node: Any) -> _Walk:
        """What a piece of code does; it is gone through once."""
        found = self.known.get(id(node))
        if found is None:
            found = self.known[id(node)] = _Walk(self.known)
            found.nodes(node)
        return found

    def add(self, other: _Walk) -> None:
        """What another one has collected too."""
        self.reads |= other.reads
        self.assigned |= other.assigned
        self.changed |= other.changed
        self.captured |= other.captured
        self.rebound |= other.rebound
        self.updated |= other.updated

    def assign(self, node: hir.Assign) -> None:
        for target in node.targets:
            self.target(target)

    def update(self, node: hir.Update) -> None:
        self.nodes(node.target)
        if isinstance(node.target, hir.Name):
            self.updated.add(node.target.name)
            self.assigned.add(node.target.name)
        else:
            self.target(node.target)

    def loop(self, node: hir.For | hir.While) -> None:
        self.reads.update((node.stop,) if node.stop else ())
        if isinstance(node, hir.For):
            self.target(node.target)

    def binding(
        self, node: hir.SetFlag | hir.Define | hir.DefineClass | hir.Named | hir.Import
    ) -> None:
        self.assigned.add(node.name)
        self.rebound.add(node.name)

    def handler(self, node: hir.Handler) -> None:
        if node.name is not None:
            self.assigned.add(node.name)
            self.rebound.add(node.name)

    def placed(self, node: hir.Delete | hir.Enter) -> None:
        self.target(node.target)

    def call(self, node: hir.Call) -> None:
        function = node.function
        if isinstance(function, hir.Attribute) and function.name in MUTATORS:
            self.changed.update(_root(function.value))

    def function(self, node: hir.FunctionDef) -> None:
        self.captured |= node.reads
        self.nodes(node.parameters.defaults)
        self.nodes(node.parameters.keyword_defaults)

    def comprehension(self, node: hir.Comprehension) -> None:
        self.nodes(node.generators[0].iterable)  # It is computed around the comprehension.
        inner = _Walk(self.known)
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
        elif isinstance(target, hir.Attribute):
            self.nodes(target)
        elif isinstance(target, hir.Sequence):
            for item in target.items:
                self.target(item)


#: What has parts that are asked about by themselves.
_ASKED = (hir.If, hir.While, hir.For, hir.Assign)
#: What a kind of node adds by itself.
_OWN: dict[type, Callable[[_Walk, Any], None]] = {
    hir.Assign: _Walk.assign,
    hir.Update: _Walk.update,
    hir.For: _Walk.loop,
    hir.While: _Walk.loop,
    hir.SetFlag: _Walk.binding,
    hir.Define: _Walk.binding,
    hir.DefineClass: _Walk.binding,
    hir.Named: _Walk.binding,
    hir.Import: _Walk.binding,
    hir.Handler: _Walk.handler,
    hir.Delete: _Walk.placed,
    hir.Enter: _Walk.placed,
    hir.Call: _Walk.call,
    hir.FunctionDef: _Walk.function,
    hir.Comprehension: _Walk.comprehension,
}
#: The slots of a kind of node that hold others and are looked through.
_SELDOM = {
    hir.Assign: ("value",),
    hir.Update: ("value",),
    hir.For: ("iterable", "body"),
    hir.Reduction: ("call",),
}
_NONE = (hir.FunctionDef, hir.Comprehension, hir.SetFlag, hir.Import, hir.Refused, hir.Constant)
_PLAIN = frozenset(
    (
        *("loc", "name", "changed", "dead", "stored", "carried", "rebound"),
        *("op", "ops", "kind", "each", "path", "doc", "text"),
    )
)


def _parts(kind: type) -> tuple[str, ...]:
    if kind in _NONE:
        return ()
    found = _SELDOM.get(kind)
    return found or tuple(f.name for f in fields(kind) if f.name not in _PLAIN)


_PARTS: dict[type, tuple[str, ...]] = {
    kind: _parts(kind)
    for kind in vars(hir).values()
    if isinstance(kind, type) and is_dataclass(kind) and kind is not hir.Name
}


def _root(node: Any) -> Iterator[str]:
    """The name at the root of `name[...][...]`."""
    while isinstance(node, hir.Subscript):
        node = node.value
    if isinstance(node, hir.Name):
        yield node.name


_Live = frozenset[str]


class _Annotator:
    """Annotates one function. `pinned` names are always live; `local` names are its own."""

    def __init__(self, body: hir.Block, parameters: set[str]) -> None:
        self.walk = walk = _Walk({})
        walk.nodes(body)
        self.pinned: _Live = frozenset(walk.captured)
        self.local: _Live = frozenset(walk.assigned | parameters)
        self.outside = frozenset(walk.reads | walk.captured) - self.local
        if "locals" in self.outside:  # It reads them all.
            self.pinned |= self.local
        self.in_place = walk.changed | walk.updated

    def reads(self, node: Any) -> _Live:
        walk = self.walk.of(node)
        return frozenset(walk.reads | walk.captured)

    def changed(self, *blocks: hir.Block) -> tuple[_Live, tuple[str, ...]]:
        """The names that code assigns or changes, and those of the latter kind."""
        walks = [self.walk.of(block) for block in blocks]
        stored = frozenset(n for walk in walks for n in walk.changed) & self.local
        return stored.union(*(walk.assigned for walk in walks)), tuple(sorted(stored))

    # What is live before a piece of code, where some names are live after it.

    def before_all(self, block: hir.Block, live: _Live) -> _Live:
        for statement in reversed(block):
            live = self.before(statement, live)
        return live

    def before(self, node: hir.Statement, live: _Live) -> _Live:
        if isinstance(node, hir.If):
            then = self.before_all(node.then, live)
            return then | self.before_all(node.otherwise, live) | self.reads(node.test)
        if isinstance(node, hir.While):
            return self.around(node, live)
        if isinstance(node, hir.For):
            return self.around(node, live) | self.reads(node.iterable)
        if isinstance(node, hir.Assign):
            written = self.written(node)
            places = (t for t in node.targets if not isinstance(t, hir.Name))
            stores = frozenset(n for t in places for n in self.reads(t)) - written
            return (live - written) | self.reads(node.value) | stores
        if isinstance(node, hir.SetFlag | hir.Import | hir.Define | hir.DefineClass):
            live -= frozenset((node.name,)) - self.pinned
            defines = isinstance(node, hir.Define | hir.DefineClass)
            return live | self.reads(node) if defines else live
        return live | self.reads(node)

    def around(self, node: hir.While | hir.For, live: _Live) -> _Live:
        """What is live at a loop's head, there being another round or none."""
        head = frozenset((node.stop,)) if node.stop else frozenset[str]()
        if isinstance(node, hir.While):
            head |= self.reads(node.test)
        bound = frozenset(names_of(node.target)) if isinstance(node, hir.For) else frozenset()
        first = self.before_all(node.body, frozenset())
        return live | head | (first - (bound - self.pinned))

    def written(self, node: hir.Assign) -> _Live:
        return frozenset(n for t in node.targets for n in names_of(t)) - self.pinned

    # The same code with its branches and loops annotated.

    def block(self, block: hir.Block, live: _Live) -> hir.Block:
        out: list[hir.Statement] = []
        for statement in reversed(block):
            out.append(self.statement(statement, live))
            live = self.before(statement, live)
        return tuple(reversed(out))

    def statement(self, node: hir.Statement, live: _Live) -> hir.Statement:
        if isinstance(node, hir.If):
            then, otherwise = self.block(node.then, live), self.block(node.otherwise, live)
            names, stored = self.changed(node.then, node.otherwise)
            changed, dead = tuple(sorted(names & live)), tuple(sorted(names - live))
            return hir.If(node.loc, node.test, then, otherwise, changed, dead, stored)
        if isinstance(node, hir.While | hir.For):
            return self.loop(node, self.around(node, live))
        if isinstance(node, hir.Try):
            live |= self.reads(node)  # An error may come at any place of it.
            handlers = tuple(replace(h, body=self.block(h.body, live)) for h in node.handlers)
            body, *_, otherwise, last = (self.block(b, live) for b in node.blocks())
            return hir.Try(node.loc, body, handlers, otherwise, last)
        if isinstance(node, hir.Assign) and isinstance(node.value, hir.Call | hir.Binary):
            kept = any(isinstance(t, hir.Attribute) for t in node.targets)
            return (
                replace(node, changed=True) if kept or self.in_place & self.written(node) else node
            )
        return node

    def loop(self, node: hir.While | hir.For, around: _Live) -> hir.Statement:
        bound = frozenset(names_of(node.target)) if isinstance(node, hir.For) else frozenset()
        names, stored = self.changed(node.body)
        names |= bound
        return replace(
            node,
            body=self.block(node.body, around),
            carried=tuple(sorted(names & around)),
            dead=tuple(sorted(names - around)),
            stored=stored,
            rebound=frozenset(self.walk.of(node.body).rebound) | bound,
        )
