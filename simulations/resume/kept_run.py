"""Keeps a run while it goes on, and resumes one that was kept.

What of a simulation goes into the folder (`resumable`), when, and how it comes back.
"""

from __future__ import annotations

import hashlib
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...core.common.errors import DelianError
from ...core.compiler import debugging
from ...core.compiler.backends import TORCH
from ...core.compiler.backends.native.toolchain import toolchain
from ...core.learning.runtime import Score
from ...core.protocol.ports import CLOUD
from ..federation.client_states import ClientStates
from ..federation.federation import RUN, Federation
from ..federation.trace import weights_name
from ..runs.host_facts import cpu_name, version_of
from ..runs.stage import Stage
from .history import DIFFERS, RunLog, waves_of

if TYPE_CHECKING:
    from ..runs.compiled_training import CompiledTraining
    from .resumable import Resumable, Saved

#: A run is kept after a round, this often at most; less often where to keep it takes more than so
#: large a share of its time.
KEEP_S = 5.0
KEEP_SHARE = 0.04
#: Of a log that no disk takes so much is held in memory; then the run is kept no more.
PENDING_BYTES_MAX = 64 * 2**20
#: Weights and memory after a round are held in memory up to that many bytes, for a run that is
#: stopped in the next one.
HELD_BYTES_MAX = 256 * 2**20


@dataclass(frozen=True, slots=True)
class _Held:
    """What stores a run as it was after a round."""

    rounds: int
    log_bytes: int
    """Of the log's entries that were pending."""
    weights: Mapping[bytes, Any]
    memories: Mapping[bytes, bytes]
    facts: Mapping[str, Any]
    """Without scores."""
    scores: Mapping[int, Any]


