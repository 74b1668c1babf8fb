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

from ....common.errors import ProgramError
from ...ir import DType, Value
from ...ragged import Ragged
from .. import operators, statements
from ..containers import containers
from ..hir import hir
from ..numpy import arithmetic, indexing
from ..ragged import ragged_lists
from ..ragged.ragged_python import counted
from ..scope import Scope, close, free_values, union
from ..values import Counted, Frame, Indexed, Once, RaggedList, Tensor, TensorRange, describe
from . import appending_loops, iteration, raises, tries, unroll_limits
from .branches import Run, boolean, branch, tested
from .carries import Carries, LoopMismatch

if TYPE_CHECKING:
    from ..specialise import Specialiser


def run_for(s: Specialiser, node: hir.For, frame: Frame) -> None:
    """Unrolls a `for`, or makes it a loop of the program, by what it goes through."""
    source = s.eval(node.iterable, frame)
    s.at(node.iterable.loc)
    source = iteration.of_object(s, source)
    live = type(source) is list or (type(source) is Once and (source.sources or source.computes))
    if live and not _may_loop(s, source):
        _unroll_live(s, node, frame, source)
        return
    origin, lists = source, iteration.sources_of(source)
    source = iteration.drawn(s, source)
    if isinstance(source, TensorRange):
        _range_region(s, node, frame, source)
        return
    if type(source) in (Ragged, Counted, RaggedList):
        count = ragged_lists.counted if type(source) is RaggedList else counted
        part = source if type(source) is Counted else count(s, source)
        zero = s.scope.number(0, DType.I64)
        _index_region(s, node, frame, zero, part.count.value, lambda i: part.item(s, i))
        return
    indexed = iteration.as_indexed(s, source)
    if indexed is None:
        _unroll_live(s, node, frame, source)
        return
    small = indexed.length <= 1
    if small or (id(node) in s.unrolled and indexed.length <= iteration.UNROLL_MAX):
        _unroll_again(s, node, frame, indexed, origin, lists)
        return
    from ..specialise import StaticNeeded

    state, before, peeled = s.state(), frame.vars, id(node) in s.peeled
    try:
        if peeled:
            _rounds(s, node, frame, [partial(indexed.item, s, 0)])
        first = s.scope.number(int(peeled), DType.I64)
        bound = s.scope.number(indexed.length, DType.I64)
        surely = not peeled or node.stop is None
        appending = appending_loops.of(s, node, frame, indexed, lists)
        if appending is not None:

            def region(made: hir.For, item: Callable[[Any], Any]) -> None:
                _index_region(s, made, frame, first, bound, item, True, id(node))

            appending.run(indexed, region)
            return
        _index_region(s, node, frame, first, bound, lambda i: indexed.item(s, i), surely)
    except ProgramError as e:
        # The index known, the body may well compile; if not, its first round says the same.
        if e.code == "DL122" or isinstance(e, unroll_limits.UnrollWanted):
            raise
        if indexed.length > iteration.UNROLL_MAX:
            if not isinstance(e, StaticNeeded | LoopMismatch):
                raise
            rounds = f"{indexed.length} rounds are too many (at most {iteration.UNROLL_MAX})"
            note = f"the loop could be unrolled, but its {rounds}"
            hint = f"{e.hint}; {note}" if e.hint else note
            raise ProgramError(e.code, e.message, e.locs, hint) from None
        if peeled:  # The first round is not undone: the program is made again.
            raise unroll_limits.UnrollWanted.of(e, node) from None
        s.restore(state)
        s.unrolled.add(id(node))
        frame.vars = before
        _unroll_again(s, node, frame, indexed, origin, lists)


def _may_loop(s: Specialiser, source: Any) -> bool:
    """Whether a list, or what an iterator draws from, may be gone through by an index."""
    if not s.stacking or (type(source) is Once and source.computes):
        return False
    return all(iteration.as_indexed(s, v) is not None for v in iteration.sources_of(source))


