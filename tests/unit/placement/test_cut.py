"""A cut's bytes: canonical, small, and refused when they are anything else."""

from __future__ import annotations

import pytest
from delian.core.placement.cut import cut as module
from delian.core.placement.cut.cut import SHARED, Cut, CutError
from hypothesis import given
from hypothesis import strategies as st

BUNDLE = "0123456789abcdef" * 4

CUTS = st.builds(
    Cut,
    st.lists(st.integers(-1, 2), max_size=40).map(tuple),
    st.dictionaries(st.integers(0, 2**32 - 1), st.sampled_from(["f16", "i8"]), max_size=5),
    st.sampled_from(["", BUNDLE]),
    st.text(max_size=20),
)


@given(CUTS)
def test_a_cut_comes_back_from_its_bytes(cut):
    content = cut.to_bytes()
    assert len(content) <= module.BYTES_MAX
    back = Cut.from_bytes(content)
    assert back == cut and hash(back) == hash(cut)
    assert back.to_bytes() == content and back.digest() == cut.digest()


@given(CUTS, st.data())
def test_bytes_that_are_cut_short_or_changed_are_another_cut_or_an_error(cut, data):
    content = bytearray(cut.to_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    with pytest.raises(CutError):
        Cut.from_bytes(bytes(content[:at]))
    with pytest.raises(CutError):
        Cut.from_bytes(bytes(content) + b"\0")
    content[at] ^= data.draw(st.integers(1, 255))
    try:
        other = Cut.from_bytes(bytes(content))
    except CutError:
        return
    assert other != cut and other.to_bytes() == bytes(content)


def test_wires_that_lose_nothing_are_left_out():
    plain = Cut((0, 1, SHARED))
    assert Cut((0, 1, SHARED), {5: "f32", 7: "i64"}) == plain
    assert Cut((0, 1, SHARED), {7: "i8", 5: "f16"}).wires == {5: "f16", 7: "i8"}
    assert plain.tiers == (0, 1)


def test_a_cut_of_five_thousand_operations_takes_little_more_than_a_kilobyte():
    assert len(Cut((0, 1) * 2500, bundle=BUNDLE, program="infer").to_bytes()) < 1300


@pytest.mark.parametrize(
    "make",
    [
        lambda: Cut((3,)),
        lambda: Cut((-2,)),
        lambda: Cut((0,), {-1: "i8"}),
        lambda: Cut((0,), {2**32: "i8"}),
        lambda: Cut((0,), bundle="abc"),
        lambda: Cut((0,), bundle=BUNDLE.upper()),
        lambda: Cut((0,), program="x" * 256),
        lambda: Cut((0,) * (module.OPS_MAX + 1)),
        lambda: Cut((0,), dict.fromkeys(range(module.WIRES_MAX + 1), "i8")),
    ],
)
def test_a_cut_that_none_could_be_is_not_made(make):
    with pytest.raises(CutError):
        make()


def test_sizes_are_looked_at_before_anything_of_that_size_is_made():
    good = Cut((0,), program="p").to_bytes()
    count = 1 + 32 + 1 + 1
    large = good[:count] + (2**32 - 1).to_bytes(4, "little") + good[count + 4 :]
    with pytest.raises(CutError, match="at most"):
        Cut.from_bytes(large)
    with pytest.raises(CutError, match="at most"):
        Cut.from_bytes(good[:-4] + (2**32 - 1).to_bytes(4, "little"))
    with pytest.raises(CutError, match="at most"):
        Cut.from_bytes(bytes(module.BYTES_MAX + 1))
    with pytest.raises(CutError, match="format"):
        Cut.from_bytes(b"\2" + good[1:])


def test_the_name_of_the_program_is_text():
    good = Cut((0,), program="p").to_bytes()
    at = good.index(b"p")
    with pytest.raises(CutError, match="not text"):
        Cut.from_bytes(good[:at] + b"\xff" + good[at + 1 :])
