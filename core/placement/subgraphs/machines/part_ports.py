"""Events and effects of the machines of partitioned execution.

Two machines run a cut model, both `handle(event, now) -> effects` with `now` in ns, without I/O, as
`core/protocol/ports.py` asks of every machine. An `Asker` is a device towards the tier above it: it
takes requests, chooses the cut, runs its own part, asks, and answers. A `Server` is an edge or the
cloud: it takes requests of many askers, runs its part of them in batches, replies, and where a cut
goes on above it is an asker itself.

Tensors never pass through a machine. A request is a `ticket`, a number that the driver gives and
never gives twice; the driver keeps the values of each ticket: its inputs at first, what runs leave
and what replies bring. After `Answer`, `Reply` or `Refuse` the machine names the ticket no more,
except to cancel what is still under way for it, in the same list of effects.

A cut is named by its digest, 32 bytes. The driver derives its parts
(`core/placement/cut/program_split.py`) before the machine gets the event.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import TypeAlias

from ....protocol.ports import CancelTimer, Record, SetTimer, TimerFired


class Failure(IntEnum):
    """Why a part was not run: the numbers of `SubgraphFailure` on the wire."""

    UNKNOWN = 1  # the bundle, its program, or the cut is not known there
    MISFIT = 2  # the tensors or the cut do not fit the program
    BUSY = 3  # too much waits
    LATE = 4  # it would not be ready in time
    LOST = 5  # the tier above is not there or does not answer, and this one cannot run its part
    FAILED = 6  # the run failed


class Work(StrEnum):
    """What is run for a request, on its tickets' values."""

    PART = "part"  # one of this tier's parts of the cut: `Run.part`, an index into Parts.of(tier)
    # All that follows this tier's first part of the cut, whatever tier it was meant for, from the
    # values that are here to the results: of this tier's answer when no tier above can be asked.
    REST = "rest"
    WHOLE = "whole"  # the program uncut, from the request's inputs
    SMALLER = "smaller"  # the smaller program that the plan names, from the request's inputs


# ---------------------------------------------------------------- what a cut costs


@dataclass(frozen=True, slots=True)
class Link:
    """What a hop gives: bytes a second up and down, and its one-way latency in seconds."""

    up: float
    down: float
    latency_s: float


@dataclass(frozen=True, slots=True)
class Leg:
    """What a request moves over one hop: bytes up, bytes down."""

    up: int
    down: int


@dataclass(frozen=True, slots=True)
class Course:
    """What one cut means for one tier, and its costs.

    A cut for which the tier above is asked twice has no course.
    """

    cut: bytes
    before: int | None
    """Index into Parts.of(tier) of what runs before the tier above is asked; None: nothing."""
    after: int | None
    """As `before`, of what runs after the reply; None unless work comes back down."""
    seconds: tuple[float, ...]
    """Predicted compute time of a request by tier, with encoding, from this tier upwards."""
    legs: tuple[Leg, ...]
    """Bytes over each hop upwards. Empty: `before` (None: Work.WHOLE) gives the results."""
    rest: float
    """Predicted seconds of Work.REST here; infinite: this tier cannot."""
    pieces: tuple[tuple[float, float], ...] = ()
    """The plan's ranges of bandwidth up, bytes a second, for `ChoiceSettings.planned`."""


# ---------------------------------------------------------------- events of both machines


@dataclass(frozen=True, slots=True)
class RunFinished:
    """A `Run` has ended: its tickets have what it gave, unless it failed (for all of them)."""

    run: int
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class CutOpened:
    """The tier above is ready for requests of this cut."""

    cut: bytes


@dataclass(frozen=True, slots=True)
class CutRefused:
    """The tier above will not take requests of this cut: for now, or (MISFIT) for good."""

    cut: bytes
    failure: Failure


@dataclass(frozen=True, slots=True)
class Taken:
    """How far the link upwards is, whenever the tier above acknowledges something."""

    taken: int
    """Bytes that have arrived there since the link was made (`UpperBack`)."""
    waiting: int
    """Bytes that are still to be acknowledged, sent or queued here, probes among them."""
    at: int
    """When they had, in ns of the clock of the tier above (any origin)."""


@dataclass(frozen=True, slots=True)
class ReplyArriving:
    """How many bytes of a coming reply are here, and of how many. Optional."""

    ticket: int
    done: int
    of: int


@dataclass(frozen=True, slots=True)
class ReplyReceived:
    """The reply is here and decoded."""

    ticket: int
    spent: int = 0
    """Ns at the tier above until the first byte of the reply, by its clock; 0: unknown."""
    above: Link | None = None
    """Its own link upwards as it finds it."""


@dataclass(frozen=True, slots=True)
class ReplyFailed:
    """The tier above has refused the request."""

    ticket: int
    failure: Failure


@dataclass(frozen=True, slots=True)
class ProbeAnswered:
    """The answer to a `Probe` is here."""

    probe: int
    above: Link | None = None
    """As in `ReplyReceived`."""


@dataclass(frozen=True, slots=True)
class UpperGone:
    """The link to the tier above broke: what it had of this node is lost, its open cuts too."""


