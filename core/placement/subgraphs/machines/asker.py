"""A device's side of partitioned execution.

It takes requests, chooses cuts, and answers each request once.

Every request is answered, by the tiers together or by the device alone, in the order in which the
answers are ready, which need not be that of the requests. Several are under way at a time: while
one is on the link, the device computes the next one's part. So many (`under_way`), and the others
wait in line; when too many wait, the newest is refused at once. One that waits gets its cut when
its turn comes, so a switch holds for all that wait, and none that is under way is touched by it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from ....protocol.ports import MS, SECOND, Record
from . import part_ports as ports
from .cut_choice import ChoiceSettings, Chooser, off_plan, predicted_s
from .request_table import MARGIN, Local, Request
from .tier import TierRunner
from .upstream import Upper

#: What may change which cuts there are to choose from; other events only change what they take.
CHANGES = (
    ports.CutOpened,
    ports.CutRefused,
    ports.ReplyFailed,
    ports.UpperBack,
    ports.UpperGone,
    ports.ProbeAnswered,
)
CHOOSE_NS = 100 * MS


@dataclass(frozen=True, slots=True)
class AskerSettings:
    """Limits of a device's requests."""

    under_way: int = 4
    """Most requests at a time between the first part's start and the answer."""
    waiting: int = 256
    """Most requests in the queue; further ones are rejected."""
    choice: ChoiceSettings = field(default_factory=ChoiceSettings)

    def __post_init__(self) -> None:
        assert self.under_way >= 1 and self.waiting >= 0


class Asker:
    """`handle(event, now) -> effects`.

    courses: the plan's cuts, as this tier sees them. local: what the device runs alone; where none
    of the courses asks no tier, the whole program is added as one. A device that cannot run it
    (infinite) keeps requests in line until the tier above is there, or refuses them at their
    deadline. nominal: the link as the plan
    takes it; beyond: the links further up.
    """

    def __init__(
        self,
        courses: Sequence[ports.Course],
        local: Local,
        nominal: ports.Link,
        beyond: tuple[ports.Link, ...] = (),
        settings: AskerSettings | None = None,
    ) -> None:
        self._settings = settings or AskerSettings()
        if all(c.legs for c in courses):
            courses = (*courses, ports.Course(b"", None, None, (local.whole,), (), 0.0))
        self.upper = Upper(nominal, beyond)
        self._tier = TierRunner(self.upper, local, self._done, self._refused, late=True)
        self._chooser = Chooser(courses, self._settings.choice)
        self._line: deque[ports.Requested] = deque()
        self._chosen_at = 0
        self.now = 0

    @property
    def current(self) -> ports.Course:
        """The cut that the next request gets."""
        return self._chooser.current

    def __len__(self) -> int:
        """Requests that are not answered yet."""
        return len(self._tier.table) + len(self._line)

    def handle(self, event: ports.Event, now: int) -> list[ports.Effect]:
        """What to do about an event at `now` ns."""
        assert now >= self.now, "time never falls"
        self.now = now
        if isinstance(event, ports.Requested):
            effects = self._take(event)
        else:
            effects = self._tier.hear(event, now)
            if isinstance(event, ports.UpperBack):
                effects += self.upper.want(self._chooser.cuts(), now)
        effects += self._tier.table.look(now)
        # A choice matters to requests that begin; between them it need not be the newest.
        changes = isinstance(event, CHANGES) or now - self._chosen_at >= CHOOSE_NS
        if self._line or changes:
            effects += self._choose()
        effects += self._admit()
        return effects + self._tier.settle(now, self._next_at())

    def _take(self, event: ports.Requested) -> list[ports.Effect]:
        """Puts a request into the line."""
        if len(self._line) >= self._settings.waiting:
            return [ports.Refuse(event.ticket, ports.Failure.BUSY)]
        self._line.append(event)
        self.upper.use(self.now)
        return []

    def _choose(self) -> list[ports.Effect]:
        """Looks at the cut in use, which may have to change."""
        now, upper = self.now, self.upper
        self._chosen_at = now
        link, queue = upper.link(now), self._tier.queue
        # Where requests pile up, how many are answered matters more than how soon one is (light and
        # heavy load of Hu et al., INFOCOM 2019).
        settings = self._settings.choice
        throughput = settings.throughput or len(self._line) > self._settings.under_way

        def seconds(course: ports.Course) -> float:
            here = queue.expected_s(course.seconds[0], now)
            return predicted_s(course, link, here, upper.above_s(course, now), throughput)

        def cost(course: ports.Course) -> float:
            return off_plan(course, link) if settings.planned else seconds(course)

        switched = self._chooser.consider(lambda c: upper.usable(c.cut), cost, now)
        if switched is None:
            return []
        before, after = switched
        fields = {
            "before": before.cut,
            "after": after.cut,
            "up": link.up,
            "latency_s": link.latency_s,
            "predicted_s": seconds(after),
        }
        return [Record("switched", fields)]

    def _admit(self) -> list[ports.Effect]:
        """Begins what waits in line, as far as there is room, and what has no time left to wait."""
        table = self._tier.table
        effects: list[ports.Effect] = []
        if self._chooser.current.seconds[0] == math.inf:  # no tier can run it
            while self._line and self._line[0].deadline < self.now:
                effects.append(ports.Refuse(self._line.popleft().ticket, ports.Failure.LATE))
            return effects
        while self._line and (len(table) < self._settings.under_way or self._urgent(self._line[0])):
            event = self._line.popleft()
            course = self._chooser.next()
            effects += table.begin(event.ticket, event.deadline, course, self.now)
        return effects

    def _urgent(self, event: ports.Requested) -> bool:
        """Whether a request must begin now to be ready in time, and can be."""
        local = self._tier.table.local_s(event.deadline, self.now)
        return self.now + local * SECOND <= event.deadline <= self.now + MARGIN * local * SECOND

    def _next_at(self) -> int | None:
        """When the first in line has no time left to wait."""
        if not self._line:
            return None
        deadline = self._line[0].deadline
        local = self._tier.table.local_s(deadline, self.now)
        at = deadline + 1 if local == math.inf else deadline - round(MARGIN * local * SECOND)
        return at if at > self.now else None

    # ------------------------------------------------ what the table says

    @staticmethod
    def _done(request: Request) -> ports.Effect:
        return ports.Answer(request.ticket, request.by, request.fallback)

    @staticmethod
    def _refused(request: Request, failure: ports.Failure) -> ports.Effect:
        return ports.Refuse(request.ticket, failure)
