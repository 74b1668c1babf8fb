"""What daemons have in common: tasks, signals, and where a node may go."""

from __future__ import annotations

import asyncio
import errno
import os
import signal

import pytest
from delian.core.common.errors import DelianError
from delian.core.node.identity.pki.identity_folder import HomeAddress
from delian.core.node.net.loopback import check_loopback
from delian.core.node.service.hosting import (
    Tasks,
    merge_homes,
    parse_home,
    run_daemon,
    stop_on_signals,
    who_is,
)
from delian.core.protocol.ports import CLOUD, Node, Tier


def edge(number: int) -> Node:
    return Node(Tier.EDGE, number)


@pytest.mark.parametrize(
    ("text", "home"),
    [
        ("here:7700", HomeAddress(edge(0), grpc="here:7700")),
        ("cloud@10.0.0.1:7700", HomeAddress(edge(0), grpc="10.0.0.1:7700")),
        ("edge-3@[::1]:7701", HomeAddress(edge(3), grpc="[::1]:7701")),
        ("3@e:1", HomeAddress(edge(3), grpc="e:1")),
        ("edge-3@mqtts://b:8883", HomeAddress(edge(3), mqtt="mqtts://b:8883")),
    ],
)
def test_a_home_is_written_as_a_node_and_an_address(text, home):
    assert parse_home(text) == home


@pytest.mark.parametrize("text", ["", "here", "here:0", "here:70000", "x@here:1", "a b:1", "::1:5"])
def test_what_is_no_home_is_refused(text):
    with pytest.raises(DelianError, match="host"):
        parse_home(text)


def test_homes_of_one_node_are_one_and_the_cloud_is_edge_0():
    homes = [
        HomeAddress(edge(3), grpc="a:1"),
        HomeAddress(CLOUD, grpc="c:1"),
        HomeAddress(edge(3), mqtt="mqtt://a:2"),
    ]
    assert merge_homes(homes) == (
        HomeAddress(edge(3), "a:1", "mqtt://a:2"),
        HomeAddress(edge(0), "c:1"),
    )
    with pytest.raises(DelianError):
        merge_homes([])


def test_who_a_node_is_comes_from_its_identity_or_is_insecure(tmp_path):
    who = who_is(Tier.DEVICE, None, insecure=True, number=4)
    assert who.node == Node(Tier.DEVICE, 4) and who.identity is None
    for given in (
        {"identity": None, "insecure": False, "number": None},
        {"identity": None, "insecure": True, "number": None},
        {"identity": tmp_path, "insecure": True, "number": 4},
        {"identity": tmp_path, "insecure": False, "number": None},
    ):
        with pytest.raises(DelianError):
            who_is(Tier.DEVICE, **given)


def test_without_tls_nothing_leaves_the_machine():
    for target in ("127.0.0.1:1", "localhost:1", "[::1]:1", "mqtt://127.0.0.1:1883"):
        check_loopback(target, "the home")
    for target in ("10.0.0.1:1", "example.org:1", "0.0.0.0:1"):
        with pytest.raises(DelianError, match="not on this machine"):
            check_loopback(target, "the home")


def test_the_first_task_that_fails_ends_the_daemon_and_the_others_are_ended():
    ended = []

    async def fails():
        raise DelianError("broken")

    async def runs():
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    async def done():
        return None

    async def scene():
        tasks = Tasks()
        tasks.start("done", done())
        tasks.start("runs", runs())
        tasks.start("fails", fails())
        with pytest.raises(DelianError, match="broken"):
            await tasks.wait(asyncio.Event())
        await tasks.close()

    asyncio.run(asyncio.wait_for(scene(), 120))
    assert ended == [True]


def test_a_signal_stops_the_daemon():
    async def scene():
        stop = asyncio.Event()
        tasks = Tasks()
        with stop_on_signals(stop):
            os.kill(os.getpid(), signal.SIGTERM)
            await tasks.wait(stop)
        await tasks.close()

    asyncio.run(asyncio.wait_for(scene(), 120))


# ---------------------------------------------------------------- folders that take nothing


def run_in(folder, fault) -> None:
    def make():
        raise fault

    asyncio.run(run_daemon(make, folder, asyncio.Event(), lambda facts: None))


def test_too_little_address_space_is_an_error_and_no_endless_wait(tmp_path, monkeypatch):
    resource = pytest.importorskip("resource")
    limits = {resource.RLIMIT_AS: (512_000 * 1024, resource.RLIM_INFINITY)}
    monkeypatch.setattr(resource, "getrlimit", limits.__getitem__)
    with pytest.raises(DelianError, match=r"limited to 512000 KiB \(ulimit -v\)") as caught:
        run_in(tmp_path, None)
    assert "at least 2097152 KiB" in caught.value.hint


@pytest.mark.parametrize(
    ("code", "place", "hint"),
    [
        (errno.EROFS, "state", "may write to"),
        (errno.EROFS, "state/blobs", "may write to"),
        (errno.EACCES, "", "may write to"),
        (errno.EEXIST, "state", "may write to"),
        (errno.ENOSPC, "state/blobs", "make room"),
    ],
)
def test_a_folder_that_takes_nothing_is_an_error_with_a_hint(tmp_path, code, place, hint):
    folder, path = tmp_path / "state", tmp_path / place
    with pytest.raises(DelianError) as error:
        run_in(folder, OSError(code, os.strerror(code), str(path)))
    assert str(folder) in str(error.value) and str(path) in str(error.value)
    assert os.strerror(code) in str(error.value) and hint in str(error.value)


def test_a_full_disk_is_an_error_with_a_hint_whatever_it_was_that_met_it(tmp_path):
    with pytest.raises(DelianError, match="make room"):
        run_in(tmp_path / "state", OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))


@pytest.mark.parametrize("path", [None, "/elsewhere/file"])
def test_other_faults_of_the_system_stay_what_they_are(tmp_path, path):
    with pytest.raises(OSError, match="Input/output"):
        run_in(tmp_path, OSError(errno.EIO, os.strerror(errno.EIO), path))
