"""Omniglot (Lake, Salakhutdinov, Tenenbaum 2015) as a federation of few-shot learners.

A person drew each character once, so one person has nothing to learn a character from and be tested
by. A device is therefore a small group of drawers with one alphabet: it learns N of the alphabet's
characters from K drawings each and is judged on the others' drawings. The devices of the last
alphabets are held out: the model has never seen their characters.

The file is an .npz with `image` u8 [n, 28, 28] (ink is high), `alphabet`, `character` and `drawer`
[n] whole numbers, and `alphabet_names` [a].
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DelianError
from .federated import DataCard, EpisodeData, FederatedData, check_memory
from .files import read_npz

KEYS = ("image", "alphabet", "character", "drawer", "alphabet_names")


def omniglot(path: Path, *, drawers: int = 4, held_out_alphabets: int = 2) -> FederatedData:
    """The federation of `path`: alphabets x groups of `drawers`. Raises DelianError for a file that
    does not fit.
    """
    arrays = read_npz(path, KEYS)
    image, alphabet, character, drawer = (arrays[key] for key in KEYS[:4])
    _check(path, arrays)
    alphabet_names = [str(name) for name in arrays["alphabet_names"]]
    if not 0 <= held_out_alphabets < len(alphabet_names):
        raise DelianError(
            f"cannot hold out {held_out_alphabets} of {len(alphabet_names)} alphabets of {path}",
            f"choose data.held_out_alphabets between 0 and {len(alphabet_names) - 1}",
        )
    people = int(drawer.max()) + 1
    groups = people // drawers
    if groups == 0:
        raise DelianError(
            f"{path} has {people} drawers, fewer than a group of {drawers}", "lower data.drawers"
        )

    characters = [np.unique(character[alphabet == a]) for a in range(len(alphabet_names))]
    capacity = max(len(chars) for chars in characters)
    check_memory(len(alphabet_names) * groups, capacity, drawers * image[0].nbytes)
    table = np.full((int(character.max()) + 1, people), -1, dtype=np.int64)
    table[character, drawer] = np.arange(len(image))

    devices: list[EpisodeData] = []
    names: list[str] = []
    held_out: set[int] = set()
    for a, name in enumerate(alphabet_names):
        for group in range(groups):
            if a >= len(alphabet_names) - held_out_alphabets:
                held_out.add(len(devices))
            rows = table[characters[a], group * drawers : (group + 1) * drawers]
            names.append(f"{name}, drawers {group * drawers + 1}-{(group + 1) * drawers}")
            devices.append(_episode_table(path, names[-1], image, rows, capacity))
    card = _card(path, alphabet_names, devices, groups, drawers)
    return FederatedData(
        tuple(devices), frozenset(held_out), (28, 28), capacity, tuple(names), card
    )


def _check(path: Path, arrays: dict[str, NDArray[Any]]) -> None:
    image = arrays["image"]
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[1:] != (28, 28):
        raise DelianError(
            f"array `image` of {path} is {image.dtype} {list(image.shape)}, not uint8 [n, 28, 28]",
            "scale the drawings to 28 x 28",
        )
    if len(image) == 0:
        raise DelianError(
            f"array `image` of {path} holds no drawings", "check how the file was made"
        )
    for key in KEYS[1:4]:
        numbers = arrays[key]
        if numbers.shape != (len(image),) or numbers.dtype.kind not in "iu" or numbers.min() < 0:
            raise DelianError(
                f"array `{key}` of {path} is {numbers.dtype} {list(numbers.shape)}",
                f"it needs one whole number from 0 for each of the {len(image)} drawings",
            )
        if numbers.max() >= len(image):
            raise DelianError(
                f"array `{key}` of {path} has a number {numbers.max()}",
                "numbers count from 0 without large gaps",
            )
    if int(arrays["alphabet"].max()) >= len(arrays["alphabet_names"]):
        raise DelianError(
            f"{path} has {len(arrays['alphabet_names'])} alphabet names and an alphabet "
            f"{int(arrays['alphabet'].max())}",
            "name every alphabet in `alphabet_names`",
        )


def _episode_table(
    path: Path, name: str, image: NDArray[np.uint8], rows: NDArray[np.int64], capacity: int
) -> EpisodeData:
    """`rows`: [characters, drawers] row numbers into `image`, -1 where a drawing is missing."""
    if len(rows) == 0:
        raise DelianError(
            f"device `{name}` has no samples", f"remove the empty alphabet from {path}"
        )
    if (rows < 0).any():
        raise DelianError(
            f"device `{name}` lacks a drawing of character {int(np.argwhere(rows < 0)[0][0])}",
            "each person must have drawn every character of an alphabet",
        )
    x = np.zeros((capacity, rows.shape[1], *image.shape[1:]), np.uint8)
    x[: len(rows)] = image[rows]
    return EpisodeData(x, chars=rows.shape[0], drawers=rows.shape[1])


def _card(
    path: Path, alphabets: list[str], devices: list[EpisodeData], groups: int, drawers: int
) -> DataCard:
    counts = []
    for i, device in enumerate(devices):
        row = [0] * len(alphabets)
        row[i // groups] = device.examples
        counts.append(tuple(row))
    return DataCard(
        f"Omniglot, {path.name}",
        f"an alphabet and {drawers} drawers a device",
        "drawings",
        tuple(d.examples for d in devices),
        tuple(alphabets),
        tuple(counts),
    )
