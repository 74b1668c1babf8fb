"""A play as a federation: a speaking role is a device, the task is the next character.

The text is blocks separated by a blank line, each starting with `Role:`. A role's lines are joined
and cut into windows of `steps` characters that do not overlap; x is a window, y the same window one
character on. The query set is the end of the role's part, so that no neighbouring line lies in both
sets.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np

from ...common.errors import DelianError
from . import federated_data
from .data_files import read_text

TEXT_BYTES_MAX = 256 << 20
VOCABULARY_MAX = 256  # so that a character fits u8
ROLE_CHARACTERS_MAX = 60


def shakespeare(
    path: Path,
    *,
    steps: int = 80,
    min_characters: int = 1000,
    max_windows: int = 200,
    devices: int | None = None,
    query_fraction: float = 0.2,
    held_out_devices: int = 0,
    held_out_query_fraction: float | None = None,
    seed: int = 0,
) -> federated_data.FederatedData:
    """The roles with at least `min_characters`. x: u8 [capacity, steps]; y: i32 [capacity, steps].

    `held_out_query_fraction` is the share of its windows that a role judges by which never trains,
    where that is another: it adapts to the rest alone.

    `devices` draws that many of the roles by the seed. A role's windows beyond `max_windows` are
    left out, since every device gets room for the largest. Raises DelianError for a file that is no
    play or too short.
    """
    parts = speeches(read_text(path, TEXT_BYTES_MAX))
    least = max(min_characters, 2 * steps + 1)
    roles = sorted(role for role, words in parts.items() if len(words) >= least)
    wanted = len(roles) if devices is None else devices
    if not roles or wanted > len(roles):
        raise DelianError(
            f"{path} has {len(roles)} roles of at least {least} characters; "
            f"{wanted or 1} are asked for",
            "lower fleet.devices or data.min_characters; blocks start with `Role:` and end with "
            "a blank line",
        )
    rng = np.random.default_rng([seed, federated_data.PARTITION_STREAM])
    names = tuple(roles[i] for i in sorted(rng.choice(len(roles), wanted, replace=False)))
    return from_parts(
        path.name,
        parts,
        names,
        f"a role a device, windows of {steps} characters",
        steps=steps,
        max_windows=max_windows,
        query_fraction=query_fraction,
        held_out_devices=held_out_devices,
        held_out_query_fraction=held_out_query_fraction,
        seed=seed,
        left_out=len(parts) - len(roles),
        least=f"{least:,} characters",
    )


def from_parts(
    source: str,
    parts: dict[str, str],
    names: tuple[str, ...],
    dealt: str,
    *,
    steps: int,
    max_windows: int,
    query_fraction: float,
    held_out_devices: int,
    held_out_query_fraction: float | None,
    seed: int,
    left_out: int = 0,
    least: str = "",
) -> federated_data.FederatedData:
    """Devices that each hold a part of a text. parts: text by name, of which `names` are devices.

    The vocabulary is that of all parts. dealt, left_out, least: for the data's card.
    """
    vocabulary = vocabulary_of(parts)
    code = {character: i for i, character in enumerate(vocabulary)}
    windows, targets, rows = [], [], []
    start = 0
    for role in names:
        codes = np.array([code.get(c, 0) for c in parts[role]], dtype=np.uint8)
        count = min(max_windows, (len(codes) - 1) // steps)
        windows.append(codes[: count * steps].reshape(count, steps))
        targets.append(codes[1 : count * steps + 1].reshape(count, steps))
        rows.append(np.arange(start, start + count))
        start += count
    x = np.concatenate(windows)
    y = np.concatenate(targets).astype(np.int32)
    held_out = federated_data.hold_out(len(names), held_out_devices, seed)
    newcomers = query_fraction if held_out_query_fraction is None else held_out_query_fraction
    fractions = [newcomers if i in held_out else query_fraction for i in range(len(names))]
    tables = federated_data.make_tables(x, y, rows, names, fractions, seed, shuffle=False)
    card = federated_data.DataCard(
        source,
        dealt,
        "windows",
        tuple(len(r) for r in rows),
        tuple(vocabulary),
        federated_data.label_table([y[r] for r in rows], len(vocabulary)),
        left_out=left_out,
        least=least,
    )
    return federated_data.FederatedData(tables, held_out, (steps,), len(vocabulary), names, card)


def speeches(text: str) -> dict[str, str]:
    """Each role's lines, joined, in the order of the play."""
    return {role: "".join(blocks) for role, blocks in speech_blocks(text).items()}


def speech_blocks(text: str) -> dict[str, list[str]]:
    """Each role's speeches, in the order of the play."""
    said: dict[str, list[str]] = {}
    for block in text.replace("\r\n", "\n").split("\n\n"):
        role, colon, words = block.strip().partition(":\n")
        if colon and len(role) <= ROLE_CHARACTERS_MAX:
            said.setdefault(role, []).append(words.strip() + "\n")
    return said


def vocabulary_of(parts: dict[str, str]) -> list[str]:
    """The characters in code-point order; past 256 the most frequent, 0 for the rest."""
    counts: Counter[str] = Counter()
    for words in parts.values():
        counts.update(words)
    if len(counts) <= VOCABULARY_MAX:
        return sorted(counts)
    frequent = sorted(counts, key=lambda c: (-counts[c], c))[: VOCABULARY_MAX - 1]
    return ["\N{REPLACEMENT CHARACTER}", *sorted(frequent)]
