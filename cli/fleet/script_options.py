"""What a device's configuration says of training scripts, as the agent takes it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ...core.common.errors import DelianError

if TYPE_CHECKING:
    from ...core.node.scripts.script_process import ScriptCommand
    from ..settings import ScriptConfig


def named_scripts(given: Sequence[str] | None) -> dict[str, dict[str, str]] | None:
    """The commands of `--script NAME=COMMAND`; None where there are none. Raises DelianError."""
    found = {}
    for text in given or ():
        name, equals, command = text.partition("=")
        if not equals or not name or not command.strip():
            raise DelianError(
                f"--script {text}: this is not NAME=COMMAND", '--script mnist="python train.py"'
            )
        found[name] = {"command": command}
    return found or None


def script_commands(config: Mapping[str, ScriptConfig]) -> dict[str, ScriptCommand]:
    """The owner's commands, by name. Raises DelianError."""
    from ...core.learning.scripts.script_spec import ScriptSpec
    from ...core.node.scripts.script_process import ScriptCommand

    made = {}
    for name, each in config.items():
        ScriptSpec(name)  # a name that no run can have is never asked for
        folder = each.folder.expanduser().absolute() if each.folder is not None else None
        made[name] = ScriptCommand(arguments_of(each.command), folder, each.client, each.clients)
    return made


def arguments_of(command: str) -> tuple[str, ...]:
    """A command's program and arguments. Raises DelianError."""
    try:
        found = tuple(shlex.split(command))
    except ValueError as error:
        raise DelianError(
            f"the command {command[:200]!r} cannot be read: {error}", "close its quotes"
        ) from None
    if not found:
        raise DelianError("a script's command is empty", "name a program: python train.py")
    return found
