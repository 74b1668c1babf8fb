"""Queries and changes of runs, models and nodes: all of the store but the journal's."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from sqlalchemy import and_, bindparam, delete, func, insert, or_, select, update

from ...core.common.errors import DelianError
from ...core.node.storage.blobs import BlobStore
from ...core.wire import operator_pb2
from ...core.wire.blob_pb2 import BlobRef
from ...core.wire.operator_pb2 import ModelInfo, PlanMessage, PrivacySpent, RunEvent
from ...core.wire.operator_pb2 import RunInfo as RunMessage
from ..protocol.coordinator_state import OVER
from ..store.database import Database
from ..store.engines import Connection, Prepared
from ..store.schema import AliasMove, AliasRow, EventRow, ModelRow, RunRow

#: Rows in an answer, unless fewer are asked for; and at most.
LIST_DEFAULT, LIST_MAX = 100, 1_000
#: Events of a run that are read at once.
EVENTS_AT_ONCE = 256
#: Models of a run whose weights are kept, the newest.
MODELS_KEPT = 20
#: Moves of an alias that can be rolled back.
ROLLBACKS_MAX = 8
_ALIAS = re.compile(r"[a-z][a-z0-9._-]{0,63}")
#: The phase of a run that the coordinator's machine has not received.
NEW = "new"
_OVER = tuple(phase.value for phase in OVER)
_PHASE = Prepared(select(RunRow.phase).where(RunRow.run == bindparam("of")))
_PLAN = Prepared(select(RunRow.plan).where(RunRow.run == bindparam("of")))
_EVENTS = Prepared(
    select(EventRow.sequence, EventRow.time_ms, EventRow.kind, EventRow.facts)
    .where(EventRow.run == bindparam("of"), EventRow.sequence > bindparam("after"))
    .order_by(EventRow.sequence)
    .limit(EVENTS_AT_ONCE)
)


class NotKnown(DelianError):
    """What was asked for is not there."""


def now_ms() -> int:
    """Unix time in ms."""
    return time.time_ns() // 1_000_000


class Registry:
    """See the module. `changed` wakes up the tasks that wait for a run's next event."""

    def __init__(
        self,
        database: Database,
        blobs: BlobStore,
        models_kept: int = MODELS_KEPT,
        needed: Callable[[], Iterable[bytes]] = tuple,
    ) -> None:
        """needed: the blobs that the coordinator's machine counts on now."""
        self._needed = needed
        self._database, self._blobs, self._models_kept = database, blobs, models_kept
        self._pinned: set[bytes] = set()
        self._made: set[bytes] = set()  # since the tables were last read for `_keep`
        self._frozen: dict[int, tuple[bytes, ...]] = {}  # run -> frozen parts of its models
        self._changes: dict[int, asyncio.Event] = {}
        # What is pinned follows the tables; the one that changes both is alone.
        self._keeping = asyncio.Lock()

    # ------------------------------------------------ runs

    async def open(self) -> None:
        """Pins what is kept: call it before the coordinator's driver starts."""
        async with self._keeping:
            await self._keep()

    async def run_of(self, request: bytes) -> int | None:
        """The run that was made of a request."""
        rows = await self._database.rows(select(RunRow.run).where(RunRow.request == request))
        return int(rows[0].run) if rows else None

    async def add_run(
        self, plan: PlanMessage, cloned_from: int | None = None, request: bytes = b""
    ) -> int:
        """A row for a new run, and for the model that it begins from; gives its number.

        Durable on return. request: which no run was made of before.
        """

        async def work(connection: Connection) -> int:
            newest = (await connection.execute(select(func.max(RunRow.run)))).scalar() or 0
            run, created = int(newest) + 1, now_ms()
            values = {
                "run": run,
                "plan": plan.SerializeToString(),
                "phase": NEW,
                "weights": plan.weights.digest,
                "weights_size": plan.weights.size,
                "created_ms": created,
                "cloned_from": cloned_from,
                "request": request or None,
            }
            await connection.execute(insert(RunRow).values(**values))
            await connection.execute(
                insert(ModelRow).values(
                    digest=plan.weights.digest,
                    size=plan.weights.size,
                    bundle=plan.bundle.digest,
                    bundle_size=plan.bundle.size,
                    run=run,
                    round=0,
                    created_ms=created,
                    metrics={},
                )
            )
            return run

        async with self._keeping:
            run = await self._database.transact(work)
            self._pin((plan.weights.digest, *_lasting(plan)))
        return run

    async def unbegun(self, above: int) -> list[tuple[int, PlanMessage]]:
        """Runs that the coordinator's machine, whose newest is `above`, has not received."""
        asked = select(RunRow.run, RunRow.plan).where(RunRow.run > above, RunRow.phase == NEW)
        rows = await self._database.rows(asked.order_by(RunRow.run))
        return [(row.run, PlanMessage.FromString(row.plan)) for row in rows]

    async def run(self, run: int) -> RunMessage:
        """Raises NotKnown."""
        rows = await self._database.rows(select(RunRow).where(RunRow.run == run))
        if not rows:
            raise NotKnown(f"there is no run {run}", "`delian run ls` shows all runs")
        return _run_message(rows[0])

    async def spent(self, run: int) -> PrivacySpent | None:
        """The privacy budget that a run had spent when its phase changed last.

        None where its events do not have it.
        """
        asked = select(EventRow.facts).where(EventRow.run == run, EventRow.kind == "phase")
        rows = await self._database.rows(asked.order_by(EventRow.sequence.desc()).limit(1))
        facts = json.loads(rows[0].facts).get("privacy") if rows else None
        return PrivacySpent(**facts) if facts else None

    async def runs(self, limit: int = 0, before: int = 0) -> list[RunMessage]:
        """The newest first."""
        asked = select(RunRow).order_by(RunRow.run.desc()).limit(_limit(limit))
        if before:
            asked = asked.where(RunRow.run < before)
        return [_run_message(row) for row in await self._database.rows(asked)]

    async def events(self, run: int, after: int) -> tuple[list[RunEvent], bool]:
        """A run's next events, at most EVENTS_AT_ONCE of them, and whether it is over.

        Raises NotKnown.
        """

        async def work(connection: Connection) -> tuple[Any, Sequence[Any]]:
            # In this order: an event is there as soon as the phase that it led to.
            phase = await connection.scalar_of(_PHASE, of=run)
            return phase, await connection.rows_of(_EVENTS, of=run, after=after)

        phase, rows = await self._database.read(work)
        if phase is None:
            raise NotKnown(f"there is no run {run}", "`delian run ls` shows all runs")
        events = [
            RunEvent(run=run, sequence=sequence, time_ms=time_ms, kind=kind, facts=facts)
            for sequence, time_ms, kind, facts in rows
        ]
        return events, phase in _OVER

    def change_of(self, run: int) -> asyncio.Event:
        """Is set at the run's next event. Ask for it before looking what there is."""
        return self._changes.setdefault(run, asyncio.Event())

    def tell(self, run: int) -> None:
        """The run has a new event, and it is durable."""
        change = self._changes.pop(run, None)
        if change is not None:
            change.set()

    # ------------------------------------------------ models

    async def model(self, asked: operator_pb2.ModelRequest) -> ModelInfo:
        """By digest, by run and round, or by alias. Raises NotKnown."""

        async def work(connection: Connection) -> ModelInfo:
            row = await self._model_row(connection, asked)
            return await self._model_info(connection, row)

        return await self._database.read(work)

    async def models(self, limit: int = 0, before: int = 0) -> list[ModelInfo]:
        """The newest first; `before`: only of runs below that number."""
        asked = select(ModelRow).order_by(ModelRow.run.desc(), ModelRow.round.desc())
        if before:
            asked = asked.where(ModelRow.run < before)

        async def work(connection: Connection) -> list[ModelInfo]:
            rows = (await connection.execute(asked.limit(_limit(limit)))).all()
            names = await self._aliases(connection)
            return [_model_message(row, names.get(row.id, [])) for row in rows]

        return await self._database.read(work)

    async def promote(
        self, asked: operator_pb2.ModelRequest, alias: str, by: str = ""
    ) -> ModelInfo:
        """Lets an alias point to a model. Raises NotKnown, DelianError."""
        _check_alias(alias)

        async def work(connection: Connection) -> ModelInfo:
            row = await self._model_row(connection, asked)
            if not row.kept:
                raise DelianError(
                    f"the weights of model {row.digest.hex()[:16]} were dropped",
                    "only kept models can be served; raise cloud.models_kept for later ones",
                )
            where = AliasRow.alias == alias
            now = (await connection.execute(select(AliasRow.move).where(where))).scalar()
            await self._move(connection, alias, row.id, now, "promote", by)
            return await self._model_info(connection, row)

        async with self._keeping:
            made = await self._database.transact(work)
            await self._keep()
        return made

    async def rollback(self, alias: str, by: str = "") -> ModelInfo:
        """Lets an alias point to where it pointed before. Raises NotKnown."""
        _check_alias(alias)

        async def work(connection: Connection) -> ModelInfo:
            joined = select(AliasMove).join(AliasRow, AliasRow.move == AliasMove.id)
            now = (await connection.execute(joined.where(AliasRow.alias == alias))).one_or_none()
            if now is None:
                raise NotKnown(f"no model is called `{alias}`", "`delian model ls` lists them")
            if now.previous is None:
                raise NotKnown(f"`{alias}` pointed to no other model before")
            before = select(AliasMove).where(AliasMove.id == now.previous)
            back = (await connection.execute(before)).one()
            await self._move(connection, alias, back.model, back.previous, "rollback", by)
            row = (
                await connection.execute(select(ModelRow).where(ModelRow.id == back.model))
            ).one()
            return await self._model_info(connection, row)

        async with self._keeping:
            made = await self._database.transact(work)
            await self._keep()
        return made

    async def history(self, alias: str) -> list[dict[str, Any]]:
        """The moves of an alias, the newest first."""
        asked = (
            select(AliasMove, ModelRow.digest, ModelRow.run, ModelRow.round)
            .join(ModelRow, ModelRow.id == AliasMove.model)
            .where(AliasMove.alias == alias)
            .order_by(AliasMove.id.desc())
        )
        return [
            {
                "action": row.action,
                "time_ms": row.time_ms,
                "by": row.by,
                "run": row.run,
                "round": row.round,
                "digest": row.digest.hex(),
            }
            for row in await self._database.rows(asked.limit(LIST_MAX))
        ]

    async def _move(
        self,
        connection: Connection,
        alias: str,
        model: int,
        previous: int | None,
        action: str,
        by: str,
    ) -> None:
        """The alias points to `model` from now on, and back to the move `previous`."""
        made = await connection.execute(
            insert(AliasMove)
            .values(
                alias=alias,
                model=model,
                previous=previous,
                action=action,
                time_ms=now_ms(),
                by=by[:128],
            )
            .returning(AliasMove.id)
        )
        await connection.execute(delete(AliasRow).where(AliasRow.alias == alias))
        await connection.execute(insert(AliasRow).values(alias=alias, move=made.scalar_one()))

    async def _model_row(self, connection: Connection, asked: operator_pb2.ModelRequest) -> Any:
        query = select(ModelRow)
        if asked.alias:
            query = query.join(AliasMove, AliasMove.model == ModelRow.id)
            query = query.join(AliasRow, AliasRow.move == AliasMove.id)
            query, what = query.where(AliasRow.alias == asked.alias), f"called `{asked.alias}`"
        elif asked.digest:
            query, what = query.where(ModelRow.digest == asked.digest), asked.digest.hex()[:16]
        elif asked.run:
            same = and_(ModelRow.run == asked.run, ModelRow.round == asked.round)
            query, what = query.where(same), f"of round {asked.round} of run {asked.run}"
        else:
            raise NotKnown("a model is named by its digest, its run and round, or an alias")
        newest = query.order_by(ModelRow.id.desc()).limit(1)
        row = (await connection.execute(newest)).one_or_none()
        if row is None:
            raise NotKnown(f"there is no model {what}", "`delian model ls` lists them")
        return row

    async def _model_info(self, connection: Connection, row: Any) -> ModelInfo:
        return _model_message(row, (await self._aliases(connection)).get(row.id, []))

    async def _aliases(self, connection: Connection) -> dict[int, list[str]]:
        asked = select(AliasRow.alias, AliasMove.model).join(
            AliasMove, AliasMove.id == AliasRow.move
        )
        names: dict[int, list[str]] = {}
        for row in (await connection.execute(asked.order_by(AliasRow.alias))).all():
            names.setdefault(row.model, []).append(row.alias)
        return names

    # ------------------------------------------------ what is kept

    def keep(self, model: bytes) -> None:
        """A model's row is durable: pins its weights.

        Call it before a later model is made, for the coordinator's machine then drops them.
        """
        self._made.add(model)
        self._pin((model,))

    async def retire(self, run: int) -> None:
        """After a run has made a model: lets go of the weights that are not kept any more."""
        needed = list(set(self._needed()))

        async def work(connection: Connection) -> list[bytes]:
            mine = ModelRow.run == run
            newest = select(ModelRow.round).where(mine, ModelRow.kept)
            newest = newest.order_by(ModelRow.round.desc()).offset(self._models_kept).limit(1)
            last = (await connection.execute(newest)).scalar()
            if last is None:
                return []
            asked = select(ModelRow.id, ModelRow.digest).where(
                mine,
                ModelRow.kept,
                ModelRow.round <= last,
                ModelRow.round > 0,
                ModelRow.digest.not_in(needed),
                ModelRow.id.not_in(await self._aliased(connection)),
            )
            rows = (await connection.execute(asked)).all()
            gone = update(ModelRow).where(ModelRow.id.in_([row.id for row in rows]))
            if rows:
                await connection.execute(gone.values(kept=False))
            return [row.digest for row in rows]

        async with self._keeping:
            gone = await self._database.transact(work)
            await self._keep()
            for digest in gone:
                if digest not in self._pinned:
                    await self._blobs.drop(digest)

    async def _aliased(self, connection: Connection) -> list[int]:
        """Models that an alias points to, or goes back to within a few rollbacks."""
        moves = {m.id: m for m in (await connection.execute(select(AliasMove))).all()}
        kept: set[int] = set()
        for (at,) in (await connection.execute(select(AliasRow.move))).all():
            for _ in range(ROLLBACKS_MAX + 1):
                move = moves.get(at)
                if move is None:
                    break
                kept.add(move.model)
                at = move.previous
        return sorted(kept)

    async def _keep(self) -> None:
        """Pins exactly the blobs of kept models, and what unfinished runs begin from.

        A model needs its run's bundle and frozen parts. Plans do not change: each is read once.
        """

        async def look(connection: Connection) -> set[bytes]:
            aliased = await self._aliased(connection)
            asked = select(ModelRow.digest, ModelRow.bundle, ModelRow.run).where(
                or_(ModelRow.kept, ModelRow.id.in_(aliased))
            )
            rows = (await connection.execute(asked)).all()
            await self._read_frozen(connection, {row.run for row in rows})
            unfinished = select(RunRow.plan).where(RunRow.phase.not_in(_OVER))
            found = (await connection.execute(unfinished)).scalars()
            plans = [PlanMessage.FromString(plan) for plan in found]
            models = {digest for row in rows for digest in (row.digest, row.bundle)}
            models |= {digest for row in rows for digest in self._frozen[row.run]}
            return models | {d for p in plans for d in (p.weights.digest, *_lasting(p))}

        self._made.clear()
        wanted = await self._database.read(look) | self._made
        for digest in self._pinned - wanted:
            self._blobs.unpin(digest)
        self._pinned &= wanted
        self._pin(wanted)

    async def _read_frozen(self, connection: Connection, runs: set[int]) -> None:
        """Reads which frozen parts the models of these runs need."""
        self._frozen = {run: parts for run, parts in self._frozen.items() if run in runs}
        for run in sorted(runs - self._frozen.keys()):
            plan = await connection.scalar_of(_PLAN, of=run)
            parts = () if plan is None else PlanMessage.FromString(plan).frozen
            self._frozen[run] = tuple(ref.digest for ref in parts)

    def _pin(self, digests: Iterable[bytes]) -> None:
        for digest in set(digests) - self._pinned:
            self._blobs.pin(digest)
            self._pinned.add(digest)


