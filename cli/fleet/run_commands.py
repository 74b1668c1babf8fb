"""`delian run`: submit runs to a coordinator and manage them."""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...core.common.errors import DelianError
from ...core.common.printable import escaped
from ..options import AsJson, edge_number
from ..output import echo, table, tell, to_json, when
from ..programs.artifact_commands import check_can_sign, signed_plan
from ..simulation.short_options import torch_settings
from .coordinator_commands import Connect, on_coordinator
from .run_events import sentence
from .submitted_plan import (
    change,
    check_rollback,
    evaluate_at_end,
    keep_to_terms,
    mask,
    prepare,
)

if TYPE_CHECKING:
    from ...cloud.protocol.outlook import Outlook
    from ...core.node.service.operator_client import Client

app = typer.Typer(help="Submit and manage runs.", no_args_is_help=True)

GAVE_UP = 1
REQUEST_ID_BYTES = 16  # proto/operator.proto
RunNumber = Annotated[int, typer.Argument(metavar="RUN", min=1, help="The run's number.")]


@app.command("submit")
@on_coordinator
def submit(
    connect: Connect,
    scenario: Annotated[
        str | None,
        typer.Argument(help="A scenario's file or name, or your training script."),
    ] = None,
    bundle: Annotated[
        Path | None,
        typer.Option("--bundle", help="A .bundle with weights, in place of a scenario's model."),
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option("--model", help="A Python file with init(key, shape, classes)."),
    ] = None,
    torch: Annotated[
        str | None,
        typer.Option("--torch", metavar="FILE[:CLASS]", help="A PyTorch module as the model."),
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
            "--helper",
            metavar="EDGE",
            parser=edge_number,
            help="An edge that helps to unmask a buffered run, as edge-3; may be repeated.",
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
    keys = [*torch_settings(torch, None), *(settings or [])]
    message, built = prepare(scenario, bundle, model, keys, data, plain)
    mask(message, plain, helper or [])
    from ...core.wire.operator_pb2 import SubmitRequest

    with connect() as client:
        signs = keep_to_terms(message, plan or [], client.terms)
        check_rollback(message, built)
        evaluate_at_end(message, built, plan or [])
        message.name = name or message.name
        if signs and not unsigned and manifest is None:
            check_can_sign(client.artifacts, client.terms)
        message.bundle.CopyFrom(client.put(built.bare().to_bytes()))
        message.weights.CopyFrom(client.put(built.weights.astype("<f4").tobytes()))
        message.frozen.extend(client.put(part) for part in built.frozen_contents())
        if not unsigned:
            message.manifest = signed_plan(message, client.artifacts, manifest, line)
        request = SubmitRequest(plan=message, request_id=secrets.token_bytes(REQUEST_ID_BYTES))
        facts = _shown(client.call_again("Submit", request))
        if not (watch_it and as_json):
            tell(facts, as_json, lambda: _begun(facts))
        code = _watch(client, facts["run"], 0, False, as_json) if watch_it else 0
    raise typer.Exit(code)


@app.command("ls")
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
                _waits(run) or "-",
            ]
            for run in runs
        ]
        return table(("RUN", "NAME", "PHASE", "ROUND", "BEGAN (UTC)", "ENDED", "WHY"), rows)

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
    change(changes, plan or [])
    with connect() as client:
        request = CloneRequest(
            run=run,
            changes=changes,
            from_newest=from_newest,
            request_id=secrets.token_bytes(REQUEST_ID_BYTES),
        )
        facts = _shown(client.call_again("CloneRun", request))
    tell(facts, as_json, lambda: _begun(facts))


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
            said = escaped(sentence(event.kind, facts, info.plan.rounds))
            echo(f"{when(event.time_ms)}  {said}")
    phase = phase or client.call("GetRun", RunRequest(run=run)).phase
    return GAVE_UP if phase == "failed" else 0


def _begun(facts: dict[str, Any]) -> list[str]:
    """A run that was submitted, and why it waits, where it does."""
    waits = _waits(facts)
    line = f"run {facts['run']} is {facts['phase']}{f': {waits}' if waits else ''}"
    return [line, *(f"  hint: {hint}" for hint in _hints(facts))]


def _waits(facts: dict[str, Any]) -> str:
    """Why a run waits, in words; empty: it does not."""
    from ...cloud.protocol.outlook import sentence as words

    found = _outlook(facts)
    return "" if found is None else words(found)


def _outlook(facts: dict[str, Any]) -> Outlook | None:
    from google.protobuf.json_format import ParseDict

    from ...cloud.protocol.outlook import Outlook
    from ...core.wire import operator_pb2

    told = facts.get("outlook")  # older coordinators do not say
    return None if told is None else Outlook.from_message(ParseDict(told, operator_pb2.Outlook()))


def _hints(facts: dict[str, Any]) -> list[str]:
    """What would help a run that waits for more devices than can work."""
    from ...core.privacy.secagg.limits import COHORT_MIN

    found = _outlook(facts)
    if found is None:
        return []
    hints = []
    if found.unconsented:
        hints.append("an owner agrees on the device: delian device consent yes")
    if found.lacking:
        hints.append("`delian fleet ls` shows the devices; more join by: delian token")
        secure = facts["plan"].get("secure") or {}
        if found.least == secure.get("cohort_min") and found.least > COHORT_MIN:
            hints.append(
                "a masked sum has so many devices at least: --plan secure.cohort_min=N, if the"
                " federation's terms allow it (delian ca terms)"
            )
    return hints


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
    waits = _waits(facts)
    pairs = [
        ("run", f"{facts['run']} {plan['name']}"),
        ("phase", facts["phase"] + (f" ({why})" if why else "")),
        *([("waits", waits), *(("hint", hint) for hint in _hints(facts))] if waits else []),
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
