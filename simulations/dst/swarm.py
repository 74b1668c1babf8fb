"""What a seed draws: a federation, its runs, and which faults it meets.

Swarm testing (Groce, Zhang, Eide, Chen, Regehr, ISSTA 2012): faults that are always all on hide one
another, so each seed leaves out many of them. A tenth of the seeds has none.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ...core.protocol.ports import CLOUD, Node, Tier
from .draws import Rng
from .hostile.attacks import BUNDLES, LOGGED, Attack, Scheme

#: Numbers in an update.
DIMENSION = 64
#: In one of so many seeds updates are masked; its cohorts have so many devices at least.
SECURE_EVERY = 4
#: Of which one in so many seeds has a buffered run whose updates helpers unmask.
HELPED_EVERY, HELPED_AT = 16, 8
COHORT_LEAST = 4
#: The share of seeds whose ring is narrower than 32 bits; and the fewest that hold a sum.
NARROW, BITS_LEAST = 0.4, 24
#: Every second of those has an attacker. Then a cohort has so many at least, a sum so many, and
#: this share of them may be colluders.
ATTACK_EVERY, ATTACK_AT = 8, 4
ATTACK_COHORT, ATTACK_SUM, ATTACK_CORRUPT = 7, 6, 0.34
#: The most devices of a federation with attacks: a few sessions show what comes of one.
ATTACK_DEVICES = (2 * ATTACK_COHORT, 2 * ATTACK_COHORT + 2)
#: How many others attack too; the share of these seeds without other faults, and the seconds
#: of their attacks.
TOGETHER = (0, 0, 0, 1, 1, 2)
CALM, CALM_S = 0.85, 60.0
#: The synchronous run, and the buffered one that some seeds have in addition.
ROUNDS_RUN, BUFFERED_RUN = 1, 2


@dataclass(frozen=True, slots=True)
class Partition:
    """From `from_s` to `to_s` nothing goes from `a` to `b`; nor back where `both`."""

    from_s: float
    to_s: float
    a: frozenset[Node]
    b: frozenset[Node]
    both: bool


@dataclass(frozen=True, slots=True)
class Order:
    """Something that an operator or owner says."""

    at_s: float
    who: Node
    """The node that receives it."""
    what: str


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """The faults of one seed; by default none. All end at `heal_s` but where it is said."""

    heal_s: float = 0.0
    """When they end, in s; 0: there are none but where it is said."""
    latency_s: float = 0.02
    """Of a message between processes, one way, in s."""
    jitter_s: float = 0.005
    """Mean of what comes to the latency, exponential."""
    loss: float = 0.0
    """Chance, by message, that it does not arrive."""
    duplication: float = 0.0
    """Chance, by message, that it arrives twice."""
    corruption: float = 0.0
    """Chance, by message, that it is damaged."""
    stale: float = 0.0
    """Chance, by message, that it comes again, `stale_s` later on average, healed or not."""
    stale_s: float = 60.0
    """The mean of that delay, in s."""
    wire: bool = False
    """All messages are really encoded."""
    claim: bool = False
    """Blobs are put into the store by the transport, and named."""
    asleep: frozenset[int] = frozenset()
    """Devices that come up when the faults heal.

    Until then the few others are selected again and again.
    """
    partitions: tuple[Partition, ...] = ()
    """Which nodes cannot reach which, and when."""
    mortal: frozenset[Node] = frozenset()
    """Nodes that may crash."""
    crash: float = 0.0
    """Chance, by batch of a mortal node, that it crashes."""
    power: float = 0.5
    """The share of crashes that lose what was not synced."""
    down_s: float = 3.0
    """How long a node is down, on average."""
    kills: tuple[tuple[float, Node], ...] = ()
    """(s, node)."""
    wipes: tuple[tuple[float, int], ...] = ()
    """(s, edge), which loses its disk."""
    gone: tuple[tuple[float, int], ...] = ()
    """(s, edge), which is never seen again."""
    full: tuple[tuple[float, Node, float], ...] = ()
    """(s, node, until), its journal's disk is full."""
    append_s: float = 0.0
    """What an append takes, on average."""
    checkpoint_entries: int = 200
    """Entries of a journal after which a node writes a checkpoint."""
    offset_s: float = 0.0
    """Bound of the error of clocks."""
    drift_ppm: int = 0
    """Bound of the error of clocks' rates, in parts per million."""
    clock_set: float = 0.0
    """How likely a restart finds the clock set."""
    slow: dict[Node, float] = field(default_factory=dict)
    """Node -> factor."""
    no_room: float = 0.0
    """Chance, by blob that is put, that there is no room for it."""
    train_s: float = 2.0
    """How long a training takes, on average, in s."""
    train_fails: float = 0.0
    """Chance, by program, that a training fails."""
    train_hangs: float = 0.0
    """Chance, by program, that a training does not end."""
    update_fails: float = 0.0
    """Chance, by program of the coordinator or an edge, that it fails."""
    liars: frozenset[int] = frozenset()
    """Devices whose damaged messages arrive."""
    brokers: tuple[float, ...] = ()
    """When it restarts."""
    inbox: int = 4_096
    """Events that wait, at most."""
    scheme: Scheme | None = None
    """What a coordinator or an edge attacks."""
    together: tuple[Scheme, ...] = ()
    """What others attack with it."""
    loose: bool = False
    """A cancelled timer may fire all the same."""
    settle: bool = False
    """Whether the world goes on long after all runs: nothing may be held for them then."""

    @property
    def schemes(self) -> tuple[Scheme, ...]:
        """All attacks, the first first."""
        return () if self.scheme is None else (self.scheme, *self.together)


