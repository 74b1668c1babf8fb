"""`delian run`: submit runs to a coordinator and manage them."""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...core.common.errors import DelianError
from ...core.common.printable import escaped
from ..options import AsJson
from ..output import echo, table, tell, to_json, when
from ..programs.artifact_commands import check_can_sign, signed_plan
from .coordinator_commands import Client, Connect, on_coordinator

if TYPE_CHECKING:
    from ...core.learning.bundle import Bundle
    from ...core.wire.enrolment_pb2 import FederationTerms
    from ...core.wire.operator_pb2 import PlanMessage

app = typer.Typer(help="Submit and manage runs.", no_args_is_help=True)

GAVE_UP = 1
#: Phases behind which nothing comes.
OVER = ("done", "cancelled", "failed")
REQUEST_ID_BYTES = 16  # proto/operator.proto
RunNumber = Annotated[int, typer.Argument(metavar="RUN", min=1, help="The run's number.")]


@app.command("submit")
@on_coordinator
def submit(
    connect: Connect,
    scenario: Annotated[
        str | None, typer.Argument(help="A scenario file, or a bundled one's name.")
    ] = None,
    bundle: Annotated[
        Path | None,
        typer.Option("--bundle", help="A .bundle with weights, in place of a scenario's model."),
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option("--model", help="A Python file with init(key, shape, classes)."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a key of the scenario."),
    ] = None,
    data: Annotated[
        Path | None, typer.Option("--data", help="Data of the devices' shape: .npz, or text.")
    ] = None,
    plan: Annotated[
        list[str] | None,
        typer.Option("--plan", metavar="KEY=VALUE", help="Change a field of the plan: rounds=20."),
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="The run's name.")] = None,
    line: Annotated[
        str | None,
        typer.Option(
            "--line", help="Line of versions that the bundle is signed for. (default: the name)"
        ),
    ] = None,
    manifest: Annotated[
        Path | None,
        typer.Option("--manifest", help="The manifest that `delian artifact sign` wrote."),
    ] = None,
    plain: Annotated[
        bool,
        typer.Option("--plain", help="Do not mask updates: edges and coordinator can read them."),
    ] = False,
    unsigned: Annotated[
        bool,
        typer.Option("--unsigned", help="Do not sign the bundle: most devices refuse it then."),
    ] = False,
    helper: Annotated[
        list[int] | None,
        typer.Option(
            "--helper", help="An edge that helps to unmask a buffered run; may be repeated."
        ),
    ] = None,
    watch_it: Annotated[bool, typer.Option("--watch", help="Show its progress.")] = False,
    as_json: AsJson = False,
) -> None:
    """Build a model's programs, put them into the coordinator's store and start a run.

    A scenario gives model, algorithm and rounds, as for `delian simulate`. Only the shapes of its
    data are used: devices train on their own data. With --bundle the plan comes from --plan alone:
    rounds, cohort and the other fields of PlanMessage in proto/operator.proto.

    Updates are masked (secure aggregation) unless --plain is given: edges and the coordinator learn
    only sums. The scenario's `privacy` table, or --plan secure.cohort_min=20, configures the masks;
    values below the federation's terms are raised to them. The bundle is signed with the key in the
    operator's identity (`delian ca issue operator`).
    """
    message, built = _prepare(scenario, bundle, model, settings or [], data, plain)
    _mask(message, plain, helper or [])
    from ...core.wire.operator_pb2 import SubmitRequest

    with connect() as client:
        signs = _keep_to_terms(message, plan or [], client.terms)
        _check_rollback(message, built)
        message.name = name or message.name
        if signs and not unsigned and manifest is None:
            check_can_sign(client.artifacts, client.terms)
        message.bundle.CopyFrom(client.put(built.bare().to_bytes()))
        message.weights.CopyFrom(client.put(built.weights.astype("<f4").tobytes()))
        if not unsigned:
            message.manifest = signed_plan(message, client.artifacts, manifest, line)
        request = SubmitRequest(plan=message, request_id=secrets.token_bytes(REQUEST_ID_BYTES))
        facts = _shown(client.call_again("Submit", request))
        if not (watch_it and as_json):
            tell(facts, as_json, lambda: [f"run {facts['run']} is {facts['phase']}"])
        code = _watch(client, facts["run"], 0, False, as_json) if watch_it else 0
    raise typer.Exit(code)


