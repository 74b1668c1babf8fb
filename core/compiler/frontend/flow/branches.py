"""Branches over abstract values.

A condition that is known is taken as Python would. One that belongs to the running program makes an
`if`: each path is specialised in a scope of its own, what the paths leave behind is joined
(`joins`), and the scopes are closed (`scope.close`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ....common.errors import Loc
from ... import tree
from ...ir import DType, TensorType, Value
from ...traced import BOOL, SCALAR
from .. import complexes, operators, statements
from ..containers import containers, list_stacks
from ..hir import hir
from ..memory import joined_arrays, stores
from ..numpy import arithmetic
from ..scope import Scope, close, free_values, union
from ..values import Choice, Frame, Tensor, Unbound, is_number, kind_of
from . import choices, joins, named_parts, raises
from .joins import Slot
from .named_parts import ABSENT

if TYPE_CHECKING:
    from ..specialise import Specialiser


Run = Callable[[], Any]


def run_if(s: Specialiser, node: hir.If, frame: Frame) -> None:
    """Runs the path that is known to be taken; else both, as regions of the program."""
    test = tested(s, node.test, frame)
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
    split(s, test, runs, frame, names, _paths(node), _order(node), node.loc)


def split(
    s: Specialiser,
    test: Value,
    runs: Sequence[Callable[[], None]],
    frame: Frame,
    names: Sequence[str] | None,
    where: Callable[[str], tuple[str, str]],
    order: tuple[int, int] = (0, 1),
    loc: Loc | None = None,
    failed: int | None = None,
) -> None:
    """Two paths, and the names afterwards; None for all that either of them binds.

    `failed`: the path that comes after an error which a handler takes.

    Raises:
        Raised: both end in an error, within a `try`.
    """
    before, born = frame.vars, stores.mark(s)[1]
    scopes: list[Scope] = []
    ends: list[dict[str, Any]] = []
    over = [failed == 0, failed == 1]
    for k in order:
        with raises.path(s) as ended, s.inside(s.new_scope(), changes=True) as scope:
            frame.vars = dict(before)
            runs[k]()
        if ended and not s.tries:
            frame.vars = before
            raises.stop(s, test, scope, holds=k == 0)
            runs[1 - k]()
            return
        over[k] = over[k] or bool(ended)
        scopes.insert(k, scope)
        ends.insert(k, frame.vars)
    frame.vars = before
    if loc is not None:
        s.at(loc)
    if names is None:
        found = dict.fromkeys((*ends[0], *ends[1], *before))
        old = {n: before.get(n, ABSENT) for n in found}
        names = [n for n in found if any(e.get(n, ABSENT) is not old[n] for e in ends)]
    join = _Join(s, scopes, frame, ends, names, born)
    join.contents(before, ("on one path", "on the other"))
    after = {}
    for name in names:
        values = [end.get(name, ABSENT) for end in ends]
        after[name] = _after(s, join, frame, name, values, where(name), over)
    results = join.emit("if", test)
    for name, value in after.items():
        if value is not ABSENT:
            frame.vars[name] = value(results) if type(value) is _Later else value
    if all(over):
        raise raises.Raised("each path of it")


def _after(
    s: Specialiser,
    join: _Join,
    frame: Frame,
    name: str,
    values: Sequence[Any],
    where: Sequence[str],
    over: Sequence[bool],
) -> Any:
    """What a name is after two paths.

    What it is on a path with an error is for handlers alone: where it has no value for both, they
    have none.
    """
    made = join.name(name, values, where)
    if type(made) is not Unbound or over[0] is over[1]:
        return made
    kept = 1 if over[0] else 0
    if values[kept] is ABSENT or type(values[kept]) is Unbound:
        return made
    assert s.faults is not None
    if values[1 - kept] is ABSENT:
        text = f"{joins.called(name)} has no value where an error was met before it is assigned"
        made = Unbound("DL103", text, "assign it before the `try`")
    s.faults.unknown(frame, name, made)
    return join.placeholder(values[kept], kept)


def _order(node: hir.If | hir.For) -> tuple[int, int]:
    """A path that ends in an error comes first: the other one is specialised in place then."""
    ends = isinstance(node, hir.If) and node.otherwise and isinstance(node.otherwise[-1], hir.Raise)
    return (1, 0) if ends else (0, 1)


def join_changes(s: Specialiser, scopes: Sequence[Scope], test: Value) -> None:
    """An `if` that gives what its paths changed, and nothing else."""
    _Join(s, scopes).emit("if", test)


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


class _Later:
    """A value to be built once the operation's results are there."""

    __slots__ = ("build",)

    def __init__(self, build: Callable[[Sequence[Value]], Any]) -> None:
        self.build = build

    def __call__(self, results: Sequence[Value]) -> Any:
        return self.build(results)


