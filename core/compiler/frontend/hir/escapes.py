"""`break`, `continue` and `return` become flags and guarding `if`s (HIR -> HIR).

What follows a branch that always leaves is moved into the other branch, and then nothing needs a
flag:

    if c: return a          if c: $return = a
    rest; return b    ->    else: rest; $return = b

A branch that leaves only now and then sets a flag, and what follows is guarded by it:

    if c:                         if c:
        if d: break                   if d: $stop1 = True
        x                             else: x
    rest                    ->    if $stop1: pass
                                  else: rest

A loop stops when its flag is set. The guard is a real `if`, never a select between two computed
values: a select lets the NaN of the side that was not wanted into a gradient. Flags are ordinary
variables; where conditions are static they are static too and cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ....common.errors import Loc
from . import hir

RETURNED = "$returned"


@dataclass(frozen=True, slots=True)
class _Loop:
    """The flags of the loop around a statement, and the loops around that one."""

    stop: str
    skip: str
    outer: _Loop | None


def lower(block: hir.Block, end: Loc) -> tuple[hir.Block, list[hir.Block]]:
    """A function's body without escapes, assigning `hir.RESULT` on every path.

    The second part is code that was left out, since nothing reaches it: its names are still local.
    `end`: where it falls off its end.
    """
    if not _always(block):
        block = (*block, hir.Escape(end, "return", None))
    lowering = _Lowering()
    lowered = lowering.block(block, None)
    if RETURNED in lowering.tested:
        lowered = (hir.SetFlag(end, RETURNED, False), *lowered)
    return _without_idle_flags(lowered, lowering.tested), lowering.unreached


class _Lowering:
    def __init__(self) -> None:
        self.loops = 0
        self.tested: set[str] = set()
        self.unreached: list[hir.Block] = []

    def block(self, block: hir.Block, loop: _Loop | None) -> hir.Block:
        out: list[hir.Statement] = []
        for i, statement in enumerate(block):
            rest = block[i + 1 :]
            if isinstance(statement, hir.Escape):
                self.unreached.append(rest)
                return (*out, *self.escape(statement, loop))
            if isinstance(statement, hir.If):
                if _leaves(statement):
                    return (*out, *self.leaving(statement, rest, loop))
                out.append(self.branches(statement, statement.then, statement.otherwise, loop))
            elif isinstance(statement, hir.While | hir.For):
                out += self.loop(statement, loop)
                if _endless(statement):
                    self.unreached.append(rest)
                    return tuple(out)
                if rest and _contains(statement.body, ("return",)):
                    return (*out, self.guarded(statement.loc, [RETURNED], rest, loop))
            elif isinstance(statement, hir.Try):
                if rest and not statement.last and _only_else_goes_on(statement):
                    otherwise = (*statement.otherwise, *rest)
                    return (*out, self.tried(replace(statement, otherwise=otherwise), loop)[0])
                node, flags = self.tried(statement, loop)
                if flags and rest and not _always((statement,)):
                    return (*out, node, self.guarded(statement.loc, flags, rest, loop))
                out.append(node)
                if _always((statement,)):
                    self.unreached.append(rest)
                    return tuple(out)
            else:
                out.append(statement)
        return tuple(out)

    def tried(self, node: hir.Try, loop: _Loop | None) -> tuple[hir.Try, list[str]]:
        """A `try`, and the flags that it may set. Its `else` follows its body."""
        flags = _flags(node.body, loop)
        otherwise = node.otherwise
        if flags and otherwise:
            otherwise = (self.guarded(node.loc, flags, otherwise, loop),)
        else:
            otherwise = self.block(otherwise, loop)
        handlers = tuple(replace(h, body=self.block(h.body, loop)) for h in node.handlers)
        body, last = self.block(node.body, loop), self.block(node.last, loop)
        return hir.Try(node.loc, body, handlers, otherwise, last), _flags((node,), loop)

    def branches(
        self, node: hir.If, then: hir.Block, otherwise: hir.Block, loop: _Loop | None
    ) -> hir.If:
        return replace(node, then=self.block(then, loop), otherwise=self.block(otherwise, loop))

    def leaving(self, node: hir.If, rest: hir.Block, loop: _Loop | None) -> hir.Block:
        """An `if` with an escape in it, and what follows it."""
        if _always(node.then):
            return (self.branches(node, node.then, (*node.otherwise, *rest), loop),)
        if _always(node.otherwise):
            return (self.branches(node, (*node.then, *rest), node.otherwise, loop),)
        first = self.branches(node, node.then, node.otherwise, loop)
        flags = _flags((node,), loop)
        return (first, self.guarded(node.loc, flags, rest, loop)) if rest else (first,)

    def guarded(self, loc: Loc, flags: list[str], rest: hir.Block, loop: _Loop | None) -> hir.If:
        self.tested.update(flags)
        names = tuple(hir.Name(loc, f) for f in flags)
        test = names[0] if len(names) == 1 else hir.Boolean(loc, "or", names)
        return hir.If(loc, test, (), self.block(rest, loop))

    def loop(self, node: hir.While | hir.For, outer: _Loop | None) -> hir.Block:
        self.loops += 1
        loop = _Loop(f"$stop{self.loops}", f"$skip{self.loops}", outer)
        stops = _contains(node.body, ("return",)) or _contains(
            node.body, ("break",), into_loops=False
        )
        body = self.block(node.body, loop)
        if loop.skip in self.tested:
            body = (hir.SetFlag(node.loc, loop.skip, False), *body)
        if not stops:
            return (replace(node, body=body),)
        self.tested.add(loop.stop)
        return (hir.SetFlag(node.loc, loop.stop, False), replace(node, body=body, stop=loop.stop))

    def escape(self, node: hir.Escape, loop: _Loop | None) -> hir.Block:
        if node.kind == "return":
            value = hir.Constant(node.loc, None) if node.value is None else node.value
            out: list[hir.Statement] = [
                hir.Assign(node.loc, (hir.Name(node.loc, hir.RESULT),), value),
                hir.SetFlag(node.loc, RETURNED, True),
            ]
            while loop is not None:
                out.append(hir.SetFlag(node.loc, loop.stop, True))
                loop = loop.outer
            return tuple(out)
        assert loop is not None, f"{node.kind} outside a loop"
        return (hir.SetFlag(node.loc, loop.stop if node.kind == "break" else loop.skip, True),)


def _only_else_goes_on(node: hir.Try) -> bool:
    """Whether each handler leaves, so that what follows may stand in the `else`."""
    return bool(node.handlers) and all(_always(h.body) for h in node.handlers)


def _flags(block: hir.Block, loop: _Loop | None) -> list[str]:
    """The flags that say whether code was left by an escape."""
    flags = [RETURNED] if _contains(block, ("return",)) else []
    if loop is not None:
        flags += [loop.stop] if _contains(block, ("break",), into_loops=False) else []
        flags += [loop.skip] if _contains(block, ("continue",), into_loops=False) else []
    return flags


def leaves(block: hir.Block) -> bool:
    """Whether an escape leaves the code."""
    inner = _contains(block, ("break", "continue"), into_loops=False)
    return inner or _contains(block, ("return",))


def _always(block: hir.Block) -> bool:
    """Whether no path falls off the block's end."""
    for statement in block:
        if isinstance(statement, hir.Escape | hir.Raise) or _endless(statement):
            return True
        if (
            isinstance(statement, hir.If)
            and _always(statement.then)
            and _always(statement.otherwise)
        ):
            return True
        if isinstance(statement, hir.Try) and (
            _always(statement.last)
            or (
                (_always(statement.body) or _always(statement.otherwise))
                and all(_always(h.body) for h in statement.handlers)
            )
        ):
            return True
    return False


