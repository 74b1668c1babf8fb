"""Whose certificate is whose, also after a restart: an edge that is told of a revoked certificate
must know which device it has to let go, though that one never comes again.

    FOLDER/holders    a line for each certificate, the oldest first: serial in hexadecimal, tier,
                      number

A line is appended when a certificate is seen for the first time, without waiting for the disk: what
a power cut takes is known again when the device comes back; until then its lease bounds the harm.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from pathlib import Path

from ..core.errors import DelianError
from ..core.identity.ledger import write_file
from ..core.ports import Node, Tier

log = logging.getLogger("delian.edge")

#: Certificates that are remembered: those that came last.
SERIALS_MAX = 200_000
#: A serial number has at most 20 bytes (RFC 5280, 4.1.2.2), a node's 8.
_LINE_BYTES_MAX = 80
_TIERS = {tier.value: tier for tier in Tier}


class Holders:
    """The nodes of certificates that were shown to this edge. path: None keeps nothing on disk."""

    def __init__(self, path: Path | None = None, serials_max: int = SERIALS_MAX) -> None:
        self._path, self._max = path, serials_max
        self._nodes: dict[int, Node] = {}
        self._lines = 0
        if path is not None:
            self._load(path)

    def remember(self, serial: int, node: Node) -> None:
        """Notes who has shown a certificate."""
        known = self._nodes.pop(serial, None)
        self._nodes[serial] = node
        if len(self._nodes) > self._max:
            del self._nodes[next(iter(self._nodes))]
        if known is None and self._path is not None:
            self._keep(self._path, serial, node)

    def forget(self, serials: Iterable[int]) -> list[Node]:
        """Whose certificates these were."""
        found = (self._nodes.pop(serial, None) for serial in serials)
        return [node for node in found if node is not None]

    def without(self, denied: frozenset[int]) -> set[Node]:
        """The nodes that have shown no certificate but denied ones."""
        trusted = {node for serial, node in self._nodes.items() if serial not in denied}
        return {node for serial, node in self._nodes.items() if serial in denied} - trusted

    # ------------------------------------------------ the file

    def _load(self, path: Path) -> None:
        try:
            with path.open("rb") as file:
                file.seek(max(0, path.stat().st_size - 2 * self._max * _LINE_BYTES_MAX))
                lines = file.read().splitlines()
        except FileNotFoundError:
            return
        for serial, node in _read(lines):
            self._nodes.pop(serial, None)
            self._nodes[serial] = node
        while len(self._nodes) > self._max:
            del self._nodes[next(iter(self._nodes))]
        self._rewrite(path)

    def _keep(self, path: Path, serial: int, node: Node) -> None:
        if self._lines >= 2 * self._max:
            self._rewrite(path)
            return
        try:
            with path.open("ab") as file:
                file.write(_line(serial, node))
            self._lines += 1
        except OSError as error:
            log.warning("the holder of a certificate cannot be kept: %s", error)

    def _rewrite(self, path: Path) -> None:
        try:
            write_file(path, b"".join(_line(*item) for item in self._nodes.items()), 0o600)
        except DelianError as error:
            log.warning("the holders of certificates cannot be kept: %s", error)
        self._lines = len(self._nodes)


def _line(serial: int, node: Node) -> bytes:
    return f"{serial:x} {node.tier.value} {node.number}\n".encode()


def _read(lines: Iterable[bytes]) -> Iterator[tuple[int, Node]]:
    """What can be read: the first line or the last may be half of one."""
    for line in lines:
        parts = line.decode("ascii", "replace").split()
        if len(parts) == 3 and parts[1] in _TIERS and parts[2].isdecimal():
            try:
                yield int(parts[0], 16), Node(_TIERS[parts[1]], int(parts[2]))
            except ValueError:
                continue
