"""The upper end of split training, without I/O.

Whose weights stand where, and what a request is allowed to do to them.

A *round* begins with weights that its operator gives and ends with weights that it takes. In
between each lower node has at most one *training*: so many steps, each of as many *turns* as the
cut has requests, and requests come in that order, one at a time. A turn's number is the request's
sequence:

    turn of the last answer + 1     it is run
    turn of the last answer         it is answered as it was, from memory
    any other                       refused

So whatever a link loses or repeats, a step moves weights once; and weights move when a whole step
is done, never in the middle of one. A training that no device continues, or that is replaced by the
same node's next, is over; with copies nothing of it counts, in a chain that is shared its whole
steps stay (`sides`).

Nothing here gives weights to a lower node.

A round may have another cut than the last one, where the link has changed. Weights that are above
in the new cut are given with it, as in every round; frozen leaves that it reads are taken from the
same store. Where a round has several cuts, each device opens its training
by the one that suits its own link; the round begins with all trained leaves, and a training has
those that are above in its cut.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from ...common.errors import DelianError
from ...compiler.backends import Backend
from ...compiler.ir import Array
from ...compiler.passes.number_profiles import Profile
from ..cut.cut import EDGE, Cut, CutError
from ..cut.program_split import Message, Parts
from ..subgraphs.request_limits import HELD_BYTES_MAX
from .step_bundle import StepBundle
from .step_sides import (
    Programs,
    Sent,
    Sharing,
    Side,
    SplitError,
    Tensors,
    averaged,
)

#: A training's name, drawn by the lower node.
RUN_BYTES = 16
STEPS_MAX = 100_000
EXAMPLES_MAX = 10_000_000
#: Lower nodes that train in one round.
TRAININGS_MAX = 2_048
#: Cuts whose compiled programs are kept: a link that goes to and fro has few.
CUTS_MAX = 8
#: After so long without a request an unfinished training is over.
IDLE_S = 120.0
#: Makes of a whole training what is kept of it: (node, examples, what each leaf above moved by).
Finish: TypeAlias = Callable[[str, int, Mapping[int, Array]], Array]


class Refused(SplitError):
    """An opening that is not let in.

    later: whether it may be asked again. over: whether it is of a training that has ended.
    """

    def __init__(self, message: str, *, later: bool = False, over: bool = False) -> None:
        super().__init__(message)
        self.later, self.over = later, over


def turns_of(parts: Parts) -> tuple[tuple[Message, Message], ...]:
    """A step's requests with their replies. Raises CutError for a cut of other than two tiers."""
    if parts.top != EDGE:
        raise CutError(
            f"a training in {parts.top + 1} tiers", "split training over links is for two of them"
        )
    ups, downs = parts.messages[::2], parts.messages[1::2]
    pairs = tuple(zip(ups, downs, strict=True))
    if any(not up.up or down.up for up, down in pairs):
        raise CutError("a cut whose requests are not answered")
    return pairs


@dataclass(frozen=True, slots=True)
class Way:
    """A cut, and what follows from it."""

    cut: Cut
    parts: Parts
    turns: tuple[tuple[Message, Message], ...]
    held: dict[int, Array]
    """The frozen leaves above, by parameter."""
    programs: Programs


@dataclass(eq=False, slots=True)
class Training:
    """One node's."""

    node: str
    run: bytes
    steps: int
    examples: int
    weights: dict[int, Array]
    """What its copy, or the chain that it has, is after its last whole step."""
    used: float
    way: Way
    first: dict[int, Array]
    """What it began with."""
    turn: int = 0
    """The last that was answered, with what (`reply`)."""
    reply: Tensors = field(default_factory=dict)
    running: bool = False
    """Whether the next one is being run."""
    over: bool = False
    side: Side | None = None
    kept: Array | None = None
    """What is kept of it instead of weights, when it is whole; see `Trainings.finish`."""


@dataclass(frozen=True, slots=True)
class Ended:
    """What a round has come to."""

    weights: dict[int, Array]
    """The leaves above, by number; unchanged where no training finished."""
    examples: int
    finished: tuple[str, ...]
    """The nodes that did all their steps."""
    unfinished: tuple[str, ...]
    """Those that did not."""