def _lasting(plan: PlanMessage) -> tuple[bytes, ...]:
    """Digests of the bundle and the frozen parts."""
    return plan.bundle.digest, *(ref.digest for ref in plan.frozen)


def _limit(asked: int) -> int:
    return min(asked or LIST_DEFAULT, LIST_MAX)


def _check_alias(alias: str) -> None:
    if not _ALIAS.fullmatch(alias):
        raise DelianError(
            f"`{alias[:80]}` is no name for a model", "small letters, digits and . _ -, as serving"
        )


def _run_message(row: Any) -> RunMessage:
    return RunMessage(
        run=row.run,
        plan=PlanMessage.FromString(row.plan),
        phase=row.phase,
        round=row.round,
        attempt=row.attempt,
        weights=BlobRef(digest=row.weights, size=row.weights_size),
        created_ms=row.created_ms,
        ended_ms=row.ended_ms,
        why=row.why,
    )


def _model_message(row: Any, aliases: Sequence[str]) -> ModelInfo:
    metrics = row.metrics if isinstance(row.metrics, dict) else json.loads(row.metrics)
    return ModelInfo(
        weights=BlobRef(digest=row.digest, size=row.size),
        bundle=BlobRef(digest=row.bundle, size=row.bundle_size),
        run=row.run,
        round=row.round,
        parent=row.parent or b"",
        created_ms=row.created_ms,
        metrics=metrics,
        aliases=aliases,
    )