@app.command("list")
@on_coordinator
def list_runs(
    connect: Connect,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1_000, help="The newest.")] = 100,
    as_json: AsJson = False,
) -> None:
    """List the newest runs."""
    from ...core.wire.operator_pb2 import ListRequest

    with connect() as client:
        runs = [_shown(run) for run in client.call("ListRuns", ListRequest(limit=limit)).runs]

    def lines() -> list[str]:
        rows = [
            [
                run["run"],
                run["plan"]["name"] or "-",
                run["phase"],
                f"{_round(run)}/{run['plan']['rounds']}",
                when(run["created_ms"]),
                when(run["ended_ms"]),
            ]
            for run in runs
        ]
        return table(("RUN", "NAME", "PHASE", "ROUND", "BEGAN (UTC)", "ENDED"), rows)

    tell({"runs": runs}, as_json, lines)


@app.command("show")
@on_coordinator
def show(
    connect: Connect,
    run: RunNumber,
    as_json: AsJson = False,
) -> None:
    """Show a run: its plan, its phase, its newest model."""
    from ...core.wire.operator_pb2 import RunRequest

    with connect() as client:
        info = client.call("GetRun", RunRequest(run=run))
        facts = {**_shown(info), "chain": _chain(info)}
    tell(facts, as_json, lambda: _lines(facts))


