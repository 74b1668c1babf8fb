"""The images of a folder: sizes, colours, and what is wrong with them. Only headers are read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...core.common.errors import DelianError
from ...core.common.nouns import counted
from ...core.learning.data.image_folders import ImageEntry
from ...core.learning.data.images import opened, read_image
from .finding import Finding, listed

#: One side that is so many times the other, and a side so many times the median one, are odd.
_LONG, _LARGE = 3.0, 4.0


@dataclass(frozen=True)
class ImageFacts:
    """What images there are."""

    count: int
    broken: tuple[tuple[str, str], ...]
    """Files that are no images: what names each, and why."""
    sizes: tuple[tuple[str, int, int], ...]
    """Of each other its name, width and height."""
    modes: dict[str, int]
    """Images by Pillow's mode: RGB, L and others."""

    def to_json(self) -> dict[str, Any]:
        """As plain data, without the single images."""
        sides = np.array([size[1:] for size in self.sizes]) if self.sizes else np.zeros((1, 2), int)
        return {
            "count": self.count,
            "broken": [list(each) for each in self.broken],
            "width": [int(v) for v in np.quantile(sides[:, 0], [0, 0.5, 1])],
            "height": [int(v) for v in np.quantile(sides[:, 1], [0, 0.5, 1])],
            "modes": self.modes,
        }


def facts_of(entries: Sequence[ImageEntry]) -> ImageFacts:
    """What images there are. Raises DelianError where Pillow is missing."""
    broken, sizes = [], []
    modes: Counter[str] = Counter()
    for entry in entries:
        try:
            with opened(entry.content, entry.where) as image:
                size, mode = image.size, image.mode
            read_image(entry.content, (1, 1), entry.where)
        except DelianError as error:
            if entry.where not in error.message:
                raise
            broken.append((entry.where, error.message))
            continue
        sizes.append((entry.where, *size))
        modes[mode] += 1
    return ImageFacts(len(entries), tuple(broken), tuple(sizes), dict(modes.most_common()))


def _short(where: str) -> str:
    """A file with its folder."""
    return "/".join(where.split("/")[-2:])


def findings_of(facts: ImageFacts, side: int) -> Iterator[Finding]:
    """What is wrong with them. side: that they are scaled to."""
    if facts.broken:
        names = [_short(where) for where, _ in facts.broken]
        yield Finding(
            "wrong",
            "broken",
            f"{len(names)} of {facts.count} files"
            f" {'is no image' if len(names) == 1 else 'are no images'}: {listed(names)}",
            "remove them, or write them again; --set data.broken=skip trains on the others",
        )
    if not facts.sizes:
        return
    sides = np.array([size[1:] for size in facts.sizes], np.float64)
    least, most = sides.min(axis=1), sides.max(axis=1)
    odd = (most > _LONG * least) | (most > _LARGE * np.median(most))
    if odd.any():
        shown = [
            f"{_short(facts.sizes[k][0])} {int(sides[k][0])}x{int(sides[k][1])}"
            for k in np.flatnonzero(odd)
        ]
        yield Finding(
            "warning",
            "odd_size",
            counted(
                int(odd.sum()),
                f"image has a size unlike the others, or is long: {listed(shown)}",
                f"images have a size unlike the others, or are long: {listed(shown)}",
            ),
            f"all are scaled to {side} x {side}, which bends them: cut them to squares",
        )
    small = int((least < side).sum())
    if small:
        yield Finding(
            "note",
            "small",
            counted(small, "image is", "images are")
            + f" smaller than {side} pixels, and scaled up",
            f"--set data.side={int(least.min())} scales others down instead",
        )
    if len(facts.modes) > 1:
        modes = ", ".join(f"{mode} {count}" for mode, count in facts.modes.items())
        yield Finding(
            "note",
            "modes",
            f"images have several forms ({modes}), and become alike",
            "transparent parts have the colour that the file gives them",
        )
