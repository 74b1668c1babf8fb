"""Omniglot's published archives, made here: what is right is read, and what is torn, huge or of ill
will is refused with the archive's name.
"""

from __future__ import annotations

import io
import struct
import tracemalloc
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from delian.core.common.errors import DelianError
from delian.core.learning import data
from delian.core.learning.data import omniglot_zip, png
from numpy.typing import NDArray

SIDE = 105


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def packed(lines: NDArray[np.uint8], filters: list[int]) -> bytes:
    """Rows under these filters in turn, as section 9 of PNG has them, zlib-packed."""
    rows, above = b"", np.zeros(lines.shape[1], int)
    for i, line in enumerate(lines.astype(int)):
        kind = filters[i % len(filters)]
        left = np.concatenate([[0], line[:-1]])
        corner = np.concatenate([[0], above[:-1]])
        at = left + above - corner
        near = np.abs(np.stack([left, above, corner]) - at).argmin(axis=0)
        paeth = np.choose(near, [left, above, corner])
        guess = [0 * line, left, above, (left + above) // 2, paeth][kind]
        rows += bytes([kind]) + ((line - guess) % 256).astype(np.uint8).tobytes()
        above = line
    return zlib.compress(rows)


def png_of(
    pixels: NDArray[np.uint8],
    filters: tuple[int, ...] = (0,),
    bits: int = 1,
    head: bytes | None = None,
    body: bytes | None = None,
) -> bytes:
    """A grey PNG; `head` and `body` stand in for the right ones."""
    height, width = pixels.shape
    lines = np.packbits(pixels > 0, axis=1) if bits == 1 else pixels
    head = head or struct.pack(">IIBBBBB", width, height, bits, 0, 0, 0, 0)
    body = body if body is not None else packed(lines, list(filters))
    cut = len(body) // 2
    return (
        png.SIGNATURE
        + chunk(b"IHDR", head)
        + chunk(b"tEXt", b"Software\0none")
        + chunk(b"IDAT", body[:cut])
        + chunk(b"IDAT", body[cut:])
        + chunk(b"IEND", b"")
    )


def drawing(number: int, side: int = SIDE) -> NDArray[np.uint8]:
    """White with a black square whose place says which it is."""
    pixels = np.full((side, side), 255, np.uint8)
    pixels[10:40, number : number + 30] = 0
    return pixels


def name_of(alphabet: str, character: int, drawer: int, top: str = "images_background") -> str:
    return f"{top}/{alphabet}/character{character:02d}/{character:04d}_{drawer:02d}.png"


def write(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def alphabets(
    names: tuple[str, ...], top: str, characters: int = 5, people: int = 2
) -> dict[str, bytes]:
    return {
        name_of(name, c, d, top): png_of(drawing(5 * c + 20 * d))
        for name in names
        for c in range(1, characters + 1)
        for d in range(1, people + 1)
    }


def test_both_archives_are_one_federation_with_the_evaluation_set_held_out(tmp_path: Path) -> None:
    first = alphabets(("Greek", "Braille"), "images_background")
    first["images_background/"] = first["images_background/Greek/"] = b""
    first["__MACOSX/images_background/._Greek"] = b"other"
    write(tmp_path / "images_background.zip", first)
    write(tmp_path / "images_evaluation.zip", alphabets(("Angelic",), "images_evaluation"))
    federation = data.omniglot(tmp_path, drawers=2, held_out_alphabets=1)
    names = [name.split(",")[0] for name in federation.names]
    assert names == ["Braille", "Greek", "Angelic"] and federation.held_out == {2}
    assert federation.devices[0].x.shape == (5, 2, 28, 28)
    one = data.omniglot(tmp_path / "images_evaluation.zip", drawers=1, held_out_alphabets=0)
    assert len(one.devices) == 2


def test_an_alphabet_that_is_in_both_small_sets_is_there_once(tmp_path: Path) -> None:
    for number, names in ((1, ("Greek", "Latin")), (2, ("Latin", "Korean"))):
        top = f"images_background_small{number}"
        write(tmp_path / f"{top}.zip", alphabets(names, top))
    arrays = omniglot_zip.read(tmp_path)
    assert arrays["alphabet_names"].tolist() == ["Greek", "Latin", "Korean"]
    assert len(arrays["image"]) == 3 * 5 * 2 and arrays["character"].max() == 14
    write(tmp_path / "images_background.zip", alphabets(("Tagalog",), "images_background"))
    assert omniglot_zip.read(tmp_path)["alphabet_names"].tolist() == ["Tagalog"]


def test_a_drawing_keeps_its_ink_and_its_place(tmp_path: Path) -> None:
    path = write(tmp_path / "a.zip", {name_of("A", 1, 1): png_of(drawing(45))})
    (image,) = omniglot_zip.read(path)["image"]
    ink = (255 - drawing(45).astype(float)).mean()
    assert image.astype(float).mean() == pytest.approx(ink, abs=0.5)
    rows, columns = np.nonzero(image > 127)
    scale = 28 / SIDE
    assert rows.min() == round(10 * scale) and columns.max() + 1 == round(75 * scale)


@pytest.mark.parametrize("bits", [1, 8])
@pytest.mark.parametrize("filters", [(0,), (1,), (2,), (3,), (4,), (4, 0, 2, 3, 1)])
def test_every_filter_of_png_is_undone(filters: tuple[int, ...], bits: int) -> None:
    rng = np.random.default_rng(3)
    pixels = rng.integers(0, 256, (13, 21)).astype(np.uint8)
    if bits == 1:
        pixels = (pixels > 127).astype(np.uint8) * np.uint8(255)
    np.testing.assert_array_equal(png.grey(png_of(pixels, filters, bits), "a"), pixels)


def test_pillow_reads_what_this_reads() -> None:
    image = pytest.importorskip("PIL.Image", reason="Pillow, the extra `images`, is missing")
    stream = io.BytesIO()
    image.fromarray(drawing(30)).convert("1").save(stream, "PNG")
    np.testing.assert_array_equal(png.grey(stream.getvalue(), "a"), drawing(30))


GOOD = png_of(drawing(1))
HUGE = struct.pack(">IIBBBBB", 2**31 - 1, 2**31 - 1, 1, 0, 0, 0, 0)
COLOUR = struct.pack(">IIBBBBB", SIDE, SIDE, 8, 2, 0, 0, 0)
INTERLACED = struct.pack(">IIBBBBB", SIDE, SIDE, 1, 0, 0, 0, 1)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "signature"),
        (GOOD[:-20], "PNG"),
        (GOOD[:60], "PNG"),
        (GOOD[:40] + b"\xff" + GOOD[41:], "damaged"),
        (png_of(drawing(1), head=HUGE), "at most 512"),
        (png_of(drawing(1), head=struct.pack(">IIBBBBB", 0, 5, 1, 0, 0, 0, 0)), "at most 512"),
        (png_of(drawing(1), head=COLOUR), "grey"),
        (png_of(drawing(1), head=INTERLACED), "grey"),
        (png_of(drawing(1), head=b"short"), "PNG"),
        (png_of(drawing(1), body=zlib.compress(b"\0" * 100)), "its pixels are not"),
        (png_of(drawing(1), body=zlib.compress(b"\0" * 50_000_000)), "its pixels are not"),
        (png_of(drawing(1), body=b"no zlib"), "PNG"),
        (png_of(drawing(1), body=zlib.compress(b"\x09" * SIDE * 15)), "filter 9"),
        (png.SIGNATURE + chunk(b"IEND", b""), "does not begin"),
        (png.SIGNATURE + struct.pack(">I4s", 2**32 - 1, b"IHDR"), "PNG"),
    ],
)
def test_a_png_that_is_torn_huge_or_of_another_kind_is_told(content: bytes, told: str) -> None:
    with pytest.raises(DelianError, match=told) as caught:
        png.grey(content, "drawing 7")
    assert "drawing 7" in str(caught.value)


