"""The `delian` command. A group of commands is one small file; this one puts them together.

What a command needs is imported when it runs, so that `delian --help` answers at once. Exit codes:
0 done, 1 a run gave up before its last round (its report is written), 2 the input was wrong (with a
message that says what, where and what to do), 3 the coordinator does not answer, 130 interrupted.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable

from ..core.collector import end_unsearched, unsearched
from ..core.errors import DelianError

with unsearched():
    import typer

    from . import (
        analyse,
        artifact,
        audit,
        authority,
        broker,
        build,
        bundle,
        cache,
        cascade,
        certificate_log,
        cloud,
        config_show,
        data,
        delegation,
        device,
        device_cascade,
        doctor,
        dst,
        edge,
        fleet,
        identity,
        ir,
        join,
        model,
        partition,
        partition_simulate,
        profile,
        quantise,
        run,
        scenario,
        simulate,
        study,
        token,
        tune,
        witness,
    )
    from .output import echo

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
app.command("simulate", help=_paragraphs(simulate.simulate))(simulate.simulate)
app.command("analyse", help=_paragraphs(analyse.analyse))(analyse.analyse)
app.command("compare", help=_paragraphs(study.compare))(study.compare)
app.command("sweep", help=_paragraphs(study.sweep))(study.sweep)
app.command("dst", help=_paragraphs(dst.dst))(dst.dst)
app.add_typer(scenario.app, name="scenario")
app.add_typer(data.app, name="data")
app.add_typer(cloud.app, name="cloud")
authority.app.command("request", help=_paragraphs(delegation.request))(delegation.request)
authority.app.command("accept", help=_paragraphs(delegation.accept))(delegation.accept)
app.add_typer(authority.app, name="authority")
app.add_typer(run.app, name="run")
app.add_typer(fleet.app, name="fleet")
app.add_typer(model.app, name="model")
app.add_typer(bundle.app, name="bundle")
app.add_typer(broker.app, name="broker")
device.app.command("cascade", help=_paragraphs(device_cascade.cascade))(device_cascade.cascade)
app.add_typer(device.app, name="device")
app.add_typer(edge.app, name="edge")
identity.ca.command("delegate", help=_paragraphs(delegation.delegate))(delegation.delegate)
identity.ca.command("list", help=_paragraphs(delegation.issuers))(delegation.issuers)
app.add_typer(identity.ca, name="ca")
app.add_typer(certificate_log.app, name="log")
app.add_typer(witness.app, name="witness")
app.add_typer(artifact.app, name="artifact")
app.add_typer(audit.app, name="audit")
app.command("token", help=_paragraphs(token.token))(token.token)
app.command("approve", help=_paragraphs(token.approve))(token.approve)
app.command("join", help=_paragraphs(join.join))(join.join)
app.add_typer(config_show.app, name="config")
app.add_typer(ir.app, name="ir")
app.command("build", help=_paragraphs(build.build))(build.build)
app.command("quantise", help=_paragraphs(quantise.quantise))(quantise.quantise)
app.command("profile", help=_paragraphs(profile.profile))(profile.profile)
partition.app.command("cascade", help=_paragraphs(cascade.cascade))(cascade.cascade)
partition.app.command("simulate", help=_paragraphs(partition_simulate.simulate))(
    partition_simulate.simulate
)
app.add_typer(partition.app, name="partition")
app.command("tune", help=_paragraphs(tune.tune))(tune.tune)
app.add_typer(cache.app, name="cache")
app.command("doctor")(doctor.doctor)


@app.callback(invoke_without_command=True)
def delian(
    version: bool = typer.Option(False, "--version", help="Print the version and exit."),
) -> None:
    if version:
        from importlib.metadata import version as installed

        echo(f"delian {installed('delian')}")
        raise typer.Exit


def main() -> None:
    """The console script's entry: runs the command and turns a user's mistake into a message."""
    end_unsearched()
    try:
        app()
    except DelianError as error:
        echo(f"error: {error}", err=True)
        sys.exit(getattr(error, "exit_code", INPUT_ERROR))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
