"""Any text as a federation: a device holds one piece of it, the task is the next character.

The pieces follow one another, and end where a paragraph does if one ends near enough. Windows,
targets and query sets are those of plays (`shakespeare_plays`).
"""

from __future__ import annotations

import re
from pathlib import Path

from ...common.errors import DelianError
from . import federated_data
from .data_files import read_text
from .shakespeare_plays import TEXT_BYTES_MAX, from_parts

_PARAGRAPH = re.compile(r"\n[ \t]*\n\s*")
#: A piece ends with a paragraph that ends within this share of its length.
_NEAR = 0.25


def plain_text(
    path: Path,
    *,
    devices: int,
    steps: int = 80,
    max_windows: int = 200,
    query_fraction: float = 0.2,
    held_out_devices: int = 0,
    seed: int = 0,
) -> federated_data.FederatedData:
    """A text dealt to `devices`. x: u8 [capacity, steps]; y: i32 [capacity, steps].

    A device's windows beyond `max_windows` are left out. Raises DelianError for a file that is no
    text, and for one that is too short for so many devices.
    """
    text = text_of(path)
    least = 2 * steps + 1
    if len(text) < devices * least / (1 - 2 * _NEAR):
        most = int(len(text) * (1 - 2 * _NEAR)) // least
        raise DelianError(
            f"{path} has {len(text):,} characters: too few for {devices} devices with windows of"
            f" {steps}",
            f"--set fleet.devices={most}, or shorter windows: --set data.steps=N"
            if most > 1
            else "give a longer text, or shorter windows: --set data.steps=N",
        )
    width = len(str(devices))
    pieces = {f"part-{i + 1:0{width}}": each for i, each in enumerate(cut(text, devices))}
    return from_parts(
        path.name,
        pieces,
        tuple(pieces),
        f"a piece of the text a device, windows of {steps} characters",
        steps=steps,
        max_windows=max_windows,
        query_fraction=query_fraction,
        held_out_devices=held_out_devices,
        held_out_query_fraction=None,
        seed=seed,
    )


def text_of(path: Path) -> str:
    """A file's text, with the line ends of Unix. Raises DelianError for one without a text."""
    text = read_text(path, TEXT_BYTES_MAX).strip()
    if not text:
        raise DelianError(f"{path} is empty", "give a file with a text")
    return f"{text}\n"


def cut(text: str, pieces: int) -> list[str]:
    """The text in pieces of about the same length, in order: together they are the text."""
    ends = [match.end() for match in _PARAGRAPH.finditer(text)]
    length = len(text) / pieces
    cuts, at = [0], 0
    for i in range(1, pieces):
        wanted = i * length
        while at < len(ends) - 1 and abs(ends[at + 1] - wanted) <= abs(ends[at] - wanted):
            at += 1
        near = bool(ends) and abs(ends[at] - wanted) <= _NEAR * length
        cuts.append(ends[at] if near else round(wanted))
    return [text[a:b] for a, b in zip(cuts, [*cuts[1:], len(text)], strict=True)]
