"""A model that runs partly on this device and partly above it: at the edge, in the cloud.

    with SplitModel("model.dlb", "plan.json", ["edge-1@edge:7451"], identity) as model:
        logits = model.predict(x)                  # [n, ...] -> [n, classes]
        for logits in model.stream(frames):        # several under way at once, answers in order
            ...

The plan (`delian partition plan`) has a cut for every bandwidth of the link; the measured link
decides for each request which one is used. Only the values on the cut travel. A home that does not
have the bundle with these weights refuses, and then, or while it cannot be reached, the device runs
the whole program itself: a call is always answered.

Calls may come from several threads. An event loop in a thread of its own connects to the home.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ...core.common.errors import DelianError
from ...core.compiler.backends import Backend
from ...core.compiler.ir import Array, TensorType
from ...core.learning.bundle import Bundle, load
from ...core.learning.data.fit import as_rows
from ...core.node.identity.pki.certificates import channel_credentials
from ...core.node.identity.pki.identity_folder import HomeAddress
from ...core.node.net.switch import Switch
from ...core.node.service.hosting import Who, merge_homes, parse_home, who_is
from ...core.node.service.uplinks import Transport, Uplinks
from ...core.node.storage.memory_storage import MemoryBlobs
from ...core.placement.cut.cut import DEVICE, Cut
from ...core.placement.cut.placement_plan import BYTES_MAX, PlacementPlan
from ...core.placement.cut.program_split import check
from ...core.placement.subgraphs.frames.enveloped import BOUNDARY_BYTES_MAX, EnvelopedUpstream
from ...core.placement.subgraphs.frames.stream_client import Upstream
from ...core.placement.subgraphs.machines.asker import Asker, AskerSettings
from ...core.placement.subgraphs.machines.cut_choice import ChoiceSettings
from ...core.placement.subgraphs.machines.part_ports import Course, Link
from ...core.placement.subgraphs.machines.request_table import Local
from ...core.placement.subgraphs.part_programs import Model, Prepared, Programs
from ...core.placement.subgraphs.request_codec import bytes_max
from ...core.placement.subgraphs.request_driver import Answered, AskingDriver
from ...core.placement.subgraphs.request_limits import MESSAGE_BYTES_MAX
from ...core.placement.subgraphs.upstream_driver import Above
from ...core.protocol.ports import Event, Record, Tier

if TYPE_CHECKING:
    import grpc

T = TypeVar("T")

#: When an answer is due, unless the caller says otherwise.
DUE_S = 10.0
#: Requests under way at once: while one is on the link, the device computes the next one's part.
UNDER_WAY = 4
#: How often it is looked whether cuts are open.
OPEN_EVERY_S = 0.02
#: Answers that wait for the reader of a stream, and requests that wait in line for it.
AHEAD = 16
LINE = 64


@dataclass(frozen=True, slots=True)
class SplitSettings:
    """How this device takes part in split requests."""

    backend: Backend = "native"
    """The back end that runs parts."""
    under_way: int = UNDER_WAY
    """The largest number of requests at once."""
    slowdown: float = 1.0
    """Factor on the run time of parts, so that a fast machine can stand for a slow device."""
    transport: Transport = "auto"
    """gRPC is the default, unless no home offers it.

    Over MQTT only cuts with small boundaries are used, and the identity must not be that of an
    agent that uses MQTT at the same time.
    """
    broker_authority: Path | None = None
    """PEM of the CA of the broker's certificate; None: the federation's CA."""
    keep_input: bool = False
    """Whether the input itself never leaves this device, whatever the plan says.

    Values that are computed from it may.
    """


@dataclass(slots=True)
class Facts:
    """What a split model has done."""

    answered: dict[str, int] = field(default_factory=dict)
    switched: list[dict[str, Any]] = field(default_factory=list)
    """The cuts that it went over to, each with when (seconds of `time.monotonic`) and the bandwidth
    that it saw then.
    """


class SplitModel:
    """A bundle's program, by a plan.

    bundle: a bundle with its weights, or its file. plan: a plan, or its file. homes: where to ask,
    in order, as `delian device run --home` takes them; none: as enrolment said. identity: what
    `delian join` wrote; None: no TLS, on this machine alone, and `number` says which device it is.
    weights: the model's vector f32, where it is not in the bundle.

    The constructor compiles the device's parts of all cuts, which takes a while the first time.
    Raises DelianError where the plan is another bundle's, or something cannot be read or compiled;
    CutError where a cut sends up an input that is to be kept.
    """

    def __init__(
        self,
        bundle: Bundle | Path | str,
        plan: PlacementPlan | Path | str,
        homes: Sequence[str] = (),
        identity: Path | None = None,
        *,
        number: int | None = None,
        weights: Array | None = None,
        settings: SplitSettings | None = None,
    ) -> None:
        self._settings = settings = settings or SplitSettings()
        held = bundle if isinstance(bundle, Bundle) else load(Path(bundle))
        made = plan if isinstance(plan, PlacementPlan) else read_plan(Path(plan))
        if made.bundle not in (held.content_hash(), held.bare().content_hash()):
            raise DelianError(
                "the plan is of another bundle", "make it with delian partition plan BUNDLE"
            )
        self.plan = made
        self.facts = Facts()
        self._model = Model.of(held, made.program, weights)
        self._input = input_of(self._model)
        self._upstream, largest = _way_of(
            homes, identity, number, settings.transport, settings.broker_authority
        )
        self._programs = Programs(settings.backend, settings.slowdown)
        self._cuts: dict[bytes, Prepared] = {}
        courses: dict[bytes, Course] = {}
        for piece in made.pieces:
            cut = Cut.from_bytes(piece.cut)
            if settings.keep_input:
                kept = dict.fromkeys(self._model.inputs, DEVICE)
                check(self._model.function, self._model.resident, cut, ceilings=kept)
            name = bytes.fromhex(cut.digest())
            if name not in self._cuts:
                prepared = self._cuts[name] = self._programs.prepare(self._model, cut, 0)
                courses[name] = prepared.course(name, piece.tiers[1 : prepared.parts.top + 1])
            pieces = (*courses[name].pieces, (piece.low, piece.high))
            courses[name] = replace(courses[name], pieces=pieces)
        fits = {n for n, p in self._cuts.items() if bytes_max(p.ask) <= largest}
        self._courses = [course for name, course in courses.items() if name in fits]
        self.whole_s = self._programs.measure(self._programs.whole(self._model))
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="delian-split", daemon=True
        )
        self._thread.start()
        self._closed = False
        self._line = threading.BoundedSemaphore(LINE)
        self._driver = self._call(self._begin()).result()

    # ------------------------------------------------ its life

    async def _begin(self) -> AskingDriver:
        links = [Link(each.up, each.down, each.latency_s) for each in self.plan.links]
        asker = Asker(
            self._courses,
            Local(whole=self.whole_s),
            links[0],
            tuple(links[1:]),
            AskerSettings(self._settings.under_way, choice=ChoiceSettings.of(self.plan.objective)),
        )
        self._asker = asker
        driver = AskingDriver(
            self._model,
            self._cuts,
            asker,
            self._programs,
            self._upstream,
            on_record=self._recorded,
        )
        driver.start()
        return driver

    def close(self) -> None:
        """Ends; what is not answered yet is refused. May be called twice."""
        if self._closed:
            return
        self._closed = True
        self._call(self._driver.close()).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> SplitModel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _recorded(self, record: Record) -> None:
        if record.kind == "switched":
            self.facts.switched.append({"at": self._loop.time(), **record.fields})

    # ------------------------------------------------ asking

    @property
    def connected(self) -> bool:
        """Whether a home is there."""
        upstream = self._driver.upstream
        return upstream is not None and upstream.stream is not None

    @property
    def opened(self) -> int:
        """How many of the plan's cuts could be used now, besides the whole program here."""
        upper = self._asker.upper
        return sum(1 for course in self._courses if course.legs and upper.usable(course.cut))

    def wait_open(self, seconds: float) -> bool:
        """Waits until all cuts of the plan can be used, as long at most; whether they can.

        There is nothing to wait for without an upstream node.
        """
        wanted = sum(1 for course in self._courses if course.legs)
        until = time.monotonic() + seconds
        while self._driver.upstream is not None and self.opened < wanted:
            if time.monotonic() > until:
                return False
            time.sleep(OPEN_EVERY_S)
        return True

    @property
    def cut(self) -> bytes:
        """The digest of the cut that the next request gets; empty: the whole program here."""
        return self._asker.current.cut

    def alone(self, x: Any, slowed: bool = False) -> Array:
        """The first result by the whole program on this device; for comparison.

        slowed: as slow as this device is to be (`SplitSettings.slowdown`).
        """
        whole, made = self._programs.whole(self._model), []
        array = np.ascontiguousarray(x, self._input.dtype.numpy)

        def work() -> None:
            made.append(whole(*self._model.leaves, array)[0])

        if slowed:
            self._programs.slowed(work)
        else:
            work()
        return made[0]

    def ask(self, x: Any, seconds: float = DUE_S) -> Future[Answered]:
        """One request of exactly the program's shape and type.

        Returns its results and how they were computed. Fails with RefusedError where there are
        none.
        """
        array = np.ascontiguousarray(x, self._input.dtype.numpy)
        if array.shape != self._input.shape:
            raise DelianError(
                f"an input of {list(array.shape)}", f"the program takes {list(self._input.shape)}"
            )
        return self._call(self._ask(array, seconds))

    async def _ask(self, x: Array, seconds: float) -> Answered:
        answered = await self._driver.request((x,), seconds)
        by = answered.by.value
        self.facts.answered[by] = self.facts.answered.get(by, 0) + 1
        return answered

    def predict(self, x: Any, seconds: float = DUE_S) -> Array:
        """The first result for a batch [n, ...] of any length. seconds: when it is due.

        Raises DelianError when the rows are not those of the model, RefusedError where there is no
        answer.
        """
        return next(self.stream((x,), seconds))

    def stream(self, batches: Iterable[Any], seconds: float = DUE_S) -> Iterator[Array]:
        """`predict` for one batch after another, in their order, with several requests at once.

        Raises as `predict`.
        """
        waiting: deque[tuple[int, list[Future[Answered]]]] = deque()
        for x in batches:
            waiting.append(self._begin_batch(np.asarray(x), seconds))
            if len(waiting) > AHEAD:
                yield _whole(*waiting.popleft())
        while waiting:
            yield _whole(*waiting.popleft())

    def _begin_batch(self, x: Array, seconds: float) -> tuple[int, list[Future[Answered]]]:
        lanes, row = self._input.shape[0], self._input.shape[1:]
        rows = None if x.ndim < 1 else as_rows(x, row)
        if rows is None or x.dtype.kind not in "fiub":
            wanted = ", ".join(map(str, row))
            raise DelianError(f"a batch of {x.dtype}{list(x.shape)}", f"give [n, {wanted}]")
        asked = []
        for start in range(0, max(len(rows), 1), lanes):
            part = rows[start : start + lanes]
            filled = np.zeros(self._input.shape, self._input.dtype.numpy)
            filled[: len(part)] = part
            self._line.acquire()
            future = self.ask(filled, seconds)
            future.add_done_callback(lambda _: self._line.release())
            asked.append(future)
        return len(rows), asked


