"""The coordinator's records as rows.

Attempts, evaluations, models, a run's events, and the chain of aggregates.

Called by the journal, in the transaction that makes the events durable of which the records came.
An event of a run is a kind and a JSON object of facts; docs/operating.md lists them. Lists of
devices stand in the `rounds` table only: an event says how many.
"""

from __future__ import annotations

import json
import math
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sqlalchemy import bindparam, func, insert, select, update

from ...core.protocol.ports import Record
from ...core.wire.operator_pb2 import PlanMessage
from ...core.wire.round_pb2 import FailureReason
from ..protocol.coordinator_state import OVER
from ..service import audit
from .engines import Connection, Prepared, insertion
from .schema import AuditEntryRow, EvaluationRow, EventRow, ModelRow, RoundRow, RunRow

#: An event's facts, as JSON; proto/operator.proto names the limit.
FACTS_BYTES_MAX = 64 * 1024

_OVER = frozenset(phase.value for phase in OVER)

_OF = RunRow.run == bindparam("of")
_RUN = Prepared(select(RunRow.phase, RunRow.plan).where(_OF))
_NEWEST_EVENT = Prepared(select(func.max(EventRow.sequence)).where(EventRow.run == bindparam("of")))
_ADD_EVENT = insertion(EventRow, "run", "sequence", "time_ms", "kind", "facts")
_NEWEST_ENTRY = Prepared(
    select(AuditEntryRow.sequence, AuditEntryRow.hash)
    .order_by(AuditEntryRow.sequence.desc())
    .limit(1)
)
_ADD_ENTRY = insertion(AuditEntryRow, "sequence", "body", "hash")
_ADD_ROUND = insertion(
    RoundRow,
    *("run", "round", "attempt", "succeeded", "why", "ended_ms", "selected", "reported"),
    *("weight", "refused", "devices", "parent", "model"),
)
_ADD_MODEL = insertion(
    ModelRow,
    *("digest", "size", "bundle", "bundle_size", "run", "round", "parent", "created_ms"),
    *("metrics", "kept"),
)


def _update(*columns: str) -> Prepared:
    """The update of a run's row; it is named by `of`."""
    return Prepared(update(RunRow).where(_OF).values({c: bindparam(c) for c in columns}))


_NEXT_ATTEMPT = _update("round", "attempt")
_NEXT_ROUND = _update("round", "attempt", "weights", "weights_size")
_NEXT_PHASE = _update("phase", "why")
_LAST_PHASE = _update("phase", "why", "ended_ms")


def _round_facts(fields: Mapping[str, Any]) -> dict[str, Any]:
    refused = Counter(_reason(code) for code in fields["refused"].values())
    return {
        "round": fields["round"],
        "attempt": fields["attempt"],
        "succeeded": fields["succeeded"],
        "why": fields["why"],
        "opened_ms": fields["opened_ns"] // 1_000_000,
        "selected": len(fields["selected"]),
        "reported": len(fields["reported"]),
        "refused": dict(sorted(refused.items())),
        "target_met": fields["target_met"],
        "weight": fields["weight"],
        "model": fields["model"].hex(),
        "parent": fields["parent"].hex(),
        **{name: fields[name] for name in ("clip", "privacy") if name in fields},
    }


def _evaluation_facts(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "round": fields["round"],
        "model": fields["model"].hex(),
        "devices": fields["devices"],
        "metrics": _metrics(fields),
    }


def _plain_facts(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: value.hex() if isinstance(value, bytes) else value
        for key, value in fields.items()
        if key != "run"
    }


#: The records that become events of their run, and the form of their facts.
FACTS: Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "round": _round_facts,
    "evaluation": _evaluation_facts,
    "phase": _plain_facts,
    "outlook": _plain_facts,
    "evaluation_skipped": _plain_facts,
    "model_ordered": _plain_facts,
    "rolled_back": _plain_facts,
    "session_step": _plain_facts,
    "session": _plain_facts,
    "refused_order": _plain_facts,
}


#: The records that say what was aggregated.
AUDITED = ("round", "evaluation")


async def keep(connection: Connection, records: Sequence[Record], now_ms: int) -> None:
    """Writes the rows that come of records, in their order."""
    sequences: dict[int, int] = {}
    for record in records:
        facts = FACTS.get(record.kind)
        if facts is None:
            continue
        fields = record.fields
        run = int(fields["run"])
        found = await connection.rows_of(_RUN, of=run)
        if not found:
            continue  # an order that was refused before its run had a row
        phase, plan = found[0]
        if record.kind in AUDITED:
            await _keep_audited(connection, record, PlanMessage.FromString(plan), now_ms)
        if record.kind == "round":
            await _keep_round(connection, fields, PlanMessage.FromString(plan), now_ms)
        elif record.kind == "evaluation":
            await _keep_evaluation(connection, fields, now_ms)
        elif record.kind == "phase":
            await _keep_phase(connection, fields, now_ms)
        elif record.kind == "model_ordered":
            newest = update(RunRow).where(RunRow.run == run).values(weights=fields["model"])
            await connection.execute(newest)
        elif record.kind == "refused_order" and phase == "new":
            # The order to begin it: it will never begin.
            why = {"run": run, "phase": "failed", "why": fields["why"]}
            await _keep_phase(connection, why, now_ms)
        if run not in sequences:
            sequences[run] = await connection.scalar_of(_NEWEST_EVENT, of=run) or 0
        sequences[run] += 1
        event = {
            "run": run,
            "sequence": sequences[run],
            "time_ms": now_ms,
            "kind": record.kind,
            "facts": _json(facts(fields)),
        }
        await connection.put(_ADD_EVENT, [event])


