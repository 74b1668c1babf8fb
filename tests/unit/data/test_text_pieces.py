"""A text as a federation: pieces that follow one another, a vocabulary that is found."""

from __future__ import annotations

import numpy as np
import pytest
from delian.core.common.errors import DelianError
from delian.core.learning.data import plain_text
from delian.core.learning.data.text_pieces import cut

WORDS = "the rain fell on the old stone bridge and the river rose."
PARAGRAPHS = "\n\n".join(f"{i}. {WORDS}" for i in range(60))


@pytest.fixture
def book(tmp_path):
    path = tmp_path / "book.txt"
    path.write_text(PARAGRAPHS + "\n")
    return path


def test_pieces_are_the_text_and_end_with_paragraphs():
    pieces = cut(PARAGRAPHS, 7)
    assert "".join(pieces) == PARAGRAPHS and len(pieces) == 7
    assert all(piece.endswith("\n\n") for piece in pieces[:-1])
    even = len(PARAGRAPHS) / 7
    assert all(0.5 * even < len(piece) < 1.5 * even for piece in pieces)


def test_a_text_without_paragraphs_is_cut_evenly():
    text = "".join(chr(97 + i % 26) for i in range(1000))
    assert [len(piece) for piece in cut(text, 4)] == [250] * 4


def test_a_device_has_windows_of_its_piece_and_the_character_behind_each(book):
    made = plain_text(book, devices=5, steps=10, query_fraction=0.25, held_out_devices=1)
    assert len(made.devices) == 5 and len(made.training) == 4
    assert made.names[0] == "part-1" and made.classes == len(set(PARAGRAPHS + "\n"))
    vocabulary = made.card.label_names
    device = made.devices[2]
    x, y = device.x[: device.examples], device.y[: device.examples]
    assert x.dtype == np.uint8 and np.array_equal(x[:, 1:], y[:, :-1])
    told = "".join(vocabulary[c] for c in x.reshape(-1))
    assert told == cut(PARAGRAPHS + "\n", 5)[2][: len(told)]


def test_a_text_that_is_too_short_says_how_many_devices_it_has_room_for(book):
    with pytest.raises(DelianError) as found:
        plain_text(book, devices=40, steps=80)
    assert "--set fleet.devices=" in (found.value.hint or "")
    most = int((found.value.hint or "").split("fleet.devices=")[1].split(",")[0])
    assert len(plain_text(book, devices=most, steps=80).devices) == most


def test_what_is_no_text_is_told(tmp_path):
    path = tmp_path / "noise.txt"
    path.write_bytes(bytes(range(256)))
    with pytest.raises(DelianError, match="not UTF-8"):
        plain_text(path, devices=2)
