"""What a device has released so far: its own account of privacy, over rounds, attempts and runs.

The coordinator accounts for one run (`cloud.protocol.run`); only the device itself sees all runs
that it takes part in. It charges each masked update before the update leaves, whether or not
the sum is read later. The cost is that of the weakest sum that the device itself allows: of
`cohort_min` devices, of which the share `corrupt` of all that were asked know their own noise
(`core.privacy.mechanisms.noise_mechanism.release`). Divergences add up order by order, so the sum
over runs is a bound whatever later runs were chosen by (`core.privacy.mechanisms.accountant`).

An update whose noise the device does not add (none at all, or the coordinator's) has no bound that
the device could verify. It is counted as `unbounded`, and with a cap no such task is taken.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable
from dataclasses import dataclass

from ...core.privacy.mechanisms import accountant, noise_mechanism, wide_noise
from ...core.privacy.mechanisms.accountant import ORDERS, Divergences
from ...core.privacy.mechanisms.ring import RingError, RingPlan
from ...core.privacy.secagg.client import Policy
from ...core.privacy.secagg.secure_errors import SecureError
from ...core.wire.round_pb2 import Task

_FORMAT = f"<{len(ORDERS)}d"
#: The delta of what is shown where the owner has set none.
DELTA = 1e-6
#: The reason of a task that is refused for its noise or for a cap.
NOISE, BUDGET = "noise", "budget"


@dataclass(frozen=True, slots=True)
class Cap:
    """Epsilon at delta that a device may release in all its life, by its owner or federation."""

    epsilon: float = math.inf
    delta: float = DELTA


@dataclass(slots=True)
class Releases:
    """What was released, as plain data; it is stored with the device's state."""

    spent: bytes = b""  # divergences of bounded releases added up, f64 each at ORDERS; empty: none
    bounded: int = 0  # how many there were
    unbounded: int = 0  # releases that no noise of this device bounds
    last: tuple[int, int, int] = (0, 0, 0)  # run, round and attempt of the last that was charged

    def charge(self, task: Task, cost: Divergences | None) -> None:
        """Charges a task's update, once an attempt. cost: None where it has no bound."""
        name = (task.run, task.round, task.attempt)
        if name == self.last:
            return
        self.last = name
        if cost is None:
            self.unbounded += 1
            return
        self.bounded += 1
        self.spent = struct.pack(_FORMAT, *self._after(cost))

    def epsilon(self, delta: float, cost: Divergences | None = None) -> float:
        """Epsilon of the bounded releases at delta, with one more of this cost.

        Infinite where their failure probability alone is above delta.
        """
        count = self.bounded + (cost is not None)
        if not count:
            return 0.0
        left = delta - count * noise_mechanism.FAILURE
        after = self._after(cost or (0.0,) * len(ORDERS))
        return accountant.epsilon_of(after, left) if left > 0.0 else math.inf

    def _after(self, cost: Divergences) -> Divergences:
        spent = struct.unpack(_FORMAT, self.spent) if self.spent else (0.0,) * len(ORDERS)
        return accountant.composed([spent, cost])


def adds_noise(task: Task) -> bool:
    """Whether the task asks its devices for noise."""
    return bool(task.ring.noise) and not task.ring.central


def cost_of(task: Task, floor: Policy) -> Divergences | None:
    """What a task's update costs at the weakest sum that the device allows; None: it has no bound.

    floor: the owner's.
    """
    if not (adds_noise(task) and task.HasField("secure")):
        return None
    survivors = max(task.secure.cohort_min, floor.cohort_min)
    corrupt = max(task.secure.corrupt, floor.corrupt)
    try:
        plan = RingPlan.of(task.ring)
        if plan.wide:
            return wide_noise.release(plan, survivors, corrupt)
        return noise_mechanism.release(plan, survivors, corrupt)
    except RingError:
        return None


def check(task: Task, floor: Policy, caps: Iterable[Cap], releases: Releases | None) -> None:
    """Checks the noise of a task against its cohort, and its cost against the caps.

    Raises SecureError: the noise was planned for more devices than a sum may have, or a cap does
    not allow the update.
    """
    planned = task.secure.noise_survivors
    if adds_noise(task) and not 0 < planned <= task.secure.cohort_min:
        raise SecureError(NOISE, "the noise was planned for more devices than a sum may have")
    finite = [cap for cap in caps if not math.isinf(cap.epsilon)]
    if not finite:
        return
    cost = cost_of(task, floor)
    spent = releases or Releases()
    bounded = cost is not None and not spent.unbounded
    if not bounded or any(spent.epsilon(cap.delta, cost) > cap.epsilon for cap in finite):
        raise SecureError(BUDGET, "the privacy budget does not allow this update")
