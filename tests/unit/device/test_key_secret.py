"""A device's part of its random keys: drawn once, kept, and known to nobody else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from delian.core.common.errors import DelianError
from delian.device.agent.key_secret import FILE, SECRET_BYTES, SIMULATED, key_secret


def test_a_device_draws_it_once(tmp_path: Path) -> None:
    first = key_secret(tmp_path)
    assert len(first) == SECRET_BYTES and key_secret(tmp_path) == first
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600


def test_devices_draw_different_ones(tmp_path: Path) -> None:
    folders = [tmp_path / str(n) for n in range(3)]
    for folder in folders:
        folder.mkdir()
    assert len({key_secret(folder) for folder in folders}) == 3


def test_a_simulated_device_has_none(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / FILE).write_bytes(SIMULATED)
    assert key_secret(tmp_path) == b""
    assert "simulated" in caplog.text


@pytest.mark.parametrize("content", [b"", b"x" * 31, b"x" * 33, SIMULATED[:-1], SIMULATED + b"x"])
def test_a_damaged_file_is_no_reason_to_go_without(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE).write_bytes(content)
    with pytest.raises(DelianError, match=FILE):
        key_secret(tmp_path)


def test_a_full_or_read_only_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: object) -> int:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "open", full)
    with pytest.raises(DelianError, match="cannot be"):
        key_secret(tmp_path)