@dataclass(frozen=True, slots=True)
class UpperBack:
    """There is a link to the tier above (again; the first time too)."""


# ---------------------------------------------------------------- events of an asker


@dataclass(frozen=True, slots=True)
class Requested:
    """The application wants an answer to the inputs that `ticket` names, by `deadline` (ns)."""

    ticket: int
    deadline: int


# ---------------------------------------------------------------- events of a server


@dataclass(frozen=True, slots=True)
class OpenAsked:
    """An asker wants to send requests of this cut."""

    peer: int
    """The driver's number for the asker."""
    cut: bytes


@dataclass(frozen=True, slots=True)
class CutClosed:
    """An asker sends no more requests of this cut. What is under way is still answered."""

    peer: int
    cut: bytes


@dataclass(frozen=True, slots=True)
class Prepared:
    """`Prepare` is done: the parts are derived, checked and ready to run."""

    course: Course


@dataclass(frozen=True, slots=True)
class Unprepared:
    """`Prepare` failed."""

    cut: bytes
    failure: Failure


@dataclass(frozen=True, slots=True)
class RequestReceived:
    """A request is here and decoded."""

    ticket: int
    peer: int
    sequence: int
    """The asker's number for it, by which it is known when it comes twice."""
    cut: bytes
    deadline: int
    """Ns of this node's clock: when its first byte came, and the time that the asker gave it."""


@dataclass(frozen=True, slots=True)
class RequestCancelled:
    """The asker needs this answer no more."""

    peer: int
    sequence: int


@dataclass(frozen=True, slots=True)
class PeerGone:
    """The link to an asker broke: nothing of it is wanted any more, its open cuts are closed."""

    peer: int


Event: TypeAlias = (
    Requested
    | RunFinished
    | CutOpened
    | CutRefused
    | Taken
    | ReplyArriving
    | ReplyReceived
    | ReplyFailed
    | ProbeAnswered
    | UpperGone
    | UpperBack
    | OpenAsked
    | CutClosed
    | Prepared
    | Unprepared
    | RequestReceived
    | RequestCancelled
    | PeerGone
    | TimerFired
)


# ---------------------------------------------------------------- effects of both machines


@dataclass(frozen=True, slots=True)
class Run:
    """Run this for these tickets, all at once, and answer with `RunFinished`.

    A machine has at most `workers` runs under way.
    """

    run: int
    """Number of this run."""
    cut: bytes
    """Digest of the cut."""
    work: Work
    """What is run."""
    part: int | None
    """Of Work.PART, an index into Parts.of(tier); None otherwise."""
    tickets: tuple[int, ...]
    """A device's run has one."""


@dataclass(frozen=True, slots=True)
class CancelRun:
    """The run is of no use any more; it counts as under way until `RunFinished`."""

    run: int


@dataclass(frozen=True, slots=True)
class OpenCut:
    """Ask the tier above to make ready for this cut; answered with CutOpened or CutRefused."""

    cut: bytes


@dataclass(frozen=True, slots=True)
class SendRequest:
    """Send the boundary values of the ticket up, for the cut."""

    ticket: int
    cut: bytes
    time: int
    """Ns for which the answer is of use."""


@dataclass(frozen=True, slots=True)
class CancelRequest:
    """The reply is of no use any more: stop sending, inform the tier above."""

    ticket: int


@dataclass(frozen=True, slots=True)
class Probe:
    """Send padding up, acknowledged by an empty message: ProbeAnswered, or nothing."""

    probe: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Refuse:
    """The ticket has no answer and gets none."""

    ticket: int
    failure: Failure


# ---------------------------------------------------------------- effects of an asker


@dataclass(frozen=True, slots=True)
class Answer:
    """Give the application the results that the ticket's values hold."""

    ticket: int
    by: Work
    """PART: as the cut says.

    The others: what ran instead; WHOLE too where the chosen cut asks no tier, and then `fallback`
    is false.
    """
    fallback: bool


# ---------------------------------------------------------------- effects of a server


@dataclass(frozen=True, slots=True)
class Prepare:
    """Derive the parts of this cut, check them, make them ready: Prepared or Unprepared."""

    cut: bytes


@dataclass(frozen=True, slots=True)
class Unprepare:
    """No asker has the cut open any more: what was prepared may go."""

    cut: bytes


@dataclass(frozen=True, slots=True)
class Opened:
    """Inform the asker that its cut is open, or (failure) that it is not."""

    peer: int
    cut: bytes
    failure: Failure | None


@dataclass(frozen=True, slots=True)
class Reply:
    """Send the results of the ticket down to its asker, with `spent` and `above`."""

    ticket: int
    spent: int
    above: Link | None


@dataclass(frozen=True, slots=True)
class Drop:
    """Forget the ticket: its request is a repeated one, or not needed any more."""

    ticket: int


Effect: TypeAlias = (
    Run
    | CancelRun
    | OpenCut
    | SendRequest
    | CancelRequest
    | Probe
    | Refuse
    | Answer
    | Prepare
    | Unprepare
    | Opened
    | Reply
    | Drop
    | SetTimer
    | CancelTimer
    | Record
)
