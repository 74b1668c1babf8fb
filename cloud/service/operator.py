"""The gRPC service `Operator` of proto/operator.proto."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from typing import Any, NoReturn, TypeVar

import grpc

from ...core.common.errors import DelianError
from ...core.learning.bundle import BYTES_MAX as BUNDLE_BYTES_MAX
from ...core.learning.bundle import Manifest, parse
from ...core.learning.disclosure.keys import check_keys
from ...core.node.net.grpc.grpc_requests import refuse
from ...core.node.net.message_limits import PART_BYTES
from ...core.node.storage.blobs import BlobError, BlobsFull, BlobStore
from ...core.node.storage.codec import node_of
from ...core.protocol.ports import BLOB_BYTES_MAX, Node, Ordered, ProtocolError, Tier
from ...core.statistics.request import check_step
from ...core.wire import link_pb2, operator_pb2, operator_pb2_grpc
from ...core.wire.authority_pb2 import RevokeRequest
from ...core.wire.blob_pb2 import BlobRef
from ...core.wire.enrolment_pb2 import FederationTerms
from ...core.wire.journal_pb2 import DrainEdge, Forget
from ...core.wire.link_pb2 import Part
from ...core.wire.operator_pb2 import PlanMessage, PrivacySpent, RunOrder
from ...core.wire.operator_pb2 import RunInfo as RunMessage
from ..authority.port import AuthorityPort
from ..protocol.coordinator_state import CoordinatorPolicy
from ..protocol.run_plan import RunPlan, change
from ..store.database import StoreError
from .audit_log import AuditLog
from .call_records import CallRecord, caller_of, own_site
from .fleet_registry import Fleet, Live, live
from .operator_orders import ORDER_S, CloudNode, Node0, Orders
from .registry import EVENTS_AT_ONCE, NEW, NotKnown, Registry
from .trust import check_terms

log = logging.getLogger("delian.cloud.service.operator")

T = TypeVar("T")

#: For one part of a blob, in either direction.
PART_S = 60.0
PUT_PART_BYTES_MAX = 2**20
#: Watchers at once; and how long one waits before it looks whether its caller is still there.
WATCHERS_MAX = 256
WATCH_S = 60.0
#: What a request for a run is named by.
REQUEST_ID_BYTES = 16
#: Blobs that are brought or fetched at once: each holds a part in memory.
TRANSFERS_MAX = 32
_ACTIONS = ("pause", "resume", "cancel")


class OperatorService(operator_pb2_grpc.OperatorServicer):
    """Serves `Operator`.

    cloud, gatherer: the drivers of the coordinator and of its own edge 0. send_away: ends the links
    of a node. authority: what revokes nodes and makes tokens; None without certificates. terms: the
    federation's; may block. audit: the chain of aggregates and calls.
    """

    def __init__(
        self,
        registry: Registry,
        fleet: Fleet,
        blobs: BlobStore,
        orders: Orders,
        cloud: Callable[[], CloudNode],
        gatherer: Callable[[], Node0],
        send_away: Callable[[Node, str], Awaitable[None]] | None = None,
        *,
        policy: CoordinatorPolicy | None = None,
        authority: AuthorityPort | None = None,
        terms: Callable[[], FederationTerms | None] | None = None,
        audit: AuditLog | None = None,
    ) -> None:
        self._registry, self._fleet, self._blobs, self._orders = registry, fleet, blobs, orders
        self._cloud, self._gatherer, self._send_away = cloud, gatherer, send_away
        self._policy = policy or CoordinatorPolicy()
        self._authority, self._terms = authority, terms
        self._audit, self._record = audit, CallRecord(audit)
        self._submitting = asyncio.Lock()  # numbers go up in the order of the machine's events
        self._begun: set[asyncio.Task[Any]] = set()
        self._transfers = asyncio.Semaphore(TRANSFERS_MAX)
        self._watchers = 0
        self.counts = {"orders": 0, "refused": 0, "blobs in": 0, "blobs out": 0}

    async def close(self) -> None:
        """Ends what has no caller any more: a run that has its row begins at the next start."""
        for task in self._begun:
            task.cancel()
        await asyncio.gather(*self._begun, return_exceptions=True)

    # ------------------------------------------------ runs

    async def Submit(self, request: operator_pb2.SubmitRequest, context: Any) -> RunMessage:
        async def work() -> RunMessage:
            return await self._once(
                request.request_id, lambda: self._begin(request.plan, request.request_id)
            )

        return await self._change(context, "Submit", request, work)

    async def CloneRun(self, request: operator_pb2.CloneRequest, context: Any) -> RunMessage:
        async def work() -> RunMessage:
            return await self._once(request.request_id, lambda: self._clone(request))

        return await self._change(context, "CloneRun", request, work)

    async def _change(
        self, context: Any, method: str, request: Any, work: Callable[[], Awaitable[T]]
    ) -> T:
        """Answers a call that may change something, and records it.

        It goes on when its caller is gone: the record then still has its outcome, and a run is
        found by its id.
        """
        recorded = self._record.during(caller_of(context), method, request, work)
        return await self._answer(context, self._to_its_end(recorded))

    async def _to_its_end(self, work: Coroutine[Any, Any, T]) -> T:
        task = asyncio.create_task(work)
        self._begun.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._begun.discard(task)
        if not task.cancelled():
            task.exception()  # reported to its caller, or there is none

    async def _once(
        self, request: bytes, begin: Callable[[], Coroutine[Any, Any, int]]
    ) -> RunMessage:
        """The run of a request: the one that there is, or a new one."""
        if len(request) not in (0, REQUEST_ID_BYTES):
            raise DelianError(
                f"a request's id of {len(request)} bytes",
                f"{REQUEST_ID_BYTES} random ones, or none",
            )
        async with self._submitting:
            run = await self._registry.run_of(request) if request else None
            if run is None:
                run = await begin()
            else:
                log.info("run asked for again", extra={"run": run})
                await self._until_begun(run)
        return await self._info(run)

    async def _clone(self, request: operator_pb2.CloneRequest) -> int:
        before = await self._info(request.run)
        plan = PlanMessage()
        plan.CopyFrom(before.plan)
        if request.from_newest:
            plan.weights.CopyFrom(before.weights)
        change(plan, request.changes)
        return await self._begin(plan, request.request_id, request.run)

    async def _begin(
        self, plan: PlanMessage, request: bytes, cloned_from: int | None = None
    ) -> int:
        machine = self._cloud().machine
        # As it will be numbered, or a little lower: the machine knows of no higher one.
        machine.check(RunOrder(run=machine.state.newest + 1, submit=plan))
        if self._terms is not None:
            check_terms(await asyncio.to_thread(self._terms), plan)
        await self._check_blobs(plan)
        run = await self._registry.add_run(plan, cloned_from, request)
        self.counts["orders"] += 1
        log.info("run submitted", extra={"run": run, "run_name": plan.name})
        if self._audit is not None:
            await self._audit.publish(run, plan)
        await self._orders.give(RunOrder(run=run, submit=plan))
        return run

    async def _until_begun(self, run: int) -> None:
        """Waits until the order to begin a run is durable.

        It was given when the run got its row, and is given again at a start. Raises TimeoutError.
        """
        async with asyncio.timeout(ORDER_S):
            while True:
                change = self._registry.change_of(run)
                if (await self._registry.run(run)).phase != NEW:
                    return
                await change.wait()

    async def _check_blobs(self, plan: PlanMessage) -> None:
        """Whether the plan's blobs are here and fit one another. Raises DelianError."""
        named = [("bundle", plan.bundle), ("weights", plan.weights)]
        named += [(f"frozen[{at}]", ref) for at, ref in enumerate(plan.frozen)]
        for name, ref in named:
            size = await self._blobs.size(ref.digest)
            if size != ref.size:
                raise DelianError(
                    f"plan.{name}: no blob {ref.digest.hex()[:16]} of {ref.size} bytes is here",
                    "put it into the coordinator's store first",
                )
        if plan.bundle.size > BUNDLE_BYTES_MAX:
            raise DelianError(f"plan.bundle: {plan.bundle.size} bytes; at most {BUNDLE_BYTES_MAX}")
        content = await self._blobs.read(plan.bundle.digest)
        if plan.ring.wide:
            step = await self._blobs.read(plan.weights.digest)
            check_step(content, step, RunPlan.from_message(1, plan).ring)
            if plan.frozen:
                raise DelianError("plan.frozen: a question has no model", "leave it out")
            return
        bundle = await asyncio.to_thread(lambda: check_keys(parse(content, "plan.bundle")))
        manifest, ring = bundle.manifest, RunPlan.from_message(1, plan).ring
        check_frozen(plan.frozen, manifest)
        if plan.split != bool(manifest.split):
            raise DelianError(
                f"plan.split: {plan.split}, where the bundle's devices"
                f" {'may' if manifest.split else 'cannot'} train with their edges",
                "take it from the bundle's manifest",
            )
        # Its programs know the ring's steps, and a device trains for no other ring.
        if ring.base != manifest.ring:
            raise DelianError(
                f"plan.ring: {ring}, where the bundle has {manifest.ring}",
                "take the ring plan from the bundle's manifest",
            )
        if plan.own_metrics and tuple(plan.own_metrics) != manifest.metrics:
            raise DelianError(
                f"plan.own_metrics: {', '.join(plan.own_metrics)}, where the bundle has"
                f" {', '.join(manifest.metrics) or 'none'}",
                "take them from the bundle's manifest, or leave them out",
            )

    async def ListRuns(
        self, request: operator_pb2.ListRequest, context: Any
    ) -> operator_pb2.RunList:
        async def work() -> operator_pb2.RunList:
            runs = await self._registry.runs(request.limit, request.before)
            told = [self._with_live(run) for run in runs]
            for run in told:
                run.plan.ClearField("frozen")  # of a thousand runs they could be many MiB
            return operator_pb2.RunList(runs=told)

        return await self._answer(context, work())

    async def GetRun(self, request: operator_pb2.RunRequest, context: Any) -> RunMessage:
        return await self._answer(context, self._info(request.run))

    async def ControlRun(self, request: operator_pb2.RunControl, context: Any) -> RunMessage:
        async def work() -> RunMessage:
            if request.action not in _ACTIONS:
                raise DelianError(f"`{request.action[:40]}` is no action", ", ".join(_ACTIONS))
            await self._info(request.run)  # an unknown one differs from one that ended
            order = RunOrder(run=request.run)
            setattr(order, request.action, True)
            await self._orders.give(order)
            self.counts["orders"] += 1
            log.info("run ordered", extra={"run": request.run, "action": request.action})
            return await self._info(request.run)

        return await self._change(context, "ControlRun", request, work)

    async def WatchRun(
        self, request: operator_pb2.WatchRequest, context: Any
    ) -> AsyncIterator[operator_pb2.RunEvent]:
        if self._watchers >= WATCHERS_MAX:
            await self._refuse(context, grpc.StatusCode.RESOURCE_EXHAUSTED, "too many watchers")
        self._watchers += 1
        after = request.after
        try:
            await self._answer(context, self._info(request.run))
            while True:
                # Asked for before looking: what comes in between sets it.
                change = self._registry.change_of(request.run)
                looking = self._registry.events(request.run, after)
                events, over = await self._answer(context, looking)
                for event in events:
                    after = event.sequence
                    yield event
                if len(events) < EVENTS_AT_ONCE:
                    if over or request.once:
                        return
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(WATCH_S):  # wait_for may lose a cancellation
                            await change.wait()
        finally:
            self._watchers -= 1

    async def _info(self, run: int) -> RunMessage:
        told = self._with_live(await self._registry.run(run))
        if told.plan.HasField("privacy"):
            state = self._cloud().machine.state.runs.get(run)
            if state is not None and state.budget is not None:
                spent: PrivacySpent | None = PrivacySpent(**state.budget.facts())
            else:
                spent = await self._registry.spent(run)
            if spent is not None:
                told.privacy_spent.CopyFrom(spent)
        return told

    def _with_live(self, told: RunMessage) -> RunMessage:
        cloud = self._cloud()
        state = cloud.machine.state.runs.get(told.run)
        if state is not None:
            outlook = cloud.machine.runs.outlook(told.run)
            if outlook is not None:
                told.outlook.CopyFrom(outlook.message(cloud.now))
            told.phase, told.round, told.attempt = state.phase.value, state.round, state.attempt
            told.weights.CopyFrom(state.weights)
            told.why = state.stopped_by
        return told

    # ------------------------------------------------ the fleet

    def _live(self) -> dict[Node, Live]:
        cloud = self._cloud()
        return live(cloud.machine.state, cloud.now, self._policy)

    async def ListNodes(
        self, request: operator_pb2.FleetRequest, context: Any
    ) -> operator_pb2.FleetList:
        async def work() -> operator_pb2.FleetList:
            tier = None
            if request.tier != link_pb2.NODE_TIER_UNSPECIFIED:
                tier = node_of(link_pb2.Address(tier=request.tier)).tier
            seen = self._live()
            await self._fleet.observe(seen)
            where = (tier, request.limit, request.after, own_site(context))
            found = await self._fleet.nodes(seen, *where)
            return operator_pb2.FleetList(nodes=found)

        return await self._answer(context, work())

    async def GetNode(
        self, request: operator_pb2.NodeRequest, context: Any
    ) -> operator_pb2.NodeInfo:
        work = self._fleet.node(node_of(request.node), self._live(), own_site(context))
        return await self._answer(context, work)

    async def DrainNode(
        self, request: operator_pb2.NodeRequest, context: Any
    ) -> operator_pb2.NodeInfo:
        async def work() -> operator_pb2.NodeInfo:
            node = node_of(request.node)
            if node.tier is Tier.DEVICE:
                raise DelianError(
                    f"{node} is no edge, and only edges are drained",
                    "its owner takes a device out: `delian device consent no` on it; for good:"
                    f" `delian fleet revoke device-{node.number}`",
                )
            if node.tier is Tier.CLOUD:
                raise DelianError(
                    "the coordinator is not drained", "pause its runs, or drain edge-0"
                )
            await self._fleet.observe(self._live())
            if (await self._fleet.node(node, {}, own_site(context))).state == "revoked":
                raise DelianError(f"{node} was revoked", "it joins again with a new number")
            order = DrainEdge(edge=node.number, draining=not request.undo)
            await self._orders.give(order)
            self.counts["orders"] += 1
            log.info("edge ordered", extra={"edge": node.number, "draining": order.draining})
            return await self._fleet.node(node, self._live())

        return await self._change(context, "DrainNode", request, work)

    async def RevokeNode(
        self, request: operator_pb2.NodeRequest, context: Any
    ) -> operator_pb2.NodeInfo:
        async def work() -> operator_pb2.NodeInfo:
            node = node_of(request.node)
            authority = self._certified()
            await self._fleet.node(node, {}, own_site(context))
            name = f"{node.tier.value}-{node.number}"
            revoked = await authority.revoke(RevokeRequest(name=name, why="by an operator"))
            await self._fleet.mark(node, "revoked")
            if node.tier is Tier.DEVICE:
                self._gatherer().post(Ordered(Forget(device=node.number)))
            if node.tier is Tier.EDGE:
                # Or devices would be selected there until it is found to be silent.
                self._cloud().post(Ordered(DrainEdge(edge=node.number, draining=True)))
            if self._send_away is not None:
                await self._send_away(node, "revoked")
            facts = {"node": name, "version": revoked.version}
            log.warning("node revoked", extra=facts)
            return await self._fleet.node(node, self._live())

        return await self._change(context, "RevokeNode", request, work)

    async def CreateToken(
        self, request: operator_pb2.TokenRequest, context: Any
    ) -> operator_pb2.TokenReply:
        caller = caller_of(context).identity

        async def work() -> operator_pb2.TokenReply:
            return await self._certified().create_token(request, caller)

        return await self._change(context, "CreateToken", request, work)

    def _certified(self) -> AuthorityPort:
        if self._authority is None:
            raise DelianError("this coordinator knows no certificates", "it runs with --insecure")
        return self._authority

    # ------------------------------------------------ models

    async def ListModels(
        self, request: operator_pb2.ListRequest, context: Any
    ) -> operator_pb2.ModelList:
        models = await self._answer(context, self._registry.models(request.limit, request.before))
        return operator_pb2.ModelList(models=models)

    async def GetModel(
        self, request: operator_pb2.ModelRequest, context: Any
    ) -> operator_pb2.ModelInfo:
        return await self._answer(context, self._registry.model(request))

    async def Promote(
        self, request: operator_pb2.PromoteRequest, context: Any
    ) -> operator_pb2.ModelInfo:
        by = caller_of(context).name

        async def work() -> operator_pb2.ModelInfo:
            return await self._registry.promote(request.model, request.alias, by)

        return await self._change(context, "Promote", request, work)

    async def Rollback(
        self, request: operator_pb2.PromoteRequest, context: Any
    ) -> operator_pb2.ModelInfo:
        by = caller_of(context).name

        async def work() -> operator_pb2.ModelInfo:
            return await self._registry.rollback(request.alias, by)

        return await self._change(context, "Rollback", request, work)

    # ------------------------------------------------ blobs

    async def PutBlob(self, request_iterator: Any, context: Any) -> BlobRef:
        async with self._transfers:
            return await self._answer(context, self._put(aiter(request_iterator)))

    async def _put(self, parts: AsyncIterator[operator_pb2.PutPart]) -> BlobRef:
        first = await _next(parts)
        if first is None or not 0 < first.blob.size <= BLOB_BYTES_MAX:
            raise DelianError(
                "the first part names no blob", f"its digest and size, 1 to {BLOB_BYTES_MAX} bytes"
            )
        ref = first.blob
        if await self._blobs.size(ref.digest) == ref.size:
            return ref  # the call ends: what is not sent yet stays there
        partial = await self._blobs.begin(ref.digest, ref.size)
        try:
            # One that goes on where it ended is sent from its beginning all the same.
            seen = 0
            part: operator_pb2.PutPart | None = first
            while part is not None:
                if len(part.content) > PUT_PART_BYTES_MAX:
                    raise DelianError(f"a part of more than {PUT_PART_BYTES_MAX} bytes")
                known = max(0, partial.offset - seen)
                seen += len(part.content)
                if seen > ref.size:
                    raise DelianError(f"more than the {ref.size} bytes that were announced")
                if part.content[known:]:
                    await partial.write(part.content[known:])
                part = await _next(parts)
            if seen < ref.size:
                raise DelianError(f"{seen} of {ref.size} bytes came")
            if not await partial.finish():
                raise DelianError("what came does not hash to its digest", "send it again")
        finally:
            await partial.abort()
        self.counts["blobs in"] += 1
        return ref

    async def GetBlob(self, request: BlobRef, context: Any) -> AsyncIterator[Part]:
        async with self._transfers:
            size = await self._answer(context, self._blobs.size(request.digest))
            if size is None:
                await self._refuse(context, grpc.StatusCode.NOT_FOUND, "the blob is not here")
            self._blobs.pin(request.digest)
            try:
                offset = 0
                while offset < size:
                    reading = self._blobs.read(request.digest, offset, PART_BYTES)
                    content = await self._answer(context, reading)
                    yield Part(id=request.digest, offset=offset, content=content)
                    offset += len(content)
            finally:
                self._blobs.unpin(request.digest)
            self.counts["blobs out"] += 1

    async def Audit(
        self, request: operator_pb2.AuditRequest, context: Any
    ) -> AsyncIterator[operator_pb2.AuditLine]:
        after, audit = request.after, self._audit
        if audit is None:
            return
        async with self._transfers:
            await self._answer(context, audit.sign())
            while True:
                lines, after = await self._answer(context, audit.page(after))
                for line in lines:
                    yield operator_pb2.AuditLine(line=line)
                if not lines:
                    return

    # ------------------------------------------------ answers

    async def _answer(self, context: Any, work: Awaitable[T]) -> T:
        """What `work` gives; an error of ours ends the call with its words."""
        code, text = grpc.StatusCode.INTERNAL, ""
        try:
            return await work
        except NotKnown as fault:
            code, text = grpc.StatusCode.NOT_FOUND, _words(fault)
        except BlobsFull as fault:
            code, text = grpc.StatusCode.RESOURCE_EXHAUSTED, _words(fault)
        except (StoreError, BlobError) as fault:
            code, text = grpc.StatusCode.UNAVAILABLE, _words(fault)
        except (DelianError, ProtocolError) as fault:
            code, text = grpc.StatusCode.INVALID_ARGUMENT, _words(fault)
        except TimeoutError:
            code, text = grpc.StatusCode.DEADLINE_EXCEEDED, "the coordinator is too busy"
        await self._refuse(context, code, text)

    async def _refuse(self, context: Any, code: grpc.StatusCode, text: str) -> NoReturn:
        self.counts["refused"] += 1
        await refuse(context, code, text)


def check_frozen(refs: Sequence[BlobRef], manifest: Manifest) -> None:
    """Raises DelianError unless these are the parts that a bundle's manifest names, in order."""
    parts = [(part.digest, part.size) for part in manifest.frozen_parts]
    given = [(ref.digest.hex(), ref.size) for ref in refs]
    if given == parts:
        return
    at = next((i for i, (a, b) in enumerate(zip(given, parts, strict=False)) if a != b), -1)
    where = f", and number {at + 1} is another" if at >= 0 else ""
    raise DelianError(
        f"plan.frozen: {len(given)} parts, where the bundle's manifest names {len(parts)}{where}",
        "put the bundle's own parts, in its manifest's order",
    )


def _words(fault: DelianError) -> str:
    """Message and hint, which `core.node.service.operator_client` takes apart again."""
    return f"{fault.message}\n{fault.hint}" if fault.hint else fault.message


async def _next(parts: AsyncIterator[operator_pb2.PutPart]) -> operator_pb2.PutPart | None:
    async with asyncio.timeout(PART_S):
        return await anext(parts, None)
