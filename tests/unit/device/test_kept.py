"""The record of a client state: attempts, damage, and a crash while it is written."""

from __future__ import annotations

import hashlib
import stat

import numpy as np
import pytest
from delian.core.common.errors import DelianError
from delian.device.agent import client_state_file
from delian.device.agent.client_state_file import Kept

A, B = b"a" * 32, b"b" * 32
ONE, TWO = np.array([1.0, -2.0], np.float32), np.array([3.0, 4.0], np.float32)
RECORD = Kept(A, ONE, TWO)


def test_another_attempt_from_the_same_weights_begins_where_the_first_did():
    assert RECORD.base(A) is ONE
    assert RECORD.base(B) is TWO


def test_a_record_is_read_as_it_was_written(tmp_path):
    path, states = tmp_path / "bundle.kept", client_state_file.KeptStates(tmp_path)
    assert states.read("bundle") == b""
    states.write("bundle", RECORD.to_bytes())
    back = Kept.parse(states.read("bundle"), 2)
    assert back.on == A
    np.testing.assert_array_equal(back.before, ONE)
    np.testing.assert_array_equal(back.after, TWO)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [file.name for file in tmp_path.iterdir()] == ["bundle.kept"]


@pytest.mark.parametrize("at", [0, 8, 45, -1])
def test_a_damaged_record_is_told(at):
    content = bytearray(RECORD.to_bytes())
    content[at] ^= 1
    with pytest.raises(DelianError, match="damaged"):
        Kept.parse(bytes(content), 2)


@pytest.mark.parametrize("content", [b"", RECORD.to_bytes()[:-1], RECORD.to_bytes() + b"\0"])
def test_a_record_of_another_length_is_told(content):
    with pytest.raises(DelianError, match="damaged"):
        Kept.parse(bytes(content), 2)


def test_another_models_state_is_not_taken_for_this_ones():
    with pytest.raises(DelianError, match="another program"):
        Kept.parse(RECORD.to_bytes(), 3)


def test_weights_are_named_as_their_blob_is():
    assert client_state_file.digest_of(TWO) == hashlib.sha256(TWO.astype("<f4").tobytes()).digest()