def test_a_bomb_is_not_unpacked() -> None:
    bomb = png_of(drawing(1), body=zlib.compress(b"\0" * 200_000_000, 9))
    tracemalloc.start()
    with pytest.raises(DelianError):
        png.grey(bomb, "bomb")
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 5_000_000


@pytest.mark.parametrize(
    "name",
    [
        *("../images_background/A/character01/0001_01.png", "/images_background/A/x.png"),
        *("images_background/../../etc/passwd", "images_background\\A\\character01\\1_01.png"),
    ],
)
def test_names_that_lead_out_of_the_folder_are_refused(tmp_path: Path, name: str) -> None:
    good = alphabets(("A",), "images_background", 1, 1)
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for other, content in good.items():
            archive.writestr(other, content)
        info = zipfile.ZipInfo("placeholder")
        info.filename = name  # ZipInfo itself would mend it
        archive.writestr(info, b"x")
    with pytest.raises(DelianError, match="has a file"):
        omniglot_zip.read(path)


def test_what_an_archive_declares_is_within_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = write(
        tmp_path / "l.zip", {name_of("A", 1, 1): b"\0" * (omniglot_zip.DRAWING_BYTES_MAX + 1)}
    )
    with pytest.raises(DelianError, match="at most 65536"):
        omniglot_zip.read(large)
    several = write(tmp_path / "s.zip", alphabets(("A",), "images_background", 2, 2))
    with monkeypatch.context() as patch:
        patch.setattr(omniglot_zip, "DRAWINGS_MAX", 3)
        with pytest.raises(DelianError, match="more than 3 drawings"):
            omniglot_zip.read(several)
    monkeypatch.setattr(omniglot_zip, "ARCHIVE_BYTES_MAX", 100)
    with pytest.raises(DelianError, match="unpacks to more"):
        omniglot_zip.read(several)


