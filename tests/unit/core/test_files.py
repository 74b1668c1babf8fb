"""A file is there whole, as it was or as it is to be."""

from __future__ import annotations

import os
import stat
import sys
import threading
from pathlib import Path

import pytest
from delian.core.common.files import read_at_most, write_whole


def test_a_file_has_its_content_and_its_permissions_and_nothing_is_beside_it(tmp_path):
    path = tmp_path / "a.json"
    write_whole(path, "né", durable=True)
    assert path.read_bytes() == "né".encode()
    write_whole(path, b"secret", mode=0o600)
    assert path.read_bytes() == b"secret"
    if os.name == "posix":
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [f.name for f in tmp_path.iterdir()] == ["a.json"]


@pytest.mark.skipif(sys.platform == "win32", reason="files have no limits of size there")
def test_where_there_is_no_room_the_file_stays_as_it_was(tmp_path):
    import resource
    import signal

    path = tmp_path / "a"
    write_whole(path, b"before")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
        with pytest.raises(OSError, match="too large"):
            write_whole(path, bytes(5000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert path.read_bytes() == b"before"
    assert [f.name for f in tmp_path.iterdir()] == ["a"]


def test_readers_and_several_writers_see_whole_files(tmp_path):
    path, contents = tmp_path / "a", [bytes([k]) * 50_000 for k in range(4)]
    write_whole(path, contents[0])

    def write(content):
        for _ in range(30):
            write_whole(path, content)

    writers = [threading.Thread(target=write, args=(c,)) for c in contents]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        assert path.read_bytes() in contents
    for writer in writers:
        writer.join()
    assert [f.name for f in tmp_path.iterdir()] == ["a"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")
def test_a_pipe_is_written_to_and_stays(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_whole(pipe, b"through")
        assert os.read(reader, 100) == b"through"
    finally:
        os.close(reader)
    assert stat.S_ISFIFO(pipe.stat().st_mode) and [f.name for f in tmp_path.iterdir()] == ["pipe"]


def test_no_name_is_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(IsADirectoryError):
        write_whole(Path(), b"")


def test_no_more_is_read_than_a_file_may_have(tmp_path):
    path = tmp_path / "file"
    for size in (0, 1, 7, 8):
        path.write_bytes(b"x" * size)
        assert read_at_most(path, 8) == b"x" * size
    path.write_bytes(b"x" * 9)
    for longer in (path, Path("/dev/zero")):
        with pytest.raises(OSError, match="more than 8 bytes"):
            read_at_most(longer, 8)
    with pytest.raises(OSError, match=r"more than \d+ bytes"):
        read_at_most(Path("/dev/zero"), 3 << 20)