class Trainings:
    """Rounds of one step.

    cut: of the first round. others: cuts that devices may open by as well: a round then begins with
    all trained leaves, and devices have copies; None: a round has one cut. sharing: COPIES or
    SEQUENTIAL. frozen: by name, the frozen leaves that a cut may ask for here; it is read where a
    part needs one, and may be a store that maps files. ways: of other trainings of the same step.
    finish: of copies, makes what is kept of one instead of its weights, before its last turn is
    answered; where it raises DelianError, that turn fails as any other. bytes_max: of all copies.

    Raises CutError for a cut that is not for two tiers, or does not fit the step; DelianError for
    a frozen leaf that is missing or is another.
    """

    def __init__(
        self,
        bundle: StepBundle,
        cut: Cut,
        sharing: Sharing = Sharing.COPIES,
        backend: Backend = "native",
        profile: Profile = "fast",
        *,
        frozen: Mapping[str, Array] | None = None,
        others: Sequence[Cut] | None = None,
        ways: dict[bytes, Way] | None = None,
        finish: Finish | None = None,
        bytes_max: int = HELD_BYTES_MAX,
        idle_s: float = IDLE_S,
    ) -> None:
        several = others is not None
        if sharing is Sharing.SYNCHRONOUS or (several and sharing is not Sharing.COPIES):
            raise DelianError("devices that step together", "over links: copies or sequential")
        self.bundle, self.sharing = bundle, sharing
        self._store: Mapping[str, Array] = {} if frozen is None else frozen
        self._backend, self._profile, self._finish = backend, profile, finish
        self._cuts = {one.to_bytes(): one for one in (cut, *(others or ()))}
        self._one = not several
        #: What follows from the last cuts, with their compiled programs; by cut.
        self.ways: dict[bytes, Way] = {} if ways is None else ways
        self._now = self._way(cut)
        self._bytes_max, self._idle_s = bytes_max, idle_s
        self._first: dict[int, Array] | None = None
        self._chain: dict[int, Array] = {}
        self._trainings: dict[str, Training] = {}

    # ------------------------------------------------ rounds: for the operator alone

    @property
    def cut(self) -> Cut:
        """Of the round; where it has several, the first."""
        return self._now.cut

    @property
    def parts(self) -> Parts:
        """Of that cut."""
        return self._now.parts

    @property
    def turns(self) -> tuple[tuple[Message, Message], ...]:
        """Of a step by that cut."""
        return self._now.turns

    def knows(self, cut: bytes) -> bool:
        """Whether a training may be opened by a cut."""
        return cut in self._cuts

    def begin(self, leaves: Mapping[int, Array], cut: Cut | None = None) -> None:
        """Begins a round with the leaves above, and ends another.

        leaves: all that are trained, where the round has several cuts. cut: the only one of this
        round and those after it; None: as it was. Raises DelianError, and then nothing has changed;
        SplitError where the cut would move in the middle of a round.
        """
        way = None if cut is None or cut == self.cut else self._way(cut)
        if way is not None and self._first is not None:
            raise SplitError("a round is under way", "end it before its cut moves")
        parts = (self._now if way is None else way).parts
        first = self.bundle.started(parts, True, leaves) if self._one else self._all(leaves)
        if way is not None:
            self._now, self._cuts = way, {way.cut.to_bytes(): way.cut}
        self._end_trainings()
        self._first, self._chain = first, dict(first)

    def _all(self, leaves: Mapping[int, Array]) -> dict[int, Array]:
        """All trained leaves. Raises DelianError for others."""
        shapes = [leaf.shape for leaf in self.bundle.leaves]
        if [leaves[i].shape for i in range(len(shapes)) if i in leaves] != shapes:
            raise DelianError(f"a round of several cuts begins with all {len(shapes)} leaves")
        return {i: np.array(leaves[i], np.float32) for i in range(len(shapes))}

    def _end_trainings(self) -> None:
        for training in self._trainings.values():
            training.over = True
        self._trainings = {}

    def kept(self, node: str, run: bytes) -> Array | None:
        """What `finish` has made of a node's training. run: its name. None: it is not whole."""
        found = self._trainings.get(node)
        return None if found is None or found.run != run else found.kept

    def end(self) -> Ended:
        """Ends the round with the mean of finished copies. Raises SplitError for no round."""
        if self._first is None:
            raise SplitError("no round of training has begun")
        first, self._first = self._first, None
        done = {name: t for name, t in self._trainings.items() if self.finished(t)}
        left = tuple(name for name in self._trainings if name not in done)
        self._end_trainings()
        weights = self._chain
        if self.sharing is Sharing.COPIES:
            copies = [t.weights for t in done.values()]
            weights = averaged(copies, [t.examples for t in done.values()]) if copies else first
        leaves = {i: weights[i] for i in self.bundle.owned_by(self._now.parts, above=True)}
        return Ended(leaves, sum(t.examples for t in done.values()), tuple(done), left)

    def _way(self, cut: Cut) -> Way:
        """What follows from a cut; kept for the last few, with their compiled programs."""
        key = cut.to_bytes()
        way = self.ways.pop(key, None)
        if way is None:
            parts = self.bundle.parts(cut)
            held = self.bundle.held(parts, True, self._store)
            programs = Programs(parts, self._backend, self._profile)
            way = Way(cut, parts, turns_of(parts), held, programs)
        self.ways[key] = way
        if len(self.ways) > CUTS_MAX:
            del self.ways[next(iter(self.ways))]
        return way

    def finished(self, training: Training) -> bool:
        """Whether all its steps are done."""
        return training.turn == training.steps * len(training.way.turns)

    # ------------------------------------------------ trainings

    def open(
        self,
        node: str,
        run: bytes,
        steps: int,
        examples: int,
        again: bool,
        now: float,
        cut: bytes = b"",
    ) -> Training:
        """A node's training, a new one or the one that it has.

        cut: as bytes, one that is known; empty: the round's. Raises Refused; DelianError where the
        cut needs frozen leaves that are not here.
        """
        if (
            len(run) != RUN_BYTES
            or not 1 <= steps <= STEPS_MAX
            or not 1 <= examples <= EXAMPLES_MAX
        ):
            raise Refused("an opening that is out of bounds")
        self.expire(now)
        known = self._trainings.get(node)
        if known is not None and known.run == run:
            same = not cut or known.way.cut.to_bytes() == cut
            if not same or (known.steps, known.examples) != (steps, examples):
                raise Refused("the training was opened in another way")
            known.used = now
            return known
        if again:
            raise Refused("this training is not here any more", over=True)
        if self._first is None:
            raise Refused("no round of training has begun here", later=True)
        if known is not None and self.finished(known):
            raise Refused("this node has trained in this round", later=True)
        if known is not None:
            self.drop(node, known)
        way = self._way(self._cuts[cut] if cut else self.cut)
        weights = self._room(way)
        made = Training(node, run, steps, examples, weights, now, way, weights)
        self._trainings[node] = made
        return made

    def _room(self, way: Way) -> dict[int, Array]:
        """What a new training begins with.

        Weights are replaced, never written to, so a copy is made by its first step; there has to be
        room for it before that.
        """
        assert self._first is not None
        count = len(self._trainings) + 1
        if self.sharing is Sharing.SEQUENTIAL:
            if any(not self.finished(t) for t in self._trainings.values()):
                raise Refused("another node is at its training", later=True)
            size = 0
        else:
            size = count * sum(a.nbytes for a in self._first.values())
        if count > TRAININGS_MAX or size > self._bytes_max:
            raise Refused("no room for another node's training", later=True)
        if self._one:
            return dict(self._chain)
        owned = self.bundle.owned_by(way.parts, above=True)
        return self.bundle.started(way.parts, True, {i: self._first[i] for i in owned})

    def drop(self, node: str, training: Training) -> None:
        """An unfinished training is over; a finished one stays."""
        if self._trainings.get(node) is training and not self.finished(training):
            training.over = True
            del self._trainings[node]

    def expire(self, now: float) -> None:
        """Drops trainings that no device continues."""
        for node, training in list(self._trainings.items()):
            if now - training.used > self._idle_s and not training.running:
                self.drop(node, training)

    # ------------------------------------------------ turns

    def ports_of(self, training: Training, turn: int) -> tuple[Message, Message]:
        """The request and the reply of a training's turn, which counts from 1."""
        turns = training.way.turns
        return turns[(turn - 1) % len(turns)]

    def takes(self, training: Training, turn: int) -> bool:
        """Whether this turn may be asked for now: the next one, or the last one again."""
        if training.over or turn < 1 or turn > training.steps * len(training.way.turns):
            return False
        return turn in (training.turn, training.turn + 1)

    def run(self, training: Training, tensors: Tensors) -> tuple[Tensors, dict[int, Array] | None]:
        """Runs the next turn: its reply, and where a step is done by it the new weights.

        Blocks; it touches nothing but the training's side and what is kept of it, so it may be in a
        thread of its own while `running` is set.

        Raises DelianError for tensors that do not fit, a program that fails, new weights that are
        not finite, and as `finish` does.
        """
        request, _ = self.ports_of(training, training.turn + 1)
        if training.side is None:
            weights = {**training.way.held, **training.weights}
            training.side = Side(training.way.programs, EDGE, weights)
        side = training.side
        sent = side.take(Sent(request, (tensors,)))
        if sent is None:
            raise SplitError("a turn without an answer")
        if not side.done:
            return sent.tensors[0], None
        if not all(np.isfinite(a).all() for a in side.moved.values()):
            raise SplitError("a step to weights that are not finite")
        whole = training.turn + 1 == training.steps * len(training.way.turns)
        if whole and self._finish is not None:
            last = {**training.weights, **side.moved}
            owned = self.bundle.owned_by(training.way.parts, above=True)
            moved = {i: last[i] - training.first[i] for i in owned}
            training.kept = self._finish(training.node, training.examples, moved)
        return sent.tensors[0], dict(side.moved)

    def ran(
        self, training: Training, reply: Tensors, moved: Mapping[int, Array] | None, now: float
    ) -> bool:
        """A turn was run; whether it counts (its training is not over). Weights move here."""
        if training.over:
            return False
        training.turn += 1
        training.reply, training.used = reply, now
        if moved is not None:
            training.weights = {**training.weights, **moved}
            training.side = None
            if training.kept is not None:
                training.weights, training.first = {}, {}
            if self.sharing is Sharing.SEQUENTIAL:
                self._chain = training.weights
        return True
