"""The same bad peers against daemons that are processes: none makes a daemon grow, or leaves it a
file.
"""

from __future__ import annotations

import pytest
from support.peers.peer_play import ROWS, play
from support.peers.peer_scene import Row
from support.peers.peer_world import World


@pytest.mark.slow
@pytest.mark.parametrize("row", [r for r in ROWS if not r.inside], ids=lambda row: row.name)
def test_a_bad_peer_makes_no_daemon_grow(processes: World, row: Row) -> None:
    processes.run(play(processes, row))
