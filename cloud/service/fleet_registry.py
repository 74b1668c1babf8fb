"""The nodes of a federation: which were enrolled and seen where, and what operators set for them.

The process that has the CA hands out numbers here, counting from 1 in each tier; a row is never
removed, and the CA's folder keeps the last number as well, so none is used twice. Another
coordinator learns the rows from the authority. What a node is doing now is read from the
coordinator's machine on request, to the half minute; when it was last seen is written down at most
every few minutes while it is there, and once when it has gone.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from sqlalchemy import and_, bindparam, func, insert, literal_column, select, update

from ...core.node.identity.pki.certificates import NUMBER_BITS, NUMBER_MAX, IdentityError
from ...core.node.identity.pki.identity_folder import HomeAddress, check_addresses
from ...core.node.storage.codec import address
from ...core.protocol.ports import CLOUD, MS, Node, Tier
from ...core.wire.admission_pb2 import NOT_CONSENTED
from ...core.wire.authority_pb2 import EnrolledNode
from ...core.wire.operator_pb2 import NodeInfo
from ..authority.enrolment import NODES_AT_ONCE
from ..protocol.coordinator_state import CoordinatorPolicy, CoordinatorState
from ..protocol.outlook import COULD_WORK
from ..store.database import Database
from ..store.engines import Connection
from ..store.schema import NodeRow
from .registry import NotKnown, now_ms

log = logging.getLogger("delian.cloud.service.fleet_registry")

#: The row of a node that is there says when it was seen, give or take so much.
SEEN_EVERY_MS = 5 * 60_000
#: A node that was not seen for so long is gone; before that it is silent.
GONE_MS = 24 * 3_600_000
#: How far above the numbers that were handed out one may be that an edge names: of a node that was
#: let in after the backup of which the store was made. Beyond, an edge has made it up, and it would
#: be a row, and the next number to be handed out.
AHEAD_MAX = 10_000
#: How long a node may take from its number to its certificate.
JOINING_MS = 60_000
#: Rows in one statement.
ROWS_AT_ONCE = 500
#: What a device does that an edge has sent away.
_AWAY: dict[int, str] = {**dict.fromkeys(COULD_WORK, "idle"), NOT_CONSENTED: "unconsented"}
NODES_DEFAULT, NODES_MAX = 100, 1_000


@dataclass(frozen=True, slots=True)
class Live:
    """What the coordinator's machine knows of a node now."""

    state: str
    seen_ms: int
    home: int | None = None
    """A device's edge."""