def _whole(rows: int, asked: list[Future[Answered]]) -> Array:
    return np.concatenate([future.result().results[0] for future in asked])[:rows]


def input_of(model: Model) -> TensorType:
    """The one batch that a program takes. Raises DelianError for another."""
    types = model.function.param_types[len(model.leaves) :]
    if len(types) != 1 or not isinstance(types[0], TensorType) or not types[0].shape:
        raise DelianError(f"`{model.program}` takes no batch", "only such programs can be asked")
    return types[0]


def read_plan(file: Path) -> PlacementPlan:
    """Reads a plan. Raises DelianError."""
    try:
        with file.open("rb") as stream:
            content = stream.read(BYTES_MAX + 1)
    except OSError as error:
        raise DelianError(f"{file}: cannot be read: {error.strerror}") from error
    return PlacementPlan.from_json(content, str(file))


def upstream_of(
    homes: Sequence[str], identity: Path | None, number: int | None
) -> Callable[[Above], Upstream] | None:
    """Makes the way up over gRPC, once there is an owner for it; None where there is nowhere to go.

    Raises DelianError.
    """
    who, known = _known(homes, identity, number)
    found = [(home.node, home.grpc) for home in known if home.grpc]
    own = who.identity

    def credentials() -> grpc.ChannelCredentials:
        assert own is not None
        return channel_credentials(own.material())

    def upstream(owner: Above) -> Upstream:
        shown = None if own is None else credentials
        return Upstream(who.node, found, owner, shown, who.federation)

    return upstream if found else None


