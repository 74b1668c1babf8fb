"""Reductions of generator expressions and list comprehensions: known items, or a loop.

The items are computed one by one while compiling, where that is possible. What fails there may
still be a loop of the program (`hir.syntax_reductions`): where the program decides which items
count, where there are too many, and where an item may raise an error after the one that ends `any`.
A program is made without such loops first, since known items keep more: their number, and the class
of their sum.

The list of a loop is an array with room for all items, and their number (`RaggedList`).
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ....common.errors import ProgramError
from .. import calls, statements
from ..containers import stacked_items
from ..hir import hir, syntax_reductions
from ..ragged import ragged_lists
from ..ragged.ragged_python import OF_NOTHING
from ..values import Frame, Method, Once, is_static, kind_of
from ..vocabulary import python_sums
from . import generators, iteration, unroll_limits
from .carries import LoopMismatch

if TYPE_CHECKING:
    from ..specialise import Specialiser
    from ..vocabulary.vocabulary_table import Row


_MISSING = object()
#: Codes of errors that a loop may not have: of what must be known, of lengths, and of what Python
#: does between the items.
_HELPED = ("DL107", "DL110", "DL111", "DL122")


def reduction(s: Specialiser, node: hir.Reduction, frame: Frame) -> Any:
    """A reduction or a list: of known items, or as a loop where there is one."""
    call = node.call
    items = call if isinstance(call, hir.Comprehension) else call.args[0]
    assert isinstance(items, hir.Comprehension)
    function = s.eval(call.function, frame) if isinstance(call, hir.Call) else None
    source = s.eval(items.generators[0].iterable, frame)
    args, keywords = _given(s, call, frame)
    s.at(node.loc)

    def known() -> Any:
        made = generators.of_source(s, items, frame, source)
        if type(made) is Once:
            made.node = None  # This is the reduction of it.
        return made if function is None else calls.call(s, function, (made, *args), keywords)

    if function is not None and function is not getattr(builtins, node.name):
        return known()
    if node.loop is None:
        return _ended(s, node.name, known())
    if stacked_items.is_long(s, source) and not stacked_items.is_known(items, frame):
        found = _long(s, node, items, frame, source, args, keywords)
        if found is not _MISSING:
            return found
    return _known_or_loop(s, node.name, known, node.loop, frame, source, args, keywords)


def _long(
    s: Specialiser,
    node: hir.Reduction,
    items: hir.Comprehension,
    frame: Frame,
    source: Any,
    args: Sequence[Any],
    keywords: Mapping[str, Any],
) -> Any:
    """The loop over many items in a program that has to be short; `_MISSING` where it fails."""
    if node.loop is None or (node.name == "list" and not stacked_items.takes(items)):
        return _MISSING
    state, names = s.state(), frame.vars
    frame.vars = dict(names)
    try:
        if node.name == "list":
            run = partial(_loop, s, node.loop(), frame)
            return stacked_items.collected(s, items, source, frame, run)
        made = _reduced(s, node.name, node.loop(), frame, source, args, keywords)
        kind = kind_of(made)
        if not kind & (kind - 1):  # Of known items, a number may be of one class.
            return made
    except ProgramError as e:
        if e.code == "DL122" or isinstance(e, unroll_limits.UnrollWanted):
            raise
    s.restore(state)
    frame.vars = names
    if type(source) is Once:
        source.used = False
    return _MISSING


def of_kept(
    s: Specialiser, row: Row, f: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """A function of a generator expression that was kept under a name: `g = (...); sum(g)`.

    As in Python its items are computed now, of what its names hold now, and it is empty after it
    was gone through to its end.
    """
    kept: Once = args[0]
    node, rest = kept.node, args[1:]

    def known() -> Any:
        return row(s, f, args, kwargs)

    if node is None or node.loops is None or f is not getattr(builtins, row.name, None):
        return known()
    if (
        kept.used
        or kept.ahead is not None
        or not syntax_reductions.takes(row.name, len(rest), kwargs)
    ):
        return known()
    loops, frame = node.loops, kept.frame
    assert frame is not None, "a generator expression has a frame"

    def loop() -> hir.FunctionDef:
        kept.used = False
        iteration.take(s, kept)
        return loops(row.name)

    made = _known_or_loop(s, row.name, known, loop, frame, kept.reads[0], rest, kwargs)
    if row.name not in _ENDING and not s.tries:  # There an error may come before.
        s.spent = (*s.spent, kept)
    return made


#: What may end before the last item.
_ENDING = ("any", "all")


def _known_or_loop(
    s: Specialiser,
    name: str,
    known: Callable[[], Any],
    loop: Callable[[], hir.FunctionDef],
    frame: Frame,
    source: Any,
    args: Sequence[Any],
    keywords: Mapping[str, Any],
) -> Any:
    """What `known` gives; where it fails, the loop over a source, in a frame."""
    state, names, changed = s.state(), frame.vars, s.container_log.count
    used = type(source) is Once and (source.used or source.ahead is not None)
    frame.vars = dict(names)
    try:
        return known()
    except ProgramError as e:
        helps = e.code in _HELPED and not used and s.container_log.count == changed
        s.wants_loops |= helps
        if not helps or not s.looping:
            raise
        before, undecided = e, e is s.undecided
    s.restore(state)
    frame.vars = names
    if type(source) is Once:
        source.used = False
    from ..specialise import StaticNeeded

    try:
        function = loop()
        if name == "list":
            return ragged_lists.collected(s, source, partial(_loop, s, function, frame))
        return _reduced(s, name, function, frame, source, args, keywords)
    except ProgramError as e:
        if not undecided:  # A loop is not what was asked for: its errors say less.
            raise before from None
        if isinstance(e, StaticNeeded | LoopMismatch):
            raise
        raise StaticNeeded(e.code, e.message, e.locs, e.hint) from e.__cause__


def _reduced(
    s: Specialiser,
    name: str,
    function: hir.FunctionDef,
    frame: Frame,
    source: Any,
    args: Sequence[Any],
    keywords: Mapping[str, Any],
) -> Any:
    """The loop of a built-in function."""
    given = dict(zip(syntax_reductions.arguments(name), args, strict=False)) | {**keywords}
    words = {"words": f"{name}() {OF_NOTHING}"}
    return _loop(s, function, frame, source, _HELPERS | words | given)


def _given(
    s: Specialiser, call: hir.Call | hir.Comprehension, frame: Frame
) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a reduction after its items."""
    if isinstance(call, hir.Comprehension):
        return [], {}
    args = s.items(call.args[1:], frame)
    keywords: dict[str, Any] = {}
    for name, value in call.keywords:
        made = s.eval(value, frame)
        keywords.update(made if name is None else {name: made})
    return args, keywords


