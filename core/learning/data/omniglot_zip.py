"""Omniglot's archives as they are published.

images_background.zip and images_evaluation.zip, or the two small background sets,
images_background_small1.zip and images_background_small2.zip.

A drawing is `images_background/ALPHABET/characterNN/NNNN_DD.png`, 105 x 105 in black and white, DD
the drawer from 01. It is scaled to 28 x 28, each pixel the mean of what it covers, ink high, as
few-shot learning has it. Nothing is unpacked to the disk: a name that leads out of its folder can
do no harm, and is refused all the same. Sizes are bounded before anything is read: of a drawing, of
all of them, and their number.
"""

from __future__ import annotations

import re
import zipfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...common.errors import DelianError
from . import png
from .data_files import BROKEN, require_file

ARCHIVES = ("images_background.zip", "images_evaluation.zip")
#: Parts of the first, which it holds whole; some alphabets are in both.
SMALL = ("images_background_small1.zip", "images_background_small2.zip")
#: A drawing has some 150 bytes; the archives have 32,460 of them.
DRAWING_BYTES_MAX = 64 << 10
DRAWINGS_MAX = 200_000
ARCHIVE_BYTES_MAX = 1 << 30
DRAWERS_MAX = 99
SIDE = 28
NAME = re.compile(r"images_\w+/([^/]+)/(character\d{1,4})/(\d+)_(\d{2})\.png")
_HINT = f"give the folder with {' and '.join(ARCHIVES)}, or one of them, as they are downloaded"


def is_published(path: Path) -> bool:
    """Whether a path is to be read as archives, and not as an .npz file."""
    return path.is_dir() or path.suffix == ".zip"


def read(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of `omniglot`'s .npz file, from a folder of archives or one archive.

    Alphabets are in the order of their names, those of the evaluation set after the others. Raises
    DelianError.
    """
    if path.is_dir():
        whole, small = ([path / n for n in s if (path / n).is_file()] for s in (ARCHIVES, SMALL))
        archives = whole or small
        if not archives:
            raise DelianError(f"{path} has no {' and no '.join(ARCHIVES)}", _HINT)
    else:
        require_file(path, _HINT)
        archives = [path]
    images: list[NDArray[np.uint8]] = []
    places: list[tuple[int, int, int]] = []
    names: list[str] = []
    characters: dict[tuple[str, str], int] = {}
    for archive in archives:
        known = frozenset(places)
        for (alphabet, character, drawer), image in _drawings(archive):
            if alphabet not in names:
                names.append(alphabet)
            one = characters.setdefault((alphabet, character), len(characters))
            place = names.index(alphabet), one, drawer
            if place not in known:
                places.append(place)
                images.append(image)
    alphabets, numbers, drawers = np.array(places, np.int64).T
    return {
        "image": np.stack(images),
        "alphabet": alphabets,
        "character": numbers,
        "drawer": drawers,
        "alphabet_names": np.array(names),
    }


def _drawings(archive: Path) -> list[tuple[tuple[str, str, int], NDArray[np.uint8]]]:
    """((alphabet, character, drawer from 0), u8[28, 28]) of an archive, in the order of names."""
    try:
        with zipfile.ZipFile(archive) as opened:
            found = _listed(archive, opened)
            return [(key, _image(archive, opened, found[key])) for key in sorted(found)]
    except BROKEN as error:
        raise DelianError(
            f"{archive} is not a whole zip archive: {error}", "get the file again"
        ) from None


def _listed(archive: Path, opened: zipfile.ZipFile) -> dict[tuple[str, str, int], zipfile.ZipInfo]:
    """The archive's drawings, once what it declares is within all limits."""
    found: dict[tuple[str, str, int], zipfile.ZipInfo] = {}
    for member in opened.infolist():
        parts = member.filename.split("/")
        if ".." in parts or "\\" in member.filename or not parts[0]:
            raise DelianError(
                f"{archive} has a file {member.filename!r}", "this is another archive"
            )
        match = NAME.fullmatch(member.filename)
        if match is None:
            continue  # folders, and what an operating system leaves behind
        key = match[1], match[2], int(match[4]) - 1
        if not 0 <= key[2] < DRAWERS_MAX or key in found:
            raise DelianError(
                f"{archive} has {match[2]} of {match[1]} by drawer {match[4]} twice, or by none",
                "get the file again",
            )
        if member.file_size > DRAWING_BYTES_MAX:
            raise DelianError(
                f"{archive}: {member.filename} declares {member.file_size} bytes; "
                f"a drawing has at most {DRAWING_BYTES_MAX}",
                "this is another archive",
            )
        found[key] = member
        if len(found) > DRAWINGS_MAX:
            raise DelianError(f"{archive} has more than {DRAWINGS_MAX} drawings", _HINT)
    if not found:
        raise DelianError(f"{archive} holds no drawings of Omniglot's form", _HINT)
    if sum(member.file_size for member in found.values()) > ARCHIVE_BYTES_MAX:
        raise DelianError(f"{archive} unpacks to more than {ARCHIVE_BYTES_MAX >> 20} MiB", _HINT)
    return found


def _image(archive: Path, opened: zipfile.ZipFile, member: zipfile.ZipInfo) -> NDArray[np.uint8]:
    with opened.open(member) as stream:
        # One byte more than there may be: a header can lie, and is then found out.
        content = stream.read(DRAWING_BYTES_MAX + 1)
    if len(content) != member.file_size:
        raise DelianError(
            f"{archive}: {member.filename} is not of the size that it declares", "get it again"
        )
    pixels = png.grey(content, f"{archive}: {member.filename}")
    if min(pixels.shape) < SIDE:
        raise DelianError(
            f"{archive}: {member.filename} has {pixels.shape[1]} x {pixels.shape[0]} pixels",
            f"drawings have at least {SIDE} a side",
        )
    ink = np.float32(png.WHITE) - pixels.astype(np.float32)
    small = _covering(ink.shape[0]) @ ink @ _covering(ink.shape[1]).T
    return np.rint(small).astype(np.uint8)


@cache
def _covering(size: int) -> NDArray[np.float32]:
    """f32[28, size]: the share that each of `size` pixels has in each of 28."""
    edges = np.arange(SIDE + 1) * (size / SIDE)
    pixels = np.arange(size)
    low = np.maximum(edges[:-1, None], pixels)
    high = np.minimum(edges[1:, None], pixels + 1)
    shares: NDArray[np.float32] = (np.maximum(high - low, 0.0) * (SIDE / size)).astype(np.float32)
    return shares