def _known(
    homes: Sequence[str], identity: Path | None, number: int | None
) -> tuple[Who, tuple[HomeAddress, ...]]:
    who = who_is(Tier.DEVICE, identity, insecure=identity is None, number=number)
    said = [parse_home(home) for home in homes] or who.homes
    return who, merge_homes(said) if said else ()


def _way_of(
    homes: Sequence[str],
    identity: Path | None,
    number: int | None,
    transport: Transport,
    broker_authority: Path | None,
) -> tuple[Callable[[Above], Upstream | EnvelopedUpstream] | None, int]:
    """The same over gRPC or MQTT, with the largest boundary that goes over it, in bytes."""
    upstream = None if transport == "mqtt" else upstream_of(homes, identity, number)
    who, known = _known(homes, identity, number)
    spoken = [home for home in known if home.mqtt and transport != "grpc"][:1]
    if upstream is not None or not spoken:
        return upstream, MESSAGE_BYTES_MAX

    def over_mqtt(owner: Above) -> EnvelopedUpstream:
        switch = Switch()
        switch.attach(who.node, _nothing, MemoryBlobs())
        uplinks = Uplinks(switch, who, spoken, "mqtt", broker_authority)
        switch.add_link(uplinks)
        uplinks.start(add=False)
        return EnvelopedUpstream(switch, who.node, spoken[0].node, owner, uplinks)

    return over_mqtt, BOUNDARY_BYTES_MAX


def _nothing(event: Event, traceparent: str = "", size: int = 0) -> None:
    """No machine of the protocol is here: what is said to one is dropped."""
