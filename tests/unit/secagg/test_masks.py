"""Masks: published key streams, and the same words from every code, chip and number of threads."""

from __future__ import annotations

import ctypes
import logging
from dataclasses import replace
from importlib import resources

import numpy as np
import pytest
from delian.core.common.errors import DelianError
from delian.core.compiler.backends.native.toolchain import toolchain
from delian.core.privacy.secagg import masks, native
from delian.core.privacy.secagg.secure_errors import SecureError
from hypothesis import given, settings
from hypothesis import strategies as st

KEY = bytes(range(32))


def plain(vector, keys, suite):
    """What a mask is, in the fewest words."""
    total = vector.copy()
    for key, sign in keys:
        out = masks.stream(key, suite).update(bytes(vector.nbytes))
        total += np.uint32(sign & 0xFFFFFFFF) * np.frombuffer(out, "<u4")
    return total


def some(size: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2**32, size, np.uint32)


def keys_of(count: int) -> list[tuple[bytes, int]]:
    return [(bytes([i]) * 31 + b"k", 1 if i % 3 else -1) for i in range(count)]


def test_the_first_words_of_a_mask_never_change():
    vector = np.zeros(4, np.uint32)
    masks.add(vector, [(KEY, 1)], masks.AES_CTR)
    assert vector.tobytes().hex() == "f29000b62a499fd0a9f39a6add2e7780"
    vector = np.zeros(4, np.uint32)
    masks.add(vector, [(KEY, 1)], masks.CHACHA20)
    assert vector.tobytes().hex() == "39fd2b7dd9c5196a8dbd0377b8dc4a49"


@pytest.fixture(params=["plain", "compiled"])
def code(request, monkeypatch):
    kernels = native.library() if request.param == "compiled" else None
    if request.param == "compiled" and kernels is None:
        pytest.skip("no C compiler")
    monkeypatch.setattr(native, "library", lambda: kernels)


@pytest.mark.parametrize("suite", [masks.AES_CTR, masks.CHACHA20])
@pytest.mark.parametrize("size", [0, 1, 15, 16, 17, 2047, 2049, 66_000])
@pytest.mark.parametrize("count", [0, 1, 33])
def test_a_mask_is_its_key_stream(code, suite, size, count):
    vector = some(size)
    expected = plain(vector, keys_of(count), suite)
    masks.add(vector, keys_of(count), suite)
    np.testing.assert_array_equal(vector, expected)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_number_of_threads_gives_the_same(data):
    size = data.draw(st.integers(1, 20_000))
    suite = data.draw(st.sampled_from([masks.AES_CTR, masks.CHACHA20]))
    threads = data.draw(st.integers(0, 9))
    keys = data.draw(
        st.lists(st.tuples(st.binary(min_size=32, max_size=32), st.sampled_from([1, -1])))
    )
    vector = some(size)
    expected = plain(vector, keys, suite)
    with pytest.MonkeyPatch.context() as patch:
        for kernels in {None, native.library()}:
            patch.setattr(native, "library", lambda kernels=kernels: kernels)
            found = vector.copy()
            masks.add(found, keys, suite, threads)
            np.testing.assert_array_equal(found, expected)


def test_a_mask_that_is_added_and_subtracted_is_gone(code):
    vector = some(5_000)
    before = vector.copy()
    masks.add(vector, [(KEY, 1)], 1)
    assert (vector != before).mean() > 0.99
    masks.add(vector, [(KEY, -1)], 1)
    np.testing.assert_array_equal(vector, before)


def test_a_part_of_a_longer_vector_is_masked_alone(code):
    whole = np.zeros(100, np.uint32)
    masks.add(whole[10:40], [(KEY, 1)], 1)
    assert not whole[:10].any() and not whole[40:].any() and whole[10:40].all()


#: What older processors of the same kind have, as flags of gcc and clang.
CHIPS = {
    "no-avx512": ["-mno-avx512f"],
    "no-vaes": ["-mno-vaes", "-mno-avx512f"],
    "no-avx": ["-mno-vaes", "-mno-avx"],
    "no-aes": ["-mno-vaes", "-mno-aes"],
}


@pytest.mark.parametrize("chip", CHIPS)
def test_other_chips_give_the_same(chip, tmp_path, monkeypatch):
    compiler = toolchain.find()
    if compiler is None or toolchain.platform.machine() != "x86_64":
        pytest.skip("flags of x86-64 compilers")
    source = tmp_path / "kernel.c"
    source.write_text(
        resources.files("delian.core.privacy.secagg").joinpath("kernel.c").read_text()
    )
    replace(compiler, flags=(*compiler.flags, *CHIPS[chip])).compile(source, tmp_path / "kernel.so")
    kernels = native.Library(str(tmp_path / "kernel.so"))
    assert (kernels.aes_blocks == 0) == (chip == "no-aes")
    assert kernels.aes_blocks < 4
    monkeypatch.setattr(native, "library", lambda: kernels)
    for suite in (masks.AES_CTR, masks.CHACHA20):
        vector = some(3_001)
        expected = plain(vector, keys_of(5), suite)
        masks.add(vector, keys_of(5), suite)
        np.testing.assert_array_equal(vector, expected)
    shares = ctypes.create_string_buffer(2)
    kernels.split(b"\x53\xca", 1, 2, 2, shares)
    assert shares.raw == b"\x99\xdc"


def test_without_a_compiler_it_is_said_once_and_works(monkeypatch, caplog):
    def fails():
        raise DelianError("the C compiler refused a program")

    fresh = native.cache(native.library.__wrapped__)
    monkeypatch.setattr(native, "library", fresh)
    monkeypatch.setattr(native, "_load", fails)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            vector = np.zeros(4, np.uint32)
            masks.add(vector, [(KEY, 1)], masks.AES_CTR)
            assert vector.tobytes().hex() == "f29000b62a499fd0a9f39a6add2e7780"
    assert len(caplog.records) == 1 and "refused" in caplog.text
    assert masks.backend() == "cryptography"


def test_kernels_that_compute_wrongly_are_not_used(monkeypatch):
    if (kernels := native.library()) is None:
        pytest.skip("no C compiler")
    monkeypatch.setattr(kernels, "mask", lambda *arguments: 0)
    assert not native._is_right(kernels)


@pytest.mark.parametrize(
    ("vector", "keys", "suite"),
    [
        (np.zeros(4, np.uint32), [(KEY, 1)], 3),
        (np.zeros(4, np.uint32), [(KEY, 1)], 0),
        (np.zeros(4, np.uint32), [(KEY[1:], 1)], 1),
        (np.zeros(4, np.uint32), [(KEY, 2)], 1),
        (np.zeros(4, np.int32), [(KEY, 1)], 1),
        (np.zeros((2, 2), np.uint32), [(KEY, 1)], 1),
        (np.zeros(8, np.uint32)[::2], [(KEY, 1)], 1),
        (np.frombuffer(bytes(16), np.uint32), [(KEY, 1)], 1),
    ],
)
def test_what_cannot_be_masked_is_refused(vector, keys, suite):
    with pytest.raises(SecureError):
        masks.add(vector, keys, suite)
