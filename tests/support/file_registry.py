"""The members of a federation in one file, for a CA without a database."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from delian.cloud.authority.enrolment import NODES_AT_ONCE
from delian.core.node.identity.pki.identity_folder import HomeAddress
from delian.core.node.identity.pki.ledger import Entry, FolderLock, Ledger, private_folder
from delian.core.protocol.ports import Node, Tier
from delian.core.wire.authority_pb2 import EnrolledNode


class FileRegistry:
    """What enrolment uses of a `Fleet`, in one file."""

    def __init__(self, folder: Path, homes: Callable[[Node], Sequence[HomeAddress]]) -> None:
        """homes: the fixed answer to where a node may connect."""
        private_folder(folder)
        self._lock = FolderLock(folder)
        self._ledger = Ledger(folder / "nodes.jsonl")
        self._homes = homes
        self._last: dict[str, int] = {}
        self.nodes: dict[Node, Entry] = {}

    async def register(
        self, tier: Tier, labels: Mapping[str, str], now_ms: int, above: int = 0, site: str = ""
    ) -> int:
        facts = {"labels": dict(labels), "enrolled_ms": now_ms, "site": site}
        return await asyncio.to_thread(self._register, tier, facts, above)

    async def certified(self, node: Node, serial: int, not_after: int, now_ms: int) -> None:
        entry = {"serial": f"{serial:x}", "not_after": not_after, "certified_ms": now_ms}
        await asyncio.to_thread(self._add, node, entry)

    async def homes(self, node: Node) -> Sequence[HomeAddress]:
        return self._homes(node)

    async def enrolled(self, tier: Tier, after: int) -> Sequence[EnrolledNode]:
        return [
            EnrolledNode(
                number=node.number,
                enrolled_ms=entry["enrolled_ms"],
                labels=entry["labels"],
                site=entry["site"],
            )
            for node, entry in sorted(self.nodes.items())
            if node.tier is tier and node.number > after
        ][:NODES_AT_ONCE]

    async def revoke(self, node: Node) -> None:
        if node in self.nodes:
            await asyncio.to_thread(self._add, node, {"state": "revoked"})

    def _register(self, tier: Tier, facts: Entry, above: int) -> int:
        with self._lock.held():
            self._ledger.news(self._clear, self._take)
            number = max(self._last.get(tier.value, 0), above) + 1
            self._add(Node(tier, number), facts)
            return number

    def _add(self, node: Node, entry: Entry) -> None:
        entry = {"tier": node.tier.value, "number": node.number, **entry}
        with self._lock.held():
            self._ledger.news(self._clear, self._take)
            self._ledger.append(entry)
            self._take(entry)

    def _clear(self) -> None:
        self._last.clear()
        self.nodes.clear()

    def _take(self, entry: Entry) -> None:
        node = Node(Tier(entry["tier"]), int(entry["number"]))
        self._last[node.tier.value] = max(self._last.get(node.tier.value, 0), node.number)
        self.nodes[node] = {**self.nodes.get(node, {}), **entry}
