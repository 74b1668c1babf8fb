"""What a run has computed, kept so that it can be resumed: its log.

A federation is a function of its plan, its seed and what is trained; all but the training is cheap.
So none of its machines' state is written down. A run that is resumed is gone through again from its
first event, by the very code that went through it before, and of what was trained the log has as
much as machines look at: the facts of each update, and the names of the models. Elements of updates
are only ever added up, and what that gives is known by the next model's name; so in their place
stand zeros, and the right weight behind them. At the end of each round the trace's hash must be the
one that it was.

What is still to be used where the log ends is computed again: the updates of a buffered run's waves
that are not over. For that, and to go on, the newest models are stored with the log (`resumable`).
All is called on the thread that handles events.

    U  an update or an evaluation: device, round, attempt, examples, loss, finite, checksum, length
       before it was shortened (zero: it was not), elements, and the last of these
    O  a sum that was opened: checksum, elements, and the last of these
    M  a model: for weights and memory, name and bytes
    R  a round: the trace's SHA-256, events, and what the observer said of it, in JSON
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence
from struct import Struct
from typing import Any, Protocol

import numpy as np

from ...core.common.errors import DelianError
from ...core.learning.bundle import METRICS_MAX
from ...core.learning.metrics import metrics_plan
from ...core.privacy.mechanisms.post_processing import too_long
from ...core.privacy.mechanisms.ring import RingPlan
from ...core.protocol.ports import BLOB_BYTES_MAX, Floats, Outcome, Vector
from ...core.wire.blob_pb2 import Blob
from ...core.wire.round_pb2 import TRAIN
from ..federation.model_blobs import Models
from ..federation.nodes import Host, Stored
from ..federation.trace import checksum
from ..federation.training import Awaited, Trained
from ..runs.result import RoundRecord, Spread

#: Vectors of so many elements are kept whole: all metrics that devices send, and the smallest
#: models' updates.
WHOLE_MAX = metrics_plan(1, METRICS_MAX).length
#: Of others those at the end, behind the coordinates: a round's indicator, and the weight.
BEHIND = 2
#: A longer one there is none: its bytes are an update's, or a sum's.
_LENGTH_MAX = BLOB_BYTES_MAX // 4
DIGEST_BYTES = 32
_UPDATE = Struct("<cQIIQd?Qdi")
_OPENED = Struct("<cQi")
_MODEL = Struct("<cB")
_BLOB = Struct("<32sQ")
_ROUND = Struct("<c32sQI")
_NONE = -1  # elements of no vector
_STEPS_MAX = 2**31 - 1
#: What a round's record has from the observer.
_JUDGED = {
    name
    for name in RoundRecord.__dataclass_fields__
    if name.startswith(("global_", "personalised_"))
}

DIFFERS = (
    "it cannot be resumed by this program, or with these data: start it again, into another folder"
)


class History(Protocol):
    """The events of a federation's computations. replays: whether that is known already."""

    @property
    def replays(self) -> bool: ...

    def launch(
        self, device: int, name: bytes, weights: Floats, start: Callable[[], Awaited]
    ) -> Awaited:
        """A device's program begins, on the weights of that name."""

    def computed(self, host: Host, outcome: Outcome) -> None:
        """A device's program is over, in virtual time; its task still stands in its machine."""

    def opened(self, make: Callable[[], Outcome]) -> Outcome:
        """A sum without its masks."""

    def model(self, models: Models, make: Callable[[], list[Stored]]) -> list[Stored]:
        """The next model's weights, and the memory where the server's optimiser has one."""


class Unkept:
    """A run that is not to be resumed."""

    replays = False

    def launch(
        self, device: int, name: bytes, weights: Floats, start: Callable[[], Awaited]
    ) -> Awaited:
        return start()

    def computed(self, host: Host, outcome: Outcome) -> None:
        pass

    def opened(self, make: Callable[[], Outcome]) -> Outcome:
        return make()

    def model(self, models: Models, make: Callable[[], list[Stored]]) -> list[Stored]:
        return make()


