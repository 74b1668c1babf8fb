"""What a log line says, and what it never says."""

from __future__ import annotations

import io
import json
import logging

import numpy as np
import pytest
from delian.cli.fleet import logs
from delian.cli.settings import LogConfig
from delian.core.node.driver.traces import current


@pytest.fixture
def lines():
    """Sets logging up on a buffer, as configured; gives what was written, and puts it back."""
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    root.handlers = []
    buffer = io.StringIO()

    def set_up(**options):
        logs.setup(LogConfig(**options), buffer)
        return lambda: buffer.getvalue().splitlines()

    yield set_up
    root.handlers = before
    root.setLevel(level)


def test_a_line_is_a_json_object_with_the_facts(lines):
    read = lines()
    logging.getLogger("delian.cloud").info("enrolled", extra={"node": "device-5", "took_ms": 3})
    (line,) = read()
    said = json.loads(line)
    assert said.pop("timestamp").endswith("Z")
    assert said == {
        "event": "enrolled",
        "level": "info",
        "logger": "delian.cloud",
        "node": "device-5",
        "took_ms": 3,
    }


def test_the_level_is_kept_and_libraries_are_quiet(lines):
    read = lines(level="warning")
    logging.getLogger("delian").info("no")
    logging.getLogger("delian").warning("yes")
    assert [json.loads(line)["event"] for line in read()] == ["yes"]
    read = lines(level="debug")
    logging.getLogger("asyncio").debug("no")
    assert len(read()) == 1


def test_text_for_people_has_no_json(lines):
    read = lines(format="pretty")
    logging.getLogger("delian").info("enrolled", extra={"node": "device-5"})
    (line,) = read()
    assert "enrolled" in line and "node=device-5" in line and "{" not in line


def test_text_for_people_has_no_control_characters_of_a_peer(lines):
    read = lines(format="pretty")
    log = logging.getLogger("delian")
    evil = "bye\x1b]0;owned\x07\r\nroot@host:~#"
    log.info("%s: goodbye, %s", "device-5", evil, extra={"why": evil, "all": [evil]})
    try:
        raise ValueError(evil)
    except ValueError:
        log.exception("failed")
    text = "\n".join(read())
    assert text.replace("\n", "").isprintable() and "\\u001b]0;owned" in text
    assert len([line for line in read() if "goodbye" in line]) == 1
    assert len(read()[0].split("root@host")) == 4  # all in the one line


CANARY = "canary-4711"


@pytest.mark.parametrize(
    "facts",
    [
        {"token": CANARY},
        {"private_key": CANARY},
        {"key": CANARY.encode()},
        {"password": CANARY},
        {"vector": [CANARY]},
        {"weights": {"first": CANARY}},
        {"inner": {"deep": {"secret": CANARY}}},
        {"update": np.frombuffer(CANARY.encode() + b"0", np.uint8)},
        {"array": np.array([CANARY])},
        {"payload": CANARY.encode() * 10},
        {"why": f"token delian1.{CANARY} was used"},
        {"why": f"postgresql://me:{CANARY}@h/db does not answer"},
        {"why": f"-----BEGIN PRIVATE KEY-----\n{CANARY}\n-----END PRIVATE KEY-----"},
        {"many": [CANARY] * 100},
    ],
)
@pytest.mark.parametrize("format", ["json", "pretty"])
def test_no_secret_gets_into_a_line(lines, facts, format):
    read = lines(format=format)
    logging.getLogger("delian").info("something", extra=facts)
    assert read() and CANARY not in "\n".join(read())


def test_a_secret_in_the_text_itself_is_masked(lines):
    read = lines()
    logging.getLogger("delian").info("got %s", f"delian1.{CANARY}")
    assert CANARY not in read()[0]


def test_what_only_sounds_like_a_secret_is_shown(lines):
    read = lines()
    facts = {"token_id": "ab12", "tokens": 3, "keys": 7, "digest": b"\x01\x02"}
    logging.getLogger("delian").info("counts", extra=facts)
    said = json.loads(read()[0])
    assert (said["token_id"], said["tokens"], said["keys"], said["digest"]) == (
        "ab12",
        3,
        7,
        "0102",
    )


def test_an_exception_is_told_in_one_line(lines):
    read = lines()
    try:
        raise ValueError("no such thing")
    except ValueError:
        logging.getLogger("delian").exception("failed")
    (line,) = read()
    assert "ValueError: no such thing" in json.loads(line)["exception"]


def test_structlog_itself_goes_the_same_way(lines):
    import structlog

    read = lines()
    structlog.get_logger("delian.cli").info("hello", token="x", node="edge-1")
    said = json.loads(read()[0])
    assert said["event"] == "hello" and said["token"] == logs.MASK and said["node"] == "edge-1"


def test_a_line_names_the_trace_that_the_node_is_at_work_on(lines):
    read = lines()
    token = current.set(f"00-{'a' * 32}-{'b' * 16}-00")
    logging.getLogger("delian").info("inside")
    current.reset(token)
    logging.getLogger("delian").info("outside")
    inside, outside = map(json.loads, read())
    assert (inside["trace_id"], inside["span_id"]) == ("a" * 32, "b" * 16)
    assert "trace_id" not in outside
