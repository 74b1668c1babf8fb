"""Local updates that begin before their devices ask for them.

Between the message that tasks an edge and the moment when its first device has all that it needs
there are dozens of events, and no thread has anything to train. But what a device will be asked to
compute is known with the first of them: an update is a function of the device, the weights and the
round's key. So the first updates of a round begin then, and wait under that name; a device that
runs its program finds its own begun. One that never does, because it vanished or its edge had no
place for it, has cost some time and changed nothing.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial

import numpy as np

from ...core.protocol.ports import RunProgram
from ...core.protocol.random_streams import device_key
from ...core.wire.round_pb2 import TRAIN, EdgeTask
from .nodes import Stored
from .training import Jobs, Name, Training


def name_of(device: int, program: RunProgram) -> Name | None:
    """The cache key of an update; None: it is not one that is foreseen."""
    if program.program != "client_update":
        return None
    return device, program.blobs[1], program.arguments[0].tobytes()


class Foresight:
    """What tasks of edges let be begun. Nothing where updates are not foreseeable."""

    __slots__ = ("_jobs", "_training")

    def __init__(self, training: Training, jobs: Jobs) -> None:
        self._training, self._jobs = training, jobs

    def look(self, message: EdgeTask, store: Mapping[bytes, Stored]) -> None:
        """Begins what there is room for. store: of the node that sends the task."""
        task, jobs = message.task, self._jobs
        if not self._training.foreseeable or task.purpose != TRAIN or not jobs.has_room_early:
            return
        stored = store.get(task.weights.digest)
        if stored is None or stored.weights is None:
            return  # a task sent again, whose model is gone
        weights = stored.weights
        for device in message.devices:
            key = np.array(device_key(task.rng_key, device), np.uint32)
            name = (device, task.weights.digest, key.tobytes())
            jobs.foresee(name, partial(self._training.submit, device, weights, key))
            if not jobs.has_room_early:
                break
        # Python's lock goes to the threads that wake up now. Else they would wait for it until this
        # one's time is over (`sys.setswitchinterval`): a quarter of a millisecond.
        time.sleep(0)