def _endless(node: hir.Statement) -> bool:
    """Whether a loop is left by `return` alone: `while True` without a `break`."""
    return (
        isinstance(node, hir.While)
        and isinstance(node.test, hir.Constant)
        and bool(node.test.value)
        and not _contains(node.body, ("break",), into_loops=False)
    )


def _leaves(node: hir.If) -> bool:
    kinds = ("return", "break", "continue")
    return (
        _contains((node,), ("return",))
        or _contains((node,), kinds, into_loops=False)
        or _always(node.then)
        or _always(node.otherwise)
    )


def _contains(block: hir.Block, kinds: tuple[str, ...], into_loops: bool = True) -> bool:
    for s in block:
        if isinstance(s, hir.Escape):
            if s.kind in kinds:
                return True
        elif isinstance(s, hir.If):
            if _contains(s.then, kinds, into_loops) or _contains(s.otherwise, kinds, into_loops):
                return True
        elif isinstance(s, hir.Try):
            if any(_contains(b, kinds, into_loops) for b in s.blocks()):
                return True
        elif isinstance(s, hir.While | hir.For) and into_loops and _contains(s.body, kinds):
            return True
    return False


def _without_idle_flags(block: hir.Block, tested: set[str]) -> hir.Block:
    """The block less the assignments to flags that nothing tests."""
    out: list[hir.Statement] = []
    for s in block:
        if isinstance(s, hir.SetFlag) and s.name not in tested:
            continue
        if isinstance(s, hir.If):
            then = _without_idle_flags(s.then, tested)
            s = replace(s, then=then, otherwise=_without_idle_flags(s.otherwise, tested))
        elif isinstance(s, hir.While | hir.For):
            s = replace(s, body=_without_idle_flags(s.body, tested))
        elif isinstance(s, hir.Try):
            s = _mapped(s, lambda b: _without_idle_flags(b, tested))
        out.append(s)
    return tuple(out)


def _mapped(node: hir.Try, change: Callable[[hir.Block], hir.Block]) -> hir.Try:
    """A `try` with other blocks."""
    handlers = tuple(replace(h, body=change(h.body)) for h in node.handlers)
    return hir.Try(node.loc, change(node.body), handlers, change(node.otherwise), change(node.last))


def marked(block: hir.Block, flag: hir.Name) -> hir.Block:
    """A loop's body that sets a flag before each `break` of that loop."""
    out: list[hir.Statement] = []
    for s in block:
        if isinstance(s, hir.Escape) and s.kind == "break":
            out.append(hir.Assign(s.loc, (flag,), hir.Constant(s.loc, True)))
        elif isinstance(s, hir.If):
            s = replace(s, then=marked(s.then, flag), otherwise=marked(s.otherwise, flag))
        elif isinstance(s, hir.Try):
            s = _mapped(s, lambda b: marked(b, flag))
        out.append(s)
    return tuple(out)
