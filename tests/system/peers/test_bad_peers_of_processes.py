"""The same bad peers against daemons that are processes: none makes a daemon grow, or leaves it a
file.
"""

from __future__ import annotations

import pytest
from support.peers.peer_play import ROWS, play
from support.peers.peer_scene import Row
from support.peers.peer_world import World

#: One for each kind of wiring, in the gate; the others are slow.
QUICK = (
    "oversized message",
    "wrong digest",
    "never reads",
    "flood of calls",
    "without tls",
    "revoked",
    "plays operator at edge 0",
    "unsealed by mqtt",
    "flood of births by mqtt",
    "token used before at cloud",
)
CASES = [
    pytest.param(row, id=row.name, marks=[] if row.name in QUICK else pytest.mark.slow)
    for row in ROWS
    if not row.inside
]
assert sum(not case.marks for case in CASES) == len(QUICK)


@pytest.mark.parametrize("row", CASES)
def test_a_bad_peer_makes_no_daemon_grow(processes: World, row: Row) -> None:
    processes.run(play(processes, row))
