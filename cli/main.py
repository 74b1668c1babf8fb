"""The `delian` command. A group of commands is one small file; this one puts them together.

What a command needs is imported when it runs, so that `delian --help` answers at once. Exit codes:
0 done, 1 a run gave up before its last round (its report is written), 2 the input was wrong (with a
message that says what, where and what to do), 3 the coordinator does not answer, 130 interrupted.
"""

from __future__ import annotations

import copy
import inspect
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Annotated, Any

from ..core.common.collector import end_unsearched, unsearched
from ..core.common.errors import DelianError

with unsearched():
    import typer

    from . import config_show, doctor
    from .examples import EXAMPLES
    from .fleet import (
        audit_commands,
        broker_commands,
        cloud_commands,
        device_commands,
        edge_commands,
        fleet_commands,
        join_commands,
        run_commands,
        token_commands,
    )
    from .identity import (
        authority_commands,
        certificate_log_commands,
        delegation_commands,
        identity_commands,
        witness_commands,
    )
    from .options import AsJson
    from .output import echo, tell
    from .placement import (
        cascade_commands,
        device_cascade_commands,
        partition_commands,
        partition_simulate_commands,
        profile_commands,
    )
    from .programs import (
        artifact_commands,
        build_commands,
        bundle_commands,
        cache_commands,
        ir_commands,
        model_commands,
        predict_commands,
        quantise_commands,
        tune_commands,
    )
    from .simulation import (
        analyse_commands,
        data_commands,
        dst_commands,
        new_commands,
        quickstart_commands,
        scenario_commands,
        simulate_commands,
        study_commands,
    )
    from .statistics import ask_command, device_question_commands
    from .usage_errors import UsageError, explained, is_help

INPUT_ERROR, INTERRUPTED = 2, 130


def _show_docstrings(group: typer.Typer, *words: str) -> None:
    """Makes each command's docstring its help, with each paragraph on one line, and an example.

    The terminal breaks lines itself, and takes what stands in square brackets for markup. words:
    the name of the group.
    """
    for command in group.registered_commands:
        name = " ".join((*words, command.name or ""))
        command.epilog = f"Example: {EXAMPLES[name]}".replace("[", "\\[")
        text = inspect.cleandoc(command.callback.__doc__ or "" if command.callback else "")
        paragraphs = (" ".join(part.split()) for part in text.split("\n\n"))
        command.help = "\n\n".join(paragraphs).replace("[", "\\[")
    for inner in group.registered_groups:
        if inner.typer_instance is not None:
            _show_docstrings(inner.typer_instance, *words, inner.name or "")


