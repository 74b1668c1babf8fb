"""The blobs that a task names, and which of them a node keeps for later tasks.

A bundle and the frozen parts of its model are the same in all rounds of a run, and frozen parts in
many runs: devices and edges keep those of the last tasks, as many bytes as their stores have room
for. Weights are kept for their round only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..wire.blob_pb2 import BlobRef
from ..wire.round_pb2 import Task

#: Frozen parts that are kept for later tasks, at most: their names are in the node's state.
FROZEN_KEPT = 4_096


def refs_of(task: Task) -> tuple[BlobRef, ...]:
    """All that a task names, in the order in which it is fetched."""
    return task.bundle, task.weights, *task.frozen


def sizes_of(refs: Iterable[BlobRef]) -> dict[bytes, int]:
    """Digest -> bytes. A blob that is named twice is there once."""
    return {ref.digest: ref.size for ref in refs}


def kept_with(
    task: Task, kept: Mapping[bytes, int], open: Mapping[bytes, int], bytes_max: int
) -> dict[bytes, int]:
    """What is kept for later tasks once `task` is taken: digest -> bytes, the last used last.

    Never lets go of a blob that the task or `open` needs. Of the others the least recently used go
    first, until all fit.

    Args:
        kept: what was kept before, in the order of use.
        open: what tasks under way need.
        bytes_max: room for all of it.
    """
    lasting = sizes_of((task.bundle, *task.frozen))
    needed = {**open, **sizes_of(refs_of(task))}
    after = {digest: size for digest, size in kept.items() if digest not in lasting} | lasting
    spare = [digest for digest in after if digest not in needed]
    used = sum(needed.values()) + sum(after[digest] for digest in spare)
    count = len(after)
    for digest in spare:
        if used <= bytes_max and count <= FROZEN_KEPT:
            break
        used -= after.pop(digest)
        count -= 1
    return after


def window(missing: Mapping[bytes, int], at_once: int) -> dict[bytes, int]:
    """Those of the missing blobs that are asked for now: the first ones.

    A home offers a few blobs to a peer at a time, and keeps as few requests.
    """
    return dict(list(missing.items())[:at_once])
