"""Which trace an event belongs to, and what a node's part of it took.

A trace is an attempt: one task, from the coordinator's selection to the end, through all tiers.

    cloud   attempt ─┬─ server_update
    edge             └─ gather ─┬─ fetch, upload
    device                      └─ task ── fetch, client_update (or evaluate), upload

Its id is a hash of run, round, attempt and the moment at which the coordinator opened it; a node's
span in it is a hash of trace and node. So a process that is killed and started again continues the
same trace. It travels as W3C's traceparent with each message that names the attempt
(https://www.w3.org/TR/trace-context), whether spans are recorded or not: logs name it too.

A node accepts a trace from the tier above alone, since only that gives it work; a message from
below belongs to the attempt that it names, whatever its traceparent says.

`Spans` records them, where there is something that does: OpenTelemetry is known to the command line
alone.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

from google.protobuf.message import Message

from ...protocol import ports
from ...protocol.run_names import number_of
from ...wire.blob_pb2 import Blob, FetchBlob
from ...wire.round_pb2 import EdgeSum, EdgeSumAck, EdgeTask, Flush, RoundClosed, Task, UploadAck
from ...wire.round_pb2 import Upload as UploadMessage
from ..storage.codec import MESSAGE_FIELDS

log = logging.getLogger("delian.node")

#: Attempts that a node stores, and spans that have not ended; the oldest are forgotten.
ATTEMPTS_MAX = 1_024
SPANS_MAX = 1_024

#: The trace of what this task of the event loop does now, for its logs: a traceparent, or "".
current: ContextVar[str] = ContextVar("delian_trace", default="")

_TRACEPARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_SAMPLED = 1


class Context(NamedTuple):
    """A traceparent, taken apart."""

    trace: str  # 32 hexadecimal digits
    span: str  # 16
    sampled: bool

    def __str__(self) -> str:
        return f"00-{self.trace}-{self.span}-{_SAMPLED if self.sampled else 0:02x}"


def parse(traceparent: str) -> Context | None:
    """None: it is none."""
    parts = _TRACEPARENT.fullmatch(traceparent)
    if parts is None or not int(parts[1], 16) or not int(parts[2], 16):
        return None
    return Context(parts[1], parts[2], bool(int(parts[3], 16) & _SAMPLED))


class At(NamedTuple):
    """An attempt's name."""

    run: int
    """The run's, as it is on the wire."""
    round: int
    attempt: int

    def shown(self) -> dict[str, int]:
        """For display, where a run is its number."""
        return {**self._asdict(), "run": number_of(self.run)}


class Opened(NamedTuple):
    """What the coordinator knows of an attempt."""

    ns: int
    until: Literal["round", "evaluation", "closed"]
    """The kind of the Record that ends it; "closed": its end is when edges receive it."""


class Spans(Protocol):
    """Records spans."""

    def sampled(self, trace_id: int) -> bool:
        """Whether a trace that begins here is to be recorded."""

    def span(
        self,
        name: str,
        own: Context,
        parent: str,
        began_ns: int,
        ended_ns: int,
        facts: Mapping[str, Any],
    ) -> None:
        """One that has ended. parent: the span above it, "" for none. Times: Unix, ns."""


@dataclass(slots=True)
class _Part:
    """This node's part of an attempt: a span and what is needed to end it."""

    name: str
    own: Context
    parent: str
    began_ns: int
    until: str = ""
    over: bool = False
    traceparent: str = ""

    def __post_init__(self) -> None:
        self.traceparent = str(self.own)


@dataclass(slots=True)
class _Begun:
    """A span within a part."""

    name: str
    above: Context
    began_ns: int
    facts: dict[str, Any] = field(default_factory=dict)


_NAMED = frozenset(
    kind
    for kind in MESSAGE_FIELDS
    if {"run", "round", "attempt"} <= set(kind.DESCRIPTOR.fields_by_name)
)
#: From above: they give work, and so they bring the trace.
_ORDERS = (Task, EdgeTask, Flush)
_ABOVE = {
    ports.Tier.DEVICE: ports.Tier.EDGE,
    ports.Tier.EDGE: ports.Tier.CLOUD,
    ports.Tier.CLOUD: None,
}


