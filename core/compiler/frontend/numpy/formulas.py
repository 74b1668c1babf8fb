"""Functions of `definitions` in a handler, and errors of NumPy's with words of their own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from ...ir import Value
from ..flow import raises
from . import arithmetic

if TYPE_CHECKING:
    from ..specialise import Specialiser


def formula(s: Specialiser, f: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """A function of `definitions`, inlined; an error within it is one of the user's call."""
    from ..vocabulary.vocabulary_table import Defined

    return Defined(f)(s, *args, **kwargs)


def fails(s: Specialiser, truths: Value, error: type[Exception], words: str) -> None:
    """The call raises an error with these words where one of some bools is true."""
    raises.ask(s, arithmetic.any_of(s, truths), partial(_fail, error, words), kind=error)


def refuses(s: Specialiser, truths: Value, words: str) -> None:
    """The same where NumPy has a value: no handler of the program takes the error."""
    fail = partial(_fail, ArithmeticError, words)
    raises.ask(s, arithmetic.any_of(s, truths), fail, kind=raises.Uncaught)


def _fail(error: type[Exception], words: str) -> None:
    raise error(words)
