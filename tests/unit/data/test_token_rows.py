"""Rows of token ids: packing and padding by hand, and ids at hand."""

from __future__ import annotations

import numpy as np
import pytest
from delian.core.common.errors import DelianError
from delian.core.learning.data.tokens.token_facts import IGNORED, TokenFacts, facts_of
from delian.core.learning.data.tokens.token_federation import (
    TokenChoice,
    read_ids,
    split,
    token_texts,
)
from delian.core.learning.data.tokens.token_rows import padded_texts, rows_of, shifted_rows

PAD, END, MASK = 0, 1, 2
NO = IGNORED


def facts(task="next-token", **more):
    return TokenFacts(task, 30, **{"padding": PAD, "end": END, "mask": MASK, **more})


def ids(*documents):
    return [np.array(each, np.int32) for each in documents]


def test_packed_documents_follow_one_another_and_labels_end_with_them():
    x, y = rows_of(ids([11, 12, 13], [21, 22], [31]), 4, facts(), packing=True)
    assert x.tolist() == [[11, 12, 13, END], [21, 22, END, 31]]
    assert y.tolist() == [[12, 13, END, NO], [22, END, NO, END]]
    x, y = rows_of(ids([11, 12, 13], [21, 22, 23]), 5, facts(), packing=True)
    assert x.tolist() == [[11, 12, 13, END, 21], [22, 23, PAD, PAD, PAD]]
    assert y.tolist() == [[12, 13, END, NO, 22], [23, END, NO, NO, NO]]
    assert x.dtype == y.dtype == np.int32


def test_padded_rows_are_of_one_document_each():
    x, y = rows_of(ids([11, 12, 13, 14], [21], []), 3, facts(), packing=False)
    assert x.tolist() == [[11, 12, 13], [14, PAD, PAD], [21, PAD, PAD]]
    assert y.tolist() == [[12, 13, 14], [END, NO, NO], [END, NO, NO]]


def test_tokens_that_may_be_masked_are_labels_of_themselves():
    x, y = rows_of(ids([11, 12], [21, 22]), 4, facts("masked-token"), packing=True)
    assert x.tolist() == [[11, 12, END, 21], [22, END, PAD, PAD]]
    assert y.tolist() == [[11, 12, END, 21], [22, END, NO, NO]]


def test_without_padding_rows_are_filled_by_ends():
    x, y = rows_of(ids([11, 12]), 4, facts(padding=None), packing=True)
    assert x.tolist() == [[11, 12, END, END]]
    assert y.tolist() == [[12, END, NO, NO]]
    with pytest.raises(DelianError, match="no token for it"):
        rows_of(ids([11, 12]), 4, facts(padding=None, end=None), packing=True)


def test_documents_without_an_end_follow_without_a_label():
    x, y = rows_of(ids([11, 12], [21, 22]), 3, facts(end=None), packing=True)
    assert x.tolist() == [[11, 12, 21]] and y.tolist() == [[12, NO, 22]]


def test_rows_of_ids_are_shifted_by_one():
    rows = np.array([[11, 12, END, 21], [22, 23, PAD, PAD]], np.int32)
    x, y = shifted_rows(rows, facts())
    assert x.tolist() == [[11, 12, END], [22, 23, PAD]]
    assert y.tolist() == [[12, END, NO], [23, NO, NO]]


def test_texts_are_cut_or_padded_to_a_row():
    assert padded_texts(ids([5, 6, 7], [8]), 2, PAD).tolist() == [[5, 6], [8, PAD]]


def test_documents_are_paragraphs_lines_or_whole():
    text = "a b\nc\n\n \nd\n\n\n"
    assert split(text, "paragraphs") == ["a b\nc\n", "d\n"]
    assert split(text, "lines") == ["a b", "c", "d"]
    assert split(text, "whole") == [text]


def choice(**more):
    given = {"devices": 2, "query_fraction": 0.25, "padding": PAD, "end": END, "mask": MASK}
    return TokenChoice(**{**given, **more})


def saved(path, array):
    np.save(path, array)
    return path


@pytest.mark.parametrize("dtype", [np.int32, np.uint16, np.int64])
def test_ids_at_hand_are_dealt_out_by_rows(tmp_path, dtype):
    rows = np.arange(8 * 5).reshape(8, 5) % 23 + 3
    path = saved(tmp_path / "ids.npy", rows.astype(dtype))
    found = token_texts(path, choice(), None)
    assert found.devices[1].x[:4].tolist() == rows[4:, :-1].tolist()
    assert found.devices[1].y[:4].tolist() == rows[4:, 1:].tolist()
    assert (found.devices[0].support, found.devices[0].query) == (3, 1)
    assert found.classes == found.tokens.vocabulary == 26 and found.tokens.tokenizer == ""
    masked = token_texts(path, choice(task="masked-token", vocabulary=40), None)
    assert masked.devices[0].x[:4].tolist() == masked.devices[0].y[:4].tolist() == rows[:4].tolist()
    assert masked.classes == 40
    assert facts_of({"tokens": masked.tokens.to_json()}) == masked.tokens


@pytest.mark.parametrize(
    ("array", "more", "said"),
    [
        (np.zeros((8, 4)), {}, "float64"),
        (np.zeros(8, np.int32), {}, "int32\\[8\\]"),
        (np.zeros((0, 4), np.int32), {}, "has no rows"),
        (np.full((8, 4), -1), {}, "has the id -1"),
        (np.full((8, 4), 1 << 21), {}, "has the id 2097152"),
        (np.full((8, 4), 9), {"vocabulary": 9}, "has the id 9, and the vocabulary has 9"),
        (np.full((3, 4), 9), {}, "3 rows for 2 devices"),
        (np.full((8, 4), 9), {"padding": 10}, "padding_id is 10"),
        (np.full((8, 4), 9), {"mask": None, "task": "masked-token"}, "an id for mask"),
        (np.full((8, 4), 9), {"task": "classification"}, "ids without labels"),
        (np.full((8, 1), 9), {}, "rows of one id"),
    ],
)
def test_what_is_no_ids_is_refused(tmp_path, array, more, said):
    with pytest.raises(DelianError, match=said):
        token_texts(saved(tmp_path / "ids.npy", array), choice(**more), None)


def test_a_torn_file_of_ids_is_refused(tmp_path):
    path = saved(tmp_path / "ids.npy", np.zeros((100, 100), np.int32))
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DelianError, match="it is not whole"):
        read_ids(path)
    path.write_bytes(b"no ids")
    with pytest.raises(DelianError, match=r"ids\.npy is no \.npy file"):
        read_ids(path)


@pytest.mark.parametrize(
    "change",
    [
        {"task": "other"},
        {"vocabulary": "30"},
        {"padding": 30},
        {"special": [1, -1]},
        {"special": None},
        {"mask": True},
    ],
)
def test_damaged_facts_of_a_report_are_refused(change):
    said = {**facts().to_json(), **change}
    with pytest.raises(DelianError, match="cannot be read"):
        facts_of({"tokens": said})