class KeptRun:
    """A simulation in its folder. before: the run as it was kept; None: it begins.

    Raises DelianError where something was kept, and cannot be resumed.
    """

    def __init__(self, folder: Path, stage: Stage, training: CompiledTraining) -> None:
        self._stage, self._training = stage, training
        self._first = weights_name(training.initial()).hex()
        self._folder = folder
        self.why_not = self._refusal()
        self.before: Saved | None = None
        if folder.exists():
            if self.why_not:
                raise DelianError(f"{folder} cannot be resumed: {self.why_not}")
            self.before = self._place.load()
        facts: Mapping[str, Any] = self.before.facts if self.before is not None else {}
        self.log = RunLog(
            memoryview(self.before.log if self.before is not None else b""),
            frozenset((r, a) for r, a in facts.get("waves", ())),
            self.before.weights if self.before is not None else {},
            self.before.memories if self.before is not None else {},
            holds=stage.composition.get("fedbuff") is not None,
        )
        #: The last round with which the run is kept, an attempt each; zero: it is not.
        self.rounds = self.before.rounds if self.before is not None else 0
        self._next = time.perf_counter() + KEEP_S
        self._held: _Held | None = None

    def _refusal(self) -> str:
        """Why such a run is not kept, or nothing."""
        if debugging.on:
            return "where one debugs, nothing is kept of a run"
        if self._stage.backend.startswith(TORCH):
            return f"with {self._stage.backend} numbers depend on which devices train together"
        if self._stage.composition.get("fedbuff") is not None and not self._training.pure:
            return "of a buffered run whose devices keep a state, nothing is kept"
        if self._training.split is not None:
            return "what edges trained with devices is not kept"
        return ""

    @property
    def needs_the_round(self) -> bool:
        """Whether a run that is stopped in a round goes on to the round's end.

        So it does where its devices keep a state, and nothing of the run was stored yet: its last
        round cannot be stored any more, for the next one's states are in their file.
        """
        return not self.why_not and self.rounds == 0 and self._training.kept is not None

    @cached_property
    def _place(self) -> Resumable:
        """The folder. Most runs are over before they are kept, and need no such thing."""
        from .resumable import Resumable

        return Resumable(self._folder, self._told)

    def _told(self) -> Mapping[str, Any]:
        """What decides a run's bits."""
        stage = self._stage
        return {
            "version": version_of("delian"),
            "python": platform.python_version(),
            "numpy": version_of("numpy"),
            "cpu": cpu_name(),
            "machine": f"{platform.system()} {platform.machine()}",
            **stage.computed_by(),
            **_compiled_by(stage),
            "scenario": stage.scenario.to_json(),
            "algorithm of one's own": stage.own_settings(),
            "chain": str(stage.composition),
            "programs": hashlib.sha256(stage.bundle.to_bytes()).hexdigest(),
            "first weights": self._first,
            "data": _content(stage),
        }

    # ------------------------------------------------ resuming

    def round_again(self, federation: Federation) -> dict[str, Any]:
        """What the observer said of the round that was gone through again.

        After the last one all is as it was when the run was kept. Raises DelianError where the
        round was another.
        """
        trace = bytes.fromhex(federation.trace.hexdigest())
        self._waves(federation)
        judged = self.log.round_again(trace, federation.trace.events)
        if not self.log.replays:
            self._restore(federation)
        return judged

    def ended_before(self, stopped: bool) -> None:
        """The run ended, and was not yet where it had been.

        Raises KeyboardInterrupt where it was `stopped`, among updates that are computed again:
        there is nothing to report on yet.
        """
        if stopped:
            raise KeyboardInterrupt
        raise DelianError("the run ends before the round where it had been", DIFFERS)

    def _restore(self, federation: Federation) -> None:
        from .resumable import unpacked

        before, stage, training = self.before, self._stage, self._training
        assert before is not None
        known = {*before.weights, federation.message.weights.digest}
        stored = federation.hosts[CLOUD].store.values()
        gone = any(s.weights is None and len(s.blob.content) != s.blob.size for s in stored)
        if gone or not known.issuperset(federation.models.arrays):
            raise DelianError("the models in use are not those of the run before", DIFFERS)
        facts = before.facts
        training.state = federation.weights
        stage.scores = {int(d): (_score(a), _score(b)) for d, (a, b) in facts["scores"].items()}
        stage.walls.update(facts["walls"])
        if training.kept is not None and facts["places"] is not None:
            places, digest = unpacked(facts["places"]), bytes.fromhex(facts["states"])
            training.kept.resume(self._place.states, places, digest)
        self.before = None
        self._next = time.perf_counter() + KEEP_S

    # ------------------------------------------------ keeping

    def round_over(
        self, federation: Federation, judged: Mapping[str, Any], seconds: float, stops: bool
    ) -> None:
        """A round is over, and all that is to be said of it was.

        seconds: of all rounds. stops: the run is kept now, for it is stopped or at its end. A run
        that is stopped in the next round is stored by `over` as it is now.
        """
        log = self.log
        if self.why_not:
            log.forget()
            return
        log.round_over(bytes.fromhex(federation.trace.hexdigest()), federation.trace.events, judged)
        self._held = None  # before the next is made: its weights would be among those in use
        held = self._now(federation, seconds)
        now = time.perf_counter()
        if now < self._next and not stops:
            self._held = held if self._may_hold(held) else None
            return
        self._store(held)
        ended = time.perf_counter()
        self._next = ended + max(KEEP_S, (ended - now) / KEEP_SHARE)

    def _now(self, federation: Federation, seconds: float) -> _Held:
        """The run as it is after a round."""
        waves = self._waves(federation)  # first: it lets go of weights
        stored = federation.hosts[CLOUD].store.items()
        bundle = federation.message.bundle.digest
        return _Held(
            rounds=self.log.rounds,
            log_bytes=len(self.log.pending),
            weights=dict(federation.models.arrays.items()),
            memories={d: s.blob.content for d, s in stored if s.weights is None and d != bundle},
            scores=self._stage.scores,
            facts={
                "waves": waves,
                "walls": {**self._stage.walls, "rounds_seconds": seconds},
            },
        )

    def _may_hold(self, held: _Held) -> bool:
        """Whether a run can be stored as it was, when the next round has begun.

        Client states cannot: the next round's go into their file.
        """
        size = sum(w.nbytes for w in held.weights.values()) + sum(map(len, held.memories.values()))
        return self._training.kept is None and size <= HELD_BYTES_MAX

    def _store(self, held: _Held) -> None:
        """Stores the run as it was after a round, if the disk takes it."""
        from .resumable import packed

        log = self.log
        states: ClientStates | None = self._training.kept
        scores = {d: [astuple(score) for score in both] for d, both in held.scores.items()}
        facts = {**held.facts, "scores": scores, "places": None, "states": None}
        try:
            places = states.keep(self._place.states_made()) if states is not None else None
            if states is not None and places is not None:
                facts["places"], facts["states"] = packed(places), states.digest().hex()
            pending = bytes(log.pending[: held.log_bytes])
            self._place.keep(held.rounds, pending, held.weights, held.memories, facts)
        except (OSError, DelianError) as fault:
            # It may be taken the next time.
            if len(log.pending) > PENDING_BYTES_MAX:
                self.why_not = f"the disk does not take what resumes it: {fault}"
        else:
            del log.pending[: held.log_bytes]
            self.rounds = held.rounds
            if states is not None and places is not None:
                states.kept(places)

    def _waves(self, federation: Federation) -> list[tuple[int, int]]:
        """The waves that are not over; lets go of what the others trained from."""
        run = federation.hosts[CLOUD].machine.state.runs.get(RUN)
        attempts = [] if run is None else [*run.open, *run.parked, *run.batch]
        waves, names = waves_of(attempts)
        self.log.hold(names)
        return sorted(waves)

    def over(self, resumes: bool, stopped: bool = False) -> None:
        """The run has ended.

        resumes: it may go on later. stopped: in a round; the run is stored as it was before it.
        """
        if stopped and self._held is not None:
            self._store(self._held)
        self._held = None
        if "_place" not in vars(self):
            return  # nothing was read, and nothing kept
        if resumes:
            self._place.close()
        else:
            self._place.remove()


def _content(stage: Stage) -> str:
    """A hash of all devices' data; of rows in files with their versions."""
    from .resumable import content_of

    versions = " ".join(str(rows.version()) for rows in stage.data.stored)
    whole = content_of(stage.whole)
    return hashlib.sha256(f"{whole} {versions}".encode()).hexdigest() if versions else whole


def _compiled_by(stage: Stage) -> dict[str, str]:
    """Which compiler it is: under the same name there may be another one since."""
    found = toolchain.find() if stage.backend == "native" else None
    if found is None:
        return {}
    own = found.command[1:]
    return {"compiler version": found.version, "compiler options": " ".join((*own, *found.flags))}


def _score(said: Sequence[Any]) -> Score:
    loss, correct, count, more = said
    return Score(loss, correct, count, tuple((above, below) for above, below in more))
