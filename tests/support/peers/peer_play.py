"""Plays one row of the tables, and looks at everything afterwards."""

from __future__ import annotations

import gc

import pytest

from support.peers import bad_manners, bad_mqtt, bad_names, bad_words
from support.peers.peer_hosts import Usage
from support.peers.peer_scene import Row, Scene
from support.peers.peer_world import HONEST, World

ROWS = [*bad_words.ROWS, *bad_manners.ROWS, *bad_names.ROWS, *bad_mqtt.ROWS]
#: Lines of log that one bad peer may be worth.
LINES_MAX = 60
#: MiB by which one bad peer may make a process grow.
GROWTH_MIB = 16


async def play(world: World, row: Row) -> None:
    if row.by_mqtt and world.broker is None:
        pytest.skip("mosquitto is not installed")
    before, logs = await world.counts(row.home), world.logs(row.home)
    logged = [len(lines) for lines in logs]
    usage = world.usage()
    round_ = await world.round(row.members, row.counted, row.deadline_ms)
    scene = Scene(world, round_, world.new_number(), row.home)
    if not row.members:
        await round_.under_way()
        round_.harm_ms = int(world.now_s() * 1000)
    await row.attack(scene)
    await round_.end()
    counted = [scene.number][: row.counted]
    round_.check(counted, len(HONEST) + row.members, row.at_deadline)
    must = not (row.slowed and world.outside)
    for name in row.refused if must else ():
        await world.until(lambda name=name: grown(world, row, before, name), f"for {name}")
    wanted = row.logged if row.logged is not None else f"{row.refused[0]} from {scene.who}"

    def lines() -> list[str]:
        told = zip(world.logs(row.home), logged, strict=True)
        return [line for each, start in told for line in each[start:]]

    # The counter may have grown by the refusal of the peer before it, which came late.
    if must:
        await world.until(lambda: any(wanted in line for line in lines()), f"for {wanted!r}")
    assert len(lines()) < LINES_MAX, "a bad peer fills the log"
    await world.until(lambda: settled(world, usage), f"for its traces to go: {usage}")
    for host in (world.cloud, world.edge):
        host.check()


async def grown(world: World, row: Row, before: dict[str, float], name: str) -> bool:
    """Whether a counter is higher than it was."""
    where, _, kind = name.rpartition(": ")
    where = str(row.home) if where == "node" else where or "grpc"
    key = f"{where}: {kind}"
    return (await world.counts(row.home)).get(key, 0) > before.get(key, 0)


def settled(world: World, before: dict[str, Usage]) -> bool:
    """Whether nothing is left that was not there before."""
    for name, now in world.usage().items():
        then = before[name]
        if now.files > then.files + world.slack:
            gc.collect()  # this side's calls keep connections open
            return False
        if now.held > then.held:
            return False
        if now.tasks is not None and now.tasks > (then.tasks or 0) + world.slack:
            return False
        # This process holds the bad peers too.
        assert not world.outside or now.rss - then.rss < GROWTH_MIB << 10, (then, now)
    return True
