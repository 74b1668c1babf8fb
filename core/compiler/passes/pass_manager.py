"""What a pass is, how a list of passes runs, and the passes that every back end shares.

A pass takes a function and returns one with the same results: the very same object where it has
nothing to do. While VERIFY is set, as in the tests, the IR is verified after each pass that changed
it, and an error names the pass. The whole list is in `pipeline`; this module is apart because a
process that finds its programs in the cache needs no other pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...common.errors import VerifyError
from ..ir import Block, Function
from ..transforms.custom import expanded
from .simplify import simplify

#: Whether the IR is verified after each pass. The tests set it for the whole suite.
VERIFY = False


@dataclass(frozen=True, slots=True)
class Pass:
    """One rewriting of a program."""

    name: str
    """Its name on the command line and in errors."""
    run: Callable[[Function], Function]
    """From a function to one with the same results; the same object where nothing is to be done."""
    text: str
    """What it does, in one line."""
    changed_by: tuple[str, ...] = ()
    """It runs only where one of these earlier passes changed the program; always when empty."""


def on_body(rewrite: Callable[[Block], Block]) -> Callable[[Function], Function]:
    """A pass from a rewriting of blocks."""

    def rewritten(function: Function) -> Function:
        body = rewrite(function.body)
        return function if body is function.body else function.with_body(body)

    return rewritten


INDEPENDENT = (
    Pass(
        "expand-custom-derivatives",
        expanded,
        "A function with a derivative of its own becomes its body.",
    ),
    Pass(
        "simplify",
        on_body(simplify),
        "Local rewriting rules, constant folding, common subexpressions, dead code.",
    ),
)


def run(function: Function, passes: Sequence[Pass], last: str = "") -> Function:
    """The function after these passes, or after the one called `last`.

    The same function gives the same every time. Raises VerifyError, naming the pass, where VERIFY
    is set and a pass left IR that is not well formed.
    """
    changed: set[str] = set()
    for each in passes:
        if not each.changed_by or changed.intersection(each.changed_by):
            before = function.body
            function = each.run(function)
            if function.body is not before:
                changed.add(each.name)
                if VERIFY:
                    _verify(function, each)
        if each.name == last:
            break
    return function


def _verify(function: Function, after: Pass) -> None:
    from ..verify import verify

    try:
        verify(function)
    except VerifyError as error:
        raise VerifyError(f"after the pass {after.name}: {error.message}") from error
