"""The `delian` command. A group of commands is one small file; this one puts them together.

What a command needs is imported when it runs, so that `delian --help` answers at once. Exit codes:
0 done, 1 a run gave up before its last round (its report is written), 2 the input was wrong (with a
message that says what, where and what to do), 3 the coordinator does not answer, 130 interrupted.
"""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable
from typing import Any

from ..core.common.collector import end_unsearched, unsearched
from ..core.common.errors import DelianError

with unsearched():
    import typer

    from . import config_show, doctor
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
    from .output import echo
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
        quantise_commands,
        tune_commands,
    )
    from .simulation import (
        analyse_commands,
        data_commands,
        dst_commands,
        scenario_commands,
        simulate_commands,
        study_commands,
    )

INPUT_ERROR, INTERRUPTED = 2, 130


def _paragraphs(command: Callable[..., None]) -> str:
    """A command's docstring with each paragraph on one line: the terminal breaks lines itself."""
    text = inspect.cleandoc(command.__doc__ or "")
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))


app = typer.Typer(
    name="delian",
    help="Federated learning from device to edge to cloud: one model, compiled once, "
    "trained where the data is.",
    epilog="Start with: delian simulate",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("simulate", help=_paragraphs(simulate_commands.simulate))(simulate_commands.simulate)
app.command("analyse", help=_paragraphs(analyse_commands.analyse))(analyse_commands.analyse)
app.command("compare", help=_paragraphs(study_commands.compare))(study_commands.compare)
app.command("sweep", help=_paragraphs(study_commands.sweep))(study_commands.sweep)
app.command("dst", help=_paragraphs(dst_commands.dst))(dst_commands.dst)
app.add_typer(scenario_commands.app, name="scenario")
app.add_typer(data_commands.app, name="data")
app.add_typer(cloud_commands.app, name="cloud")
authority_commands.app.command("request", help=_paragraphs(delegation_commands.request))(
    delegation_commands.request
)
authority_commands.app.command("accept", help=_paragraphs(delegation_commands.accept))(
    delegation_commands.accept
)
app.add_typer(authority_commands.app, name="authority")
app.add_typer(run_commands.app, name="run")
app.add_typer(fleet_commands.app, name="fleet")
app.add_typer(model_commands.app, name="model")
app.add_typer(bundle_commands.app, name="bundle")
app.add_typer(broker_commands.app, name="broker")
device_commands.app.command("cascade", help=_paragraphs(device_cascade_commands.cascade))(
    device_cascade_commands.cascade
)
app.add_typer(device_commands.app, name="device")
app.add_typer(edge_commands.app, name="edge")
identity_commands.ca.command("delegate", help=_paragraphs(delegation_commands.delegate))(
    delegation_commands.delegate
)
identity_commands.ca.command("list", help=_paragraphs(delegation_commands.issuers))(
    delegation_commands.issuers
)
app.add_typer(identity_commands.ca, name="ca")
app.add_typer(certificate_log_commands.app, name="log")
app.add_typer(witness_commands.app, name="witness")
app.add_typer(artifact_commands.app, name="artifact")
app.add_typer(audit_commands.app, name="audit")
app.command("token", help=_paragraphs(token_commands.token))(token_commands.token)
app.command("approve", help=_paragraphs(token_commands.approve))(token_commands.approve)
app.command("join", help=_paragraphs(join_commands.join))(join_commands.join)
app.add_typer(config_show.app, name="config")
app.add_typer(ir_commands.app, name="ir")
app.command("build", help=_paragraphs(build_commands.build))(build_commands.build)
app.command("quantise", help=_paragraphs(quantise_commands.quantise))(quantise_commands.quantise)
app.command("profile", help=_paragraphs(profile_commands.profile))(profile_commands.profile)
partition_commands.app.command("cascade", help=_paragraphs(cascade_commands.cascade))(
    cascade_commands.cascade
)
partition_commands.app.command("simulate", help=_paragraphs(partition_simulate_commands.simulate))(
    partition_simulate_commands.simulate
)
app.add_typer(partition_commands.app, name="partition")
app.command("tune", help=_paragraphs(tune_commands.tune))(tune_commands.tune)
app.add_typer(cache_commands.app, name="cache")
app.command("doctor")(doctor.doctor)


@app.callback(invoke_without_command=True)
def delian(  # noqa: D103
    version: bool = typer.Option(False, "--version", help="Print the version and exit."),
) -> None:  # the help is that of `app`
    if version:
        from importlib.metadata import version as installed

        echo(f"delian {installed('delian')}")
        raise typer.Exit


def _show_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, *_: Any, **__: Any
) -> None:
    """A warning about a setting of the user's as one line; another one as Python shows it."""
    if category.__name__ == "RenamedWarning":  # whose module most commands do not import
        echo(f"warning: {message}", err=True)
    else:
        sys.stderr.write(warnings.formatwarning(message, category, filename, lineno))


def main() -> None:
    """The console script's entry: runs the command and turns a user's mistake into a message."""
    end_unsearched()
    warnings.showwarning = _show_warning
    try:
        app()
    except DelianError as error:
        echo(f"error: {error}", err=True)
        sys.exit(getattr(error, "exit_code", INPUT_ERROR))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