class _Misfit(Exception):
    """A leaf that does not join with the first path's."""

    def __init__(self, path: int) -> None:
        super().__init__()
        self.path = path


class _Join:
    """Joins what the paths leave and emits the operation that gives it."""

    def __init__(
        self,
        s: Specialiser,
        scopes: Sequence[Scope],
        frame: Frame | None = None,
        ends: Sequence[Mapping[str, Any]] = (),
        names: Sequence[str] = (),
        before: int | None = None,
    ) -> None:
        """`before`: when the branch began."""
        self.s = s
        self.scopes = scopes
        self.results: list[list[Value]] = [[] for _ in scopes]
        self.slots: list[Slot] = []
        #: What each slot is on each path.
        self.leaves: list[Sequence[Any]] = []
        #: The arrays that the slots may be: each with the columns of leaves that it stands in.
        self.columns = joined_arrays.Columns(s, before=before)
        #: The containers that the paths changed, and their joined contents.
        self.filled: list[tuple[Any, Any, int]] = []
        self.copies = containers.Copies(s)
        kept = frozenset(n for n in names if all(type(e.get(n)) is not Unbound for e in ends))
        kept = frozenset(n for n in kept if all(n in e for e in ends))
        self.paths = [
            choices.Path(scope, frame, ends[k] if ends else {}, kept)
            for k, scope in enumerate(scopes)
        ]

    def name(self, name: str, values: Sequence[Any], where: Sequence[str]) -> Any:
        """What a name is afterwards: a value, a `_Later`, or an Unbound that says why not."""
        missing = [v is ABSENT or type(v) is Unbound for v in values]
        if all(missing):
            return next((v for v in values if v is not ABSENT), ABSENT)
        if any(missing):
            there, hidden = missing.index(False), name.startswith("$")
            for value in values:
                # A hidden name that is not set yet is guarded by a flag; one whose paths disagree
                # is an error like any other.
                if type(value) is Unbound and not (hidden and value.code == "DL103"):
                    return value
            if hidden:
                return self.placeholder(values[there], there)
            return Unbound(
                "DL103",
                f"{joins.called(name)} has a value {where[there]} of an `if` and none on the other"
                " path",
                "assign it before the `if`, or on both paths",
            )
        return self.value(name, values, where)

    def value(
        self, name: str, values: Sequence[Any], where: Sequence[str], content: bool = False
    ) -> Any:
        values = complexes.alike(self.s, values, content)
        flat, deep = self.flattened(values, content)
        structure = flat[0][1]
        if any(key in scope.contents for scope in self.scopes for key in deep):
            text = f"{joins.called(name)} may be a list, dict or object that changed on the path"
            return Unbound("DL111", text, "bind it to a copy of a list: list(x)", self.s.locs())
        for k, (_, other) in enumerate(flat):
            if not other.is_alike(structure):
                return self.mismatch(name, "", (values[0], values[k]), (where[0], where[k]))
        plan: list[Any] = []
        first = len(self.slots)
        for place, column in enumerate(zip(*(leaves for leaves, _ in flat), strict=True)):
            try:
                plan.append(self.leaf(column))
            except _Misfit as e:
                self.shorten(first)
                path = list(structure.paths())[place]
                pair, at = (column[0], column[e.path]), (where[0], where[e.path])
                return self.mismatch(name, path, pair, at)
        return self.later(structure, plan, values, content)

    def flattened(
        self, values: Sequence[Any], content: bool
    ) -> tuple[list[tuple[list[Any], tree.Structure]], set[int]]:
        """Leaves and structures of each path, and the ids of the containers that are no leaves.

        A container that is the same object on each path is a leaf.
        """
        deep: set[int] = set()
        while True:
            flat = [
                containers.flatten(self.s, v, scope, deep, content)
                for scope, v in zip(self.scopes, values, strict=True)
            ]
            more = containers.apart([leaves for leaves, _ in flat]) - deep
            if not more:
                return flat, deep
            deep |= more

    def contents(self, names: Mapping[str, Any], where: Sequence[str]) -> None:
        """Joins what the paths' containers hold."""
        for unit in self.units():
            values = []
            for scope in self.scopes:
                with self.s.inside(scope):
                    values.append(list_stacks.content(self.s, unit, scope.contents))
            name = containers.name_of(names, list_stacks.members(unit)[0])
            joined = self.value(name, values, where, content=True)
            if type(joined) is Unbound:
                raise self.s.error(joined.code, joined.message, joined.hint)
            kind = self.slots[-1].kind if type(unit) is list_stacks.Group else 0
            self.filled.append((unit, joined, kind))

    def units(self) -> list[Any]:
        """The containers that the paths changed, each once; of groups that overlap, the lists."""
        found = [
            unit for scope in self.scopes for unit in list_stacks.units(self.s, scope.contents)
        ]
        units: dict[tuple[int, ...], Any] = {}
        taken: set[int] = set()
        for unit in sorted(found, key=lambda u: type(u) is not list_stacks.Group):
            members = list_stacks.members(unit)
            if not any(id(v) in taken for v in members):
                units[tuple(map(id, members))] = unit
                taken.update(map(id, members))
            elif type(unit) is list_stacks.Group and tuple(map(id, members)) not in units:
                for v in members:
                    if id(v) not in taken:
                        units[(id(v),)] = v
                        taken.add(id(v))
        return list(units.values())

    def leaf(self, column: Sequence[Any]) -> Any:
        joined = column[0]
        for k, leaf in enumerate(column[1:], start=1):
            fits, joined = joins.join_leaf(self.s, joined, leaf)
            if not fits:
                if all(map(choices.is_function, column)):
                    return self.functions(column)
                raise _Misfit(k)
        return self.add(joined, column) if type(joined) is Slot else joined

    def mismatch(
        self, name: str, path: str, pair: tuple[Any, Any], where: tuple[str, str]
    ) -> Unbound:
        text = joins.mismatch(joins.called(name), path, *pair, where)
        hint = "both paths must leave the same type and shape; convert with .astype or np.zeros"
        if any(map(choices.is_function, pair)):
            hint = "both paths must leave a function, or both an array"
        return Unbound("DL108", text, hint, self.s.locs())

    def later(
        self,
        structure: tree.Structure,
        plan: list[Any],
        values: Sequence[Any] = (),
        content: bool = False,
    ) -> Any:
        def build(results: Sequence[Value]) -> Any:
            leaves = [p(results) if type(p) is _Later else p for p in plan]
            made = containers.rebuilt(self.s, structure, leaves)
            sources = zip(values, self.scopes, strict=bool(values))
            return self.copies.note(made, leaves, sources, content)

        return _Later(build) if any(type(p) is _Later for p in plan) else build(())

        return _Later(build)

    def shorten(self, length: int) -> None:
        del self.slots[length:], self.leaves[length:]
        for results in self.results:
            del results[length:]

    def add(self, slot: Slot, leaves: Sequence[Any]) -> _Later:
        """A value of the program; `ABSENT` stands for a path on which it is zeros."""
        place = len(self.slots)
        self.slots.append(slot)
        self.leaves.append(leaves)
        for scope, out, leaf in zip(self.scopes, self.results, leaves, strict=True):
            with self.s.inside(scope):
                absent = leaf is ABSENT
                made = joins.zeros(self.s, slot) if absent else joins.fill(self.s, leaf, slot)
                out.append(made)
        key = tuple(map(id, leaves))
        self.columns.add(key, leaves)
        return _Later(lambda results: self.columns.joined(key, results[place], slot.kind, leaves))

    def placeholder(self, given: Any, path: int) -> Any:
        """A hidden name that one path sets, guarded by a flag.

        On the other paths it is zeros, which are not used.
        """
        leaves, structure = tree.flatten(complexes.known_as_pairs(self.s, given))
        plan: list[Any] = []
        for leaf in leaves:
            column = self.only(path, leaf)
            if is_number(leaf):
                plan.append(self.add(joins.slot_of(self.s, leaf), column))
            else:
                plan.append(self.functions(column) if choices.is_function(leaf) else leaf)
        return self.later(structure, plan)

    def only(self, path: int, leaf: Any) -> list[Any]:
        return [leaf if k == path else ABSENT for k in range(len(self.scopes))]

    def functions(self, column: Sequence[Any]) -> Any:
        """A choice among functions, with what they hold."""
        found: list[Any] = []
        tags: list[Any] = []
        for path, scope, function in zip(self.paths, self.scopes, column, strict=True):
            if function is ABSENT:
                tags.append(ABSENT)
                continue
            chosen = type(function) is Choice
            functions = function.functions if chosen else (function,)
            moved = [self.carried(path, f) for f in functions]
            same = [k for k, f in enumerate(found) if f is moved[0]]
            if same and not chosen:
                tags.append(same[0])
                continue
            with self.s.inside(scope):
                first = len(found)
                tags.append(arithmetic.add(self.s, function.tag, first) if chosen else first)
            found += moved
        if len(found) == 1:
            return found[0]
        tag = self.add(Slot(TensorType(DType.I64), SCALAR), tags)

        def build(results: Sequence[Value]) -> Any:
            given = tuple(f(results) if type(f) is _Later else f for f in found)
            return Choice(tag(results), given)

        return _Later(build)

    def carried(self, path: choices.Path, function: Any) -> Any:
        """A function that a path made, to be called outside of it."""
        carrier = choices.Carrier(path)
        if not carrier.collect(function):
            return function
        k = next(k for k, p in enumerate(self.paths) if p is path)
        outs = {
            value: self.add(joins.slot_of(self.s, tensor), self.only(k, tensor))
            for value, tensor in carrier.needed.items()
        }

        def build(results: Sequence[Value]) -> Any:
            return carrier.replaced(function, {v: out(results) for v, out in outs.items()}, {})

        return _Later(build)

    def emit(self, name: str, test: Value) -> Sequence[Value]:
        changed = stores.all_changed(c.changed for c in self.scopes)
        if not self.slots and not changed:
            self.fill(())
            return ()
        for scope, out in zip(self.scopes, self.results, strict=True):
            out += [scope.changed.get(m, (m.value,))[0] for m in changed]
        pairs = list(zip(self.scopes, self.results, strict=True))
        free = union(*(free_values(c.ops, (), r) for c, r in pairs))
        blocks = [close(c, (), free, (), r) for c, r in pairs]
        results = self.s.scope.emit(name, (test, *free), {}, blocks)
        for memory, value in zip(changed, results[len(self.slots) :], strict=True):
            stores.set_value(self.s, memory, value)
        if name == "if":
            for value, (yes, no) in zip(results, self.leaves, strict=False):
                self.s.picks.note(self.s, value, test, yes, no)
        self.fill(results)
        return results

    def fill(self, results: Sequence[Value]) -> None:
        """Puts the joined contents of containers in place."""
        for unit, content, kind in self.filled:
            given = content(results) if type(content) is _Later else content
            if type(unit) is list_stacks.Group:
                list_stacks.put(self.s, unit, given.value, kind)
            else:
                containers.put(self.s, unit, given)


