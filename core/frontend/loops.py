"""Loops over abstract values.

A loop carries the names that its HIR node lists. What they are is found by a fixed point: start
from the types before the loop, specialise the body, join with what it leaves (`joins`), and again
if that changed anything. Static values stay static while the body leaves them as they are. A weak
number may become a strong one and nothing else changes, so two or three rounds settle it.

A loop of known length is first tried as a region. When its body does not compile that way, because
it needs the index at compile time or changes the shape of what it carries, it is unrolled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from .. import tree
from ..errors import ProgramError
from ..ir import DType, TensorType, Value
from . import arithmetic, hir, iteration, joins, operators, statements
from .choices import Functions, Path, is_function, may_be_carried
from .control import Run, boolean, branch
from .joins import Slot
from .scope import Scope, close, free_values, union
from .values import Choice, Frame, Indexed, Once, Tensor, TensorRange, Unbound, describe, is_number

if TYPE_CHECKING:
    from .specialise import Specialiser


class LoopMismatch(ProgramError):
    """What a loop carries changes its type or structure: a loop of known length may still be
    unrolled.
    """


def run_for(s: Specialiser, node: hir.For, frame: Frame) -> None:
    source = s.eval(node.iterable, frame)
    s.at(node.iterable.loc)
    if type(source) is list or (type(source) is Once and source.sources):
        _unroll_live(s, node, frame, source)
        return
    source = iteration.drawn(s, source)
    if isinstance(source, TensorRange):
        _range_region(s, node, frame, source)
        return
    indexed = iteration.as_indexed(s, source)
    if indexed is None:
        _unroll_live(s, node, frame, source)
        return
    small = indexed.length <= 1
    if small or (id(node) in s.unrolled and indexed.length <= iteration.UNROLL_MAX):
        _unroll(s, node, frame, indexed)
        return
    from .specialise import StaticNeeded

    state, before = s.state(), frame.vars
    try:
        zero = s.scope.number(0, DType.I64)
        bound = s.scope.number(indexed.length, DType.I64)
        _index_region(s, node, frame, zero, bound, lambda i: indexed.item(s, i), True)
    except ProgramError as e:
        # The index known, the body may well compile; if not, its first round says the same.
        if indexed.length > iteration.UNROLL_MAX:
            if not isinstance(e, StaticNeeded | LoopMismatch):
                raise
            note = f"the loop could be unrolled, but for its {indexed.length} rounds"
            hint = f"{e.hint}; {note}" if e.hint else note
            raise ProgramError(e.code, e.message, e.locs, hint) from None
        s.restore(state)
        s.unrolled.add(id(node))
        frame.vars = before
        _unroll(s, node, frame, indexed)


def _unroll(s: Specialiser, node: hir.For, frame: Frame, indexed: Indexed) -> None:
    _rounds(s, node, frame, (partial(indexed.item, s, k) for k in range(indexed.length)))


def _unroll_live(s: Specialiser, node: hir.For, frame: Frame, source: Any) -> None:
    """Item by item, of what the body itself may change."""
    if not isinstance(source, list | Once) and len(values := iteration.items(s, source)) > (
        iteration.UNROLL_MAX
    ):
        raise iteration.too_long(s, len(values))
    lists = iteration.sources_of(source)
    names = [n for n in node.stored if any(frame.vars.get(n) is one for one in lists)]
    before = {n: frame.vars[n] for n in names}

    def rounds() -> Iterator[Callable[[], Any]]:
        for item in iteration.live(s, source, iteration.UNROLL_MAX):
            yield partial(_itself, item)
            if any(frame.vars.get(n) is not before[n] for n in names):
                s.at(node.iterable.loc)
                text = (
                    f"`{names[0]}` changes in the loop over it where only the program knows whether"
                )
                raise s.error("DL111", text, f"go through a copy: for x in list({names[0]})")

    _rounds(s, node, frame, rounds())


def _itself(item: Any) -> Any:
    return item


def _rounds(
    s: Specialiser, node: hir.For, frame: Frame, items: Iterable[Callable[[], Any]]
) -> None:
    """One round after the other; the item of each is made in it."""
    for item in items:

        def body(item: Callable[[], Any] = item) -> None:
            s.at(node.iterable.loc)
            statements.assign(s, node.target, item(), frame)
            statements.run(s, node.body, frame)

        if node.stop is not None:
            stop = operators.condition(s, frame.vars[node.stop])
            if stop is True:
                return
            if stop is not False:
                branch(s, stop, (lambda: None, body), frame, node)
                continue
        body()


def _range_region(s: Specialiser, node: hir.For, frame: Frame, source: TensorRange) -> None:
    step = operators.static_int(s, source.step, "a range's step")
    start, stop = (_whole(s, v) for v in (source.start, source.stop))
    if step == 1:
        _index_region(s, node, frame, start, stop, lambda i: i)
        return
    if step == 0:
        raise s.error("DL113", "a range's step cannot be 0")
    low, high = (start, stop) if step > 0 else (stop, start)
    span = s.emit("sub", high, low)
    rounded = s.emit("add", span, s.scope.number(abs(step) - 1, DType.I64))
    count = s.emit("floordiv", rounded, s.scope.number(abs(step), DType.I64))
    first = Tensor(start, True)
    _index_region(
        s,
        node,
        frame,
        s.scope.number(0, DType.I64),
        count,
        lambda i: iteration.place(s, first, i, step),
    )


def _whole(s: Specialiser, value: Any) -> Value:
    """A bound of a range, as i64[]."""
    dtype, _ = arithmetic.dtype_of(s, value)
    if dtype.is_float or arithmetic.shape_of(value) != ():
        hint = "convert it: int(x), or x.astype(np.int32)"
        raise s.error(
            "DL119", f"a range's bounds must be whole numbers, not {describe(value)}", hint
        )
    return arithmetic.tensor(s, value, DType.I64).value


def _index_region(
    s: Specialiser,
    node: hir.For,
    frame: Frame,
    start: Value,
    stop: Value,
    item: Callable[[Any], Any],
    surely: bool = False,
) -> None:
    """A loop over indices start..stop-1 as a region; as a `while` when it may stop early.

    `surely`: it runs at least once.
    """

    def run(index: Tensor) -> None:
        s.at(node.iterable.loc)
        statements.assign(s, node.target, item(index), frame)
        statements.run(s, node.body, frame)

    if node.stop is None:
        _For(s, frame, node, node.carried, surely, start, stop, run).run()
        return
    counter, flag = f"$index{node.stop}", node.stop
    frame.vars = {**frame.vars, counter: Tensor(start)}

    def test() -> Any:
        going = Tensor(s.emit("lt", frame.vars[counter].value, stop))
        runs = (lambda: operators.unary(s, "not", frame.vars[flag]), lambda: going)
        return boolean(s, "and", runs, node.loc)

    def body() -> None:
        index = frame.vars[counter]
        if start in s.natural:
            s.natural.add(index.value)
        run(Tensor(index.value, True))
        frame.vars[counter] = arithmetic.add(s, index, 1)

    _While(s, frame, node, (counter, *node.carried), surely, test, body).run()


def run_while(s: Specialiser, node: hir.While, frame: Frame) -> None:
    def test() -> Any:
        runs: list[Run] = [lambda: s.eval(node.test, frame)]
        if node.stop is not None:
            flag = node.stop
            runs.insert(0, lambda: operators.unary(s, "not", frame.vars[flag]))
        return boolean(s, "and", runs, node.test.loc)

    def body() -> None:
        statements.run(s, node.body, frame)

    from .specialise import StaticNeeded

    loop = _While(s, frame, node, node.carried, False, test, body)
    state, before = s.state(), frame.vars
    if id(node) in s.unrolled:
        _unroll_while(s, node, frame, test, body)
        return
    try:
        loop.run()
    except (StaticNeeded, LoopMismatch):
        if not loop.known:
            raise
        s.restore(state)
        s.unrolled.add(id(node))
        frame.vars = before
        _unroll_while(s, node, frame, test, body)


def _unroll_while(
    s: Specialiser, node: hir.While, frame: Frame, test: Run, body: Callable[[], None]
) -> None:
    for _ in range(iteration.UNROLL_MAX):
        scope = s.scope
        with s.inside(s.new_scope()) as trial:
            truth = operators.condition(s, test())
        if truth is False:
            return
        if truth is not True:
            _While(s, frame, node, node.carried, False, test, body).run()
            return
        scope.ops += trial.ops
        body()
    s.at(node.loc)
    raise s.error(
        "DL110",
        f"the loop is unrolled and does not end in {iteration.UNROLL_MAX} rounds",
        "start its counter as an array (np.int32(0)), so that it can run in the program",
    )


#: Rounds that the fixed point may take: found, made weak, made strong, confirmed, and one to spare.
_ROUNDS_MAX = 5


_NONE = object()


class _Loop:
    """What `for` and `while` share: carries and their fixed point."""

    def __init__(
        self,
        s: Specialiser,
        frame: Frame,
        node: hir.For | hir.While,
        carried: Sequence[str],
        surely: bool,
    ) -> None:
        self.s = s
        self.frame = frame
        self.node = node
        self.before = frame.vars
        self.names = []
        self.late = []  # Live names without a value before the loop.
        self.structures: dict[str, tree.Structure] = {}
        self.leaves: dict[str, list[Any]] = {}
        #: Late names that the body leaves without a value, and why.
        self.unset: dict[str, Unbound] = {}
        for name in carried:
            value = self.before.get(name)
            if name in self.before and type(value) is not Unbound:
                self.names.append(name)
                leaves, self.structures[name] = tree.flatten(value)
                self.leaves[name] = [self.leaf(v) for v in leaves]
            else:
                self.late.append(name)
        if surely:
            self.runs_surely()
        else:
            self.names += [n for n in self.late if n.startswith("$")]

    def runs_surely(self) -> None:
        """A loop that runs at least once may be the first to set a name.

        What the name holds before does not matter then, and is zeros; the same goes for hidden
        names, which a flag guards.
        """
        self.names += [n for n in self.late if n not in self.names]

    def first(self, name: str, value: Any, path: Path) -> Any:
        """What a leaf is carried as that a round is the first to set."""
        if is_function(value):
            self.check_made(name, value, path)
        return joins.slot_of(self.s, value) if is_number(value) else self.leaf(value)

    def check_made(self, name: str, function: Any, path: Path) -> None:
        """A function that holds what a round computed is another one in each round."""
        if not may_be_carried(function, path):
            text = f"{joins.called(name)} holds a function that a round of the loop made"
            hint = "make it after the loop, of what the loop carries"
            raise LoopMismatch("DL109", text, self.s.locs(), hint)

    def leaf(self, value: Any) -> Any:
        """What a leaf is carried as: a value of the program in a slot, anything else as it is."""
        if type(value) is Choice:
            return Functions(value.functions)
        return joins.slot_of(self.s, value) if type(value) is Tensor else value

    def enter(self) -> list[Value]:
        """Names as the body finds them, at a round's start; gives the carries' parameters."""
        params: list[Value] = []
        variables = dict(self.before)
        joins.localise(self.s, variables, self.node.stored)
        for name in self.names:
            if name not in self.leaves:
                continue
            values = []
            for leaf in self.leaves[name]:
                if type(leaf) in _CARRIED:
                    params.append(Value(_type_of(leaf)))
                    leaf = _holding(leaf, params[-1])
                values.append(leaf)
            variables[name] = joins.rebuilt(self.s, self.structures[name], values)
        for name in self.late:
            if type(variables.get(name)) is not Unbound:  # That says more of why it has no value.
                variables.pop(name, None)
        self.frame.vars = variables
        return params

    def join(self, scope: Scope, params: Sequence[Value]) -> bool:
        """Joins what the names were with what the body leaves; whether that changed nothing."""
        kept = frozenset(self.names)
        path = Path(scope, self.frame, self.frame.vars, kept, tuple(params))
        settled = True
        self.s.at(self.node.loc)
        for name in self.names:
            end = self.frame.vars.get(name)
            if name not in self.frame.vars:
                continue
            if type(end) is Unbound and name not in self.leaves:
                self.unset[name] = end
                continue
            if type(end) is Unbound:
                raise LoopMismatch(end.code, end.message, end.locs or self.s.locs(), end.hint)
            leaves, structure = tree.flatten(end)
            if name not in self.leaves:  # A hidden name that the body is the first to set.
                self.structures[name] = structure
                self.leaves[name] = [self.first(name, v, path) for v in leaves]
                settled = False
                continue
            if structure != self.structures[name]:
                start = tree.unflatten(self.structures[name], self.leaves[name])
                raise self.differs(name, "", start, end)
            for k, leaf in enumerate(leaves):
                old = self.leaves[name][k]
                if (
                    old is not leaf
                    and is_function(leaf)
                    and (type(old) is Functions or is_function(old))
                ):
                    self.check_made(name, leaf, path)
                    one = old if type(old) is Functions else Functions((old,))
                    self.leaves[name][k] = one.widened(leaf)
                    settled = settled and old == self.leaves[name][k]
                    continue
                fits, joined = joins.join_leaf(self.s, old, leaf)
                if not fits or (type(old) is Slot and old.type != joined.type and not old.weak):
                    raise self.differs(name, list(structure.paths())[k], old, leaf)
                if type(old) is Slot or type(joined) is Slot:
                    settled = settled and type(old) is Slot and old == joined
                    self.leaves[name][k] = joined
        return settled

    def differs(self, name: str, path: str, start: Any, end: Any) -> LoopMismatch:
        loc = joins.assigned_at(self.node.body, name)
        where = ("before the loop", f"after a round (line {loc.line})" if loc else "after a round")
        text = joins.mismatch(name, path, start, end, where)
        hint = (
            "a loop must leave the type and shape that it found; start with np.zeros(shape, dtype)"
        )
        return LoopMismatch("DL109", text, self.s.locs(), hint)

    def ends(self, scope: Scope) -> list[Value]:
        """What the body leaves in each slot."""
        out: list[Value] = []
        with self.s.inside(scope):
            for name in self.names:
                if name not in self.leaves:
                    continue
                leaves = tree.flatten(self.frame.vars[name])[0]
                for slot, leaf in zip(self.leaves[name], leaves, strict=True):
                    if type(slot) in _CARRIED:
                        out.append(self.filled(leaf, slot))
        return out

    def filled(self, leaf: Any, slot: Any) -> Value:
        if type(slot) is Functions:
            return slot.tag(self.s, leaf)
        return joins.fill(self.s, leaf, slot)

    def starts(self) -> list[Value]:
        """What each slot holds before the loop."""
        out: list[Value] = []
        for name in self.names:
            value = self.before.get(name, _NONE)
            known = None if value is _NONE or type(value) is Unbound else tree.flatten(value)[0]
            for k, slot in enumerate(self.leaves.get(name, ())):
                if type(slot) not in _CARRIED:
                    continue
                if known is not None:
                    out.append(self.filled(known[k], slot))
                else:
                    out.append(self.s.scope.number(0, _type_of(slot).dtype, _type_of(slot).shape))
        return out

    def leave(self, results: Sequence[Value]) -> None:
        """Names as what follows finds them."""
        self.frame.vars = self.before
        supply = iter(results)
        for name in self.names:
            if name not in self.leaves:
                continue
            values = [
                _holding(v, next(supply)) if type(v) in _CARRIED else v for v in self.leaves[name]
            ]
            self.before[name] = joins.rebuilt(self.s, self.structures[name], values)
        line = self.node.loc.line
        for name in self.late:
            if name in self.leaves:
                continue
            known = self.before.get(name) if name in self.before else self.unset.get(name)
            if type(known) is Unbound and known.code != "DL103":
                self.before[name] = known
                continue
            self.before[name] = Unbound(
                "DL103",
                f"`{name}` is assigned in the loop at line {line} and nowhere before it",
                "assign it before the loop: the loop may not run even once",
            )

    def unsettled(self) -> ProgramError:
        return self.s.error("DL109", "the types that the loop carries do not settle")


_CARRIED = (Slot, Functions)


def _type_of(leaf: Any) -> TensorType:
    """The type of a carry."""
    return leaf.type if type(leaf) is Slot else TensorType(DType.I64)


def _holding(leaf: Any, value: Value) -> Any:
    """A carried leaf in a round, or after the loop."""
    if type(leaf) is Functions:
        return Choice(Tensor(value), leaf.functions)
    return Tensor(value, kind=leaf.kind)


class _For(_Loop):
    """A loop over start..stop-1."""

    def __init__(
        self,
        s: Specialiser,
        frame: Frame,
        node: hir.For,
        carried: Sequence[str],
        surely: bool,
        start: Value,
        stop: Value,
        body: Callable[[Tensor], None],
    ) -> None:
        super().__init__(s, frame, node, carried, surely)
        self.bounds = start, stop
        self.body = body

    def run(self) -> None:
        s = self.s
        for _ in range(_ROUNDS_MAX):
            index = Value(self.bounds[0].type)
            if self.bounds[0] in s.natural:
                s.natural.add(index)
            with s.inside(s.new_scope()) as scope:
                params = self.enter()
                self.body(Tensor(index, True))
            if self.join(scope, (index, *params)):
                break
        else:
            raise self.unsettled()
        results: Sequence[Value] = ()
        if params:
            ends = self.ends(scope)
            free = free_values(scope.ops, (index, *params), ends)
            block = close(scope, (index,), free, params, ends)
            operands = (*self.bounds, *free, *self.starts())
            results = s.scope.emit("for", operands, {"consts": len(free)}, (block,))
        self.leave(results)


class _While(_Loop):
    """A loop with a test. `known`: the test was known before the first round."""

    def __init__(
        self,
        s: Specialiser,
        frame: Frame,
        node: hir.For | hir.While,
        carried: Sequence[str],
        surely: bool,
        test: Run,
        body: Callable[[], None],
    ) -> None:
        super().__init__(s, frame, node, carried, surely)
        self.test = test
        self.body = body
        self.known = False

    def run(self) -> None:
        s = self.s
        for round_ in range(_ROUNDS_MAX):
            with s.inside(s.new_scope()) as cond:
                cond_params = self.enter()
                truth = operators.condition(s, self.test())
            if round_ == 0:
                self.known = isinstance(truth, bool)
                if truth is True:
                    self.runs_surely()
            if truth is False:
                self.frame.vars = self.before
                return
            with s.inside(s.new_scope()) as scope:
                params = self.enter()
                self.body()
            if self.join(scope, params):
                break
        else:
            raise self.unsettled()
        if truth is True:
            hint = "change in the body what the test reads"
            raise s.error("DL110", "the loop never ends: its test is always true", hint)
        self.emit(cond, cond_params, truth, scope, params)

    def emit(
        self,
        cond: Scope,
        cond_params: Sequence[Value],
        truth: Value,
        scope: Scope,
        params: Sequence[Value],
    ) -> None:
        ends = self.ends(scope)
        free = union(
            free_values(cond.ops, cond_params, (truth,)), free_values(scope.ops, params, ends)
        )
        blocks = (
            close(cond, (), free, cond_params, (truth,)),
            close(scope, (), free, params, ends),
        )
        operands = (*free, *self.starts())
        results = self.s.scope.emit("while", operands, {"consts": len(free)}, blocks)
        self.leave(results)