def _unroll_again(
    s: Specialiser,
    node: hir.For,
    frame: Frame,
    indexed: Indexed,
    origin: Any,
    lists: Sequence[list[Any]],
) -> None:
    """After its region failed."""
    if type(origin) is list:
        _unroll_live(s, node, frame, origin)
        return
    sizes = [len(v) for v in lists]

    def rounds() -> Iterator[Callable[[], Any]]:
        for k in range(indexed.length):
            if [len(v) for v in lists] != sizes:
                raise iteration.changed_meanwhile(s)
            yield partial(indexed.item, s, k)

    _rounds(s, node, frame, rounds())


def _unroll_live(s: Specialiser, node: hir.For, frame: Frame, source: Any) -> None:
    """Item by item, of what the body itself may change."""
    if not isinstance(source, list | Once) and len(values := iteration.items(s, source)) > (
        iteration.UNROLL_MAX
    ):
        raise iteration.too_long(s, len(values))

    def rounds() -> Iterator[Callable[[], Any]]:
        for item in iteration.live(s, source, iteration.UNROLL_MAX):
            yield partial(_itself, item)

    _rounds(s, node, frame, rounds())


def _itself(item: Any) -> Any:
    return item


def _rounds(
    s: Specialiser, node: hir.For, frame: Frame, items: Iterable[Callable[[], Any]]
) -> None:
    """One round after the other; the item of each is made in it."""
    with unroll_limits.unrolled(s, node.loc):
        for item in items:

            def round_(item: Callable[[], Any] = item) -> None:
                s.at(node.iterable.loc)
                statements.assign(s, node.target, item(), frame)
                statements.run(s, node.body, frame)

            def body(round_: Callable[[], None] = round_) -> None:
                tries.where_none(s, frame, round_)

            unroll_limits.count(s)
            if node.stop is not None:
                stop = operators.condition(s, frame.vars[node.stop])
                if stop is True:
                    return
                if stop is not False:
                    branch(s, stop, (lambda: None, body), frame, node)
                    continue
            body()


def _range_region(s: Specialiser, node: hir.For, frame: Frame, source: TensorRange) -> None:
    step = operators.static_index(s, source.step, "a range's step")
    start, stop = (_whole(s, v) for v in (source.start, source.stop))
    if s.faults is not None and s.faults.possible():  # Its bounds may be any numbers.
        stop = s.emit("select", s.faults.none_yet(), stop, start)
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


def check_whole(s: Specialiser, value: Any) -> None:
    """Raises ProgramError for what is no bound of a range."""
    dtype, weak = arithmetic.dtype_of(s, value)
    is_truth = dtype is DType.BOOL and not weak
    if dtype.is_float or is_truth or arithmetic.shape_of(value) != ():
        hint = "convert it: int(x), or x.astype(np.int32)"
        raise s.error(
            "DL119", f"a range's bounds must be whole numbers, not {describe(value)}", hint
        )


def _whole(s: Specialiser, value: Any) -> Value:
    """A bound of a range, as i64[]."""
    check_whole(s, value)
    return indexing.place_of(s, value, int).value


def _index_region(
    s: Specialiser,
    node: hir.For,
    frame: Frame,
    start: Value,
    stop: Value,
    item: Callable[[Any], Any],
    surely: bool = False,
    known_as: int | None = None,
) -> None:
    """A loop over indices start..stop-1 as a region; as a `while` when it may stop early.

    `surely`: it runs at least once. `known_as`: the `id` of the statement that was rewritten.
    """

    def run(index: Tensor) -> None:
        def round_() -> None:
            s.at(node.iterable.loc)
            statements.assign(s, node.target, item(index), frame)
            with raises.refused(s):
                statements.run(s, node.body, frame)

        tries.where_none(s, frame, round_)

    if node.stop is None:
        loop = _For(s, frame, node, node.carried, surely, start, stop, run)
        if known_as is not None:
            loop.first_round = known_as
        loop.run()
        return
    counter, flag = f"$index{node.stop}", node.stop
    frame.vars = {**frame.vars, counter: Tensor(start)}

    def test() -> Any:
        going = Tensor(s.emit("lt", frame.vars[counter].value, stop))
        runs = (lambda: operators.unary(s, "not", frame.vars[flag]), lambda: going)
        return boolean(s, "and", runs, node.loc)

    def body() -> None:
        index = frame.vars[counter]
        s.natural.index(index.value, start, stop)
        run(Tensor(index.value, True))
        frame.vars[counter] = arithmetic.add(s, index, 1)

    _While(s, frame, node, (counter, *node.carried), surely, test, body).run()


