"""A cascade's way to its large model.

A cut where everything is above, asked over the stream that all cuts use.

    above = LargeAbove(model, upstream, link)
    above.start()
    driver = CascadeDriver(plan, small, above, WallClock())

Of the large model the device needs its programs, to know what its answers look like, and the hash
of its weights: the weights it does not have, so nothing falls back to them here. That is the
cascade's own affair, which has the small model.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ...compiler.ir import Array
from ...protocol.ports import SECOND, Clock
from ..cut.cut import EDGE, SHARED, Cut
from ..cut.program_split import split
from ..cut.value_graph import depends
from ..subgraphs.frames.stream_client import Upstream
from ..subgraphs.machines.asker import Asker
from ..subgraphs.machines.part_ports import Course, Link
from ..subgraphs.machines.request_table import Local
from ..subgraphs.part_programs import Model, Prepared, Programs
from ..subgraphs.request_driver import AskingDriver
from ..subgraphs.upstream_driver import Above


def without_weights(model: Model) -> Model:
    """What a node that cannot run the model knows of it."""
    return replace(model, leaves=tuple(np.empty(0, np.float32) for _ in model.leaves))


class LargeAbove:
    """Asks for a whole model's answers; call it as `cascade_driver.Above` says.

    model: the large one, with or without its weights. upstream: makes the way up, as for any asker.
    link: what it is taken to be until it was measured. seconds: what an answer is taken to cost
    above.
    """

    def __init__(
        self,
        model: Model,
        upstream: Callable[[Above], Upstream],
        link: Link,
        clock: Clock,
        seconds: float = 0.01,
    ) -> None:
        named = without_weights(model)
        moving = depends(named.function, named.resident)
        labels = tuple(EDGE if moves else SHARED for moves in moving)
        cut = Cut(labels, bundle=named.bundle.hex(), program=named.program)
        parts = split(named.function, named.resident, cut)
        prepared = Prepared(named, cut, 0, parts, {}, {})
        name = bytes.fromhex(cut.digest())
        course = Course(name, None, None, (0.0, seconds), prepared.legs(), math.inf)
        self._clock = clock
        self._asker = Asker([course], Local(), link)
        self._cut = name
        self._driver = AskingDriver(named, {name: prepared}, self._asker, Programs(), upstream)

    def start(self) -> None:
        """Dials, from the event loop that asks."""
        self._driver.start()

    async def close(self) -> None:
        """Ends; requests that still wait are refused."""
        await self._driver.close()

    @property
    def ready(self) -> bool:
        """Whether the model above can be asked now."""
        return self._asker.upper.usable(self._cut)

    async def __call__(self, x: Array, until: int) -> Array:
        """The large model's first result for x. Raises RefusedError without one."""
        left = max(0.0, (until - self._clock.now()) / SECOND)
        answered = await self._driver.request((np.ascontiguousarray(x),), left)
        return answered.results[0]
