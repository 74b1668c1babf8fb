"""`docs/protocol.md` from the machines: their tables, and one round as the simulator saw it."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from delian.cloud.protocol import buffered_machine as buffered
from delian.cloud.protocol import machine as coordinator
from delian.cloud.protocol import rounds_machine as rounds
from delian.core.privacy.mechanisms.ring import RingPlan
from delian.core.protocol.machine import Row
from delian.core.protocol.ports import Event, Node, ProgramFinished, Received, Tier
from delian.device.protocol import machine as device
from delian.edge.protocol import collection
from delian.edge.protocol import machine as edge
from delian.simulations.federation.federation import Federation
from delian.simulations.federation.fleet import Fleet
from delian.simulations.federation.network import LinkProfile
from delian.simulations.federation.nodes import Host
from delian.simulations.scenario.federation_plan import FederationPlan

from support.stub_training import StubTraining

INTRODUCTION = """\
# The protocol

Each tier is a state machine without I/O: `handle(event, now)` gives effects, and a driver carries
them out, a daemon or the simulator. This page is made from the machines' own tables, by
`python tests/house/generated.py`; `proto/` describes the messages field by field.

- **Delivery** is at least once, in no order. A node that needs an answer sends again, with growing
  pauses; each request is answered. Updates are identified by (run, round, attempt, device), so none
  is counted twice.
- **A run's name** in messages is its number and, above 32 bits, the time of the coordinator's start
  after which an attempt was opened. When a coordinator is restored from an older copy, the state
  that edges and devices hold of its lost history is therefore that of another run. An attempt that
  was opened before a start continues under its name. A run with a privacy promise keeps its name,
  because no device may take part in one of its rounds twice.
- **Addition is in the ring** of integers modulo 2^32. A device clips its update, multiplies it by
  its weight, scales it, rounds it at random and uploads D + 1 elements, the last of which is the
  weight. An edge keeps one running sum; the coordinator adds the edges' sums and divides. Sums are
  exact: order and grouping do not matter, and masks that cancel in the sum change nothing.
- **With masks** an attempt is a session of secure aggregation alongside the round: keys and shares
  go up and down while devices train, edges forward them, and the sums are opened when their
  members have given their shares. `docs/secure_aggregation.md` describes it byte by byte.
- **Frozen leaves** of a model travel as blobs of their own, next to bundle and weights: a task
  names their parts by SHA-256, in the order of the bundle's manifest. Edges and devices fetch those
  that they do not have, a few at a time, and keep them with the bundles for later rounds and other
  runs. The least recently used ones make room; what open tasks need is never dropped. A device
  whose store or disk has no room for bundle, weights and parts together declines by `NO_ROOM`
  before it fetches anything; an edge without room answers by an empty sum. A part that is missing
  or damaged on a device is fetched again before the training begins.
- **A round** ends when enough updates are with the edges, when every edge has reported, or when its
  time is over. Too few updates fail the attempt, and the round is tried again from the same
  weights.
- **Without rounds** (a buffered run) devices work all the time, in waves that begin from the newest
  model. When the edges have enough updates, the coordinator requests a part of each wave's sum;
  the waves continue. Older updates have less weight.
- **An evaluation** is an attempt whose vector holds metrics: how the newest model does on a device,
  and the device's own, made from it. It is summed like any update.
- **Several runs** share one pool of devices. The run that took devices longest ago is first. Each
  run takes devices that the runs before it do not wait for; a run that can use fewer devices takes
  an equal share.
- **Times on the wire are durations**: no two clocks need to agree.
- In every phase, what is late, repeated or of no use is counted and ignored. What is in no table is
  a protocol error: the driver drops the message and counts it against its sender.
"""

TABLES = (
    ("The device", device.TABLE),
    ("The edge", edge.TABLE),
    ("An attempt at an edge", collection.TABLE),
    ("The coordinator", coordinator.TABLE),
    ("A run in rounds", rounds.TABLE),
    ("A buffered run", buffered.TABLE),
)


def page() -> str:
    """The whole page."""
    parts = [
        INTRODUCTION,
        "## One round\n",
        "Two devices behind one edge; the first of two rounds, as the simulator saw it.\n",
        _fenced(sequence()),
    ]
    for name, table in TABLES:
        parts += [f"## {name}\n"]
        if any(r.next not in (None, *r.phases) for r in table):
            parts += [_fenced(diagram(table))]
        parts += [rows(table)]
    return "\n".join(parts)


def _fenced(text: str) -> str:
    return f"```mermaid\n{text}\n```\n"


def diagram(table: Sequence[Row]) -> str:
    """A table's changes of phase as a Mermaid state diagram.

    What stays in its phase is in the table.
    """
    lines = ["stateDiagram-v2"]
    arrows: dict[tuple[StrEnum, StrEnum], list[str]] = {}
    for r in table:
        for phase in r.phases:
            if r.next is not None and r.next is not phase:
                arrows.setdefault((phase, r.next), []).append(r.trigger.value)
    names = dict.fromkeys(phase for pair in arrows for phase in pair)
    lines += [f'    state "{phase}" as {_id(phase)}' for phase in names]
    for (phase, following), triggers in arrows.items():
        # Mermaid ends a label at a semicolon; a comma reads as well.
        lines.append(f"    {_id(phase)} --> {_id(following)}: {', '.join(dict.fromkeys(triggers))}")
    return "\n".join(lines)


def _id(phase: StrEnum) -> str:
    return phase.value.replace(" ", "_")


def rows(table: Sequence[Row]) -> str:
    """A table as Markdown."""
    lines = ["| in | when | then | it does |", "|---|---|---|---|"]
    everywhere = max(len(r.phases) for r in table)
    for r in table:
        where = "any" if len(r.phases) == everywhere else ", ".join(r.phases)
        following = "" if r.next is None else r.next.value
        lines.append(f"| {where} | {r.trigger} | {following} | {r.name}: {r.why} |")
    return "\n".join(lines) + "\n"


def sequence() -> str:
    """One round as a Mermaid sequence diagram, drawn from what machines received."""
    ring = RingPlan(clip=1.0, clients_max=4, dimension=1000)
    fleet = Fleet(devices=2, edges=1, link=LinkProfile(latency_ms=20.0))
    plan = FederationPlan.of(ring, fleet, rounds=2, cohort=2, over_selection=1.0)
    lines: list[str] = []

    def observe(now: int, host: Host, event: Event) -> None:
        if isinstance(event, Received):
            message = type(event.message).__name__
            lines.append(f"    {_actor(event.sender)}->>{_actor(host.node)}: {message}")
        elif isinstance(event, ProgramFinished):
            what = "server update" if host.node.tier is Tier.CLOUD else "client update"
            lines.append(f"    Note over {_actor(host.node)}: {what}")

    federation = Federation(plan, StubTraining(ring), seed=1, observer=observe)
    federation.run(lambda record: federation.stop())
    actors = ["cloud", "edge", "device0", "device1"]
    head = ["sequenceDiagram", *(f"    participant {a}" for a in actors)]
    return "\n".join(head + lines)


def _actor(node: Node) -> str:
    return f"device{node.number}" if node.tier is Tier.DEVICE else node.tier.value
