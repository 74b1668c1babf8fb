"""Branches over abstract values.

A condition that is known is taken as Python would. One that belongs to the running program makes an
`if`: each path is specialised in a scope of its own, what the paths leave behind is joined
(`joins`), and the scopes are closed (`scope.close`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from .. import tree
from ..errors import Loc
from ..ir import DType, Value
from . import arithmetic, hir, joins, operators, statements
from .joins import Slot
from .scope import Scope, close, free_values, union
from .values import Frame, Tensor, Unbound, is_number

if TYPE_CHECKING:
    from .specialise import Specialiser


Run = Callable[[], Any]


def run_if(s: Specialiser, node: hir.If, frame: Frame) -> None:
    test = s.eval(node.test, frame)
    s.at(node.test.loc)
    truth = operators.condition(s, test)
    if isinstance(truth, bool):
        statements.run(s, node.then if truth else node.otherwise, frame)
        return

    def then() -> None:
        statements.run(s, node.then, frame)

    def otherwise() -> None:
        statements.run(s, node.otherwise, frame)

    branch(s, truth, (then, otherwise), frame, node)


def branch(
    s: Specialiser,
    test: Value,
    runs: Sequence[Callable[[], None]],
    frame: Frame,
    node: hir.If | hir.For,
) -> None:
    """Both paths of a statement, and the names afterwards."""
    names = node.changed if isinstance(node, hir.If) else node.carried
    before = frame.vars
    scopes: list[Scope] = []
    ends: list[dict[str, Any]] = []
    for run in runs:
        with s.inside(s.new_scope()) as scope:
            frame.vars = dict(before)
            joins.localise(s, frame.vars, node.stored)
            run()
        scopes.append(scope)
        ends.append(frame.vars)
    frame.vars = before
    s.at(node.loc)
    where = _paths(node)
    join = _Join(s, scopes)
    after = {}
    for name in names:
        a, b = (end.get(name, _ABSENT) for end in ends)
        after[name] = join.name(name, a, b, where(name))
    results = join.emit(test)
    for name, value in after.items():
        if value is not _ABSENT:
            frame.vars[name] = value(results) if type(value) is _Later else value


def _paths(node: hir.If | hir.For) -> Callable[[str], tuple[str, str]]:
    """Words for the two paths that leave a name."""
    blocks = (node.then, node.otherwise) if isinstance(node, hir.If) else ((), node.body)

    def where(name: str) -> tuple[str, str]:
        words = []
        for block, path in zip(blocks, ("on one path", "on the other"), strict=True):
            loc = joins.assigned_at(block, name)
            words.append(f"{path} (line {loc.line})" if loc else f"{path} (as before)")
        return words[0], words[1]

    return where


class _Absent:
    """No value on either path."""


_ABSENT = _Absent()


class _Later:
    """A value to be built once the operation's results are there."""

    __slots__ = ("build",)

    def __init__(self, build: Callable[[Sequence[Value]], Any]) -> None:
        self.build = build

    def __call__(self, results: Sequence[Value]) -> Any:
        return self.build(results)