def test_a_size_that_is_a_lie_is_found_out(tmp_path: Path) -> None:
    path = write(tmp_path / "a.zip", {name_of("A", 1, 1): GOOD})
    whole = bytearray(path.read_bytes())
    central = whole.rindex(b"PK\x01\x02")
    for size in (10, len(GOOD) + 10):
        struct.pack_into("<I", whole, central + 24, size)
        path.write_bytes(whole)
        with pytest.raises(DelianError, match=r"a\.zip"):
            omniglot_zip.read(path)


@pytest.mark.parametrize("cut", [0, 10, 200, -1])
def test_a_torn_archive_is_told(tmp_path: Path, cut: int) -> None:
    path = write(tmp_path / "a.zip", alphabets(("A",), "images_background", 1, 2))
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(DelianError, match="not a whole zip"):
        omniglot_zip.read(path)


def test_other_archives_and_folders_without_one_are_told(tmp_path: Path) -> None:
    with pytest.raises(DelianError, match=r"no images_background\.zip"):
        omniglot_zip.read(tmp_path)
    with pytest.raises(DelianError, match="no data file"):
        omniglot_zip.read(tmp_path / "none.zip")
    with pytest.raises(DelianError, match="no drawings"):
        omniglot_zip.read(write(tmp_path / "a.zip", {"readme.txt": b"hello"}))
    twice = {name_of("A", 1, 1): GOOD, "images_background/A/character01/9999_01.png": GOOD}
    with pytest.raises(DelianError, match="twice"):
        omniglot_zip.read(write(tmp_path / "b.zip", twice))
    with pytest.raises(DelianError, match="or by none"):
        omniglot_zip.read(write(tmp_path / "c.zip", {name_of("A", 1, 0): GOOD}))
    small = {name_of("A", 1, 1): png_of(np.zeros((9, 9), np.uint8))}
    with pytest.raises(DelianError, match="9 x 9 pixels"):
        omniglot_zip.read(write(tmp_path / "d.zip", small))
    lacking = alphabets(("A",), "images_background", 2, 2)
    lacking.pop(name_of("A", 2, 2))
    with pytest.raises(DelianError, match="lacks a drawing"):
        data.omniglot(write(tmp_path / "e.zip", lacking), drawers=2, held_out_alphabets=0)
