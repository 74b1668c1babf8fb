"""Mistakes in a command line, as one error and one hint: like all other errors of the command."""

from __future__ import annotations

import difflib
import re
from typing import Any

import typer

from ..core.common.errors import DelianError
from .examples import EXAMPLES

#: What typer raises for a command line that it cannot take; its module is not public.
UsageError: Any = typer.BadParameter.__mro__[1]

#: How the checks of values are worded, and in plain words.
_PLAIN = (
    (r"Input should be a valid integer, unable to parse string as an integer", "no whole number"),
    (r"Input should be a valid number, unable to parse string as a number", "no number"),
    (r"Input should be greater than or equal to (\S+)", r"it must be at least \1"),
    (r"Input should be less than or equal to (\S+)", r"it must be at most \1"),
    (r"Input should be greater than (\S+)", r"it must be more than \1"),
    (r"Value error, ", ""),
    (r" \(Possible options: [^)]*\)", ""),
    (r"\.$", ""),
)


def is_help(fault: Any) -> bool:
    """Whether it stands for a group without a command, whose help was printed."""
    return type(fault).__name__ == "NoArgsIsHelpError"


def explained(fault: Any) -> DelianError:
    """The error of a command line with what to do: the option that was meant, or an example."""
    message = str(fault.format_message())
    for wording, plain in _PLAIN:
        message = re.sub(wording, plain, message)
    context = fault.ctx
    if context is None:
        return DelianError(message, "delian --help lists the commands")
    path = str(context.command_path)
    name = path.partition(" ")[2]
    if hasattr(context.command, "commands"):
        return _unknown_command(context, message, path)
    example = EXAMPLES.get(name)
    for_example = f"for example: {example}; `{path} --help` has all options"
    meant = _meant(fault, context)
    if meant is not None:
        return DelianError(message, f"did you mean `{meant}`? `{path} --help` has all options")
    return DelianError(message, for_example)


def _meant(fault: Any, context: Any) -> str | None:
    """The option that a wrong one is nearest to."""
    wrong = getattr(fault, "option_name", "") or ""
    if type(fault).__name__ != "NoSuchOption" or not wrong.startswith("--"):
        return None
    options = [o for p in context.command.params for o in p.opts if o.startswith("--")]
    begun = [option for option in options if option.startswith(wrong)]
    near = difflib.get_close_matches(wrong, options, 1, 0.6)
    return next(iter((*begun, *near)), None)


def _unknown_command(context: Any, message: str, path: str) -> DelianError:
    """The error of a group: typer's has the nearest command in it."""
    first, _, rest = message.partition(" Did you mean ")
    named = re.findall(r"'([^']+)'", rest)
    if named:
        return DelianError(first, f"did you mean `{path} {named[0]}`? `{path} --help` lists all")
    return DelianError(first, f"`{path} --help` lists the commands")
