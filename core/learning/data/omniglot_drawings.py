"""Omniglot (Lake, Salakhutdinov, Tenenbaum 2015) as a federation of few-shot learners.

A person drew each character once, so one person has nothing to learn a character from and be tested
by. A device is therefore a small group of drawers with one alphabet: it learns N of the alphabet's
characters from K drawings each and is judged on the others' drawings. The devices of the last
alphabets are held out: the model has never seen their characters. Papers draw the characters of an
episode from all alphabets, which is easier; `Dealt` gives devices such characters.

The drawings are in the published archives (`omniglot_zip`), or in an .npz with `image` u8 [n, 28,
28] (ink is high), `alphabet`, `character` and `drawer` [n] whole numbers, and `alphabet_names` [a].
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...common.errors import DelianError
from . import omniglot_zip
from .data_files import read_npz
from .federated_data import PARTITION_STREAM, DataCard, EpisodeData, FederatedData, check_memory

KEYS = ("image", "alphabet", "character", "drawer", "alphabet_names")


@dataclass(frozen=True, slots=True)
class Dealt:
    """How characters of all alphabets are dealt to devices, by `seed`."""

    each: int
    held_out: int
    seed: int


def omniglot(
    path: Path,
    *,
    drawers: int = 4,
    held_out_alphabets: int = 2,
    turns: int = 1,
    dealt: Dealt | None = None,
) -> FederatedData:
    """The federation of `path`.

    Alphabets x groups of `drawers`, or with `dealt` random characters x groups of drawers. Raises
    DelianError for a file that does not fit.

    turns: each character turned by 0, 1, ... `turns` - 1 quarters is so many characters (Santoro et
    al. 2016); those of one character are all held out, or none.
    """
    arrays = omniglot_zip.read(path) if omniglot_zip.is_published(path) else read_npz(path, KEYS)
    image, alphabet, character, drawer = (arrays[key] for key in KEYS[:4])
    _check(path, arrays)
    alphabets = [str(name) for name in arrays["alphabet_names"]]
    people = int(drawer.max()) + 1
    groups = people // drawers
    if groups == 0:
        raise DelianError(
            f"{path} has {people} drawers, fewer than a group of {drawers}", "lower data.drawers"
        )
    table = np.full((int(character.max()) + 1, people), -1, dtype=np.int64)
    table[character, drawer] = np.arange(len(image))
    of = np.zeros(len(table), np.int64)
    of[character] = alphabet
    if dealt is None:
        sets = _by_alphabet(path, of, np.unique(character), alphabets, held_out_alphabets, turns)
    else:
        sets = _by_chance(path, np.unique(character), dealt, turns)
    capacity = max(len(each.characters) for each in sets)
    check_memory(len(sets) * groups, capacity, drawers * image[0].nbytes)

    devices: list[EpisodeData] = []
    names: list[str] = []
    held_out: set[int] = set()
    counts: list[tuple[int, ...]] = []
    for each in sets:
        for group in range(groups):
            if each.held_out:
                held_out.add(len(devices))
            first = group * drawers
            rows = table[each.characters, first : first + drawers]
            names.append(f"{each.name}, drawers {first + 1}-{first + drawers}")
            devices.append(_episode_table(path, names[-1], image, rows, each.turns, capacity))
            shares = np.bincount(of[each.characters], minlength=len(alphabets))
            counts.append(tuple(int(n) * drawers for n in shares))
    card = DataCard(
        f"Omniglot, {path.name}",
        f"{'an alphabet' if dealt is None else 'random characters'} and {drawers} drawers a device",
        "drawings",
        tuple(d.examples for d in devices),
        tuple(alphabets),
        tuple(counts),
    )
    return FederatedData(
        tuple(devices), frozenset(held_out), (28, 28), capacity, tuple(names), card
    )


@dataclass(frozen=True, slots=True)
class _Set:
    """Characters that are on a device together, i64[n], each turned by `turns` quarters, i64[n]."""

    name: str
    characters: NDArray[np.int64]
    turns: NDArray[np.int64]
    held_out: bool


def _turned(characters: NDArray[Any], turns: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Every character with every turn."""
    repeated = np.tile(characters.astype(np.int64), turns)
    return repeated, np.repeat(np.arange(turns), len(characters))


def _by_alphabet(
    path: Path,
    of: NDArray[np.int64],
    present: NDArray[Any],
    alphabets: list[str],
    held_out: int,
    turns: int,
) -> list[_Set]:
    if not 0 <= held_out < len(alphabets):
        raise DelianError(
            f"cannot hold out {held_out} of {len(alphabets)} alphabets of {path}",
            f"choose data.held_out_alphabets between 0 and {len(alphabets) - 1}",
        )
    return [
        _Set(name, *_turned(present[of[present] == a], turns), a >= len(alphabets) - held_out)
        for a, name in enumerate(alphabets)
    ]


def _by_chance(path: Path, present: NDArray[Any], dealt: Dealt, turns: int) -> list[_Set]:
    if not 0 <= dealt.held_out < len(present):
        raise DelianError(
            f"cannot hold out {dealt.held_out} of {len(present)} characters of {path}",
            f"choose data.held_out_characters between 0 and {len(present) - 1}",
        )
    rng = np.random.default_rng([dealt.seed, PARTITION_STREAM])
    shuffled = rng.permutation(present)
    cut = len(shuffled) - dealt.held_out
    sets: list[_Set] = []
    for part, held_out in ((shuffled[:cut], False), (shuffled[cut:], True)):
        characters, quarters = _turned(part, turns)
        order = rng.permutation(len(characters))
        for some in np.array_split(order, max(1, len(order) // dealt.each)):
            if len(some):
                name = f"characters {len(sets) + 1}"
                sets.append(_Set(name, characters[some], quarters[some], held_out))
    return sets


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
    path: Path,
    name: str,
    image: NDArray[np.uint8],
    rows: NDArray[np.int64],
    turns: NDArray[np.int64],
    capacity: int,
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
    for quarters in range(4):
        of = np.flatnonzero(turns == quarters)
        x[of] = np.rot90(image[rows[of]], quarters, axes=(2, 3))
    return EpisodeData(x, chars=rows.shape[0], drawers=rows.shape[1])
