"""`delian device`: run a device, ask its own model, see how it does, agree or not."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...core.common.errors import DelianError
from ...core.common.printable import escaped
from ..identity.terms_commands import terms_facts, terms_text
from ..options import (
    ConfigFile,
    DeviceNumber,
    Due,
    Homes,
    IdentityFolder,
    Insecure,
    ResultsFile,
    Settings,
)
from ..output import echo, tell, when
from ..programs.row_files import write_rows
from ..statistics.question_rules import offered_tables, question_rules
from .script_options import named_scripts, script_commands

if TYPE_CHECKING:
    from ...core.compiler.ir import Array
    from ...core.privacy.secagg.client import Policy
    from ...core.privacy.secagg.helper import Trust
    from ...core.wire.enrolment_pb2 import FederationTerms
    from ...device.agent.daemon import DeviceSettings
    from ...device.protocol.device_state import DevicePolicy
    from ...device.protocol.releases import Cap
    from ..settings import DeviceConfig, MasksConfig

app = typer.Typer(help="Run a device, and ask its personal model.", no_args_is_help=True)

State = Annotated[
    Path | None, typer.Option("--state", help="The device's folder. (default: device.state)")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@app.command("run")
def run(
    config: ConfigFile = None,
    settings: Settings = None,
    state: State = None,
    home: Annotated[
        list[str] | None,
        typer.Option("--home", help="host:port, or edge-3@host:port; may be given again."),
    ] = None,
    data: Annotated[str | None, typer.Option("--data", help="The data's source.")] = None,
    tables: Annotated[
        list[str] | None,
        typer.Option(
            "--table",
            metavar="NAME=FILE",
            help="A CSV or Parquet file that `delian ask` may ask about; may be given again.",
        ),
    ] = None,
    scripts: Annotated[
        list[str] | None,
        typer.Option(
            "--script",
            metavar="NAME=COMMAND",
            help="Your own training script, for runs of this name; may be given again.",
        ),
    ] = None,
    identity: Annotated[
        Path | None, typer.Option("--identity", help="What `delian join` wrote.")
    ] = None,
    inference: Annotated[
        Path | None,
        typer.Option(
            "--inference",
            help="Unix socket to serve the personalized model on (default: not served).",
        ),
    ] = None,
    number: Annotated[
        int | None, typer.Option("--number", help="Which device this is; with --insecure.")
    ] = None,
    artifact: Annotated[
        list[str] | None,
        typer.Option(
            "--artifact",
            metavar="FILE",
            help="Of `delian build`: not compiled here; may be given again.",
        ),
    ] = None,
    insecure: Annotated[
        bool,
        typer.Option("--insecure", help="No TLS and no masks; on this machine alone."),
    ] = False,
) -> None:
    """Run a device until it is interrupted.

    It takes part when its owner has agreed and its conditions are met. On a terminal it asks its
    owner, unless that was said already (`delian device consent yes`). Killed and started again it
    goes on where it was.

    A device with a certificate refuses plain tasks: those whose updates edges and the coordinator
    could read. Its owner allows them by `required = false` in `[device.masks]`.
    """
    from ...core.common.heap import share_heap

    share_heap()  # before there are threads, each of which would make one of its own
    from ...device.agent.daemon import serve
    from . import daemons

    flags = {
        "device.state": state,
        "device.homes": home or None,
        "device.data.source": data,
        "device.questions.tables": offered_tables(tables),
        "device.scripts": named_scripts(scripts),
        "device.identity": identity,
        "device.inference": inference,
        "device.number": number,
        "device.worker.artifacts": artifact or None,
        "device.insecure": insecure or None,
    }
    _ask_consent(config, flags, settings or ())
    daemons.run(
        "delian-device",
        lambda chosen, ready, spans: serve(
            device_settings(chosen.device), ready=ready, spans=spans
        ),
        config,
        flags,
        settings,
    )


def _ask_consent(config: Path | None, flags: Mapping[str, Any], settings: Sequence[str]) -> None:
    """Asks the owner whether the device takes part, where that was never said.

    Where there is no terminal, the device's log and status say that it waits for it.
    """
    import sys

    from ...device.agent.conditions import ConditionSettings, was_asked, write_consent
    from ..config import load

    chosen = load(config, flags, settings).config.device
    file = chosen.conditions.consent_file or chosen.state / "consent"
    own = ConditionSettings(consented=chosen.conditions.consented, consent_file=file)
    if was_asked(own) or not sys.stdin.isatty():
        return
    question = (
        "This device trains on its own data, which stays here, when its owner agrees. Do you agree?"
    )
    write_consent(file, typer.confirm(question))


def device_settings(config: DeviceConfig) -> DeviceSettings:
    """The daemon's settings of the configuration's section. Raises DelianError."""
    from ...core.learning.data.sources import DataSettings
    from ...core.node.service.hosting import parse_home
    from ...device.agent.conditions import ConditionSettings
    from ...device.agent.daemon import DeviceSettings
    from ...device.agent.owner_limits import WorkerSettings

    identity = config.identity or config.state / "identity"
    return DeviceSettings(
        folder=config.state.absolute(),
        identity=None if config.insecure else identity,
        homes=tuple(parse_home(home) for home in config.homes),
        worker=WorkerSettings(
            data=DataSettings(**{**dict(config.data), "source": _absolute(config.data.source)}),
            **{**dict(config.worker), "artifacts": _artifacts(config.worker.artifacts)},
        ),
        questions=question_rules(config.questions),
        scripts=script_commands(config.scripts),
        conditions=ConditionSettings(**dict(config.conditions)),
        policy=policy_of(config),
        policy_now=partial(policy_of, config),
        transport=config.transport,
        broker_authority=config.broker_authority,
        personal_margin=config.personal_margin,
        split=config.split,
        inference=_socket(config),
        artifact_root=artifact_root(config),
        signed=config.signed,
        insecure=config.insecure,
        number=config.number,
        federation=config.federation,
    )


def policy_of(config: DeviceConfig) -> DevicePolicy:
    """What the device goes by: its owner's word, and the terms that it holds now.

    Raises DelianError.
    """
    from ...core.node.identity.pki.leaf_certificate import DAY_S
    from ...core.protocol.ports import SECOND
    from ...device.protocol.device_state import DevicePolicy

    return DevicePolicy(
        secure_required=masks_required(config),
        floor=floor_of(config),
        helpers=trust_of(config.masks),
        caps=caps_of(config),
        denied_age_ns=config.masks.deny_list_days * DAY_S * SECOND,
        blobs_bytes_max=config.blobs_mib << 20,
    )


def _artifacts(paths: Sequence[str]) -> tuple[str, ...]:
    """Files that mean the same in the training process.

    Raises ArtifactError for one that is damaged or does not fit this machine: later it would only
    be left out.
    """
    from ...core.compiler.backends.native.toolchain.artifact import check, read

    files = [Path(path).expanduser().absolute() for path in paths]
    for file in files:
        check(read(file), str(file))
    return tuple(map(str, files))


def masks_required(config: DeviceConfig) -> bool:
    """Whether plain tasks are refused.

    The owner's word; without one, yes where the device has a certificate. Without a certificate
    nothing can be masked.
    """
    required = config.masks.required
    return not config.insecure if required is None else required


def terms_of(config: DeviceConfig) -> FederationTerms | None:
    """The federation's terms that the device holds.

    None: it has not joined, or joined before there were any. Raises DelianError.
    """
    from ...core.node.identity.pki.identity_folder import IdentityFolder

    own = IdentityFolder(config.identity or config.state / "identity")
    return own.terms() if not config.insecure and own.exists() else None


def floor_of(config: DeviceConfig) -> Policy:
    """What masked sums must keep to: the owner's word, else the federation's, else the protocol's.

    What is asked of the certificate log is the federation's terms alone. Raises DelianError.
    """
    from ...core.node.identity.authority.terms import rules_of
    from ...core.privacy.secagg.client import CORRUPT_MIN, Policy
    from ...core.privacy.secagg.limits import COHORT_MIN

    terms, masks = terms_of(config), config.masks
    cohort_min = terms.cohort_min if terms is not None else COHORT_MIN
    corrupt = terms.corrupt if terms is not None else CORRUPT_MIN
    return Policy(
        cohort_min=cohort_min if masks.cohort_min is None else masks.cohort_min,
        corrupt=corrupt if masks.corrupt is None else masks.corrupt,
        log=rules_of(terms),
    )


def caps_of(config: DeviceConfig) -> tuple[Cap, ...]:
    """What the device's updates may disclose over its lifetime.

    The owner's cap and the federation's; both count. Raises DelianError.
    """
    from ...device.protocol.releases import Cap

    terms, budget = terms_of(config), config.budget
    caps = [] if budget.epsilon is None else [Cap(budget.epsilon, budget.delta)]
    if terms is not None and terms.epsilon:
        caps.append(Cap(terms.epsilon, terms.delta))
    return tuple(caps) or (Cap(delta=budget.delta),)


def trust_of(masks: MasksConfig) -> Trust:
    """The helpers that the owner allows. Raises DelianError."""
    from ...core.privacy.secagg.helper import Trust

    edges: dict[int, bytes] = {}
    for said in masks.helpers:
        number, _, key = said.partition(":")
        try:
            edges[int(number)] = pin = bytes.fromhex(key)
        except ValueError:
            pin = b"?"
        if len(pin) not in (0, 32):
            raise DelianError(
                f"{said!r} names no helper", "the number of an edge, or number:KEY in hexadecimal"
            )
    return Trust(edges, masks.helpers_min)


def artifact_root(config: DeviceConfig) -> Path | None:
    """The root key that says which bundles may run: as configured, or as the device joined."""
    from ...device.agent.artifact_gate import ROOT_FILE

    if config.artifact_root is not None:
        return config.artifact_root
    joined = (config.identity or config.state / "identity") / ROOT_FILE
    return joined if joined.exists() else None


def _socket(config: DeviceConfig) -> Path | None:
    """Where the personal model is served; `none` says nowhere."""
    if config.inference == Path("none"):
        return None
    return (config.inference or config.state / "personal.sock").absolute()


def _absolute(source: str) -> str:
    """A path that means the same in the training process, whatever its folder."""
    kind, colon, rest = source.partition(":")
    if colon and kind in ("python", "entry"):
        return source
    if colon and kind == "sensor":
        return f"sensor:{Path(rest).expanduser().absolute()}"
    return str(Path(source).expanduser().absolute()) if source else ""


@app.command("status")
def status(
    config: ConfigFile = None,
    settings: Settings = None,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Show what the device does. Exit code 1: it does not run."""
    from ...device.agent.status_file import read_status

    said = read_status(_folder(config, settings, state))
    if as_json:
        echo(json.dumps(said))
    else:
        for name, value in said.items():
            words, _, unit = name.rpartition("_")
            words, shown = (words, _UNITS[unit](value)) if unit in _UNITS else (name, _shown(value))
            echo(escaped(f"{words.replace('_', ' '):<16} {shown}"))
    if not said["alive"]:
        raise typer.Exit(1)


