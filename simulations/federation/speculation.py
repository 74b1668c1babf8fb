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
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from ...core.protocol.ports import Floats, Node, RunProgram, Tier
from ...core.protocol.random_streams import Streams, device_key
from ...core.wire.round_pb2 import TRAIN, EdgeTask, Task
from .fleet import Fleet
from .nodes import Host, Stored
from .training import Jobs, Name, Training


def name_of(device: int, program: RunProgram) -> Name | None:
    """The cache key of an update; None: it is not one that is foreseen."""
    if program.program != "client_update":
        return None
    return device, program.blobs[1], program.arguments[0].tobytes()


class Foresight:
    """What tasks of edges let be begun. Nothing where updates are not foreseeable.

    Updates begin in the order of their virtual durations, which is about the order in which virtual
    time needs them: the events of the first are handled while the others train.
    """

    __slots__ = ("_fleet", "_hosts", "_jobs", "_seen", "_streams", "_training")

    def __init__(
        self,
        training: Training,
        jobs: Jobs,
        hosts: Mapping[Node, Host],
        fleet: Fleet,
        streams: Streams,
    ) -> None:
        self._training, self._jobs = training, jobs
        self._hosts, self._fleet, self._streams = hosts, fleet, streams
        self._seen: list[tuple[Task, Floats, Sequence[int]]] = []

    def look(self, message: EdgeTask, store: Mapping[bytes, Stored]) -> bool:
        """Notes the updates of a task. store: of the node that sends it.

        Gives whether they are the first since the last `begin`, which is to follow.
        """
        task = message.task
        if (
            not self._training.foreseeable
            or task.purpose != TRAIN
            or task.split
            or not self._jobs.has_room_early
            or (stored := store.get(task.weights.digest)) is None
            or stored.weights is None  # a task sent again, whose model is gone
        ):
            return False
        self._seen.append((task, stored.weights, message.devices))
        return len(self._seen) == 1

    def begin(self, _: int) -> None:
        """Begins what there is room for, once all edges have their tasks."""
        jobs = self._jobs
        due = sorted(
            (self._duration_ns(device, task), device, i)
            for i, (task, _, selected) in enumerate(self._seen)
            for device in selected
        )
        for _, device, i in due:
            if not jobs.has_room_early:
                break
            task, weights = self._seen[i][:2]
            key = np.array(device_key(task.rng_key, device), np.uint32)
            name = (device, task.weights.digest, key.tobytes())
            jobs.foresee(name, partial(self._training.submit, device, weights, key))
        self._seen.clear()
        # Python's lock goes to the threads that wake up now. Else they would wait for it until this
        # one's time is over (`sys.setswitchinterval`): a quarter of a millisecond.
        time.sleep(0)

    def _duration_ns(self, device: int, task: Task) -> int:
        """What a local update takes in virtual time."""
        host = self._hosts.get(Node(Tier.DEVICE, device))
        profile = host.profile if host is not None else None
        if profile is None:
            profile = self._fleet.profile(device, self._streams)
        flops = self._training.flops(device, "client_update")
        return profile.duration_ns(flops, self._streams, task.round, task.attempt)
