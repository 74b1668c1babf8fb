"""Two seams that bad peers lean on: room that stalled transfers hold, and certificates that gRPC is
given at each connection.
"""

from __future__ import annotations

import dataclasses

import grpc
import pytest
from delian.core.node.driver.log_deduplication import Once, RecordLog
from delian.core.node.identity.pki.certificates import TlsMaterial, server_credentials
from delian.core.node.net.grpc.grpc_guard import Connections
from delian.core.node.net.message_limits import KIB, TRANSFER_STALLED_S
from delian.core.node.net.transfer import Intake, Refused
from delian.core.protocol.ports import Node, Record, Tier
from delian.core.wire.link_pb2 import Part
from support.peers.peer_scene import junk, offer_of

SIZE = 100 * KIB


def device(number: int) -> Node:
    return Node(Tier.DEVICE, number)


def full_intake(now: float) -> Intake:
    """Two peers have taken all the room, and send nothing."""
    intake = Intake(bytes_max=2 * SIZE)
    for number in (1, 2):
        intake.offer(device(number), offer_of(junk(SIZE - number)), SIZE, now)
    return intake


def test_a_transfer_that_stands_still_makes_room_for_an_honest_one():
    intake = full_intake(0.0)
    content = junk(SIZE)
    with pytest.raises(Refused, match="no room"):
        intake.offer(device(3), offer_of(content), SIZE, TRANSFER_STALLED_S)
    spool = intake.offer(device(3), offer_of(content), SIZE, TRANSFER_STALLED_S + 1)
    assert spool.size == SIZE and intake.bytes_held <= 2 * SIZE


def test_to_offer_again_is_no_headway():
    intake = full_intake(0.0)
    for number in (1, 2):
        intake.offer(device(number), offer_of(junk(SIZE - number)), SIZE, TRANSFER_STALLED_S)
    assert intake.offer(device(3), offer_of(junk(SIZE)), SIZE, TRANSFER_STALLED_S + 1)


def test_a_transfer_that_goes_on_keeps_its_room():
    intake = full_intake(0.0)
    for number in (1, 2):
        content = junk(SIZE - number)
        spool = intake.get(device(number), offer_of(content).id)
        spool.writer = object()
        spool.write(Part(id=spool.id, content=content[:1000]), TRANSFER_STALLED_S)
    with pytest.raises(Refused, match="no room"):
        intake.offer(device(3), offer_of(junk(SIZE)), SIZE, TRANSFER_STALLED_S + 1)


def test_who_writes_to_what_made_room_finds_out():
    intake = full_intake(0.0)
    spools = [intake.get(device(n), offer_of(junk(SIZE - n)).id) for n in (1, 2)]
    for spool in spools:
        spool.writer = object()
    intake.offer(device(3), offer_of(junk(SIZE)), SIZE, TRANSFER_STALLED_S + 1)
    assert None in [spool.writer for spool in spools]


def test_grpc_is_given_another_certificate_only_when_there_is_one(monkeypatch):
    """gRPC's core replaces it under the feet of handshakes that are under way, and crashes."""
    given = []
    monkeypatch.setattr(
        grpc, "dynamic_ssl_server_credentials", lambda *told, **more: given.append(told)
    )
    monkeypatch.setattr(grpc, "ssl_server_certificate_configuration", lambda pairs, **_: pairs)
    material = TlsMaterial(b"key", b"first", b"ca")
    server_credentials(lambda: material)
    initial, ask = given[0]
    assert initial == [(b"key", b"first")]
    assert [ask(), ask()] == [None, None]
    material = dataclasses.replace(material, certificate=b"renewed")
    assert ask() == [(b"key", b"renewed")]
    assert ask() is None


def test_connections_without_a_call_are_counted_a_review_later():
    connections = Connections(lambda: TlsMaterial(b"", b"", b""))
    connections()  # the settings ask once
    for _ in range(5):
        connections()
    connections.called("ipv4:127.0.0.1:1")
    connections.called("ipv4:127.0.0.1:1")
    connections.called("ipv4:127.0.0.1:2")
    assert connections.review() == 0  # those may still be on their way
    assert connections.review() == 3
    assert connections.review() == 0
    connections.left("ipv4:127.0.0.1:1")
    connections()
    connections.called("ipv4:127.0.0.1:1")  # another one, from the same port
    assert [connections.review(), connections.review()] == [0, 0]
    assert connections.silent == 3


def test_what_a_peer_does_again_and_again_is_logged_once(caplog):
    import logging

    caplog.set_level(logging.INFO)
    told = RecordLog(logging.getLogger("delian.test"))
    for number in (1, 2, 1, 2, 1):
        told(Record("late", {"device": number}))
    for _ in range(2):
        told(Record("phase", {"run": 1}))
        told(Record("ignored", {"trigger": "late"}))
    assert caplog.messages == ["late: device 1", "late: device 2", "phase", "phase"]


def test_an_edge_names_why_it_sent_a_device_away(caplog):
    import logging

    from delian.core.wire.admission_pb2 import NO_WORK
    from delian.edge.service.daemon import _named

    caplog.set_level(logging.INFO)
    RecordLog(logging.getLogger("delian.test"), _named)(
        Record("rejected", {"device": 1, "reason": NO_WORK})
    )
    assert [record.reason for record in caplog.records] == ["NO_WORK"]


def test_what_was_longest_ago_is_forgotten_first():
    first = Once(2)
    assert first("a") and first("b") and not first("a")
    assert first("c") and not first("a") and first("b")