class _Join:
    """Joins values of two scopes and emits the `if`."""

    def __init__(self, s: Specialiser, scopes: Sequence[Scope]) -> None:
        self.s = s
        self.scopes = scopes
        self.results: tuple[list[Value], list[Value]] = ([], [])
        self.slots: list[Slot] = []

    def name(self, name: str, a: Any, b: Any, where: tuple[str, str]) -> Any:
        """What a name is afterwards: a value, a `_Later`, or an Unbound that says why not."""
        missing = [v is _ABSENT or type(v) is Unbound for v in (a, b)]
        if all(missing):
            return b if a is _ABSENT else a
        if any(missing):
            if name.startswith("$"):
                return self.placeholder(b if missing[0] else a, 1 if missing[0] else 0)
            for value in (a, b):
                if type(value) is Unbound:
                    return value
            line = where[1] if missing[0] else where[0]
            return Unbound(
                "DL103",
                f"{joins.called(name)} has a value {line} of an `if` and none on the other path",
                "assign it before the `if`, or on both paths",
            )
        return self.value(name, a, b, where)

    def value(self, name: str, a: Any, b: Any, where: tuple[str, str]) -> Any:
        s = self.s
        leaves_a, leaves_b, structure = joins.structures(a, b)
        hint = "both paths must leave the same type and shape; convert with .astype or np.zeros"
        if structure is None:
            text = joins.mismatch(name, "", a, b, where)
            return Unbound("DL108", text, hint, s.locs())
        plan: list[Any] = []
        first = len(self.slots)
        for k, (x, y) in enumerate(zip(leaves_a, leaves_b, strict=True)):
            fits, joined = joins.join_leaf(s, x, y)
            if not fits:
                self.shorten(first)
                path = list(structure.paths())[k]
                text = joins.mismatch(name, path, x, y, where)
                return Unbound("DL108", text, hint, s.locs())
            if type(joined) is Slot:
                plan.append((len(self.slots), joined))
                self.add(joined, x, y)
            else:
                plan.append((-1, joined))
        if len(self.slots) == first:
            leaves = [p[1] for p in plan]
            return joins.rebuilt(s, structure, leaves)
        return self.later(structure, plan)

    def later(self, structure: tree.Structure, plan: list[Any]) -> _Later:
        def build(results: Sequence[Value]) -> Any:
            leaves = [leaf if k < 0 else Tensor(results[k], leaf.weak) for k, leaf in plan]
            return joins.rebuilt(self.s, structure, leaves)

        return _Later(build)

    def shorten(self, length: int) -> None:
        del self.slots[length:], self.results[0][length:], self.results[1][length:]

    def add(self, slot: Slot, *leaves: Any) -> None:
        self.slots.append(slot)
        for scope, out, leaf in zip(self.scopes, self.results, leaves, strict=True):
            with self.s.inside(scope):
                out.append(joins.fill(self.s, leaf, slot))

    def placeholder(self, given: Any, path: int) -> Any:
        """A hidden name that one path sets, guarded by a flag: on the other path it is zeros that
        nobody looks at.
        """
        leaves, structure = tree.flatten(given)
        plan: list[Any] = []
        for leaf in leaves:
            if not is_number(leaf):
                plan.append((-1, leaf))
                continue
            slot = joins.slot_of(self.s, leaf)
            plan.append((len(self.slots), slot))
            self.slots.append(slot)
            for k, scope in enumerate(self.scopes):
                with self.s.inside(scope):
                    made = (
                        joins.fill(self.s, leaf, slot) if k == path else joins.zeros(self.s, slot)
                    )
                    self.results[k].append(made)
        return self.later(structure, plan)

    def emit(self, test: Value) -> Sequence[Value]:
        if not self.slots:
            return ()
        free = union(
            *(free_values(c.ops, (), r) for c, r in zip(self.scopes, self.results, strict=True))
        )
        blocks = [close(c, (), free, (), r) for c, r in zip(self.scopes, self.results, strict=True)]
        return self.s.scope.emit("if", (test, *free), {}, blocks)


def choose(
    s: Specialiser, test: Value, runs: Sequence[Run], loc: Loc, spans: tuple[Loc, Loc]
) -> Any:
    """A conditional expression whose condition belongs to the running program."""
    scopes, values = [], []
    for run in runs:
        with s.inside(s.new_scope()) as scope:
            values.append(run())
        scopes.append(scope)
    s.at(loc)
    join = _Join(s, scopes)
    where = (f"on one path (line {spans[0].line})", f"on the other (line {spans[1].line})")
    joined = join.value("this expression", values[0], values[1], where)
    if type(joined) is Unbound:
        message = joined.message.replace("`this expression`", "this expression")
        raise s.error(joined.code, message, joined.hint)
    results = join.emit(test)
    return joined(results) if type(joined) is _Later else joined


def boolean(s: Specialiser, op: str, runs: Sequence[Run], loc: Loc) -> Any:
    """`and`, `or`.

    What stands on the right is computed only when Python would, unless that makes no difference.
    """
    value = runs[0]()
    if len(runs) == 1:
        return value
    s.at(loc)
    test = operators.condition(s, value)
    if isinstance(test, bool):
        return value if test is (op == "or") else boolean(s, op, runs[1:], loc)
    with s.inside(s.new_scope()) as scope:
        rest = boolean(s, op, runs[1:], loc)
    s.at(loc)
    truths = _is_bool(value) and _is_bool(rest)
    if truths and not any(o.regions for o in scope.ops):
        s.scope.ops += scope.ops
        if isinstance(rest, bool):
            return rest if rest is (op == "or") else value
        return arithmetic.elementwise(s, op, value, rest)
    other = s.new_scope()
    scopes = (scope, other) if op == "and" else (other, scope)
    join = _Join(s, scopes)
    pair = (rest, value) if op == "and" else (value, rest)
    joined = join.value("this expression", *pair, ("on one side", "on the other"))
    if type(joined) is Unbound:
        raise s.error(joined.code, joined.message.replace("`", ""), joined.hint)
    results = join.emit(test)
    return joined(results) if type(joined) is _Later else joined


def _is_bool(value: Any) -> bool:
    if isinstance(value, bool):
        return True
    return type(value) is Tensor and value.dtype is DType.BOOL and value.shape == ()
