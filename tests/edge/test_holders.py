"""Whose certificate is whose, also after a restart."""

from __future__ import annotations

from delian.core.ports import Node, Tier
from delian.edge.holders import Holders


def device(number: int) -> Node:
    return Node(Tier.DEVICE, number)


def test_holders_are_known_after_a_restart(tmp_path):
    path = tmp_path / "holders"
    first = Holders(path)
    for serial, node in ((2**159, device(5)), (7, Node(Tier.EDGE, 2)), (8, device(6))):
        first.remember(serial, node)
    first.remember(7, Node(Tier.EDGE, 2))
    again = Holders(path)
    assert again.forget([2**159, 7, 99]) == [device(5), Node(Tier.EDGE, 2)]
    assert again.forget([7]) == []
    assert path.stat().st_mode & 0o077 == 0


def test_a_node_with_a_good_certificate_beside_a_denied_one_is_kept():
    holders = Holders()
    for serial, number in ((1, 5), (2, 5), (3, 6), (4, 7)):
        holders.remember(serial, device(number))
    assert holders.without(frozenset({1, 3})) == {device(6)}


def test_torn_lines_are_left_out_and_what_follows_is_not_lost(tmp_path):
    path = tmp_path / "holders"
    path.write_bytes(b"a device 1\n\xff\nzz device 2\nb dev 3\nc device -4\nd device 5\ne dev")
    holders = Holders(path)
    holders.remember(15, device(6))
    assert Holders(path).forget(range(20)) == [device(1), device(5), device(6)]


def test_the_oldest_are_forgotten_and_the_file_is_bounded(tmp_path):
    path = tmp_path / "holders"
    holders = Holders(path, serials_max=4)
    for serial in range(100):
        holders.remember(serial, device(serial))
        assert len(path.read_bytes().splitlines()) <= 8
    assert Holders(path, serials_max=4).forget(range(100)) == [device(n) for n in range(96, 100)]


def test_a_file_that_cannot_be_written_stops_nobody(tmp_path, caplog):
    holders = Holders(tmp_path / "nowhere" / "holders")
    holders.remember(1, device(1))
    assert holders.forget([1]) == [device(1)]
    assert "cannot be kept" in caplog.text