@dataclass(frozen=True, slots=True)
class Shape:
    """The federation and its work. See `cloud.protocol.run_plan.RunPlan` for a run's part."""

    devices: int
    edges: int
    homes: dict[int, tuple[int, ...]]
    rounds: int
    cohort: int
    over_selection: float
    reports_min: int
    attempts_max: int
    round_s: float
    wait_s: float
    rest_s: float
    pool_min: int
    evaluate_every: int
    patience: int
    memory: bool
    buffer: int
    concurrency: int
    staleness_max: int
    ready_per_edge_max: int
    devices_max: int
    sum_bytes_max: int
    lease_s: float
    secure: bool = False
    """Updates are masked, of cohorts small enough that many seeds can be, and some rounds of
    several (cohorts).
    """
    cohorts: int = 0
    sum_min: int = 3
    """The devices of a sum at least, as plan and owners have it."""
    corrupt: float = 0.1
    """The share that a plan bears."""
    bits: int = 32
    """Of the ring."""
    helpers: int = 0
    """Further edges, which hold what unmasks the buffered run."""
    orders: tuple[Order, ...] = ()


def draw(seed: int, devices: int, edges: int, hostile: bool = False) -> tuple[Shape, FaultPlan]:
    """What the seed is about. hostile: each seed has an attacker; else in one of ATTACK_EVERY."""
    rng = Rng(seed, "swarm")
    attacks = devices >= 2 * ATTACK_COHORT and (
        hostile or (seed % ATTACK_EVERY == ATTACK_AT and seed % 10 > 0)
    )
    if attacks and devices > ATTACK_DEVICES[1]:
        devices = Rng(seed, "fleet").whole(*ATTACK_DEVICES)
    shape = _shape(rng, devices, edges)
    narrow = Rng(seed, "ring")
    if narrow.chance(NARROW):
        shape = replace(shape, bits=narrow.whole(BITS_LEAST, 31))
    if (attacks or seed % SECURE_EVERY == 0) and devices >= COHORT_LEAST:
        shape = _masked(Rng(seed, "masks"), shape)
        if seed % HELPED_EVERY == HELPED_AT:
            shape = _helped(Rng(seed, "helpers"), shape)
    if attacks:
        return _hostile(Rng(seed, "plots"), rng, shape)
    if seed % 10 == 0:
        return shape, FaultPlan(settle=True)
    return shape, _faults(rng, shape)


