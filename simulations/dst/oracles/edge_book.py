"""What the auditor knows of edges: the devices whose updates they acknowledged, and their sums.

An edge that loses its disk begins another life (a higher incarnation), which answers for nothing
that was before.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from ....core.protocol.run_names import number_of
from ....core.wire.round_pb2 import EdgeSum, EdgeSumAck, EdgeTask, RoundClosed, UploadAck
from ....edge.protocol.edge_state import EdgeState

#: An attempt: run, round, attempt.
Name = tuple[int, int, int]
#: An attempt in an edge's life: edge, incarnation, attempt.
Life = tuple[int, int, Name]


class OracleFailure(AssertionError):
    """Something that must hold does not. `oracle`: which of them."""

    def __init__(self, oracle: str, what: str) -> None:
        super().__init__(f"{oracle}: {what}")
        self.oracle, self.what = oracle, what


class EdgeBook:
    """All edges of a world. Raises OracleFailure."""

    def __init__(self) -> None:
        self._counted: dict[Life, set[int]] = defaultdict(set)  # devices that received so
        self._sums: dict[Life, dict[int, tuple[int, ...]]] = defaultdict(dict)  # by part
        self._final: set[Life] = set()
        self._acked: dict[Life, set[int]] = defaultdict(set)  # parts that the cloud has
        self._closed: set[Life] = set()
        self._touched: set[Life] = set()

    def said_counted(self, edge: int, incarnation: int, message: UploadAck) -> None:
        """An edge acknowledges a device's update: it is in the sum."""
        life = (edge, incarnation, called(message))
        self._counted[life].add(message.device)
        if life in self._final:
            self._check_counted(life)

    def summed(self, incarnation: int, message: EdgeSum) -> None:
        """An edge offers a sum, for the first time or again."""
        life = (message.edge, incarnation, called(message))
        parts, devices = self._sums[life], tuple(message.devices)
        same = parts.get(message.part, devices) == devices
        _check(same, "lost", f"{life}: another sum than before")
        parts[message.part] = devices
        others = {d for part, ds in parts.items() if part != message.part for d in ds}
        _check(others.isdisjoint(devices), "once", f"{life}: a device is in two parts")
        if not message.more:
            self._final.add(life)
            self._check_counted(life)

    def told(self, edge: int, incarnation: int, message: Any) -> None:
        """The cloud has sent an edge what ends a sum or an attempt."""
        if isinstance(message, EdgeSumAck):
            life = (edge, incarnation, called(message))
            self._acked[life].add(message.part)
            self._touched.add(life)
        elif isinstance(message, RoundClosed) and not message.HasField("device"):
            self._closed.add((edge, incarnation, called(message)))
        elif isinstance(message, EdgeTask) and message.alone:
            newest = called(message.task)
            for life in self._sums:
                if life[2][0] == newest[0] and life[2] < newest:
                    self._closed.add((edge, incarnation, life[2]))

    def check_held(self, state: EdgeState) -> None:
        """Whether an edge still holds what is not acknowledged, of what it received last."""
        for life in self._touched - self._closed:
            one = state.collections.get(".".join(map(str, life[2])))
            held = set(one.outgoing) if one is not None else set()
            lost = self._sums[life].keys() - self._acked[life] - held
            _check(not lost, "lost", f"{life}: parts {lost} are held no more")
        self._touched.clear()

    def _check_counted(self, life: Life) -> None:
        there = {d for devices in self._sums[life].values() for d in devices}
        missing = self._counted[life] - there
        _check(not missing, "lost", f"{life}: {missing} were acknowledged as COUNTED and are not")


def name_of(message: Any) -> Name:
    """Which attempt a message belongs to."""
    return number_of(message.run), message.round, message.attempt


def called(message: Any) -> Name:
    """The same as an edge knows it: to it, each name of a run is a run of its own."""
    return message.run, message.round, message.attempt


def _check(holds: bool, oracle: str, what: str) -> None:
    if not holds:
        raise OracleFailure(oracle, what)