app = typer.Typer(
    name="delian",
    help="Federated learning from device to edge to cloud: one model, compiled once, "
    "trained where the data is.",
    epilog="Start with: delian quickstart, or delian simulate",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
#: Commands and groups of commands, as `delian --help` shows them together.
_PANELS: dict[str, dict[str, typer.Typer | Callable[..., None]]] = {
    "Simulate and study": {
        "quickstart": quickstart_commands.quickstart,
        "simulate": simulate_commands.simulate,
        "new": new_commands.new,
        "analyse": analyse_commands.analyse,
        "compare": study_commands.compare,
        "sweep": study_commands.sweep,
        "study": study_commands.study,
        "ask": ask_command.ask,
        "dst": dst_commands.dst,
        "scenario": scenario_commands.app,
        "data": data_commands.app,
    },
    "Run a fleet": {
        "doctor": doctor.doctor,
        "cloud": cloud_commands.app,
        "edge": edge_commands.app,
        "broker": broker_commands.app,
        "run": run_commands.app,
        "fleet": fleet_commands.app,
        "config": config_show.app,
    },
    "On a device": {
        "join": join_commands.join,
        "device": device_commands.app,
    },
    "Identity and trust": {
        "token": token_commands.token,
        "approve": token_commands.approve,
        "ca": identity_commands.ca,
        "authority": authority_commands.app,
        "log": certificate_log_commands.app,
        "witness": witness_commands.app,
        "artifact": artifact_commands.app,
        "audit": audit_commands.app,
    },
    "Models": {
        "predict": predict_commands.predict,
        "model": model_commands.app,
        "bundle": bundle_commands.app,
        "quantise": quantise_commands.quantise,
    },
    "Compile and place": {
        "build": build_commands.build,
        "tune": tune_commands.tune,
        "profile": profile_commands.profile,
        "partition": partition_commands.app,
        "ir": ir_commands.app,
        "cache": cache_commands.app,
    },
}
for _panel, _commands in _PANELS.items():
    for _name, _command in _commands.items():
        if isinstance(_command, typer.Typer):
            app.add_typer(_command, name=_name, rich_help_panel=_panel)
        else:
            app.command(_name, rich_help_panel=_panel)(_command)
# Of groups whose commands lie in several files.
authority_commands.app.command("request")(delegation_commands.request)
authority_commands.app.command("accept")(delegation_commands.accept)
device_commands.app.command("cascade")(device_cascade_commands.cascade)
device_commands.app.command("questions")(device_question_commands.questions)
identity_commands.ca.command("delegate")(delegation_commands.delegate)
identity_commands.ca.command("list")(delegation_commands.issuers)
partition_commands.app.command("cascade")(cascade_commands.cascade)
partition_commands.app.command("simulate")(partition_simulate_commands.simulate)


@app.command("help", hidden=True)
def show_help(
    words: Annotated[list[str] | None, typer.Argument(metavar="COMMAND", help="Which.")] = None,
) -> None:
    """Show the help of a command, as `delian COMMAND --help` does."""
    named = words or []
    _named(named)([*named, "--help"], prog_name="delian", standalone_mode=False)


@app.command("version", hidden=True)
def show_version(as_json: AsJson = False) -> None:
    """Print the version, as `delian --version` does."""
    tell({"version": _version()}, as_json, lambda: [f"delian {_version()}"])


_show_docstrings(app)


def _version() -> str:
    from importlib.metadata import version as installed

    return installed("delian")


@app.callback(invoke_without_command=True)
def delian(  # noqa: D103
    version: bool = typer.Option(False, "--version", help="Print the version and exit."),
) -> None:  # the help is that of `app`
    if version:
        echo(f"delian {_version()}")
        raise typer.Exit


def _show_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, *_: Any, **__: Any
) -> None:
    """A warning about a setting of the user's as one line; another one as Python shows it."""
    if category.__name__ == "RenamedWarning":  # whose module most commands do not import
        echo(f"warning: {message}", err=True)
    else:
        sys.stderr.write(warnings.formatwarning(message, category, filename, lineno))


def _named(words: Sequence[str]) -> typer.Typer:
    """The part of `app` that runs a command line: typer builds all commands of what it is given.

    That takes 0.2 s of processor time for all of them, and a twentieth of it for a group.
    """
    part = copy.copy(app)
    part.registered_groups = [g for g in app.registered_groups if g.name in words[:1]]
    part.registered_commands = [c for c in app.registered_commands if c.name in words[:1]]
    return part if part.registered_groups or part.registered_commands else app


def main() -> None:
    """The console script's entry: runs the command and turns a user's mistake into a message."""
    end_unsearched()
    warnings.showwarning = _show_warning
    try:
        ended = _named(sys.argv[1:])(standalone_mode=False, prog_name="delian")
    except UsageError as fault:
        if not is_help(fault):
            echo(f"error: {explained(fault)}", err=True)
        sys.exit(INPUT_ERROR)
    except typer.Abort:
        sys.exit(INTERRUPTED)
    except DelianError as error:
        echo(f"error: {error}", err=True)
        sys.exit(getattr(error, "exit_code", INPUT_ERROR))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    sys.exit(ended if isinstance(ended, int) else 0)


if __name__ == "__main__":
    main()
