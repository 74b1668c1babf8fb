"""Why a run waits: what it needs, what is there, what holds it up, and when it decides next.

`Attendance` is what the coordinator knows of all devices at one moment, `Outlook` what of it counts
for one run. The command line, logs and events show these and add nothing. `sentence` puts an
outlook into words:

    needs 15 devices (at least 6), 4 ready, 1 without consent, 1 working in run 2; behind run 2;
    next try in 90 s
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ...core.protocol.ports import MS, SECOND
from ...core.wire import operator_pb2
from ...core.wire.admission_pb2 import NO_WORK, POOL_FULL

#: Reasons for which edges send devices away that could work.
COULD_WORK = frozenset((NO_WORK, POOL_FULL))
#: No fleet has as many devices: more than are known may still come.
UNBOUNDED = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Attendance:
    """All devices that are there, each counted once."""

    ready: int = 0  # wait for a task
    idle: int = 0  # can work and are not ready: no run wanted them, or they come back from a task
    unconsented: int = 0  # their owners have not agreed
    unfit: int = 0  # do not meet what runs require
    working: Mapping[int, int] = field(default_factory=dict)  # run -> devices at work for it
    #: When a device was first seen last, ns.
    grown_ns: int = 0
    #: When the first of the devices that come back from a task is not waited for any more, ns; 0:
    #: there are none.
    expires_ns: int = 0

    @property
    def able(self) -> int:
        """Devices that are ready, or will be."""
        return self.ready + self.idle + sum(self.working.values())

    def bound(self, now: int, calm_ns: int) -> int:
        """No more devices than these are worth waiting for.

        Unbounded until no new device has come for `calm_ns`: a fleet that starts is not yet all
        there.
        """
        return self.able if now >= self.grown_ns + calm_ns else UNBOUNDED

    def changes_ns(self, now: int, calm_ns: int) -> int:
        """When `bound` changes though nothing happens; 0: never."""
        ends = (self.grown_ns + calm_ns, self.expires_ns)
        return min((at for at in ends if at > now), default=0)


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a run needs that waits for devices."""

    wanted: int  # it would take so many at once
    least: int  # with fewer there is no round
    evaluates: bool = False  # they are to evaluate
    ready: int = 0
    idle: int = 0
    unconsented: int = 0
    unfit: int = 0
    working: tuple[tuple[int, int], ...] = ()  # (run, devices at work for it)
    behind: tuple[int, ...] = ()  # runs that are offered devices before it
    next_try_ns: int = 0  # when it goes on with fewer, or counts a failed attempt; 0: no such time

    def of(self, there: Attendance, behind: tuple[int, ...]) -> Outlook:
        """The outlook with what is there, and the runs before this one."""
        return replace(
            self,
            ready=there.ready,
            idle=there.idle,
            unconsented=there.unconsented,
            unfit=there.unfit,
            working=tuple(sorted(there.working.items())),
            behind=behind,
        )

    @property
    def lacking(self) -> int:
        """How many devices more the fleet must have for one round; 0: it has enough."""
        able = self.ready + self.idle + sum(count for _, count in self.working)
        return max(0, self.least - able)

    def facts(self) -> dict[str, Any]:
        """For an event and for logs: whole, and as they say it. It has no times: events have."""
        return {
            "said": sentence(replace(self, next_try_ns=0)),
            "wanted": self.wanted,
            "least": self.least,
            "evaluates": self.evaluates,
            "ready": self.ready,
            "idle": self.idle,
            "unconsented": self.unconsented,
            "unfit": self.unfit,
            "working": {str(run): count for run, count in self.working},
            "behind": list(self.behind),
        }

    def message(self, now: int) -> operator_pb2.Outlook:
        """As operators get it at `now`, ns."""
        working = [operator_pb2.Holding(run=run, devices=count) for run, count in self.working]
        return operator_pb2.Outlook(
            wanted=self.wanted,
            least=self.least,
            ready=self.ready,
            idle=self.idle,
            unconsented=self.unconsented,
            unfit=self.unfit,
            working=working,
            behind=self.behind,
            next_try_ms=max(0, self.next_try_ns - now) // MS,
            evaluates=self.evaluates,
        )

    @staticmethod
    def from_message(message: operator_pb2.Outlook) -> Outlook:
        """What a coordinator said. `next_try_ns` counts from when it said so."""
        return Outlook(
            wanted=message.wanted,
            least=message.least,
            evaluates=message.evaluates,
            ready=message.ready,
            idle=message.idle,
            unconsented=message.unconsented,
            unfit=message.unfit,
            working=tuple((each.run, each.devices) for each in message.working),
            behind=tuple(message.behind),
            next_try_ns=message.next_try_ms * MS,
        )


def sentence(outlook: Outlook) -> str:
    """An outlook in words. `next_try_ns` is taken as the time from now."""
    least = f" (at least {outlook.least})" if outlook.least < outlook.wanted else ""
    needed = (
        f"up to {_devices(outlook.wanted)} to evaluate"  # all that are there, for the most part
    )
    if not outlook.evaluates:
        needed = _devices(outlook.wanted)
    parts = [f"needs {needed}{least}", f"{outlook.ready} ready"]
    if outlook.idle:
        parts.append(f"{outlook.idle} idle")
    if outlook.unconsented:
        parts.append(f"{outlook.unconsented} without consent")
    if outlook.unfit:
        parts.append(f"{outlook.unfit} unfit")
    parts += [f"{count} working in run {run}" for run, count in outlook.working]
    said = [", ".join(parts)]
    if outlook.lacking:
        said.append(f"the fleet lacks {_devices(outlook.lacking)}")
    if outlook.behind:
        said.append(f"behind run {', '.join(map(str, outlook.behind))}")
    if outlook.next_try_ns:
        said.append(f"next try in {-(-outlook.next_try_ns // SECOND)} s")
    return "; ".join(said)


def _devices(count: int) -> str:
    return f"{count} device" if count == 1 else f"{count} devices"
