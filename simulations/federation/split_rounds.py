"""Devices and edges that train together, in virtual time.

The sides are those of daemons: `EdgeRound` is what an edge has of an attempt, `DeviceSteps` what a
device's training process runs. Here they exchange their messages in one thread, and virtual time
passes as the plan of the run says: the seconds of a piece for each step, over the device's link.
Each device measures that link by its exchanges, as a real one does, and takes the cut of its next
round by what it has measured.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from ...core.common.errors import DelianError
from ...core.compiler.backends import Executable
from ...core.compiler.ir import Array
from ...core.learning.bundle import Bundle
from ...core.placement.cut.link_model import LinkProfile as CutLink
from ...core.placement.split_training.device_steps import DeviceSteps, MadePrograms
from ...core.placement.split_training.edge_round import EdgeRound, peer_name, views
from ...core.placement.split_training.measured_link import MeasuredLink
from ...core.placement.split_training.run_step import RunStep
from ...core.placement.split_training.step_sides import Sent, SplitError
from ...core.placement.split_training.trainings import RUN_BYTES
from ...core.placement.subgraphs.frames.stream import FIRST_BYTES, PAIR_BYTES
from ...core.protocol.ports import (
    SECOND,
    Floats,
    Node,
    Ordered,
    Outcome,
    ProgramStopped,
    RunProgram,
    Tier,
    Vector,
)
from ...core.wire.journal_pb2 import SplitTrained
from ...core.wire.round_pb2 import PROGRAM_FAILED
from .network import LinkProfile
from .trace import checksum
from .training import Awaited, Trained
from .training_threads import NoWorkers, Workers

if TYPE_CHECKING:
    from .nodes import Host

#: An order, and the node that gets it.
Told: TypeAlias = tuple[Node, Ordered]
#: Turns that are put through the estimate: enough to replace it, of however many steps.
WATCHED_MAX = 32


@dataclass(frozen=True, slots=True)
class SplitJob:
    """A device's training with its edge."""

    seconds: float
    """In virtual time, without what starting takes."""
    up: int
    """Bytes to the edge, in all."""
    down: int
    """And back."""
    start: Callable[[], Awaited]