def run_while(s: Specialiser, node: hir.While, frame: Frame) -> None:
    """Unrolls a `while` with a known test, or makes it a loop of the program."""

    def test() -> Any:
        runs: list[Run] = [lambda: tested(s, node.test, frame)]
        if node.stop is not None:
            flag = node.stop
            runs.insert(0, lambda: operators.unary(s, "not", frame.vars[flag]))
        return boolean(s, "and", runs, node.test.loc)

    def body() -> None:
        with raises.refused(s):
            statements.run(s, node.body, frame)

    from ..specialise import StaticNeeded

    if id(node) in s.unrolled:
        _unroll_while(s, node, frame, test, body)
        return
    loop = _While(s, frame, node, node.carried, False, test, body)
    state, before = s.state(), frame.vars
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
        s.tally[0] += 1
        scope = s.scope
        state, before = s.state(), dict(frame.vars)
        with s.inside(s.new_scope(), faults=True) as trial:
            truth = operators.condition(s, test())
        if not isinstance(truth, bool):
            s.restore(state)
            frame.vars = before
            _While(s, frame, node, node.carried, False, test, body).run()
            return
        scope.ops += trial.ops
        raises.leave(s, trial)
        if not truth:
            return
        body()
    s.at(node.loc)
    raise s.error(
        "DL110",
        f"the loop is unrolled and does not end in {iteration.UNROLL_MAX} rounds",
        "start its counter as an array (np.int32(0)), so that it can run in the program",
    )


#: Rounds that the fixed point may take: found, made weak, made strong, arrays that are changed in
#: place and containers found and found to be others, confirmed, and one to spare.
_ROUNDS_MAX = 9


class _For(Carries):
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
        self.run_or_restore(self._run)

    def _run(self) -> None:
        s = self.s
        for _ in range(_ROUNDS_MAX):
            index = Value(self.bounds[0].type)
            self.index = (index,)
            s.natural.index(index, *self.bounds)
            with s.inside(s.new_scope(), changes=True) as scope:
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


class _While(Carries):
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
        self.carried = carried
        self.test = test
        self.body = body
        self.known = False

    def run(self) -> None:
        self.run_or_restore(self._run)

    def _run(self) -> None:
        s = self.s
        for round_ in range(_ROUNDS_MAX):
            with s.inside(s.new_scope(), changes=True) as cond:
                cond_params = self.enter()
                held = s.region.state()
                truth = self.guarded(operators.condition(s, self.test()))
                changes = not containers.same(held, s.region.state())
            changed = {m: v for m, v in cond.changed.items() if v[0] not in cond_params}
            if changes or changed:
                self.rotated()
                return
            if round_ == 0:
                self.known = isinstance(truth, bool)
                if truth is True:
                    self.runs_surely()
            if truth is False:
                self.frame.vars = self.before
                return
            with s.inside(s.new_scope(), changes=True) as scope:
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

    def guarded(self, truth: bool | Value) -> bool | Value:
        """The test; false once there was an error, after which it may never come out so."""
        faults = self.s.faults
        if isinstance(truth, bool) or faults is None or not faults.possible():
            return truth
        return self.s.emit("and", faults.none_yet(), truth)

    def rotated(self) -> None:
        """Runs the test before the loop and at each round's end.

        It may meet errors and change objects and arrays, and a test of the IR gives only its truth.
        """
        going = f"$going{self.node.loc.line}.{self.node.loc.column}"
        self.restore()
        self.frame.vars = dict(self.before)
        first = arithmetic.tensor(self.s, self.test())
        self.frame.vars[going] = first

        def body() -> None:
            self.body()
            self.frame.vars[going] = arithmetic.tensor(self.s, self.test())

        names = (going, *self.carried)

        def test() -> Any:
            return self.frame.vars[going]

        _While(self.s, self.frame, self.node, names, self.surely, test, body).run()

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