def attempt_of(message: Message) -> At | None:
    """The attempt that a message is about."""
    if isinstance(message, EdgeTask):
        message = message.task
    if type(message) not in _NAMED:
        return None
    named: Any = message
    return At(named.run, named.round, named.attempt)


class Traces:
    """One node's traces; a Driver asks it about each event and effect, on one thread.

    spans: records them; None: the strings travel, and nothing is recorded. opened: of the node that
    begins traces, what it knows of an attempt (None: nothing).
    """

    def __init__(
        self,
        node: ports.Node,
        spans: Spans | None = None,
        opened: Callable[[At], Opened | None] | None = None,
    ) -> None:
        self._node, self._spans, self._opened = node, spans, opened
        self._parts: OrderedDict[At, _Part] = OrderedDict()
        self._own: dict[str, _Part] = {}  # by trace
        self._begun: OrderedDict[tuple[Any, ...], _Begun] = OrderedDict()

    # ------------------------------------------------ events

    def entering(self, event: ports.Event, traceparent: str, now: int) -> str:
        """The traceparent of what an event leads to. `traceparent`: what came with it."""
        match event:
            case ports.Received(sender, message):
                return self._heard(sender, message, traceparent, now)
            case ports.BlobStored(digest):
                begun = self._begun.get(("fetch", digest))
                self._end(("fetch", digest), now, intact=event.intact)
                return traceparent or (str(begun.above) if begun is not None else "")
            case ports.ProgramFinished(ticket, outcome):
                self._end(
                    ("program", ticket), now, stopped=isinstance(outcome, ports.ProgramStopped)
                )
        return traceparent

    def _heard(self, sender: ports.Node, message: Message, traceparent: str, now: int) -> str:
        if isinstance(message, Blob):
            begun = self._begun.get(("fetch", message.digest))
            return str(begun.above) if begun is not None else ""
        if isinstance(message, FetchBlob):
            said = parse(traceparent)
            part = self._own.get(said.trace) if said is not None else None
            return part.traceparent if part is not None else ""
        at = attempt_of(message)
        if at is None:
            return ""
        part = self._parts.get(at)
        if part is None and isinstance(message, _ORDERS) and sender.tier is _ABOVE[self._node.tier]:
            part = self._join(at, message, traceparent, now)
        if part is None:
            return ""
        if isinstance(message, UploadAck | EdgeSumAck):
            self._end(("upload", at, getattr(message, "part", 0)), now)
        if isinstance(message, UploadAck | RoundClosed):
            self._over(part, at, now)
        return part.traceparent

    def _join(self, at: At, message: Message, traceparent: str, now: int) -> _Part | None:
        above = parse(traceparent)
        if above is None:
            return None
        name = "task" if isinstance(message, Task) else "gather"
        own = above._replace(span=_hash(16, above.trace, str(self._node)))
        return self._remember(at, _Part(name, own, above.span, now))

    def _begin(self, at: At) -> _Part | None:
        """A trace begins here, or went on before this node was started again."""
        known = self._opened(at) if self._opened is not None else None
        if known is None:
            return None
        trace = _hash(32, *map(str, at), str(known.ns))
        sampled = self._spans is not None and self._spans.sampled(int(trace, 16))
        own = Context(trace, _hash(16, trace, str(self._node)), sampled)
        return self._remember(at, _Part("attempt", own, "", known.ns, known.until))

    def _remember(self, at: At, part: _Part) -> _Part:
        self._parts[at] = part
        self._own[part.own.trace] = part
        if len(self._parts) > ATTEMPTS_MAX:
            _, old = self._parts.popitem(last=False)
            self._own.pop(old.own.trace, None)
        return part

    # ------------------------------------------------ effects

    def leaving(self, effect: ports.Effect, traceparent: str, now: int) -> str:
        """The traceparent that an effect carries.

        `traceparent`: of the event that led to it, as `entering` has given it.
        """
        match effect:
            case ports.Send(_, message):
                return self._said(message, traceparent, now)
            case ports.RunProgram(ticket, program):
                self._start(("program", ticket), program, traceparent, now)
            case ports.Record(kind, facts):
                return self._recorded(kind, facts, traceparent, now)
        return traceparent

    def _said(self, message: Message, traceparent: str, now: int) -> str:
        if isinstance(message, FetchBlob):
            self._start(("fetch", message.digest), "fetch", traceparent, now)
            return traceparent
        at = attempt_of(message)
        if at is None:
            return ""  # a check-in after a task does not continue it
        part = self._parts.get(at) or self._begin(at)
        if part is None:
            return ""
        if isinstance(message, UploadMessage | EdgeSum):
            key = ("upload", at, getattr(message, "part", 0))
            self._start(key, "upload", part.traceparent, now)
        if isinstance(message, RoundClosed) and part.until == "closed":
            self._over(part, at, now, succeeded=message.succeeded)
        return part.traceparent

    def _recorded(self, kind: str, facts: Mapping[str, Any], traceparent: str, now: int) -> str:
        """A record's trace; one of the coordinator's ends an attempt."""
        if self._opened is None or kind not in ("round", "evaluation", "evaluation_skipped"):
            part = self._part_of(*(facts.get(name) for name in At._fields))
            return part.traceparent if part is not None else traceparent
        until = "round" if kind == "round" else "evaluation"
        for at, part in reversed(self._parts.items()):
            if number_of(at.run) == facts["run"] and part.until == until and not part.over:
                shown = {k: v for k, v in facts.items() if isinstance(v, bool | int | float | str)}
                self._over(part, at, now, **shown)
                return part.traceparent
        return traceparent

    def _part_of(self, run: Any, round: Any, attempt: Any) -> _Part | None:
        """The newest part of an attempt. run: a run's name, or its number."""
        if None in (run, round, attempt):
            return None
        for at, part in reversed(self._parts.items()):
            if run in (at.run, number_of(at.run)) and (round, attempt) == at[1:]:
                return part
        return None

    # ------------------------------------------------ spans

    def _start(self, key: tuple[Any, ...], name: str, traceparent: str, now: int) -> None:
        """Where it is repeated, the first time counts."""
        above = parse(traceparent)
        if above is None or key in self._begun:
            return
        self._begun[key] = _Begun(name, above, now)
        if len(self._begun) > SPANS_MAX:
            self._begun.popitem(last=False)

    def _end(self, key: tuple[Any, ...], now: int, **facts: Any) -> None:
        begun = self._begun.pop(key, None)
        if begun is None or self._spans is None or not begun.above.sampled:
            return
        # A second one in the same trace and span is another, by its beginning.
        span = _hash(16, begun.above.trace, begun.above.span, begun.name, str(begun.began_ns))
        own = begun.above._replace(span=span)
        shown = {"node": str(self._node), **facts}
        self._spans.span(begun.name, own, begun.above.span, begun.began_ns, now, shown)

    def _over(self, part: _Part, at: At, now: int, **facts: Any) -> None:
        if part.over:
            return
        part.over = True
        if part.parent:  # the coordinator records its attempts itself
            token = current.set(part.traceparent)
            told = {
                "node": str(self._node),
                **at.shown(),
                "took_ms": (now - part.began_ns) // ports.MS,
            }
            log.info("%s is over", part.name, extra=told)
            current.reset(token)
        if self._spans is not None and part.own.sampled:
            shown = {**facts, **at.shown(), "node": str(self._node)}
            self._spans.span(part.name, part.own, part.parent, part.began_ns, now, shown)


def _hash(digits: int, *words: str) -> str:
    """So many hexadecimal digits that are not all zero."""
    found = hashlib.sha256("\0".join(("delian", *words)).encode()).hexdigest()[:digits]
    return found if int(found, 16) else f"{1:0{digits}x}"
