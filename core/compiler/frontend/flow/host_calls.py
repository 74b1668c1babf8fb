"""Calls of `print` and of loggers: Python makes them once the program has run.

A program cannot call Python. For each such call it gives hidden results instead: whether it came
there, and the numbers that the call mentions. They are memories like the fault code (`raises`), so
branches and derivatives treat them alike. The calls are made in the order of the function's, those
before an error of the program too, and before that error is raised.

    if x < 0:                        %came = select(lt(x, 0), true, false)
        print("negative:", x)   ->   %held = select(lt(x, 0), x, 0)
    return np.sqrt(x)                return sqrt(x), %came, %held

A loop of the program gives one value for each result, so a loop with such a call is unrolled.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from .. import operators
from ..values import describe
from .deferred_values import later as deferred

if TYPE_CHECKING:
    from ..specialise import Specialiser

#: Such calls of one program, each of which is a result of its own, and elements of an array.
_CALLS_MAX, _SIZE_MAX = 1000, 100_000
_HINT = "take it out, or debug with DELIAN_DEBUG=1: then the function is plain Python"


def later(s: Specialiser, f: Callable[..., Any], name: str, args: Any, kwargs: Any) -> None:
    """Python calls `f` with these once the program has run, if the program comes here.

    Raises:
        ProgramError: DL106, nothing here can call Python, or there are too many calls; DL102, it is
            within a `try`; DL112, an argument is too large, or no number, text or container.
    """
    faults = s.faults
    if faults is None:
        text = f"`{name}` is a call of Python's, and this program has no caller in Python"
        raise s.error("DL106", text, _HINT)
    if faults.local:
        raise s.error("DL102", f"`{name}` is called within a `try`", "call it after the `try`")
    if len(faults.said) == _CALLS_MAX:
        text = f"a program makes at most {_CALLS_MAX} calls of `print` and loggers"
        raise s.error("DL106", text, "return the numbers, and print them outside")
    held: list[Any] = []
    made = deferred(s, (tuple(args), dict(kwargs)), held, f"`{name}`", _SIZE_MAX, depth=1)

    def call(numbers: Any) -> None:
        given, named = made(numbers)
        f(*given, **named)

    faults.say(call, held)


def _print(s: Specialiser, *args: Any, file: Any = None, **kwargs: Any) -> None:
    later(s, partial(print, file=file), "print", args, kwargs)


def _of_module(name: str) -> Callable[..., None]:
    def run(s: Specialiser, *args: Any, **kwargs: Any) -> None:
        later(s, getattr(logging, name), f"logging.{name}", args, kwargs)

    return run


def _of_logger(name: str) -> Callable[..., None]:
    def run(s: Specialiser, logger: Any, *args: Any, **kwargs: Any) -> None:
        if not isinstance(logger, logging.Logger):
            raise s.error("DL119", f"`Logger.{name}` takes a logger, not {describe(logger)}")
        later(s, getattr(logger, name), f"Logger.{name}", args, kwargs)

    return run


def _get_logger(s: Specialiser, name: Any = None) -> Any:
    return operators.python(s, lambda: logging.getLogger(name), "`logging.getLogger`")


_LEVELS = ("debug", "info", "warning", "error", "critical", "log")
#: (function, its name, what it means in a program).
FUNCTIONS: tuple[tuple[Any, str, Callable[..., Any]], ...] = (
    (print, "print", _print),
    (logging.getLogger, "logging.getLogger", _get_logger),
    *((getattr(logging, n), f"logging.{n}", _of_module(n)) for n in _LEVELS),
    *((getattr(logging.Logger, n), f"logging.Logger.{n}", _of_logger(n)) for n in _LEVELS),
)