#: How numbers are shown that have a unit, by the end of their names.
_UNITS: Mapping[str, Callable[[Any], str]] = {
    "ms": lambda value: when(value) if isinstance(value, int) else _shown(value),
    "mib": lambda value: f"{value:,} MiB" if isinstance(value, int) else _shown(value),
}


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        facts = [_fact(name.replace("_", " "), each) for name, each in value.items()]
        nested = any(isinstance(each, dict) for each in value.values())
        return ("; " if nested else ", ").join(facts) or "-"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "-" if value is None or value == "" else str(value)


def _fact(name: str, value: Any) -> str:
    """One of several: a yes or no, a count, or facts about something."""
    if isinstance(value, bool):
        return name if value else f"not {name}"
    if isinstance(value, dict):
        return f"{name}: {_shown(value)}"
    return f"{name} {value:,}" if isinstance(value, int) else f"{name} {value}"


def _folder(config: Path | None, settings: list[str] | None, state: Path | None) -> Path:
    from ..config import load

    return load(config, {"device.state": state}, settings or ()).config.device.state.absolute()


@app.command("terms")
def terms(
    accept: Annotated[
        bool, typer.Option("--accept", help="Take the looser terms that a renewal brought.")
    ] = False,
    config: ConfigFile = None,
    settings: Settings = None,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Show what the federation asks of its runs, and what waits for the owner.

    Newer terms of the federation are taken when the certificate is renewed, unless they are looser:
    a smaller sum, another root key. Those wait until the owner accepts them. `[device.masks]` and
    device.artifact_root go before the terms. Changes count from the device's next start.
    """
    from ...core.node.identity.authority.terms import OFFERED_FILE
    from ...core.node.identity.pki.identity_folder import IdentityFolder
    from ..config import load

    chosen = load(config, {"device.state": state}, settings or ()).config.device
    own = IdentityFolder(chosen.identity or chosen.state / "identity")
    if accept:
        own.accept_terms()
    held = {"terms": own.terms(), "offered": own.terms(OFFERED_FILE)}
    facts = {name: None if each is None else terms_facts(each) for name, each in held.items()}
    lines = [f"{n:<9} {'-' if each is None else terms_text(each)}" for n, each in held.items()]
    tell(facts, as_json, lambda: lines)


@app.command("consent")
def consent(
    answer: Annotated[str, typer.Argument(help="yes or no", metavar="yes|no")],
    config: ConfigFile = None,
    settings: Settings = None,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Agree that this device takes part, or take it back; it counts within seconds."""
    from ...device.agent.conditions import write_consent
    from ..config import load

    if answer not in ("yes", "no"):
        raise DelianError(f"`{answer}` is neither yes nor no", "delian device consent yes")
    chosen = load(config, {"device.state": state}, settings or ()).config.device
    file = chosen.conditions.consent_file or chosen.state / "consent"
    write_consent(file, answer == "yes")
    facts = {"file": str(file), "consented": answer == "yes"}
    tell(facts, as_json, lambda: [f"{file}: {answer}"])


@app.command("predict")
def predict(
    file: Annotated[Path, typer.Argument(help="An .npz file with an array `x`, or an .npy file.")],
    config: ConfigFile = None,
    settings: Settings = None,
    state: State = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Write the logits, or numbers, to this .npy file."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Ask the device's own model; `x` are rows as the device's data has them."""
    from ..config import load

    x = _batch(file)
    chosen = load(config, {"device.state": state}, settings or ()).config.device
    results, facts = _ask(chosen.state, _socket(chosen), x)
    if out is not None:
        write_rows(out, results)
    _tell(results, facts.pop("numbers"), facts, as_json)


def _tell(results: Array, numbers: bool, facts: dict[str, Any], as_json: bool) -> None:
    """What a model says of each row.

    The label that it holds most likely, or the numbers that it has learnt to give.
    """
    import numpy as np

    if numbers:
        rows = results.reshape(len(results), -1)
        answers = (rows[:, 0] if rows.shape[1] == 1 else rows).tolist()
    else:
        answers = (np.argmax(results, axis=-1) if results.ndim > 1 else results).tolist()
    if as_json:
        echo(json.dumps({**facts, "numbers" if numbers else "labels": answers}))
        return
    for answer in answers:
        echo(" ".join(map(str, answer)) if isinstance(answer, list) and numbers else answer)


@app.command("ask")
def ask(
    bundle: Annotated[Path, typer.Argument(help="The bundle, with its weights.")],
    file: Annotated[Path, typer.Argument(help="An .npz file with an array `x`, or an .npy file.")],
    plan: Annotated[Path, typer.Option("--plan", help="Of `delian partition plan`.")],
    config: ConfigFile = None,
    settings: Settings = None,
    state: State = None,
    home: Homes = None,
    identity: IdentityFolder = None,
    number: DeviceNumber = None,
    insecure: Insecure = False,
    due: Due = 10.0,
    out: ResultsFile = None,
    keep_input: Annotated[
        bool, typer.Option("--keep-input", help="Refuse a plan that sends the input itself up.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Ask a model that runs partly here and partly above, by a placement plan.

    What the plan puts above runs on a home that serves the bundle (`delian edge run --serve`);
    while none answers, all of it runs here.
    """
    from ...core.learning.bundle import load as load_bundle
    from ...device.serving.split_model import SplitModel, SplitSettings
    from ..config import load

    x = _batch(file)
    flags = {
        "device.state": state,
        "device.homes": home or None,
        "device.identity": identity,
        "device.number": number,
        "device.insecure": insecure or None,
    }
    chosen = load(config, flags, settings or ()).config.device
    with SplitModel(
        bundle,
        plan,
        chosen.homes,
        None if chosen.insecure else chosen.identity or chosen.state / "identity",
        number=chosen.number,
        settings=SplitSettings(
            chosen.worker.backend,
            transport=chosen.transport,
            broker_authority=chosen.broker_authority,
            keep_input=keep_input,
        ),
    ) as model:
        model.wait_open(due)
        results = model.predict(x, due)
        facts = model.facts
    if out is not None:
        write_rows(out, results)
    numbers = load_bundle(bundle).manifest.learns_numbers
    _tell(results, numbers, {"answered": facts.answered}, as_json)


def _batch(file: Path) -> Array:
    import numpy as np

    from ...core.learning.data.data_files import BROKEN, read_npz

    if file.suffix == ".npz":
        return read_npz(file, ["x"])["x"]
    try:
        loaded: Any = np.load(file, allow_pickle=False)
    except OSError as error:
        raise DelianError(
            f"{file}: cannot be read: {error.strerror or error}",
            "check the path and its permissions",
        ) from None
    except BROKEN:
        loaded = None
    if not isinstance(loaded, np.ndarray):
        raise DelianError(f"{file} is not an .npy file of numbers", "write it with numpy.save")
    return loaded


def _ask(folder: Path, path: Path | None, x: Array) -> tuple[Array, dict[str, Any]]:
    """From the running device where it serves, else from its folder.

    What the model gives, which model it is, and whether these are numbers.
    """
    from ...device.serving.inference import PersonalModel, ask

    if path is not None and path.is_socket():
        said, logits = ask(path, {"op": "predict"}, x)
        return logits, {"model": str(said["model"]), "numbers": bool(said.get("numbers"))}
    model = PersonalModel(folder / "personal")
    return model.predict(x), {"model": model.slot.digest, "numbers": model.gives_numbers}


@app.command("rollback")
def rollback(
    config: ConfigFile = None,
    settings: Settings = None,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Serve the personal model that was served before the present one."""
    from ...device.agent.personal_model import PersonalStore

    slot = PersonalStore(_folder(config, settings, state) / "personal").rollback()
    loss = slot.judgement.loss_after
    facts = {"serving": slot.digest, "loss": loss}
    tell(facts, as_json, lambda: [f"serving {slot.digest[:16]}, loss {loss:.4f}"])
