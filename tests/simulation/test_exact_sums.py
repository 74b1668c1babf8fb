"""Steps of questions through the tiers' machines: with faults, the sum is exactly the sites'."""

from __future__ import annotations

from concurrent.futures import Future

import numpy as np
import pytest
from delian.cloud.protocol.run_plan import RunPlan
from delian.core.learning.plan_settings import PlanError
from delian.core.privacy.mechanisms.ring import RingPlan
from delian.core.protocol.ports import Floats, Outcome, Vector
from delian.core.statistics.sums import Sum, SumPlan, counts
from delian.simulations.federation.fault_settings import Crash, Faults
from delian.simulations.federation.federation import Federation
from delian.simulations.federation.fleet import Fleet
from delian.simulations.scenario.federation_plan import FederationPlan
from support.stub_training import StubTraining

SUMS = SumPlan((counts("rows"), Sum("x", (3,), 60, 40)), 24)


class Answering(StubTraining):
    """A training whose devices answer a step with numbers of their own; `opened`: the sums."""

    def __init__(self, sick: tuple[int, ...] = ()) -> None:
        super().__init__(SUMS.ring, sick=sick)
        self.opened: list[tuple[Vector, float]] = []

    def numbers(self, device: int) -> dict[str, np.ndarray]:
        x = np.array([device * 1e6 + 0.5, -device / 3, 2.0**-40])
        return {"rows": np.array(10 + device), "x": x}

    def update_of(self, device: int, key: Vector) -> Vector:
        return np.append(SUMS.encode(self.numbers(device)), np.uint32(1))

    def submit(self, device: int, weights: Floats, key: Vector) -> Future[Outcome]:
        return self._pool.submit(self._train, device, key)

    def server_update(self, weights, memory, mean, weight):
        self.opened.append((np.array(mean), weight))
        return weights, b""


def federation(
    seed: int, masked: bool = True, faults: Faults | None = None
) -> tuple[Federation, Answering]:
    training = Answering()
    privacy = {"aggregation": "secure"} if masked else {}
    plan = FederationPlan.of(
        SUMS.ring,
        Fleet(devices=24, edges=3),
        1,
        cohort=20,
        over_selection=1.2,
        reports_min=8,
        faults=faults or Faults(),
        **privacy,
    )
    return Federation(plan, training, seed), training


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("seed", range(12))
def test_the_sum_is_that_of_the_sites_that_reported(seed: int, masked: bool) -> None:
    gone = (Crash(edge=seed % 3, at_s=2.0 + seed / 8, back_s=400.0),)
    faults = Faults(crashes=gone, restarts_s=(2.5 + seed / 10,)) if seed % 2 else Faults()
    run, training = federation(seed, masked, faults)
    result = run.run()
    assert not result.failed, result.failed
    ((total, weight),) = training.opened
    reported = result.rounds[-1].reported
    assert weight == len(reported) == int(total[-1])
    totals = SUMS.decode(total[:-1], int(weight))
    assert totals.number("rows") == sum(10 + d for d in reported)
    exact = sum(training.numbers(d)["x"] for d in reported)
    np.testing.assert_allclose(totals["x"], exact, rtol=0, atol=len(reported) * 2.0**-41 + 1e-9)
    assert totals["x"][2] == len(reported) * 2.0**-40


def test_the_cohorts_of_a_round_add_up() -> None:
    """Several sessions, whose sums are added as they are."""
    run, training = federation(3)
    run = Federation(run.plan.but(cohorts=2, cohort_min=4), training, 3)
    result = run.run()
    assert not result.failed, result.failed
    ((total, weight),) = training.opened
    reported = result.rounds[-1].reported
    assert weight == len(reported) > 12
    assert SUMS.decode(total[:-1], int(weight)).number("rows") == sum(10 + d for d in reported)


@pytest.mark.parametrize(
    "changed",
    [{"rounds": 2}, {"mode": "buffered", "buffer": 5}, {"evaluation_every": 1}, {"rule": "median"}],
)
def test_an_exact_sum_is_one_round_and_nothing_else(changed) -> None:
    run, _ = federation(1)
    plan = run.plan
    with pytest.raises(PlanError):
        plan = plan.but(**changed)
        RunPlan.submitted(
            plan.plan, run=1, ring=SUMS.ring, bundle=_ref(), weights=_ref(), requirements=None
        ).check()


def _ref():
    from delian.core.wire.blob_pb2 import BlobRef

    return BlobRef(digest=bytes(32), size=100)


def test_noise_of_exact_sums_is_charged_to_the_device() -> None:
    from delian.core.privacy.secagg.client import Policy
    from delian.core.wire.round_pb2 import Task
    from delian.device.protocol.releases import cost_of

    noised = RingPlan(1.0, 24, SUMS.dimension, noise=2.0, wide=True)
    task = Task(ring=noised.message())
    task.secure.cohort_min, task.secure.corrupt = 8, 0.1
    some = cost_of(task, Policy())
    assert some is not None and all(c > 0 for c in some)
    task.ring.noise = 4.0
    less = cost_of(task, Policy())
    assert less is not None and all(a < b for a, b in zip(less, some, strict=True))
    task.ring.noise = 0.0
    assert cost_of(task, Policy()) is None