async def _keep_audited(
    connection: Connection, record: Record, plan: PlanMessage, now_ms: int
) -> None:
    digest = plan.bundle.digest
    await append_entry(
        connection, lambda at: audit.entry(record.kind, record.fields, digest, *at, now_ms)
    )


async def append_entry(connection: Connection, make: Callable[[tuple[int, bytes]], bytes]) -> int:
    """Appends to the chain, of which the store has one writer; gives the entry's sequence.

    make: gives the line for its sequence and the hash of the entry before.
    """
    last = await connection.rows_of(_NEWEST_ENTRY)
    sequence, previous = (last[0][0] + 1, bytes(last[0][1])) if last else (1, audit.START)
    line = make((sequence, previous))
    made = {"sequence": sequence, "body": line, "hash": audit.hash_of(line)}
    await connection.put(_ADD_ENTRY, [made])
    return int(sequence)


async def _keep_round(
    connection: Connection, fields: Mapping[str, Any], plan: PlanMessage, now_ms: int
) -> None:
    lists = {"selected": list(fields["selected"]), "reported": list(fields["reported"])}
    attempt = {
        "run": fields["run"],
        "round": fields["round"],
        "attempt": fields["attempt"],
        "succeeded": fields["succeeded"],
        "why": fields["why"],
        "ended_ms": now_ms,
        "selected": len(lists["selected"]),
        "reported": len(lists["reported"]),
        "weight": float(fields["weight"]),
        "refused": {str(device): int(code) for device, code in fields["refused"].items()},
        "devices": zlib.compress(json.dumps(lists, separators=(",", ":")).encode()),
        "parent": fields["parent"] or None,
        "model": fields["model"] or None,
    }
    await connection.put(_ADD_ROUND, [attempt])
    values: dict[str, Any] = {"of": fields["run"]}
    if not fields["succeeded"]:
        values |= {"round": fields["round"], "attempt": fields["attempt"] + 1}
        await connection.put(_NEXT_ATTEMPT, [values])
        return
    await _keep_model(connection, fields, plan, now_ms)
    values |= {
        "round": fields["round"] + 1,
        "attempt": 1,
        "weights": fields["model"],
        "weights_size": fields["model_size"],
    }
    await connection.put(_NEXT_ROUND, [values])


async def _keep_model(
    connection: Connection, fields: Mapping[str, Any], plan: PlanMessage, now_ms: int
) -> None:
    model = {
        "digest": fields["model"],
        "size": fields["model_size"],
        "bundle": plan.bundle.digest,
        "bundle_size": plan.bundle.size,
        "run": fields["run"],
        "round": fields["round"],
        "parent": fields["parent"] or None,
        "created_ms": now_ms,
        "metrics": {},
        "kept": True,
    }
    await connection.put(_ADD_MODEL, [model])


async def _keep_evaluation(connection: Connection, fields: Mapping[str, Any], now_ms: int) -> None:
    metrics = _metrics(fields)
    await connection.execute(
        insert(EvaluationRow).values(
            run=fields["run"],
            round=fields["round"],
            model=fields["model"],
            devices=fields["devices"],
            metrics=metrics,
            time_ms=now_ms,
        )
    )
    mine = (ModelRow.run == fields["run"], ModelRow.digest == fields["model"])
    await connection.execute(update(ModelRow).where(*mine).values(metrics=metrics))


async def _keep_phase(connection: Connection, fields: Mapping[str, Any], now_ms: int) -> None:
    values = {"of": fields["run"], "phase": fields["phase"], "why": fields["why"]}
    if fields["phase"] in _OVER:
        await connection.put(_LAST_PHASE, [{**values, "ended_ms": now_ms}])
    else:
        await connection.put(_NEXT_PHASE, [values])


def _metrics(fields: Mapping[str, Any]) -> dict[str, float]:
    """By name; what is no finite number has no place in JSON."""
    told = {str(name): float(value) for name, value in fields["metrics"].items()}
    return {name: value for name, value in told.items() if math.isfinite(value)}


def _json(facts: dict[str, Any]) -> str:
    content = json.dumps(facts, separators=(",", ":"), default=str)
    if len(content.encode()) > FACTS_BYTES_MAX:
        content = json.dumps({key: facts[key] for key in ("round", "phase") if key in facts})
    return content


def _reason(code: int) -> str:
    return FailureReason.Name(code).lower() if code in FailureReason.values() else str(code)
