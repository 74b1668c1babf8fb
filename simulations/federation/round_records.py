"""What a federation says of a round, and how it is counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...core.protocol.ports import Outcome, Tier
from ...core.wire.round_pb2 import DEADLINE, NOT_IN_COHORT, FailureReason
from .energy import Energy

#: Of a device that was there, and too slow: for its task, or for the keys of a masked round.
LATE = (DEADLINE, NOT_IN_COHORT)
#: The keys of `RoundRecord.bytes` and `messages`; up is towards the cloud.
DEVICE_UP, DEVICE_DOWN = "device_edge_up", "device_edge_down"
EDGE_UP, EDGE_DOWN = "edge_cloud_up", "edge_cloud_down"
HOPS = (DEVICE_UP, DEVICE_DOWN, EDGE_UP, EDGE_DOWN)


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """One attempt at a round, as the simulator sees it, which sees everything.

    Each selected device is counted once: as reported, refused, dropped, late or spare.
    """

    round: int
    """Number of the round."""
    attempt: int
    """Number of the attempt at it."""
    succeeded: bool
    """False when too few reported; the round is then tried again."""
    selected: tuple[int, ...]
    """Devices that were asked."""
    reported: tuple[int, ...]
    """Devices whose update is in the sum."""
    refused: Mapping[int, FailureReason]
    """Devices that answered that there is no update (not finite, out of memory), and why."""
    dropped: tuple[int, ...]
    """Devices that vanished."""
    late: tuple[int, ...]
    """Devices that were there, and not in time."""
    spare: tuple[int, ...]
    """Devices without which the round had enough, so that it stopped them."""
    duplicates: int
    """Answers that came again."""
    bytes: Mapping[str, int]
    """What was sent over each hop since the record before, lost and repeated messages with it."""
    messages: Mapping[str, int]
    """How many messages that were, over each hop."""
    lost_messages: int
    """How many of them were lost."""
    seconds: Mapping[str, float]
    """Virtual time summed over devices.

    Computing, and messages on their way over each kind of link.
    """
    started_ns: int
    """When devices were selected, in virtual time."""
    ended_ns: int
    """When the new model was there, in virtual time."""
    loss: float | None
    """Mean of the reported devices' training losses, weighed by examples; they are never sent."""
    examples: int
    """The reported devices' examples."""
    weight: float
    """The sum of weights that the ring carried."""
    why: str = ""
    """Why it did not succeed; empty where it did."""
    epsilon: float | None = None
    """What all sums up to this one spent of the privacy budget; None of a run without noise."""
    joules: Mapping[str, float] = field(default_factory=dict)
    """What devices used since the record before, by what it was for (`energy.USES`)."""
    exhausted: int = 0
    """Devices that have spent their batteries by now."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What devices said of a model."""

    round: int
    """The model's number."""
    devices: int
    """How many devices evaluated it."""
    metrics: Mapping[str, float]
    """Means over the examples of these devices, by name (`core.learning.metrics`)."""
    rolled_back_to: int | None = None
    """The model that took its place, for it was so much worse; None: it stayed."""

    @staticmethod
    def of(fields: Mapping[str, Any]) -> Evaluation:
        """From the coordinator's record."""
        return Evaluation(fields["round"], fields["devices"], dict(fields["metrics"]))


@dataclass(frozen=True, slots=True)
class Result:
    """A federation's run."""

    rounds: tuple[RoundRecord, ...]
    trace_hash: str
    virtual_ns: int
    events: int
    updates: int
    stopped: bool
    """`stop()` ended it."""
    failed: str
    """Why the coordinator gave up; empty when it did not."""
    counts: Mapping[str, int]
    """What machines recorded outside rounds (ignored and late messages, rejections by reason)."""
    early: str = ""
    """Why it ended before its last round without failing."""
    evaluations: tuple[Evaluation, ...] = ()


