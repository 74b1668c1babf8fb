"""Logs that a peer cannot fill: what it does again and again is said once."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping

from ...protocol.ports import Record

#: Of how many things it is remembered that they were said.
ROOM = 4_096

#: Records of what one peer did, as often as it likes.
_OF_A_PEER = ("device", "edge")


class Once:
    """Whether something happens for the first time, as far as is remembered: the newest things."""

    def __init__(self, room: int = ROOM) -> None:
        self._room = room
        self._seen: OrderedDict[tuple[object, ...], None] = OrderedDict()

    def __call__(self, *what: object) -> bool:
        if what in self._seen:
            self._seen.move_to_end(what)
            return False
        self._seen[what] = None
        if len(self._seen) > self._room:
            self._seen.popitem(last=False)
        return True


class RecordLog:
    """Logs a node's records, those that name a peer once for each kind and peer.

    What was ignored, being late or said twice, is only counted.
    """

    def __init__(
        self,
        log: logging.Logger,
        named: Callable[[Record], Mapping[str, object]] = lambda record: record.fields,
    ) -> None:
        """named: a record's fields as people read them."""
        self._log, self._first, self._named = log, Once(), named

    def __call__(self, record: Record) -> None:
        if record.kind == "ignored":
            return
        peer = next((name for name in _OF_A_PEER if name in record.fields), None)
        if peer is None:
            self._log.info(record.kind, extra=dict(self._named(record)))
        elif self._first(record.kind, peer, record.fields[peer]):
            who = f"{peer} {record.fields[peer]}"
            self._log.info("%s: %s", record.kind, who, extra=dict(self._named(record)))
