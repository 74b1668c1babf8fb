"""Runs seeds, and says what failed and how to see it again."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from google.protobuf.text_format import MessageToString

from ...core.protocol.ports import Event, Node, Ordered, Received
from .oracles.edge_book import OracleFailure
from .swarm import draw
from .world import World

SEEDS, DEVICES, EDGES = 500, 64, 3
#: Events that are shown of those before a failure.
SHOWN = 40


@dataclass(frozen=True, slots=True)
class Failure:
    """What a seed has shown."""

    seed: int
    oracle: str
    """Which one failed; "machine": a node stopped by itself."""
    what: str
    last: tuple[str, ...]


@dataclass(slots=True)
class Report:
    """What came of some seeds."""

    seeds: int = 0
    """How many were run."""
    events: int = 0
    """That machines have handled."""
    cpu_s: float = 0.0
    """Of the processes that ran them."""
    counts: Counter[str] = field(default_factory=Counter)
    """Of all worlds, added up."""
    failures: list[Failure] = field(default_factory=list)
    """What did not hold, in the order of seeds."""
    slowest: tuple[float, int] = (0.0, 0)
    """CPU seconds of the slowest seed, and its number."""
    traces: str = ""
    """SHA-256 over `traces` of the seeds before and the seed's own trace."""

    @property
    def failure(self) -> Failure | None:
        """The first."""
        return self.failures[0] if self.failures else None


def run_seed(seed: int, devices: int = DEVICES, edges: int = EDGES, hostile: bool = False) -> World:
    """A world that went through its seed.

    Raises what it found; `world.last` of OracleFailure and any other fault are noted on the
    exception.
    """
    shape, faults = draw(seed, devices, edges, hostile)
    world = World(seed, shape, faults)
    try:
        world.run()
    except Exception as fault:
        fault.world = world  # type: ignore[attr-defined]
        raise
    return world


def check_seed(
    seed: int, devices: int = DEVICES, edges: int = EDGES, hostile: bool = False
) -> World | Failure:
    """The world that held, or what did not hold."""
    try:
        return run_seed(seed, devices, edges, hostile)
    except OracleFailure as fault:
        return Failure(seed, fault.oracle, fault.what, _last(fault))
    except Exception as fault:  # whatever stops a node is a finding
        what = f"{type(fault).__name__}: {fault}"
        return Failure(seed, "machine", what, _last(fault))


def check_seeds(
    seeds: Iterable[int],
    devices: int = DEVICES,
    edges: int = EDGES,
    on_seed: Callable[[Report], None] | None = None,
    *,
    hostile: bool = False,
    report: Report | None = None,
    failures_max: int = 1,
) -> Report:
    """Runs seeds until `failures_max` have failed.

    hostile: of `draw`. report: of the seeds before, to which these are added.
    """
    report = Report() if report is None else report
    for seed in seeds:
        begun = time.process_time()
        found = check_seed(seed, devices, edges, hostile)
        took = time.process_time() - begun
        report.seeds += 1
        report.cpu_s += took
        report.slowest = max(report.slowest, (took, seed))
        if isinstance(found, Failure):
            report.failures.append(found)
        else:
            report.events += found.events
            report.counts.update(found.counts)
            both = report.traces + found.trace.hexdigest()
            report.traces = hashlib.sha256(both.encode()).hexdigest()
        if len(report.failures) >= failures_max:
            break
        if on_seed is not None:
            on_seed(report)
    return report


def replay_command(seed: int, devices: int, edges: int, hostile: bool = False) -> str:
    """What shows a failure again."""
    command = f"delian dst --seed {seed} --devices {devices} --edges {edges}"
    return f"{command} --hostile" if hostile else command


def _last(fault: Exception) -> tuple[str, ...]:
    world: World | None = getattr(fault, "world", None)
    if world is None:
        return ()
    return tuple(line(*item) for item in list(world.last)[-SHOWN:])


def line(now: int, node: Node, event: Event) -> str:
    """An event as people read it."""
    if isinstance(event, Received):
        what = f"{type(event.message).__name__} from {event.sender} {_short(event.message)}"
    elif isinstance(event, Ordered):
        what = f"{type(event.order).__name__} {_short(event.order)}"
    else:
        what = str(event)
    return f"{now / 1e9:10.4f} s  {node!s:10}  {what[:160]}"


def _short(message: object) -> str:
    text: str = MessageToString(message, as_one_line=True)  # type: ignore[arg-type]
    return text[:110]
