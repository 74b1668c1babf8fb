"""Frozen leaves as parts that are named by their hashes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from delian.core.common.errors import DelianError
from delian.core.learning import frozen
from delian.core.learning.leaf import Leaf

ARRAYS = [
    np.arange(7, dtype=np.int8).reshape(7),
    np.arange(6, dtype=np.float32).reshape(2, 3),
    np.empty((0, 4), np.float32),
    np.arange(40, dtype=np.float16).reshape(5, 8),
    np.array(3.5, np.float64),
]
LEAVES = [
    Leaf(f"l{k}", name, array.shape)
    for k, (name, array) in enumerate(zip(("i8", "f32", "f32", "f16", "f64"), ARRAYS, strict=True))
]


def equal(found: list[Any]) -> None:
    for a, b in zip(found, ARRAYS, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        np.testing.assert_array_equal(a, b)


def test_leaves_are_aligned_and_found_again() -> None:
    places, sizes = frozen.layout(LEAVES)
    assert all(place.offset % frozen.ALIGNMENT == 0 for place in places) and len(sizes) == 1
    contents = list(frozen.packed(LEAVES, ARRAYS))
    equal(frozen.arrays_of(LEAVES, contents))
    assert [part.size for part in frozen.parts_of(contents)] == list(sizes)


def test_no_leaf_lies_in_two_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frozen, "PART_BYTES", 64)
    contents = list(frozen.packed(LEAVES, ARRAYS))
    assert [len(each) for each in contents] == [7, 24, 80, 8]
    equal(frozen.arrays_of(LEAVES, contents))


def test_a_leaf_by_itself_has_the_name_of_its_part() -> None:
    for leaf, array in zip(LEAVES, ARRAYS, strict=True):
        named = frozen.part_of(leaf, array)
        assert [named] == list(frozen.parts_of([*frozen.packed([leaf], [array])] or [b""]))
    rows = ARRAYS[1]
    assert frozen.part_of(LEAVES[1], np.asfortranarray(rows)) == frozen.part_of(LEAVES[1], rows)
    for other in (rows.T, rows.astype(np.float64), rows[0]):
        with pytest.raises(DelianError, match="`l1` is f32"):
            frozen.part_of(LEAVES[1], other)


def test_files_are_mapped_and_cannot_be_written_to(tmp_path: Path) -> None:
    files = []
    for number, content in enumerate(frozen.packed(LEAVES, ARRAYS)):
        files.append(tmp_path / str(number))
        files[-1].write_bytes(content)
    found = frozen.mapped(LEAVES, files)
    equal(found)
    with pytest.raises(ValueError, match="read-only"):
        found[1][0, 0] = 1.0


def test_a_missing_or_cut_part_is_an_error_with_its_name(tmp_path: Path) -> None:
    (content,) = frozen.packed(LEAVES, ARRAYS)
    with pytest.raises(DelianError, match="gone: a part of the model"):
        frozen.mapped(LEAVES, [tmp_path / "gone"])
    (tmp_path / "cut").write_bytes(content[:-1])
    with pytest.raises(DelianError, match="frozen parts of"):
        frozen.mapped(LEAVES, [tmp_path / "cut"])


def test_sizes_have_limits() -> None:
    with pytest.raises(DelianError, match="are allowed"):
        frozen.layout([Leaf("huge", "f32", (1 << 40,))])
    with pytest.raises(DelianError, match="parts of frozen leaves"):
        frozen.layout([Leaf("large", "f32", (1 << 28,))] * 2000)