UNKEPT = Unkept()


class Later:
    """A program that begins when it turns out that the log does not know what it gave."""

    __slots__ = ("_begun", "_device", "_log", "_start")

    def __init__(self, log: RunLog, device: int, start: Callable[[], Awaited]) -> None:
        self._log, self._device, self._start = log, device, start
        self._begun: Awaited | None = None

    def begin(self) -> None:
        self._begun = self._start()

    def result(self) -> Outcome:
        self._log.laters.discard(self)
        if self._log.replays:
            return self._log.outcome(self._device, self._start)
        return (self._begun or self._start()).result()

    def cancel(self) -> bool:
        self._log.laters.discard(self)
        return self._begun is None or self._begun.cancel()


class RunLog:
    """The log of a run: read to its end, then written.

    content: what there is of it. waves: (round, attempt) of the waves that are not over where it
    ends. weights, memories: by name, those that are in use there. holds: whether waves' weights are
    held on to until the waves are over, because their updates may have to be computed again.
    pending: what has come since it was read. laters: programs that have begun while it was read.
    """

    def __init__(
        self,
        content: memoryview,
        waves: frozenset[tuple[int, int]],
        weights: Mapping[bytes, Floats],
        memories: Mapping[bytes, bytes],
        holds: bool,
    ) -> None:
        self._content, self._at = content, 0
        self._waves, self._weights, self._memories = waves, weights, memories
        self._holds = holds
        self._held: dict[bytes, Floats] = {}
        self.pending = bytearray()
        self.laters: set[Later] = set()
        self.replays = len(content) > 0
        self.rounds = 0

    # ------------------------------------------------ events of a federation

    def launch(
        self, device: int, name: bytes, weights: Floats, start: Callable[[], Awaited]
    ) -> Awaited:
        if self._holds:
            self._held[name] = weights
        if not self.replays:
            return start()
        later = Later(self, device, start)
        self.laters.add(later)
        return later

    def computed(self, host: Host, outcome: Outcome) -> None:
        if self.replays:
            return
        task, vector, long = host.machine.state.task, outcome.vector, 0.0
        if vector is not None and task.ring.within and task.purpose == TRAIN and outcome.finite:
            long = too_long(vector, RingPlan.of(task.ring))
        words = outcome.checksum if isinstance(outcome, Trained) else None
        if words is None:
            words = 0 if vector is None else checksum(vector)
        self.pending += _UPDATE.pack(
            b"U",
            host.node.number,
            task.round,
            task.attempt,
            outcome.examples,
            outcome.loss,
            outcome.finite,
            words,
            long,
            _NONE if vector is None else len(vector),
        )
        self.pending += _end_of(vector)

    def opened(self, make: Callable[[], Outcome]) -> Outcome:
        if self.replays:
            _, words, length = self._read(_OPENED, b"O")
            return Trained(self._vector(length), checksum=words)
        outcome = make()
        vector = outcome.vector
        assert vector is not None
        words = checksum(vector)
        self.pending += _OPENED.pack(b"O", words, len(vector)) + _end_of(vector)
        return Trained(vector, checksum=words)

    def model(self, models: Models, make: Callable[[], list[Stored]]) -> list[Stored]:
        if not self.replays:
            made = make()
            self.pending += _MODEL.pack(b"M", len(made))
            for stored in made:
                self.pending += _BLOB.pack(stored.blob.digest, stored.blob.size)
            return made
        _, count = self._read(_MODEL, b"M")
        (name, _), *memories = (self._read(_BLOB) for _ in range(count))
        blobs = [models.named(name, self._weights.get(name))]
        for digest, size in memories:
            content = self._memories.get(digest, b"")
            blobs.append(Stored(Blob(digest=digest, size=size, content=content)))
        return blobs

    # ------------------------------------------------ events of the run

    def round_over(self, trace: bytes, events: int, judged: Mapping[str, Any]) -> None:
        """Writes down a round. judged: what the observer said of it."""
        said = json.dumps({k: _plain(v) for k, v in judged.items()}).encode()
        self.pending += _ROUND.pack(b"R", trace, events, len(said)) + said
        self.rounds += 1

    def round_again(self, trace: bytes, events: int) -> dict[str, Any]:
        """Reads a round: what the observer said of it.

        After the last one the run goes on. Raises DelianError where it was another.
        """
        _, before, count, length = self._read(_ROUND, b"R")
        self.rounds += 1
        if (before, count) != (trace, events):
            self._differ("what happened in it")
        try:
            said = json.loads(bytes(self._content[self._at : self._at + length]))
            judged = {k: Spread(*v) if isinstance(v, list) else v for k, v in said.items()}
        except (ValueError, TypeError, AttributeError, RecursionError):
            judged = {"": None}
        if not judged.keys() <= _JUDGED:
            self._differ("what was judged")
        self._at += length
        if self._at == len(self._content):
            self.replays = False
            self._content.release()
            self._weights, self._memories = {}, {}
            for later in list(self.laters):
                later.begin()
        return judged

    def forget(self) -> None:
        """Of a run that is not kept nothing is held."""
        self.pending.clear()
        self._held.clear()

    def hold(self, needed: set[bytes]) -> None:
        """Lets go of weights but these."""
        self._held = {name: held for name, held in self._held.items() if name in needed}

    # ------------------------------------------------ reading

    def outcome(self, device: int, start: Callable[[], Awaited]) -> Outcome:
        """What a device's program gave. Raises DelianError where it was not its turn."""
        _, who, round, attempt, examples, loss, finite, words, long, length = self._read(
            _UPDATE, b"U"
        )
        if who != device:
            self._differ(f"device {device} has trained, and before it was device {who}")
        vector = self._vector(length, long)
        if (round, attempt) not in self._waves or vector is None or length <= WHOLE_MAX:
            return Trained(vector, examples, loss, finite, words)
        again = start().result()
        if again.vector is None or checksum(again.vector) != words:
            self._differ(f"what device {device} trains to")
        return again

    def _read(self, form: Struct, kind: bytes | None = None) -> tuple[Any, ...]:
        if self._at + form.size > len(self._content):
            self._differ("more happens in it")
        read = form.unpack_from(self._content, self._at)
        if kind is not None and read[0] != kind:
            self._differ("other things happen in it")
        self._at += form.size
        return read

    def _vector(self, length: int, long: float = 0.0) -> Vector | None:
        """A vector of which only the end is known.

        Before it stand zeros, or what is longer than `long`.
        """
        if length == _NONE:
            return None
        behind = length if length <= WHOLE_MAX else BEHIND
        end = self._at + 4 * behind
        if not 0 <= length <= _LENGTH_MAX or end > len(self._content):
            self._differ("other things happen in it")
        vector = np.zeros(length, np.uint32)
        vector[length - behind :] = np.frombuffer(self._content[self._at : end], "<u4")
        self._at = end
        if long and length > WHOLE_MAX:
            each = long / math.sqrt(length - 1)
            if not 0 < each < _STEPS_MAX:
                self._differ("what was trained")
            vector[:-1] = int(each) + 1
        return vector

    def _differ(self, what: str) -> None:
        raise DelianError(
            f"round {self.rounds + 1} is not as it was before the run was stopped: {what}", DIFFERS
        )


def _end_of(vector: Vector | None) -> bytes:
    if vector is None:
        return b""
    behind = len(vector) if len(vector) <= WHOLE_MAX else BEHIND
    return vector[len(vector) - behind :].astype("<u4", copy=False).tobytes()


def _plain(value: Any) -> Any:
    return list(dataclasses.astuple(value)) if isinstance(value, Spread) else value


def waves_of(attempts: Sequence[Any]) -> tuple[frozenset[tuple[int, int]], set[bytes]]:
    """Of a run's attempts, those that train: (round, attempt), and the names of their weights."""
    training = [a for a in attempts if not a.evaluates]
    return (
        frozenset((a.round, a.attempt) for a in training),
        {a.weights.digest for a in training},
    )
