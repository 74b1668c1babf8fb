"""A state folder that takes nothing: an error that names it, and no traceback."""

from __future__ import annotations

import errno
import os

import pytest
from delian.cli import main as command
from delian.device.agent import personal_model

EDGE = ("edge", "run", "--insecure", "--number", "1", "--coordinator", "127.0.0.1:1")
DEVICE = ("device", "run", "--insecure", "--number", "1", "--home", "edge-1@127.0.0.1:1")


@pytest.fixture
def refused(delian):
    """Runs a command that is to end with an error and a hint; gives what it writes to stderr."""

    def run(*arguments):
        code, _, err = delian(*arguments)
        assert code == command.INPUT_ERROR and "hint: " in err
        return err

    return run


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
def test_a_file_in_the_folder_s_place(tmp_path, refused, arguments):
    file = tmp_path / "state"
    file.write_text("no folder")
    err = refused(*arguments, "--state", str(file))
    assert str(file) in err
    assert file.read_text() == "no folder"


@pytest.mark.parametrize(("arguments", "part"), [(EDGE, "blobs"), (DEVICE, "personal")])
def test_a_file_in_the_place_of_a_part_of_it(tmp_path, refused, arguments, part):
    (tmp_path / part).write_text("no folder")
    err = refused(*arguments, "--state", str(tmp_path))
    assert str(tmp_path / part) in err


def test_a_rollback_in_a_folder_that_is_read_only(tmp_path, monkeypatch, refused):
    folder = tmp_path / "personal"

    def refuse(*_) -> None:
        path = str(folder / "current")
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)

    monkeypatch.setattr(
        personal_model.PersonalStore, "previous", lambda self: personal_slot(folder)
    )
    monkeypatch.setattr(personal_model.PersonalStore, "_served", lambda self: "a")
    monkeypatch.setattr(personal_model, "_write", refuse)
    err = refused("device", "rollback", "--state", str(tmp_path))
    assert "Read-only file system" in err and str(folder) in err


def personal_slot(folder):
    judgement = personal_model.Judgement(1.0, 1.0, 0.5, 0.5, 10.0)
    return personal_model.Slot("b", folder / "b", folder / "c", "00", "00", 0, judgement)