def choose(
    s: Specialiser, name: str, test: Value, runs: Sequence[Run], loc: Loc, where: Sequence[str]
) -> Any:
    """An expression of several paths, of which the running program takes one.

    It chooses by an `if` on a condition or a `switch` on an index.
    """
    scopes, values, ends, born = [], [], [], stores.mark(s)[1]
    for k, run in enumerate(runs):
        with (
            named_parts.part(s) as end,
            raises.path(s) as ended,
            s.inside(s.new_scope(), changes=True) as scope,
            raises.met(s),
        ):
            values.append(run())
        ends.append(end)
        if ended:
            s.at(loc)
            if name != "if":
                hint = "raise it where the function is chosen"
                raise s.error("DL112", "one of the functions that may be called raises", hint)
            raises.stop(s, test, scope, holds=k == 0)
            return runs[1 - k]()
        scopes.append(scope)
    s.at(loc)
    join = _Join(s, scopes, before=born)
    join.contents({}, where)
    names = named_parts.joined(ends, partial(join.name, where=where))
    return _taken(s, join, join.value("this expression", values, where), name, test, names)


def _taken(
    s: Specialiser,
    join: _Join,
    joined: Any,
    name: str,
    test: Value,
    names: Sequence[tuple[Frame, str, Any]],
) -> Any:
    """The value of an expression that was joined, with the names that its parts bind."""
    if type(joined) is Unbound:
        message = joined.message.replace("`this expression`", "this expression")
        raise s.error(joined.code, message, joined.hint)
    results = join.emit(name, test)
    made = [(f, n, v(results) if type(v) is _Later else v) for f, n, v in names]
    named_parts.leave(s, made)
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
    rest, born = None, stores.mark(s)[1]
    with (
        named_parts.part(s) as end,
        raises.path(s) as ended,
        s.inside(s.new_scope(), changes=True) as scope,
        raises.met(s),
    ):
        rest = boolean(s, op, runs[1:], loc)
    s.at(loc)
    if ended:
        raises.stop(s, test, scope, holds=op == "and")
        return value
    truths = _is_bool(value) and _is_bool(rest)
    plain = not any(o.regions for o in scope.ops) and raises.only_faults(s, scope.changed)
    if truths and plain and not scope.contents and not end:
        raises.stop(s, test, scope, holds=op == "and")
        if isinstance(rest, bool) and kind_of(value) == BOOL:
            return rest if rest is (op == "or") else value
        both = arithmetic.elementwise(s, op, value, rest)
        return Tensor(both.value, kind=kind_of(value) | kind_of(rest))
    other = s.new_scope()
    scopes = (scope, other) if op == "and" else (other, scope)
    join = _Join(s, scopes, before=born)
    join.contents({}, ("on one side", "on the other"))
    pair, ends = ((rest, value), (end, {})) if op == "and" else ((value, rest), ({}, end))
    where = ("on one side", "on the other")
    names = named_parts.joined(ends, partial(join.name, where=where))
    return _taken(s, join, join.value("this expression", pair, where), "if", test, names)


def tested(s: Specialiser, node: hir.Expr, frame: Frame) -> Any:
    """An expression of which only the truth counts: what it joins may be of several classes."""
    if isinstance(node, hir.Boolean):
        runs = [partial(_truth, s, operand, frame) for operand in node.operands]
        return boolean(s, node.op, runs, node.loc)
    if isinstance(node, hir.Unary) and node.op == "not":
        value = _truth(s, node.operand, frame)
        s.at(node.loc)
        return operators.unary(s, "not", value)
    return s.eval(node, frame)


def _truth(s: Specialiser, node: hir.Expr, frame: Frame) -> Any:
    value = tested(s, node, frame)
    s.at(node.loc)
    test = operators.condition(s, value)
    return test if isinstance(test, bool) else Tensor(test, True)


def _is_bool(value: Any) -> bool:
    if isinstance(value, bool):
        return True
    return type(value) is Tensor and value.dtype is DType.BOOL and value.shape == ()
