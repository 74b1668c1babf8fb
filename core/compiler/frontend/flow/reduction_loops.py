"""`sum`, `any`, `all`, `min` and `max` of generator expressions: known items, or a loop.

The items are computed one by one while compiling, where that is possible. What fails there may
still be a loop of the program (`hir.syntax_reductions`): where the program decides which items
count, where there are too many, and where an item may raise an error after the one that ends `any`.
A program is made without such loops first, since known items keep more: their number, and the class
of their sum.
"""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING, Any

from ....common.errors import ProgramError
from .. import calls, statements
from ..hir import hir, syntax_reductions
from ..ragged.ragged_python import OF_NOTHING
from ..values import Frame, Method, Once, is_static
from ..vocabulary import python_sums
from . import generators
from .carries import LoopMismatch

if TYPE_CHECKING:
    from ..specialise import Specialiser


_MISSING = object()
#: Codes of errors that a loop may not have: of what must be known, of lengths, and of what Python
#: does between the items.
_HELPED = ("DL107", "DL110", "DL111", "DL122")


def reduction(s: Specialiser, node: hir.Reduction, frame: Frame) -> Any:
    """A reduction: of known items, or as a loop where there is one."""
    call, builtin = node.call, getattr(builtins, node.name)
    items = call.args[0]
    assert isinstance(items, hir.Comprehension)
    function = s.eval(call.function, frame)
    source = s.eval(items.generators[0].iterable, frame)
    args = s.items(call.args[1:], frame)
    keywords = {name: s.eval(value, frame) for name, value in call.keywords if name is not None}
    if len(keywords) < len(call.keywords):
        return s.eval(call, frame)
    s.at(node.loc)
    made = generators.of_source(s, items, frame, source)
    if function is not builtin:
        return calls.call(s, function, (made, *args), keywords)
    if node.loop is None:
        found = calls.call(s, function, (made, *args), keywords)
        if node.name in ("any", "all") and not is_static(found):
            text = f"only the running program knows at which item `{node.name}` ends, and so what"
            raise s.static_needed(f"{text} `:=` binds last", "write it as a `for` statement")
        return found
    state, names, changed = s.state(), frame.vars, s.container_changes
    used = type(source) is Once and (source.used or source.ahead is not None)
    frame.vars = dict(names)
    try:
        return calls.call(s, function, (made, *args), keywords)
    except ProgramError as e:
        helps = e.code in _HELPED and not used and s.container_changes == changed
        s.wants_loops |= helps
        if not helps or not s.looping:
            raise
    s.restore(state)
    frame.vars = names
    if type(source) is Once:
        source.used = False
    given = dict(zip(syntax_reductions.arguments(node.name), args, strict=False)) | keywords
    hidden = {f"${k}": v for k, v in (_HELPERS | _words(node.name) | given).items()}
    inner = Frame(
        {"$values": source, **hidden}, node.loop.assigned, frame, frame.module, frame.cells
    )
    from ..specialise import StaticNeeded

    try:
        statements.run(s, node.loop.body, inner)
    except (StaticNeeded, LoopMismatch):
        raise
    except ProgramError as e:  # A loop around it may be unrolled.
        raise StaticNeeded(e.code, e.message, e.locs, e.hint) from e.__cause__
    s.at(node.loc)
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


def _words(name: str) -> dict[str, str]:
    return {"words": f"{name}() {OF_NOTHING}"}


__all__ = ["reduction"]