def _ended(s: Specialiser, name: str, found: Any) -> Any:
    """What a reduction gives that may bind a name by `:=`."""
    if name in ("any", "all") and not is_static(found):
        text = f"only the running program knows at which item `{name}` ends, and so what `:=` binds"
        raise s.static_needed(f"{text} last", "write it as a `for` statement")
    return found


def _loop(
    s: Specialiser, function: hir.FunctionDef, frame: Frame, source: Any, given: Mapping[str, Any]
) -> Any:
    """The loop over a source. given: what the form reads."""
    loc = s.loc
    hidden = {f"${k}": v for k, v in given.items()}
    names = {"$values": source, **hidden}
    inner = Frame(names, function.assigned, frame, frame.module, frame.cells)
    statements.run(s, function.body, inner)
    if loc is not None:
        s.at(loc)
    return s.lookup(inner, hir.RESULT)


#: What the forms read besides the arguments of a call.
_HELPERS = {
    "start": 0,
    "key": None,
    "default": _MISSING,
    "missing": _MISSING,
    "error": ValueError,
    "step": Method("sum", None, lambda s, _, *given: python_sums.step(s, *given)),
    "settled": Method("sum", None, lambda s, _, *given: python_sums.settled(s, *given)),
}


__all__ = ["of_kept", "reduction"]