class SplitRounds:
    """What there is of split training in one simulation; the actions of nodes use it.

    made: the bundle's programs, ready to be called. data: of each device, the leaves. steps: by
    device, of a local update. counted: called once an update.
    """

    def __init__(
        self,
        bundle: Bundle,
        made: Mapping[str, Executable],
        frozen: Sequence[Array],
        data: Sequence[Any],
        examples: Callable[[int], int],
        steps: Sequence[int],
        workers: Workers | NoWorkers,
        counted: Callable[[], None],
    ) -> None:
        step = RunStep.of(bundle)
        assert step is not None
        self.step, self._bundle, self._made, self._frozen = step, bundle, made, frozen
        self._data, self._examples, self._steps = data, examples, steps
        self._workers, self._counted = workers, counted
        self._rounds: dict[tuple[int, str], EdgeRound] = {}
        self._before: EdgeRound | None = None
        self._programs: dict[int, MadePrograms] = {}
        self._links: dict[int, MeasuredLink] = {}
        self._at_work: dict[int, tuple[int, str, EdgeRound, bytes]] = {}
        #: By device, the piece of its last round.
        self.pieces: dict[int, int] = {}

    # ------------------------------------------------ edges

    def answer(
        self, edge: int, effect: RunProgram, weights: Floats | None
    ) -> Outcome | ProgramStopped:
        """What an edge's program gives: it lets devices train with it, or ends that."""
        name = effect.arguments[0]
        if effect.program == "split_begin":
            assert weights is not None
            assert effect.task is not None
            key = effect.task.rng_key
            one = EdgeRound(self._bundle, weights, self._frozen, key, before=self._before)
            self._rounds[edge, name] = self._before = one
            return Outcome(None)
        over = self._rounds.pop((edge, name), None)
        try:
            if over is None:
                raise SplitError("the edge was started again")
            return Outcome(over.total(effect.arguments[1]))
        except DelianError:
            return ProgramStopped(PROGRAM_FAILED)

    def crash(self, edge: int) -> None:
        """An edge has lost its memory."""
        for key in [key for key in self._rounds if key[0] == edge]:
            del self._rounds[key]

    # ------------------------------------------------ devices

    def begun(self, host: Host, weights: Floats, key: Vector, link: LinkProfile) -> SplitJob | None:
        """A device's training with its edge; None: it trains by itself."""
        state, device = host.machine.state, host.node.number
        task, home = state.at_hand, state.home_node
        name = f"{task.run}.{task.round}.{task.attempt}"
        edge = self._rounds.get((home.number, name))
        if not task.split or edge is None:
            return None
        measured = self._links.get(device)
        if measured is None:
            measured = self._links[device] = MeasuredLink(self.step.plan.links[0])
        number = self.step.best(measured.profile, self.pieces.get(device))
        self.pieces[device] = number
        if self.step.is_alone(number):
            return None
        named = hashlib.sha256(b"%d %s %s" % (device, name.encode(), key.tobytes()))
        run = named.digest()[:RUN_BYTES]
        self._at_work[device] = (home.number, name, edge, run)
        piece, steps = self.step.plan.pieces[number], self._steps[device]
        there = CutLink(link.up_mbps * 125e3, link.down_mbps * 125e3, link.latency_ms / 1e3)
        watch(measured, there, piece.up[0], piece.down[0], min(steps, WATCHED_MAX))
        work = partial(self._train, device, number, edge, run, weights, key)
        seconds = steps * piece.seconds([there])
        start = partial(self._workers.submit, work)
        return SplitJob(seconds, steps * piece.up[0], steps * piece.down[0], start)

    def ended(self, device: int, outcome: Outcome) -> tuple[Outcome | ProgramStopped, list[Told]]:
        """A device's outcome: of a training whose edge has forgotten it there is none.

        And what is said to its edge before.
        """
        at_work = self._at_work.pop(device, None)
        if at_work is None:
            return outcome, []
        edge, name, begun, run = at_work
        if self._rounds.get((edge, name)) is not begun or outcome.vector is None:
            return ProgramStopped(PROGRAM_FAILED), []
        at = dict(zip(("run", "round", "attempt"), map(int, name.split(".")), strict=True))
        order = SplitTrained(**at, device=device, name=run)
        return replace(outcome, split=run), [(Node(Tier.EDGE, edge), Ordered(order))]

    def _train(
        self, device: int, number: int, edge: EdgeRound, run: bytes, weights: Floats, key: Vector
    ) -> Outcome:
        """All steps of a device and its edge. On a thread of the pool."""
        programs = self._programs.get(number)
        if programs is None:
            functions = self._bundle.programs
            programs = MadePrograms(self.step, number, self._made, functions)
            self._programs[number] = programs
        leaves = views(weights, self._bundle.manifest.state)
        side = DeviceSteps(
            *(self.step, number, self._made, programs, leaves, self._frozen),
            data=self._data[device],
            key=key,
        )
        examples = self._examples(device)
        cut = self.step.cuts[number].to_bytes()
        trainings, peer = edge.trainings, peer_name(device)
        training = trainings.open(peer, run, side.steps, examples, False, 0.0, cut)
        sent: Sent | None = side.start()
        while sent is not None:
            reply, moved = trainings.run(training, sent.tensors[0])
            if not trainings.ran(training, reply, moved, 0.0):
                return Trained(None, examples)  # it was replaced: the device has gone meanwhile
            sent = side.take(Sent(side.reply, (reply,)))
        vector, finite = side.upload(examples)
        self._counted()
        return Trained(vector, examples, side.loss, finite, checksum(vector))


def watch(measured: MeasuredLink, link: CutLink, up: int, down: int, turns: int) -> None:
    """Lets a device measure its link by so many exchanges, as frames would show them."""
    now, taken = 0, 0
    measured.begin(now)
    there, trip = round(link.latency_s * SECOND), round(2 * link.latency_s * SECOND)
    measured.round_trip(trip, now)
    for turn in range(turns):
        measured.sent(up, now)
        left = now
        for piece in _pieces(up):
            left += round(piece / link.up * SECOND)
            taken += piece
            waiting = max(0, (turn + 1) * up - taken)
            measured.taken(taken, waiting, left + there, left + trip)
        at, here = left + trip, 0
        for piece in _pieces(down):
            at += round(piece / link.down * SECOND)
            here += piece
            measured.arriving(turn, here, at)
        now = at


def _pieces(size: int) -> list[int]:
    """A message as it is cut: a small piece first."""
    return [FIRST_BYTES, size - FIRST_BYTES] if size >= PAIR_BYTES else [size]
