"""A bag of what sites have trained and no mean is of, such as trees of XGBoost.

The run's weights have an array `bag` f32[rounds, clients, bytes]: in a round each client puts its
bytes into its own place, one number a byte. The sum goes through masks like any other, but each
part can be read in it, under its client's number. Trees of which only sums over sites are seen are
`delian ask`'s (docs/statistics.md).

    bag = Bag(task)
    for content in bag: ...      # what was put in in earlier rounds
    task.send(bag.put(trees), examples=1)

A mean over clients of one weight (`data.equal_weights`) is a sum divided by how many reported; each
part begins with a number that was 255, which tells it. The run's clip is at least
255 * sqrt(bytes) * clients.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.common.errors import DelianError
from .tasks import Task

Array = NDArray[Any]
NAME = "bag"
#: Numbers before the content: one that was 255, and four of the length.
_HEAD, _FULL = 5, 255.0


def bag_weights(rounds: int, clients: int, size: int) -> dict[str, Array]:
    """The first weights of a run whose clients put in at most `size` bytes a round."""
    return {NAME: np.zeros((rounds, clients, size + _HEAD), np.float32)}


class Bag:
    """The bag of a task's weights. Raises DelianError where they have none."""

    def __init__(self, task: Task) -> None:
        self._task = task
        if NAME not in task.weights:
            raise DelianError(
                f"the run's weights have no array {NAME}", "begin it with client.bag_weights(...)"
            )
        self._places = task.weights[NAME]

    def __iter__(self) -> Iterator[bytes]:
        """What was put in, the oldest first; a part that came to harm is left out."""
        for part in self._places.reshape(-1, self._places.shape[-1]):
            if part[0] < 0.5:
                continue
            numbers = np.rint(part * (_FULL / part[0])).clip(0, 255).astype(np.uint8)
            length = int.from_bytes(numbers[1:_HEAD].tobytes(), "little")
            if length <= len(numbers) - _HEAD:
                yield numbers[_HEAD : _HEAD + length].tobytes()

    def put(self, content: bytes) -> dict[str, Array]:
        """The weights to send, with these bytes at the client's place. Raises DelianError."""
        rounds, clients, size = self._places.shape
        task, room = self._task, size - _HEAD
        if len(content) > room:
            raise DelianError(
                f"{len(content)} bytes, and the bag has room for {room}", "train fewer trees"
            )
        if not 0 < task.round <= rounds or not 0 <= task.client < clients:
            raise DelianError(
                f"round {task.round} of client {task.client}, and the bag has {rounds} rounds of"
                f" {clients} clients",
                "begin it with as many: client.bag_weights(rounds, clients, size)",
            )
        filled = np.array(self._places)
        place = filled[task.round - 1, task.client]
        place[0] = _FULL
        place[1:_HEAD] = np.frombuffer(len(content).to_bytes(4, "little"), np.uint8)
        place[_HEAD : _HEAD + len(content)] = np.frombuffer(content, np.uint8)
        return {**task.weights, NAME: filled}
