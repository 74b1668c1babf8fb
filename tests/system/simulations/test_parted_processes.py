"""A cut model over real processes: the link changes under it, the edge is killed, nothing is lost.

How fast it is belongs to `benchmarks/subgraphs.py`; here every answer is there, and right.
"""

from __future__ import annotations

from hashlib import sha256

import pytest
from delian.core.node.net.mqtt import broker as brokers
from support.processes.parted import Case, Tiers, slowed

BROKER = brokers.mosquitto_path() is not None


@pytest.fixture(scope="module")
def case() -> Case:
    return slowed(Case())


@pytest.fixture(scope="module")
def tiers(tmp_path_factory, case):
    with Tiers(tmp_path_factory.mktemp("parted"), case, broker=BROKER) as made:
        yield made


def test_no_request_is_lost_while_the_link_changes_and_the_cut_moves(tiers, case):
    told = tiers.ask(
        120,
        {
            40: lambda: tiers.link.change(case.shape(0.005)),
            80: lambda: tiers.link.change(case.shape()),
        },
    )
    assert told.lost == 0 and told.right == len(told.records) == 120
    assert told.answered.get("part", 0) > 40
    # What each cut sends up. A machine that stops now and then looks like a slow link: then the cut
    # may have been elsewhere already.
    up = {sha256(piece.cut).hexdigest(): piece.up[0] for piece in tiers.plan.pieces}
    fast = tiers.plan.pieces[tiers.plan.at(case.bandwidth)].up[0]
    before = up[told.records[39]["cut"]]
    assert before < fast or told.moved_s(40) is not None, (
        "the cut stayed where it was on a link a 200th as fast"
    )


def test_no_request_is_lost_when_the_edge_is_killed_and_it_is_used_again(tiers):
    told = tiers.ask(100, {30: tiers.edge.kill, 60: tiers.restart_edge})
    assert told.lost == 0 and told.right == len(told.records) == 100
    gone = [r for r in told.records if told.changes[30] < r["began"] < told.changes[60]]
    assert gone and all(r["seconds"] < 5.0 for r in gone)


def test_a_link_that_is_silent_loses_nothing(tiers):
    told = tiers.ask(60, {20: tiers.link.cut, 40: lambda: tiers.link.cut(False)})
    assert told.lost == 0 and told.right == 60


@pytest.mark.skipif(not BROKER, reason="mosquitto is not installed")
def test_a_broker_carries_small_boundaries(tiers):
    told = tiers.ask(40, mqtt=True)
    assert told.lost == 0 and told.right == 40
    assert told.answered.get("part", 0) > 20