def _hostile(rng: Rng, others: Rng, shape: Shape) -> tuple[Shape, FaultPlan]:
    """A seed with an attacker, drawn by `rng`; most of these have no other faults.

    others: draws the other faults, if there are any.
    """
    shape = attacked(rng, shape)
    first = _scheme(rng, shape)
    attacks = {first.attack: first}
    for _ in range(rng.choice(TOGETHER)):
        one = _scheme(rng, shape)
        # They share the keys of the same devices: no more than the plan bears.
        # A task has one bundle, and a cohort one log.
        if not any(one.attack in kind and kind & attacks.keys() for kind in (BUNDLES, LOGGED)):
            attacks.setdefault(one.attack, replace(one, colluders=first.colluders))
    together = tuple(attacks.values())[1:]
    if rng.chance(CALM):
        shape = replace(shape, orders=(), rounds=2, pool_min=0, round_s=16.0)
        if rng.chance(0.7):
            shape = replace(shape, buffer=0, concurrency=0, evaluate_every=0, patience=0)
        return shape, FaultPlan(heal_s=CALM_S, scheme=first, together=together)
    # Faulty devices would be corrupt ones in addition to those that are counted.
    faults = replace(_faults(others, shape), liars=frozenset())
    return shape, replace(faults, scheme=first, together=together)


def attacked(rng: Rng, shape: Shape) -> Shape:
    """A masked federation in which a share of each cohort may attack."""
    cohort = rng.whole(ATTACK_COHORT, ATTACK_COHORT + 3)
    return replace(
        shape,
        cohorts=0,
        cohort=cohort,
        over_selection=1.0,
        reports_min=ATTACK_SUM,
        buffer=ATTACK_SUM if shape.buffer else 0,
        concurrency=rng.whole(cohort, 2 * cohort) if shape.buffer else 0,
        ready_per_edge_max=shape.devices,
        sum_min=ATTACK_SUM,
        helpers=0,
        corrupt=ATTACK_CORRUPT,
    )


def _scheme(rng: Rng, shape: Shape) -> Scheme:
    edge, attack = rng.below(shape.edges), rng.choice(tuple(Attack))
    cloud = rng.chance(0.6) or attack in BUNDLES or attack is Attack.WITHHELD_DENY_LIST
    return Scheme(
        attack=attack,
        where=CLOUD if cloud else Node(Tier.EDGE, edge),
        sessions=rng.whole(1, 3),
        colluders=colluders(rng, shape),
    )


def colluders(rng: Rng, shape: Shape) -> frozenset[int]:
    """As many devices as the smallest sum bears."""
    numbers = list(range(shape.devices))
    rng.shuffle(numbers)
    return frozenset(numbers[: int(shape.corrupt * shape.sum_min)])