@app.command("watch")
@on_coordinator
def watch(
    connect: Connect,
    run: RunNumber,
    after: Annotated[int, typer.Option("--after", min=0, help="Only later events.")] = 0,
    once: Annotated[bool, typer.Option("--once", help="End with the newest event.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> None:
    """Show a run's events as they come, until it is over. Exits with 1 when it failed."""
    with connect() as client:
        code = _watch(client, run, after, once, as_json)
    raise typer.Exit(code)


@app.command("pause")
@on_coordinator
def pause(
    connect: Connect,
    run: RunNumber,
    as_json: AsJson = False,
) -> None:
    """Pause a run once the round under way has ended."""
    _control(run, "pause", connect, as_json)


@app.command("resume")
@on_coordinator
def resume(
    connect: Connect,
    run: RunNumber,
    as_json: AsJson = False,
) -> None:
    """Continue a paused run."""
    _control(run, "resume", connect, as_json)


@app.command("cancel")
@on_coordinator
def cancel(
    connect: Connect,
    run: RunNumber,
    as_json: AsJson = False,
) -> None:
    """End a run with its newest model; the round under way is dropped."""
    _control(run, "cancel", connect, as_json)


@app.command("clone")
@on_coordinator
def clone(
    connect: Connect,
    run: RunNumber,
    plan: Annotated[
        list[str] | None,
        typer.Option("--plan", metavar="KEY=VALUE", help="A field with another value: rounds=20."),
    ] = None,
    from_newest: Annotated[
        bool, typer.Option("--from-newest", help="Begin from its newest model.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Start a run with the programs and the plan of another run."""
    from ...core.wire.operator_pb2 import CloneRequest, PlanMessage

    changes = PlanMessage()
    _change(changes, plan or [])
    with connect() as client:
        request = CloneRequest(
            run=run,
            changes=changes,
            from_newest=from_newest,
            request_id=secrets.token_bytes(REQUEST_ID_BYTES),
        )
        facts = _shown(client.call_again("CloneRun", request))
    tell(facts, as_json, lambda: [f"run {facts['run']} is {facts['phase']}"])


# ---------------------------------------------------------------- what they share


def _control(run: int, action: str, connect: Connect, as_json: bool) -> None:
    from ...core.wire.operator_pb2 import RunControl

    with connect() as client:
        facts = _shown(client.call("ControlRun", RunControl(run=run, action=action)))
    tell(facts, as_json, lambda: [f"run {run} is {facts['phase']}"])


def _watch(client: Client, run: int, after: int, once: bool, as_json: bool) -> int:
    """Prints events; gives the exit code that the run's end asks for."""
    from ...core.wire.operator_pb2 import RunRequest, WatchRequest

    info = client.call("GetRun", RunRequest(run=run))
    phase = ""
    for event in client.stream("WatchRun", WatchRequest(run=run, after=after, once=once)):
        facts = json.loads(event.facts)
        if event.kind == "phase":
            phase = facts["phase"]
        if as_json:
            line = {"run": run, "sequence": event.sequence, "time_ms": event.time_ms}
            echo(json.dumps({**line, "kind": event.kind, "facts": facts}))
        else:
            said = escaped(_sentence(event.kind, facts, info.plan.rounds))
            echo(f"{when(event.time_ms)}  {said}")
    phase = phase or client.call("GetRun", RunRequest(run=run)).phase
    return GAVE_UP if phase == "failed" else 0


def _sentence(kind: str, facts: dict[str, Any], rounds: int) -> str:
    why = f": {facts['why']}" if facts.get("why") else ""
    if kind == "round":
        end = f"model {facts['model'][:16]}" if facts["succeeded"] else f"failed{why}"
        refused = _refused(facts["refused"])
        return (
            f"round {facts['round']}/{rounds} attempt {facts['attempt']}: {facts['reported']} of"
            f" {facts['selected']} devices reported, {refused}; {end}{_so_far(facts)}"
        )
    if kind == "evaluation":
        told = " ".join(f"{k}={v:.4g}" for k, v in sorted(facts["metrics"].items()))
        return f"model {facts['round']} judged by {facts['devices']} devices: {told}"
    if kind == "phase":
        return f"{facts['phase']}{why}{_so_far(facts) if facts['phase'] in OVER else ''}"
    if kind == "rolled_back":
        return (
            f"round {facts['round'] - 1} is rolled back to model {facts['to']}: personal"
            f" loss={facts['loss']:.4g} (best {facts['best']:.4g})"
            f" accuracy={facts['accuracy']:.4g} (best {facts['best_accuracy']:.4g})"
        )
    if kind in ("session", "session_step"):
        return _of_session(kind, facts, why)
    return f"{kind.replace('_', ' ')}{why}"


def _refused(reasons: dict[str, int]) -> str:
    """How many devices gave no update, and why."""
    each = ", ".join(f"{name.replace('_', ' ')} {n}" for name, n in sorted(reasons.items()))
    return f"{sum(reasons.values())} could not" + (f" ({each})" if each else "")


def _so_far(facts: dict[str, Any]) -> str:
    """What an event says of its run's budget, if anything."""
    spent = facts.get("privacy")
    return f"; epsilon {spent['epsilon']:.3g} at delta {spent['delta']:g} is spent" if spent else ""


def _of_session(kind: str, facts: dict[str, Any], why: str) -> str:
    """Of secure aggregation: a step that begins, or a session that is over."""
    name = f"round {facts['round']} attempt {facts['attempt']}"
    if kind == "session_step":
        silent = f", {facts['silent']} silent" if facts["silent"] else ""
        return f"{name}: {facts['phase']}, with {facts['devices']} devices{silent}"
    if why:
        return f"{name}: masked sum failed{why}"
    took = ", ".join(f"{step} {seconds:.1f} s" for step, seconds in facts["seconds"].items())
    gone = facts["asked"] - facts["summed"]
    return (
        f"{name}: masked sum of {facts['summed']} of {facts['asked']} devices is open,"
        f" {gone} dropped out ({took})"
    )


def _prepare(
    scenario: str | None,
    bundle: Path | None,
    model: Path | None,
    settings: Sequence[str],
    data: Path | None,
    plain: bool,
) -> tuple[PlanMessage, Bundle]:
    """A plan without its blobs, and the bundle with its weights."""
    from ...core.wire.operator_pb2 import PlanMessage

    if (scenario is None) == (bundle is None):
        raise DelianError(
            "what should be trained?", "name a scenario, or give --bundle FILE: one of the two"
        )
    if bundle is not None:
        from ...core.learning.bundle import load

        if model is not None or settings or data is not None:
            raise DelianError("--model, --set and --data belong to a scenario", "leave them out")
        built = load(bundle)
        if not built.weights.size:
            raise DelianError(f"{bundle} has no weights to begin from", "export one that has")
        message = PlanMessage(name=bundle.stem[:128])
    else:
        assert scenario is not None
        message, built = _of_scenario(scenario, model, settings, data, plain)
    manifest = built.manifest
    kept, top = message.ring.kept, message.ring.top  # of the run, and not of the programs
    message.ring.CopyFrom(manifest.ring.message())
    message.ring.kept, message.ring.top = kept, top
    message.own_metrics[:] = manifest.metrics
    message.labels["task"], message.labels["algorithm"] = manifest.task, manifest.algorithm
    return message, built


def _mask(message: PlanMessage, plain: bool, helpers: Sequence[int]) -> None:
    """Masks the run's updates unless that is not wanted.

    The scenario's values stay, except for the helpers: a fleet has its own edges.
    """
    from ...core.learning.plan import Privacy
    from ...core.privacy.secagg.limits import COHORT_MIN

    if message.secure.helpers and not helpers and not plain:
        raise DelianError(
            "which edges help?", "name each by --helper; a scenario only says how many"
        )
    if plain and helpers:
        raise DelianError("--plain and --helper", "helpers unmask what is masked; leave one out")
    if message.secure.helpers:
        message.secure.ClearField("helpers")
    if plain:
        message.ClearField("secure")
        echo("warning: --plain: edges and the coordinator can read every update", err=True)
    elif not message.HasField("secure"):
        # Devices refuse sums of fewer devices than their noise is planned for.
        noised = message.HasField("privacy") and not message.ring.central
        least = max(COHORT_MIN, message.reports_min if noised else 0)
        message.secure.suite, message.secure.cohort_min = Privacy.suite, least
        message.secure.corrupt, message.secure.dropout = Privacy.corrupt, Privacy.dropout
    for edge in helpers:
        message.secure.helpers.add(edge=edge)


def _check_rollback(message: PlanMessage, built: Bundle) -> None:
    if built.manifest.learns_numbers and message.rollback_accuracy:
        raise DelianError(
            "rollback_accuracy: the model learns numbers, whose errors fall as it gets better",
            "--plan rollback_worse=0.2 goes by the squared error",
        )


def _keep_to_terms(
    message: PlanMessage, settings: Sequence[str], terms: FederationTerms | None
) -> bool:
    """Raises a masked plan's floors to the federation's terms and sets the user's fields.

    The coordinator checks the result. Returns whether devices require a signed bundle. Raises
    DelianError.
    """
    if terms is not None and message.HasField("secure"):
        secure = message.secure
        if secure.cohort_min < terms.cohort_min:
            secure.cohort_min = terms.cohort_min
            text = f"sums of {terms.cohort_min} or more devices, as the federation's terms ask"
            echo(text, err=True)
        secure.corrupt = max(secure.corrupt, terms.corrupt)
    _change(message, settings)
    return terms is not None and (message.HasField("secure") or bool(terms.artifact_root))


def _of_scenario(
    source: str, model: Path | None, settings: Sequence[str], data: Path | None, plain: bool
) -> tuple[PlanMessage, Bundle]:
    from dataclasses import replace

    from ...core.wire.blob_pb2 import BlobRef
    from ...simulations.runs.stage import Stage
    from ...simulations.scenario.datasets import with_data
    from ...simulations.scenario.scenario_file import load, override

    chosen = with_data(load(source), data)
    if model is not None:
        settings = [
            'model={name="python"}',
            f"model.file={json.dumps(str(model.absolute()))}",
            *settings,
        ]
    chosen = override(chosen, settings)
    stage = Stage(chosen, None, data, "reference", lambda event: None)
    plan = stage.plan(stage.runtime.ring, masked=not plain)
    message = plan.message(BlobRef(), BlobRef(), chosen.seed)
    message.name = chosen.name
    # How many devices there are is the fleet's own affair, and when they come back as well.
    asked = chosen.round.model_fields_set
    if "pool_min" not in asked:
        message.ClearField("pool_min")
    if "rest_ms" not in asked:
        message.ClearField("rest_ms")
    message.labels["scenario"] = chosen.name
    return message, replace(stage.bundle, weights=stage.first)


def _change(plan: PlanMessage, settings: Sequence[str]) -> None:
    """Sets fields of a plan by `key=value`; of messages in it by `requirements.powered=true`."""
    import tomllib
    import warnings

    from google.protobuf.json_format import ParseDict, ParseError

    from ...core.learning.plan_settings import RenamedWarning, renamed

    for setting in settings:
        key, equals, text = setting.partition("=")
        key = key.strip()
        if key in renamed():
            now = renamed()[key].wire
            warnings.warn(f"--plan {setting}: `{key}` is now `{now}`", RenamedWarning, stacklevel=2)
            key = now
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except (tomllib.TOMLDecodeError, KeyError, RecursionError):
            value = text
        nested: Any = value
        for part in reversed(key.split(".")):
            nested = {part: nested}
        try:
            if not equals:
                raise ParseError("this is not key=value")
            ParseDict(nested, plan)
        except ParseError as fault:
            known = ", ".join(field.name for field in plan.DESCRIPTOR.fields)
            raise DelianError(f"--plan {setting}: {fault}", f"the fields are {known}") from None


def _cut(cohorts: int) -> str:
    """Into how many sums a masked round is cut, where its plan says so."""
    return f" in {cohorts} sums" if cohorts else ""


def _privacy(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """What is spent of a run's budget, where it has one; older coordinators do not say."""
    promised, spent = facts["plan"].get("privacy"), facts.get("privacy_spent")
    if promised is None:
        return []
    return [("privacy", _spent(spent or {}, promised["epsilon"], promised["delta"]))]


def _spent(spent: dict[str, Any], promised: float, delta: float) -> str:
    """What is spent of a budget, in words; `spent` is empty where it is unknown."""
    if not spent:
        return f"epsilon {promised:g} at delta {delta:g} promised; not known how much is spent"
    return (
        f"epsilon {spent['epsilon']:.3g} of {promised:g} spent at delta {delta:g},"
        f" in {spent['releases']} sums"
    )


def _shown(info: Any) -> dict[str, Any]:
    return to_json(info)


def _chain(info: Any) -> str:
    """What a run's updates go through, but for the server's step, which is in the bundle.

    Empty where this version does not know it.
    """
    from ...cloud.protocol.run_plan import RunPlan

    try:
        return str(RunPlan.from_message(info.run, info.plan, stored=True).chain)
    except DelianError:
        return ""


def _round(facts: dict[str, Any]) -> int:
    """The round at hand; of a run that is over the last one."""
    return min(int(facts["round"]), int(facts["plan"]["rounds"]))


def _lines(facts: dict[str, Any]) -> list[str]:
    plan, why = facts["plan"], facts["why"]
    if facts["phase"] == "waiting" and not why:
        why = "for enough devices: `delian fleet ls` shows the ready devices"
    pairs = [
        ("run", f"{facts['run']} {plan['name']}"),
        ("phase", facts["phase"] + (f" ({why})" if why else "")),
        ("round", f"{_round(facts)} of {plan['rounds']}, attempt {facts['attempt']}"),
        ("mode", plan["mode"].replace("run_mode_unspecified", "synchronous")),
        ("chain", facts["chain"]),
        ("cohort", f"{plan['cohort'] or plan['buffer']}{_cut(plan['cohorts'])}"),
        *_privacy(facts),
        ("weights", facts["weights"]["digest"]),
        ("bundle", plan["bundle"]["digest"]),
        ("began", when(facts["created_ms"])),
        ("ended", when(facts["ended_ms"])),
        ("labels", " ".join(f"{k}={v}" for k, v in sorted(plan["labels"].items()))),
    ]
    return [f"{name:<10}{value}" for name, value in pairs]