@dataclass(slots=True)
class Tally:
    """Counts since the last record."""

    bytes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(HOPS, 0))
    messages: dict[str, int] = field(default_factory=lambda: dict.fromkeys(HOPS, 0))
    travel_ns: dict[str, int] = field(default_factory=lambda: dict.fromkeys(HOPS, 0))
    lost: int = 0
    duplicates: int = 0
    compute_ns: int = 0
    vanished: set[int] = field(default_factory=set)
    outcomes: dict[int, tuple[int, float]] = field(default_factory=dict)

    def exchanged(self, ways: tuple[str, str], up: int, down: int) -> None:
        """What a device and its edge sent one another to train together."""
        self.bytes[ways[0]] += up
        self.bytes[ways[1]] += down

    def trained(self, device: int, outcome: Outcome) -> None:
        # Not the outcome itself: its vector is as large as the model.
        self.outcomes[device] = (outcome.examples, outcome.loss)

    def next(self, fields: Mapping[str, Any], overlap: bool) -> Tally:
        """The tally after a record.

        Where rounds overlap, an update may have been made long before it is in a model; a device
        that trained twice meanwhile is known by the last time.
        """
        if not overlap:
            return Tally()
        vanished = self.vanished.difference(fields["selected"])
        return Tally(vanished=vanished, outcomes=self.outcomes)

    def record(self, fields: Mapping[str, Any], now: int, energy: Energy) -> RoundRecord:
        """The record of an attempt, from what the coordinator says of it and what was counted."""
        selected, reported = fields["selected"], fields["reported"]
        there = set(reported)
        failures: Mapping[int, FailureReason] = fields["refused"]
        refused = {d: r for d, r in failures.items() if r not in LATE}
        missing = [d for d in selected if d not in there and d not in refused]
        dropped = [d for d in missing if d in self.vanished and d not in failures]
        others = sorted(set(missing).difference(dropped))
        # After the target was met no device was waited for, but one that gave up by itself was
        # late.
        spare = [d for d in others if fields["target_met"] and d not in failures]
        outcomes = [self.outcomes[d] for d in reported]
        examples = sum(n for n, _ in outcomes)
        loss = sum(n * loss for n, loss in outcomes) / examples if examples else None
        return RoundRecord(
            round=fields["round"],
            attempt=fields["attempt"],
            succeeded=fields["succeeded"],
            selected=tuple(selected),
            reported=tuple(reported),
            refused=refused,
            dropped=tuple(dropped),
            late=tuple(d for d in others if d not in spare),
            spare=tuple(spare),
            duplicates=self.duplicates,
            bytes=dict(self.bytes),
            messages=dict(self.messages),
            lost_messages=self.lost,
            seconds={
                "device_compute": self.compute_ns / 1e9,
                "device_edge": (self.travel_ns[DEVICE_UP] + self.travel_ns[DEVICE_DOWN]) / 1e9,
                "edge_cloud": (self.travel_ns[EDGE_UP] + self.travel_ns[EDGE_DOWN]) / 1e9,
            },
            started_ns=fields["opened_ns"],
            ended_ns=now,
            loss=loss,
            examples=examples,
            weight=fields["weight"],
            why=fields["why"],
            epsilon=fields["privacy"]["epsilon"] if "privacy" in fields else None,
            joules=energy.take(),
            exhausted=len(energy.exhausted),
        )


def count(counts: Counter[str], kind: str, fields: Mapping[str, Any]) -> None:
    """Counts a machine's record under a name that says what happened."""
    detail = fields.get("what", fields.get("reason"))
    counts[kind if detail is None else f"{kind}: {detail}"] += 1


#: Which hop messages take on a node's own link, up and down. The cloud has none.
WAYS = {
    Tier.DEVICE: (DEVICE_UP, DEVICE_DOWN),
    Tier.EDGE: (EDGE_UP, EDGE_DOWN),
    Tier.CLOUD: ("", ""),
}