def live(state: CoordinatorState, now_ns: int, policy: CoordinatorPolicy) -> dict[Node, Live]:
    """The nodes that edges have named, by what they do, and when they were seen.

    Of devices "ready", "working", "idle", "unconsented", "unfit", or "silent": no edge has named
    them for a while. Of edges "ready", "working" or "silent".

    Edges that were taken out of service are "draining" while something that was begun there goes
    on, then "drained".
    """
    found: dict[Node, Live] = {}
    owing: set[int] = set()
    for edge, view in state.edges.items():
        seen, silent = view.heard_ns // MS, view.heard_ns < now_ns - policy.edge_silence_ns
        found[Node(Tier.EDGE, edge)] = Live("silent" if silent else "ready", seen)
        for device, at in view.seen.items():
            late = at < now_ns - policy.absence_ns
            found[Node(Tier.DEVICE, device)] = Live("silent" if late else "idle", at // MS, edge)
        for device, reason in () if silent else view.away.items():
            found[Node(Tier.DEVICE, device)] = Live(_AWAY.get(reason, "unfit"), seen, edge)
        for device in () if silent else view.ready:
            found[Node(Tier.DEVICE, device)] = Live("ready", seen, edge)
        for device in view.taken:
            found[Node(Tier.DEVICE, device)] = Live("working", seen, edge)
    for run in state.runs.values():
        for attempt in run.open:
            for edge, share in attempt.owing():
                owing.add(edge)
                known = found.get(Node(Tier.EDGE, edge))
                if known is not None and known.state == "ready":
                    found[Node(Tier.EDGE, edge)] = Live("working", known.seen_ms)
                answered = {*share.reported, *attempt.failures}
                for device in set(share.devices) - answered:
                    seen = known.seen_ms if known else 0
                    found[Node(Tier.DEVICE, device)] = Live("working", seen, edge)
    for edge in state.draining:
        seen_by = state.edges.get(edge)
        seen = seen_by.heard_ns // MS if seen_by else 0
        empty = seen_by is not None and seen_by.told_draining and not seen_by.ready
        over = empty and edge not in owing
        found[Node(Tier.EDGE, edge)] = Live("drained" if over else "draining", seen)
    return found


class Fleet:
    """The members of the federation, in the database, and what operators ask of nodes."""

    def __init__(
        self,
        database: Database,
        cloud: HomeAddress | None = None,
        draining: Callable[[], Container[int]] = frozenset,
        enrols: bool = True,
    ) -> None:
        """cloud: where nodes reach the coordinator; may change.

        draining: edges that are out of service. enrols: numbers are handed out; else nodes have
        what numbers they like.
        """
        self._database, self.cloud = database, cloud or HomeAddress(CLOUD)
        self._draining, self._ahead_max = draining, AHEAD_MAX if enrols else None
        self._written: dict[Node, tuple[int, int | None]] = {}

    # ------------------------------------------------ enrolment

    async def register(
        self, tier: Tier, labels: Mapping[str, str], now_ms: int, above: int = 0, site: str = ""
    ) -> int:
        """A new number, larger than `above` and of the same authority; durable on return.

        site: of the node's token.
        """
        mine = (NodeRow.tier == tier.value, *_of_authority(above >> NUMBER_BITS))

        async def work(connection: Connection) -> int:
            asked = select(func.max(NodeRow.number)).where(*mine)
            last = int((await connection.execute(asked)).scalar() or 0)
            number = max(last, above) + 1
            row = {"tier": tier.value, "number": number, "labels": dict(labels), "site": site}
            await connection.execute(insert(NodeRow).values(**row, enrolled_ms=now_ms))
            return number

        return await self._database.transact(work)

    async def certified(
        self, node: Node, serial: int, not_after: int, now_ms: int, make: bool = True
    ) -> None:
        """The node has a new certificate. make: a row is made where there is none."""
        values = {"serial": f"{serial:x}", "certificate_ends_ms": not_after * 1000}

        async def work(connection: Connection) -> None:
            done = await connection.execute(update(NodeRow).where(*_is(node)).values(**values))
            if not done.rowcount and make:
                row = {"tier": node.tier.value, "number": node.number, "enrolled_ms": now_ms}
                await connection.execute(insert(NodeRow).values(**row, **values, labels={}))

        await self._database.transact(work)

    async def homes(self, node: Node) -> Sequence[HomeAddress]:
        """The addresses at which a node may connect, in order of preference.

        For a device: the edges in service that have an address among their labels, then the
        coordinator. For an edge: the coordinator.
        """
        homes: list[HomeAddress] = []
        if node.tier is Tier.DEVICE:
            asked = select(NodeRow).where(NodeRow.tier == Tier.EDGE.value, NodeRow.state == "")
            rows = await self._database.rows(asked.order_by(NodeRow.number).limit(32))
            for row in rows:
                grpc, mqtt = (str(row.labels.get(kind, "")) for kind in ("grpc", "mqtt"))
                if not (grpc or mqtt) or row.number in self._draining():
                    continue
                try:
                    check_addresses(grpc, mqtt)  # a row may be older than the check at enrolment
                except IdentityError as fault:
                    log.warning("home left out", extra={"edge": row.number, "why": fault.message})
                    continue
                homes.append(HomeAddress(Node(Tier.EDGE, row.number), grpc, mqtt))
        return [*homes, self.cloud]

    async def enrolled(self, tier: Tier, after: int) -> Sequence[EnrolledNode]:
        """The next nodes of a tier that were let in, with numbers above `after`."""
        asked = select(NodeRow).where(
            NodeRow.tier == tier.value, NodeRow.number > after, NodeRow.enrolled_ms > 0
        )
        found = await self._database.rows(asked.order_by(NodeRow.number).limit(NODES_AT_ONCE))
        joining = now_ms() - JOINING_MS
        # A node that is being enrolled, and all after it, follow when it has a certificate.
        rows = itertools.takewhile(
            lambda row: row.certificate_ends_ms or row.enrolled_ms < joining, found
        )
        return [
            EnrolledNode(
                number=row.number,
                enrolled_ms=row.enrolled_ms,
                certificate_ends_ms=row.certificate_ends_ms,
                labels={str(k): str(v) for k, v in row.labels.items()},
                site=row.site,
            )
            for row in rows
        ]

    async def learn(self, tier: Tier, nodes: Sequence[EnrolledNode]) -> None:
        """Takes over nodes that were let in elsewhere; durable on return.

        Rows that are there keep their state.
        """

        async def work(connection: Connection) -> None:
            for node in nodes:
                values = {
                    "labels": dict(node.labels),
                    "site": node.site,
                    "enrolled_ms": node.enrolled_ms,
                    "certificate_ends_ms": node.certificate_ends_ms,
                }
                mine = _is(Node(tier, node.number))
                done = await connection.execute(update(NodeRow).where(*mine).values(**values))
                if not done.rowcount:
                    row = {"tier": tier.value, "number": node.number}
                    await connection.execute(insert(NodeRow).values(**row, **values))

        await self._database.transact(work)

    async def revoke(self, node: Node) -> None:
        """The node was revoked. One that is not known is left out."""
        with contextlib.suppress(NotKnown):
            await self.mark(node, "revoked")

    async def follow_revoked(self, nodes: Iterable[Node], authorities: Iterable[int]) -> None:
        """Marks nodes that were revoked, and those that revoked authorities have let in."""
        for node in sorted(nodes):
            await self.revoke(node)

        async def work(connection: Connection, authority: int) -> None:
            mine = (*_of_authority(authority), NodeRow.state != "revoked")
            await connection.execute(update(NodeRow).where(*mine).values(state="revoked"))

        for authority in authorities:
            await self._database.transact(partial(work, authority=authority))

    # ------------------------------------------------ operators

    async def nodes(
        self,
        seen: Mapping[Node, Live],
        tier: Tier | None,
        limit: int,
        after: int,
        site: str | None = None,
    ) -> list[NodeInfo]:
        """A page, by number.

        Of all tiers it ends with a whole number, so that `after` goes on behind it. Zero: from edge
        0 on. seen: of `live`. site: None: of all.
        """
        asked = select(NodeRow).where(NodeRow.number >= (after + 1 if after else 0))
        asked = asked.order_by(NodeRow.number, NodeRow.tier)
        if tier is not None:
            asked = asked.where(NodeRow.tier == tier.value)
        if site is not None:
            asked = asked.where(NodeRow.site == site)
        count = min(limit or NODES_DEFAULT, NODES_MAX)
        rows = await self._database.rows(asked.limit(count + len(Tier)))
        rows = [
            row for i, row in enumerate(rows) if i < count or row.number == rows[count - 1].number
        ]
        return [_info(row, seen.get(Node(Tier(row.tier), row.number))) for row in rows]

    async def node(
        self, node: Node, seen: Mapping[Node, Live], site: str | None = None
    ) -> NodeInfo:
        """site: None: a node of any. Raises NotKnown, also for a node of another site."""
        rows = await self._database.rows(select(NodeRow).where(*_is(node)))
        if not rows or site not in (None, rows[0].site):
            raise NotKnown(f"there is no {node}", "`delian fleet ls` lists the nodes")
        return _info(rows[0], seen.get(node))

    async def mark(self, node: Node, state: str) -> None:
        """state: "" or "revoked". Raises NotKnown."""

        async def work(connection: Connection) -> int:
            done = await connection.execute(update(NodeRow).where(*_is(node)).values(state=state))
            return int(done.rowcount)

        if not await self._database.transact(work):
            raise NotKnown(f"there is no {node}", "`delian fleet ls` lists the nodes")

    async def revoked(self) -> list[Node]:
        """The nodes that are marked as revoked."""
        rows = await self._database.rows(select(NodeRow).where(NodeRow.state == "revoked"))
        return [Node(Tier(row.tier), row.number) for row in rows]

    async def last_numbers(self, authority: int = 0) -> dict[Tier, int]:
        """The largest number that an authority (0: the root) has assigned in each tier."""
        given = and_(NodeRow.enrolled_ms > 0, *_of_authority(authority))
        found: dict[Tier, int] = {}
        for tier in (Tier.DEVICE, Tier.EDGE):
            asked = select(NodeRow).where(NodeRow.tier == tier.value, given)
            rows = await self._database.rows(asked.order_by(NodeRow.number.desc()).limit(1))
            if rows:
                found[tier] = rows[0].number
        return found

    async def observe(self, seen: Mapping[Node, Live]) -> int:
        """Records which node was seen where, if that is new; gives how many rows changed."""
        news = {
            node: found
            for node, found in seen.items()
            if found.seen_ms and _is_news(self._written.get(node), found)
        }
        nodes = sorted(news)
        for start in range(0, len(nodes), ROWS_AT_ONCE):
            part = {node: news[node] for node in nodes[start : start + ROWS_AT_ONCE]}
            write = partial(_write_seen, seen=part, ahead_max=self._ahead_max)
            await self._database.transact(write)
            self._written.update({n: (f.seen_ms, f.home) for n, f in part.items()})
        return len(nodes)


def _is_news(written: tuple[int, int | None] | None, found: Live) -> bool:
    if written is None:
        return True
    seen_ms, home = written
    if found.state == "silent" and found.seen_ms > seen_ms:
        return True  # nothing newer comes: the row has the last of it
    return found.home != home or found.seen_ms >= seen_ms + SEEN_EVERY_MS


async def _write_seen(
    connection: Connection, seen: Mapping[Node, Live], ahead_max: int | None
) -> None:
    known: list[dict[str, Any]] = []
    new: list[dict[str, Any]] = []
    for tier in Tier:
        some = {node.number: found for node, found in seen.items() if node.tier is tier}
        if not some:
            continue
        mine = (NodeRow.tier == tier.value, NodeRow.number.in_(list(some)))
        there = set((await connection.execute(select(NodeRow.number).where(*mine))).scalars())
        # Not a parameter: PostgreSQL would take the two places where it stands for two expressions.
        authority = NodeRow.number.op(">>")(literal_column(str(NUMBER_BITS)))
        given = select(authority, func.max(NodeRow.number)).where(mine[0], NodeRow.enrolled_ms > 0)
        counted = (await connection.execute(given.group_by(authority))).all()
        last = {0: 0} | {int(row[0]): int(row[1]) for row in map(tuple, counted)}
        for number, found in some.items():
            most = NUMBER_MAX
            if ahead_max is not None:  # of an authority that has enrolled no node, none counts
                most = min(most, last.get(number >> NUMBER_BITS, -ahead_max) + ahead_max)
            values = {"at": found.seen_ms, "where": found.home}
            row = {"of_tier": tier.value, "with_number": number, **values}
            if number in there:
                known.append(row)
            elif number <= most:
                new.append(row)
    if known:
        same = (
            NodeRow.tier == bindparam("of_tier"),
            NodeRow.number == bindparam("with_number"),
        )
        # The table, not the class: one statement for all rows.
        table: Any = NodeRow.__table__
        news: dict[str, Any] = {"seen_ms": bindparam("at"), "home": bindparam("where")}
        await connection.execute(update(table).where(*same).values(**news), known)
    if new:
        rows = [
            {
                "tier": row["of_tier"],
                "number": row["with_number"],
                "labels": {},
                "seen_ms": row["at"],
                "home": row["where"],
            }
            for row in new
        ]
        await connection.execute(insert(NodeRow), rows)


def _of_authority(authority: int) -> tuple[Any, ...]:
    """Of the rows of nodes that an authority (the root: 0) has let in."""
    first = authority << NUMBER_BITS
    return NodeRow.number >= first, NodeRow.number < first + (1 << NUMBER_BITS)


def _is(node: Node) -> tuple[Any, ...]:
    return NodeRow.tier == node.tier.value, NodeRow.number == node.number


def _info(row: Any, found: Live | None) -> NodeInfo:
    seen = max(row.seen_ms, found.seen_ms if found else 0)
    home = found.home if found is not None and found.home is not None else row.home
    state = row.state or (found.state if found else "")
    if not state:
        # A node that has just joined has sent nothing yet, and is not silent for that.
        gone = max(seen, row.enrolled_ms) < now_ms() - GONE_MS
        state = "gone" if gone else "silent" if seen else "enrolled"
    info = NodeInfo(
        node=address(Node(Tier(row.tier), row.number)),
        state=state,
        seen_ms=seen,
        enrolled_ms=row.enrolled_ms,
        certificate_ends_ms=row.certificate_ends_ms,
        labels={str(k): str(v) for k, v in row.labels.items()},
        site=row.site,
    )
    if home is not None:
        info.home.CopyFrom(address(Node(Tier.EDGE, home)))
    return info
