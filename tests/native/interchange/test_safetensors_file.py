"""Files of safetensors: as the package `safetensors` has them, and each bad one refused."""

from __future__ import annotations

import json
import os
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from delian.core.common.errors import DelianError
from delian.core.compiler.ir import Array, DType
from delian.core.learning.interchange import safetensors_file
from delian.core.learning.interchange.safetensors_file import read_safetensors, write_safetensors

RNG = np.random.default_rng(11)


def arrays_of_every_type() -> dict[str, Array]:
    """A matrix, a number and an empty array of each; names in no order."""
    made: dict[str, Array] = {}
    for d in reversed(DType.here()):
        numbers = np.asarray(RNG.integers(0, 2, (3, 5)) * 3.0).astype(d.numpy)
        made[f"{d.value}.matrix"] = numbers
        made[f"{d.value}.number"] = numbers[:1, 0].reshape(())
        made[f"{d.value}.empty"] = numbers[:0]
    return made


def same(a: Array, b: Array) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def content(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def entry(begin: int, end: int, dtype: str = "U8", shape: Any = None) -> dict[str, Any]:
    shape = [end - begin] if shape is None else shape
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def test_arrays_of_every_type_come_back_as_they_were(tmp_path: Path) -> None:
    path, arrays = tmp_path / "a.safetensors", arrays_of_every_type()
    write_safetensors(path, arrays, {"format": "np", "note": "é \n \U0001f600"})
    found, metadata = read_safetensors(path)
    assert metadata == {"format": "np", "note": "é \n \U0001f600"}
    assert sorted(found) == sorted(arrays)
    for name, array in arrays.items():
        assert same(found[name], array), name
        assert found[name].flags.writeable and found[name].flags.c_contiguous


def test_arrays_in_other_orders_of_memory_and_bytes_are_written_as_what_they_are(
    tmp_path: Path,
) -> None:
    path, x = tmp_path / "a.safetensors", RNG.normal(size=(4, 3))
    odd_bools = np.array([0, 2, 255], np.uint8).view(np.bool_)
    arrays = {"turned": x.T, "parts": x[::2, ::-1], "big": x.astype(">f8"), "bools": odd_bools}
    write_safetensors(path, arrays)
    found, _ = read_safetensors(path)
    for name in ("turned", "parts", "big"):
        assert np.array_equal(found[name], arrays[name]) and found[name].dtype.isnative
    assert found["bools"].tolist() == [False, True, True]


def test_a_file_without_tensors_is_a_file(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "a", {})
    assert read_safetensors(tmp_path / "a") == ({}, {})


def test_each_tensor_begins_at_a_multiple_of_its_elements_size(tmp_path: Path) -> None:
    path, arrays = tmp_path / "a.safetensors", arrays_of_every_type()
    write_safetensors(path, arrays)
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    assert length % 8 == 0
    for name, row in json.loads(raw[8 : 8 + length]).items():
        assert row["data_offsets"][0] % arrays[name].itemsize == 0


def test_the_same_arrays_give_the_same_bytes_in_any_order(tmp_path: Path) -> None:
    arrays = arrays_of_every_type()
    metadata = {"b": "1", "a": "2"}
    write_safetensors(tmp_path / "a", arrays, metadata)
    turned = dict(reversed(arrays.items()))
    write_safetensors(tmp_path / "b", turned, dict(reversed(metadata.items())))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_the_package_reads_what_is_written_and_writes_the_same_bytes(tmp_path: Path) -> None:
    package = pytest.importorskip("safetensors.numpy", reason="safetensors is not installed")
    path = tmp_path / "a.safetensors"
    arrays = {n: a for n, a in arrays_of_every_type().items() if not n.startswith("bf16")}
    arrays['a "quoted" naïve\tname'] = np.arange(3, dtype=np.int16)
    write_safetensors(path, arrays, {"format": "np"})
    found = package.load_file(path)
    assert sorted(found) == sorted(arrays)
    assert all(same(found[name], arrays[name]) for name in arrays)
    contiguous = {n: a.copy() for n, a in arrays.items()}
    assert path.read_bytes() == package.save(contiguous, {"format": "np"})


def test_what_the_package_writes_is_read(tmp_path: Path) -> None:
    package = pytest.importorskip("safetensors.numpy", reason="safetensors is not installed")
    path = tmp_path / "a.safetensors"
    arrays = {n: a for n, a in arrays_of_every_type().items() if not n.startswith("bf16")}
    package.save_file(arrays, path, {"made by": "the package", "x": "y"})
    found, metadata = read_safetensors(path)
    assert metadata == {"made by": "the package", "x": "y"}
    assert sorted(found) == sorted(arrays)
    assert all(same(found[name], arrays[name]) for name in arrays)


def test_bf16_of_torch_is_read_bit_for_bit(tmp_path: Path) -> None:
    pytest.importorskip("ml_dtypes")
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    package = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")
    path = tmp_path / "a.safetensors"
    x = torch.randn(3, 4).to(torch.bfloat16)
    package.save_file({"x": x}, path)
    found, _ = read_safetensors(path)
    assert found["x"].dtype == DType.BF16.numpy
    assert found["x"].tobytes() == x.view(torch.int16).numpy().tobytes()
    write_safetensors(tmp_path / "b", found)
    assert torch.equal(package.load_file(tmp_path / "b")["x"], x)


BAD: list[tuple[str, bytes, str]] = [
    ("nothing", b"", "has 0 bytes"),
    ("a short length", b"\x01\x00", "has 2 bytes"),
    ("a huge header", content(b"{}", length=2**63), "a header of 9223372036854775808 bytes"),
    ("a header of 100 MB", content(b"{}", length=100_000_000), "at most 8388608"),
    ("a cut header", content(b'{"a":', length=100), "the header ends at byte 108, the file at 13"),
    ("no object", content(b"[]"), "does not begin with {"),
    ("no JSON", content(b'{"a": }'), r"not JSON: .* \(byte 14\)"),
    ("two values", content(b"{} {}"), "not JSON"),
    ("no UTF-8", content(b'{"\xff": 1}'), r"not UTF-8 \(byte 10\)"),
    ("deep lists", content(b'{"a": ' + b"[" * 100_000), "nests too deeply"),
    ("deep objects", content(b'{"a":' * 100_000), "nests too deeply"),
    ("half a surrogate pair", content(b'{"\\ud800": 1}'), "no Unicode text"),
    ("a tensor twice", content(b'{"a": 1, "a": 1}'), "has 'a' twice"),
    (
        "a field twice",
        content(b'{"a": {"dtype": "U8", "dtype": "I8", "shape": [], "data_offsets": [0, 1]}}'),
        "has 'dtype' twice",
    ),
    ("metadata of lists", content({"__metadata__": []}), "must be an object of texts"),
    ("metadata of numbers", content({"__metadata__": {"a": 1}}), "only texts"),
    ("metadata of objects", content({"__metadata__": {"a": {}}}), "only texts"),
    ("a number for a tensor", content({"a": 1}), "'a' must have dtype, shape, data_offsets"),
    ("no shape", content({"a": {"dtype": "U8", "data_offsets": [0, 0]}}), "must have"),
    ("one more field", content({"a": entry(0, 0) | {"x": 1}}), "must have"),
    ("another type", content({"a": entry(0, 1, "F8_E4M3")}, b"0"), "element type 'F8_E4M3'"),
    ("complex numbers", content({"a": entry(0, 8, "C64", [1])}, bytes(8)), "type 'C64'; there are"),
    ("a type in small letters", content({"a": entry(0, 1, "u8")}, b"0"), "element type 'u8'"),
    ("a list for a type", content({"a": entry(0, 1) | {"dtype": ["U8"]}}, b"0"), "element type"),
    ("a float in a shape", content({"a": entry(0, 1, shape=[1.0])}, b"0"), "has 1.0 where"),
    ("an exponent", content(b'{"a": {"shape": [1e0]}}'), "has 1e0 where"),
    ("not a number", content(b'{"a": {"shape": [NaN]}}'), "has NaN where"),
    ("infinity", content(b'{"a": {"shape": [-Infinity]}}'), "has -Infinity where"),
    ("a truth in a shape", content({"a": entry(0, 1, shape=[True])}, b"0"), "whole numbers"),
    ("a number for a shape", content({"a": entry(0, 1, shape=1)}, b"0"), "whole numbers"),
    ("a negative size", content({"a": entry(0, 1, shape=[-1])}, b"0"), "the number -1"),
    ("a negative offset", content({"a": entry(-1, 0, shape=[1])}, b"0"), "the number -1"),
    ("a number of many digits", content(b'{"a": ' + b"9" * 5000 + b"}"), "the number 999"),
    (
        "three offsets",
        content({"a": entry(0, 1) | {"data_offsets": [0, 1, 1]}}, b"0"),
        "data_offsets one of two",
    ),
    ("an end before the begin", content({"a": entry(1, 0, shape=[1])}, b"0"), "takes 1 bytes"),
    ("too few bytes for the shape", content({"a": entry(0, 7, "F64", [1])}, bytes(7)), "takes 8"),
    ("many axes", content({"a": entry(0, 1, shape=[1] * 33)}, b"0"), "33 axes; at most 32"),
    (
        "a size beyond all memory",
        content({"a": entry(0, 0, shape=[2**40, 2**40, 0])}),
        "more than 1099511627776 elements",
    ),
    ("a product that wraps", content({"a": entry(0, 0, shape=[2**32, 2**32])}), "elements"),
    ("an offset beyond the end", content({"a": entry(0, 9)}, b"0"), "take 9 bytes of data"),
    ("data that no tensor has", content({"a": entry(0, 1)}, b"01"), "the file has 2"),
    ("data without a tensor", content({}, b"01"), "take 0 bytes of data, the file has 2"),
    (
        "a hole",
        content({"a": entry(0, 1), "b": entry(2, 3)}, b"012"),
        "'b' begins at byte 2 of the data and leaves a hole after 'a', which ends at 1",
    ),
    ("a hole at the begin", content({"a": entry(1, 2)}, b"01"), "a hole after the header"),
    (
        "an overlap",
        content({"a": entry(0, 2), "b": entry(1, 3)}, b"012"),
        "'b' begins at byte 1 of the data and overlaps 'a', which ends at 2",
    ),
    ("one place for two", content({"a": entry(0, 1), "b": entry(0, 1)}, b"0"), "overlaps 'a'"),
    ("a bool of 2", content({"a": entry(0, 3, "BOOL")}, b"\x00\x01\x02"), r"0 nor 1 \(byte 2"),
    ("a long name", content({"a" * 1025: entry(0, 0)}), "name of 1025 characters; at most 1024"),
]


@pytest.mark.parametrize(("raw", "says"), [b[1:] for b in BAD], ids=[b[0] for b in BAD])
def test_a_bad_file_is_refused(tmp_path: Path, raw: bytes, says: str) -> None:
    path = tmp_path / "bad.safetensors"
    path.write_bytes(raw)
    with pytest.raises(DelianError, match=says) as caught:
        read_safetensors(path)
    assert str(path) in caught.value.message and caught.value.hint
    assert len(caught.value.message) < len(str(path)) + 400


def test_every_prefix_of_a_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write_safetensors(path, {"x": np.arange(3), "y": np.array([True])}, {"a": "b"})
    raw = path.read_bytes()
    for size in range(len(raw)):
        path.write_bytes(raw[:size])
        with pytest.raises(DelianError):
            read_safetensors(path)
    path.write_bytes(raw)
    assert read_safetensors(path)[0]["x"].tolist() == [0, 1, 2]


def test_files_of_other_writers_have_their_header_as_they_like(tmp_path: Path) -> None:
    """Spaces behind it, an empty tensor between others, offsets in another order."""
    path = tmp_path / "a.safetensors"
    header = {"b": entry(2, 3), "e": entry(2, 2, "F64", [0, 3]), "a": entry(0, 2)}
    path.write_bytes(content(json.dumps(header).encode() + b"   ", b"\x05\x06\x07"))
    found, metadata = read_safetensors(path)
    assert metadata == {} and list(found) == ["b", "e", "a"]
    assert found["a"].tolist() == [5, 6] and found["b"].tolist() == [7]
    assert found["e"].shape == (0, 3) and found["e"].dtype == np.float64


def drawn(r: random.Random) -> bytes:
    """A file of a few tensors in which at most a few things are wrong."""
    place, header = 0, {}
    for k in range(r.randrange(4)):
        shape = [r.choice([0, 1, 2, 3]) for _ in range(r.randrange(3))]
        dtype, size = r.choice([("U8", 1), ("I16", 2), ("BF16", 2), ("F32", 4), ("U64", 8)])
        end = place + int(np.prod(shape, dtype=int)) * size
        row: dict[str, Any] = entry(place, end, dtype, shape)
        if r.random() < 0.1:
            odd = [None, 1, "x", [], [1.0], [-1], [True], [2**64], {}, [0, 0]]
            row[r.choice(list(row))] = r.choice(odd)
        if r.random() < 0.1:
            row["data_offsets"] = [place + r.randint(-1, 1), end + r.randint(-1, 1)]
        header[f"{r.choice('abé')}{k}"], place = row, end
    rows = list(header.items())
    r.shuffle(rows)
    text = json.dumps(dict(rows), ensure_ascii=r.random() < 0.5) + r.choice(["", "", " ", "}", "x"])
    length = len(text.encode()) + r.choice([0, 0, 0, 0, -1, 1])
    data = r.randbytes(max(place + r.choice([0, 0, 0, 0, -1, 1]), 0))
    return content(text.encode(), data, max(length, 0))


def test_what_is_read_the_package_reads_too_and_as_the_same(tmp_path: Path) -> None:
    package = pytest.importorskip("safetensors", reason="safetensors is not installed")
    path, r, read = tmp_path / "a.safetensors", random.Random(5), 0
    for _ in range(1500):
        raw = drawn(r)
        path.write_bytes(raw)
        try:
            arrays, _ = read_safetensors(path)
        except DelianError:
            continue
        found = dict(package.deserialize(raw))
        assert found.keys() == arrays.keys()
        assert all(bytes(found[n]["data"]) == a.tobytes() for n, a in arrays.items())
        assert all(tuple(found[n]["shape"]) == a.shape for n, a in arrays.items())
        read += 1
    assert read > 300


def test_more_tensors_than_the_limit_are_refused_both_ways(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, arrays = tmp_path / "a.safetensors", {str(k): np.zeros(0) for k in range(4)}
    write_safetensors(path, arrays)
    monkeypatch.setattr(safetensors_file, "TENSORS_MAX", 3)
    with pytest.raises(DelianError, match="4 tensors; at most 3"):
        read_safetensors(path)
    with pytest.raises(DelianError, match="4 tensors; at most 3"):
        write_safetensors(path, arrays)


def test_without_ml_dtypes_bf16_is_refused_before_any_data_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(content({"x": entry(0, 2, "BF16", [1])}, bytes(2)))
    from delian.core.compiler import ir

    ir._bfloat16.cache_clear()
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(DelianError, match="ml_dtypes") as caught:
        read_safetensors(path)
    assert "[bf16]" in caught.value.hint
    monkeypatch.undo()
    ir._bfloat16.cache_clear()


@pytest.mark.parametrize(
    ("arrays", "metadata", "says"),
    [
        ({"x": np.zeros(2, np.complex64)}, None, "'x' has the element type complex64"),
        ({"x": np.array(["a"])}, None, "element type <U1"),
        ({"x": np.array([object()])}, None, "element type object"),
        ({"x": np.zeros(2, np.longdouble)}, None, "element type"),
        ({"__metadata__": np.zeros(2)}, None, "cannot be named '__metadata__'"),
        ({3: np.zeros(2)}, None, "cannot be named 3"),
        ({"x" * 1025: np.zeros(2)}, None, "cannot be named"),
        ({"\ud800": np.zeros(2)}, None, "no Unicode text"),
        ({"x": np.zeros(2)}, {"a": 1}, "texts by texts"),
        ({"x": np.zeros(2)}, {1: "a", "b": "c"}, "texts by texts"),
        ({"x": np.zeros(2)}, {"a": "b" * (9 << 20)}, "at most 8388608"),
    ],
)
def test_what_the_format_has_not_is_not_written(
    tmp_path: Path, arrays: Any, metadata: Any, says: str
) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(b"before")
    with pytest.raises(DelianError, match=re.escape(says)):
        write_safetensors(path, arrays, metadata)
    assert path.read_bytes() == b"before"
    assert [f.name for f in tmp_path.iterdir()] == ["a.safetensors"]


def test_a_writer_that_fails_midway_leaves_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(b"before")
    parts = safetensors_file._parts

    def failing(*given: Any) -> Iterator[Any]:
        yield next(parts(*given))
        raise MemoryError

    monkeypatch.setattr(safetensors_file, "_parts", failing)
    with pytest.raises(MemoryError):
        write_safetensors(path, {"x": np.zeros(9)})
    assert path.read_bytes() == b"before"
    assert [f.name for f in tmp_path.iterdir()] == ["a.safetensors"]


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DelianError, match="is not a file"):
        read_safetensors(tmp_path)
    with pytest.raises(DelianError, match="cannot be read"):
        read_safetensors(tmp_path / "missing")
    with pytest.raises(DelianError, match="cannot be written"):
        write_safetensors(tmp_path / "missing" / "a", {})


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes here")
def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DelianError, match="is not a file"):
        read_safetensors(tmp_path / "pipe")
