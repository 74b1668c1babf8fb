"""What commands print of peers' text: escaped, one row a record."""

from __future__ import annotations

import contextlib
import json

import pytest
from delian.cli import output
from delian.cli.fleet import coordinator_commands
from delian.core.wire import link_pb2
from delian.core.wire.operator_pb2 import FleetList, NodeInfo, RunEvent, RunInfo

EVIL = "pi\x1b]0;owned\x07\x1b[2K\rdevice-1    active\ndevice-2    active   (all fine)\u202e"


class Coordinator:
    """Answers with what a hostile peer put into the coordinator's records."""

    def call(self, name, request):
        if name == "ListNodes":
            node = link_pb2.Address(tier=link_pb2.NODE_DEVICE, number=1)
            found = NodeInfo(node=node, state="ready", labels={"host": EVIL, EVIL: ""})
            return FleetList(nodes=[found] if not request.after else [])
        return RunInfo(run=1, phase="failed")

    def stream(self, name, request):
        yield RunEvent(sequence=1, kind="phase", facts=json.dumps({"phase": "failed", "why": EVIL}))


@pytest.fixture
def hostile(monkeypatch):
    @contextlib.contextmanager
    def connected(options):
        yield Coordinator()

    monkeypatch.setattr(coordinator_commands.Connect, "__call__", connected)


@pytest.mark.parametrize(("arguments", "lines"), [(("fleet", "ls"), 2), (("run", "watch", "1"), 1)])
def test_a_peer_s_text_neither_moves_the_cursor_nor_forges_a_row(hostile, delian, arguments, lines):
    _, out, _ = delian(*arguments)
    assert out.replace("\n", "").isprintable()
    assert len(out.splitlines()) == lines and "\\u001b]0;owned" in out


def test_json_says_the_same_without_control_characters(hostile, delian):
    _, facts, _ = delian("fleet", "ls", "--json")
    assert facts["nodes"][0]["labels"]["host"] == EVIL


def test_an_error_that_quotes_a_peer_is_escaped(delian):
    _, _, err = delian("fleet", "show", "\x1b[2Kdevice")
    assert "\x1b" not in err and "\\u001b[2Kdevice" in err


def test_a_copy_of_bytes_is_exact_unless_a_terminal_reads_it(capsysbinary, monkeypatch):
    output.echo_copy(b'{"why":"\x7f"}')
    assert capsysbinary.readouterr().out == b'{"why":"\x7f"}\n'
    monkeypatch.setattr(output.sys.stdout, "isatty", lambda: True)
    output.echo_copy(b'{"why":"\x7f\xff"}')
    assert capsysbinary.readouterr().out == b'{"why":"\\u007f\\xff"}\n'