def _shape(rng: Rng, devices: int, edges: int) -> Shape:
    # From a few devices to nearly all: those are selected again at once.
    cohort = rng.whole(2, max(2, int(devices * rng.choice((0.1, 0.1, 0.3, 0.9)))))
    buffered = rng.chance(0.35)
    buffer = rng.whole(2, max(2, devices // 10)) if buffered else 0
    evaluates = rng.chance(0.35)
    ready = max(3, devices // edges // 2) if rng.chance(0.2) else devices
    round_s = rng.choice((8.0, 16.0, 32.0))
    return Shape(
        devices=devices,
        edges=edges,
        homes=_homes(rng, devices, edges),
        rounds=rng.whole(2, 6),
        cohort=cohort,
        over_selection=1.0 if 2 * cohort > devices else rng.choice((1.0, 1.3, 1.6)),
        # Not more than one edge may have ready: the others may be gone.
        reports_min=rng.whole(1, max(1, min(cohort // 2, ready))),
        # Mostly so many that no run gives up before the faults heal.
        attempts_max=3 if rng.chance(0.1) else 500,
        round_s=round_s,
        wait_s=rng.between(5, 20),
        rest_s=rng.choice((0.5, 1.0, 3.0)),
        pool_min=devices // 3 if rng.chance(0.1) else 0,
        evaluate_every=rng.whole(1, 2) if evaluates else 0,
        patience=2 if evaluates and rng.chance(0.3) else 0,
        memory=rng.chance(0.5),
        buffer=buffer,
        concurrency=rng.whole(buffer, 3 * buffer) if buffered else 0,
        staleness_max=rng.whole(1, 3),
        ready_per_edge_max=ready,
        devices_max=max(8, devices // 2) if rng.chance(0.2) else 20_000,
        # Room for two or three sums.
        sum_bytes_max=3 * 4 * (DIMENSION + 1) if rng.chance(0.1) else 2**30,
        lease_s=rng.choice((20.0, 60.0, 120.0)),
        orders=_orders(rng, devices, edges, buffered),
    )


def _masked(rng: Rng, shape: Shape) -> Shape:
    """The same with masked updates: rounds and waves of a few devices."""
    cohort = min(rng.whole(COHORT_LEAST, 9), shape.devices)
    buffer = min(cohort, 6) if shape.buffer else 0
    concurrency = rng.whole(buffer, 2 * buffer) if buffer else 0
    cohorts = rng.whole(2, 3) if rng.chance(0.5) and shape.devices >= 3 * COHORT_LEAST else 0
    return replace(
        shape,
        secure=True,
        cohorts=cohorts,
        cohort=max(cohort, cohorts * COHORT_LEAST),
        reports_min=min(shape.reports_min, COHORT_LEAST),
        buffer=buffer,
        concurrency=concurrency,
        # A session is many messages one after the other.
        round_s=max(16.0, shape.round_s),
    )


def _helped(rng: Rng, shape: Shape) -> Shape:
    """The same with a buffered run, whose updates one or two helpers unmask."""
    buffer = shape.buffer or min(shape.cohort, 6)
    concurrency = shape.concurrency or rng.whole(buffer, 2 * buffer)
    return replace(shape, buffer=buffer, concurrency=concurrency, helpers=rng.whole(1, 2))


def _homes(rng: Rng, devices: int, edges: int) -> dict[int, tuple[int, ...]]:
    """Each device's edges, its own first."""
    homes = {}
    for device in range(devices):
        others = list(range(edges))
        rng.shuffle(others)
        homes[device] = tuple(others[: rng.whole(2 if edges > 1 else 1, edges)])
    return homes


def _orders(rng: Rng, devices: int, edges: int, buffered: bool) -> tuple[Order, ...]:
    if rng.chance(0.5):
        return ()
    orders = []
    runs = (ROUNDS_RUN, BUFFERED_RUN) if buffered else (ROUNDS_RUN,)
    for _ in range(rng.whole(1, 6)):
        at = rng.between(1, 60)
        kind = rng.unit()
        if kind < 0.5:
            run = rng.choice(runs)
            what = rng.choice(("pause", "pause", "weights", "weights", "cancel", "nonsense"))
            orders.append(Order(at, CLOUD, f"{what} {run}"))
            if what == "pause":
                orders.append(Order(at + rng.between(0.1, 30), CLOUD, f"resume {run}"))
        elif kind < 0.6:
            edge = Node(Tier.EDGE, rng.below(edges))
            orders.append(Order(at, edge, "drain"))
            orders.append(Order(at + rng.between(1, 40), edge, "serve"))
        elif kind < 0.68:
            number = rng.below(edges)
            orders.append(Order(at, CLOUD, f"withdraw {number}"))
            orders.append(Order(at + rng.between(1, 40), CLOUD, f"readmit {number}"))
        elif kind < 0.75:
            edge = Node(Tier.EDGE, rng.below(edges))
            revoked = rng.some(range(devices), 0.3)
            orders.extend(Order(at, edge, f"forget {device}") for device in revoked)
            orders.append(Order(at, CLOUD, f"deny {1 + rng.below(9)}"))
        else:
            for device in rng.some(range(devices), 0.2):
                node = Node(Tier.DEVICE, device)
                what = rng.choice(("homes", "unplugged", "no consent", "no consent"))
                orders.append(Order(at, node, what))
                if what != "homes":
                    orders.append(Order(at + rng.between(1, 30), node, "as before"))
    return tuple(sorted(orders, key=lambda o: (o.at_s, o.who, o.what)))


def _faults(rng: Rng, shape: Shape) -> FaultPlan:
    heal = rng.between(20, 90)
    gathering = [Node(Tier.EDGE, e) for e in range(1, shape.edges)]
    tiers = [*gathering, *(Node(Tier.EDGE, shape.edges + h) for h in range(shape.helpers))]
    devices = [Node(Tier.DEVICE, d) for d in range(shape.devices)]
    nodes = [CLOUD, *tiers, *devices]
    on, between = rng.chance, rng.between
    rough = on(0.6)
    mortal: set[Node] = set()
    if on(0.6):
        mortal.update(rng.some((CLOUD, *tiers), 0.6))
        mortal.update(rng.some(devices, rng.choice((0.0, 0.0, 0.1, 0.3))))
    kills = tuple((between(0, heal), rng.choice(nodes)) for _ in range(rng.whole(1, 8)))
    wipes = tuple((between(0, heal), e.number) for e in rng.some(tiers, 0.5)) if on(0.2) else ()
    # Without a helper nothing is ever unmasked.
    lost = rng.choice(gathering).number if gathering else 0
    few = max(4, int(shape.cohort * shape.over_selection * between(1.0, 1.5)))
    asleep = range(few, shape.devices) if on(0.3) else ()
    gone = ((between(0, heal), lost),) if gathering and on(0.1) else ()
    return FaultPlan(
        heal_s=heal,
        latency_s=rng.choice((0.002, 0.02, 0.2)),
        jitter_s=rng.choice((0.001, 0.05, 0.5, 2.0, 6.0)),
        loss=between(0, 0.3) if rough and on(0.6) else 0.0,
        duplication=between(0, 0.3) if rough and on(0.5) else 0.0,
        corruption=between(0, 0.1) if on(0.2) else 0.0,
        stale=between(0, 0.3) if on(0.35) else 0.0,
        stale_s=rng.choice((2.0, 8.0, 30.0, 120.0)),
        wire=on(0.15),
        claim=on(0.5),
        asleep=frozenset(asleep),
        partitions=_partitions(rng, heal, nodes) if on(0.4) else (),
        mortal=frozenset(mortal),
        crash=rng.choice((0.003, 0.01, 0.03)),
        power=rng.choice((0.0, 0.5, 1.0)),
        down_s=rng.choice((0.2, 3.0, 15.0)),
        kills=kills if on(0.3) else (),
        wipes=wipes,
        gone=gone,
        full=_full(rng, heal, nodes) if on(0.15) else (),
        append_s=rng.choice((0.0, 0.002, 0.02)),
        checkpoint_entries=rng.choice((10, 40, 200)),
        offset_s=rng.choice((0.0, 1.0, 3600.0)),
        drift_ppm=rng.choice((0, 200, 20_000)),
        clock_set=0.5 if on(0.2) else 0.0,
        slow={n: between(2, 50) for n in rng.some(nodes, 0.1)} if on(0.3) else {},
        no_room=between(0, 0.2) if on(0.15) else 0.0,
        train_s=rng.choice((0.5, 2.0, 8.0, shape.round_s / 2)),
        train_fails=between(0, 0.3) if on(0.4) else 0.0,
        train_hangs=between(0, 0.1) if on(0.3) else 0.0,
        update_fails=between(0, 0.5) if on(0.15) else 0.0,
        liars=frozenset(rng.below(shape.devices) for _ in range(3)) if on(0.15) else frozenset(),
        brokers=tuple(between(0, heal) for _ in range(rng.whole(1, 3))) if on(0.25) else (),
        inbox=rng.choice((8, 64)) if on(0.1) else 4_096,
        loose=on(0.3),
        settle=bool(gone) or on(0.4),
    )


def _partitions(rng: Rng, heal: float, nodes: list[Node]) -> tuple[Partition, ...]:
    """Between any two nodes, or between parts of the federation."""
    found = []
    for _ in range(rng.whole(1, 5)):
        start = rng.between(0, heal)
        end = min(heal, start + rng.between(1, 30))
        if rng.chance(0.6):
            # An edge from the cloud, or from some of its devices.
            tops = [n for n in nodes if n.tier is not Tier.DEVICE]
            a = frozenset([rng.choice(tops)])
            rest = [n for n in nodes if n not in a]
            b = frozenset(rng.some(rest, rng.choice((0.3, 1.0))))
        else:
            share = rng.between(0.1, 0.5)
            a = frozenset(rng.some(nodes, share))
            b = frozenset(n for n in nodes if n not in a)
        a, b = (b, a) if rng.chance(0.5) else (a, b)
        found.append(Partition(start, end, a, b, rng.chance(0.6)))
    return tuple(found)


def _full(rng: Rng, heal: float, nodes: list[Node]) -> tuple[tuple[float, Node, float], ...]:
    found = []
    for _ in range(rng.whole(1, 3)):
        node = rng.choice(nodes[:4] if rng.chance(0.7) else nodes)
        start = rng.between(0, heal)
        found.append((start, node, min(heal, start + rng.between(1, 20))))
    return tuple(found)
