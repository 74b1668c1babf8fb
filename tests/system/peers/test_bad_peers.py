"""One bad peer after the other, in the middle of a round: each is refused, counted and logged, the
honest devices' round is whole and exact, and nothing is left of the peer. These need real links, or
the daemons around them; `tests/simulation/peers` has the others.
"""

from __future__ import annotations

import pytest
from support.peers.peer_play import ROWS, play
from support.peers.peer_scene import Row
from support.peers.peer_world import World

CASES = [pytest.param(row, id=row.name) for row in ROWS if row.real]


@pytest.mark.parametrize("row", CASES)
def test_a_bad_peer_is_refused_and_the_round_is_exact(world: World, row: Row) -> None:
    world.run(play(world, row))
