"""A state folder that takes nothing: an error that names it, and no traceback."""

from __future__ import annotations

import errno
import os
import sys

import pytest
from delian.cli import main as command
from delian.device import personal

EDGE = ("edge", "run", "--insecure", "--number", "1", "--coordinator", "127.0.0.1:1")
DEVICE = ("device", "run", "--insecure", "--number", "1", "--home", "edge-1@127.0.0.1:1")


def run(capsys, monkeypatch, *arguments: str) -> str:
    monkeypatch.setattr(sys, "argv", ["delian", *arguments])
    with pytest.raises(SystemExit) as end:
        command.main()
    err = capsys.readouterr().err
    assert end.value.code == command.INPUT_ERROR and "hint: " in err and "Traceback" not in err
    return err


@pytest.mark.parametrize(
    "arguments",
    [
        EDGE,
        DEVICE,
        ("device", "consent", "yes"),
        ("cloud", "run", "--insecure"),
        ("authority", "run"),
    ],
    ids=" ".join,
)
def test_a_file_in_the_folder_s_place(tmp_path, monkeypatch, capsys, arguments):
    file = tmp_path / "state"
    file.write_text("no folder")
    err = run(capsys, monkeypatch, *arguments, "--state", str(file))
    assert str(file) in err
    assert file.read_text() == "no folder"


@pytest.mark.parametrize(("arguments", "part"), [(EDGE, "blobs"), (DEVICE, "personal")])
def test_a_file_in_the_place_of_a_part_of_it(tmp_path, monkeypatch, capsys, arguments, part):
    (tmp_path / part).write_text("no folder")
    err = run(capsys, monkeypatch, *arguments, "--state", str(tmp_path))
    assert str(tmp_path / part) in err


def test_a_rollback_in_a_folder_that_is_read_only(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "personal"

    def refuse(*_) -> None:
        path = str(folder / "current")
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)

    monkeypatch.setattr(personal.PersonalStore, "previous", lambda self: personal_slot(folder))
    monkeypatch.setattr(personal.PersonalStore, "_served", lambda self: "a")
    monkeypatch.setattr(personal, "_write", refuse)
    err = run(capsys, monkeypatch, "device", "rollback", "--state", str(tmp_path))
    assert "Read-only file system" in err and str(folder) in err


def personal_slot(folder):
    judgement = personal.Judgement(1.0, 1.0, 0.5, 0.5, 10.0)
    return personal.Slot("b", folder / "b", folder / "c", "00", "00", 0, judgement)
