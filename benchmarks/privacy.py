"""What privacy costs, and whether it holds: accuracy by epsilon, and attacks against the bound.

    python benchmarks/privacy.py
    python benchmarks/privacy.py --json

Four hundred and fifty devices hold three or four handwritten digits each; 350 train, 100 never do.
All of a run's parts are the ones that a deployment has (bundle, compiled `client_update`, the
device's own check, its noise, the ring, `server_update`); only the messages between are left out.

- Accuracy: on the examples of devices that never trained, by epsilon, mean over seeds. Each round
  takes all 350; nothing is gained by a secret sample, for there is none.
- Membership by loss: who is given an example guesses that it was trained on where the model's loss
  is small (Yeom et al. 2018). AUC over all examples of the devices that trained and that did not.
- Audit: one device of a hundred has all its labels wrong, and takes part or not. Who knows its data
  and all the rest guesses which from the last model's loss on them, over many runs with fresh
  noise. The promise bounds the AUC of any such guess; without noise it is nearly always right.
- Rounding: the error of a mean of a hundred updates in narrow rings, with and without rotation.

`docs/privacy.md` is made of this output. It takes about three minutes of one core.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from delian.core.compiler import random
from delian.core.learning import Classification, FedAvg, SampleSet
from delian.core.learning.aggregate import chains
from delian.core.learning.aggregate.stages import Stage
from delian.core.learning.build.bundle_builder import build
from delian.core.learning.nn import sgd
from delian.core.learning.runtime import Runtime
from delian.core.privacy.mechanisms import noise_mechanism, ring
from delian.core.privacy.mechanisms.noise_mechanism import PrivacyTarget
from delian.core.privacy.mechanisms.ring import RingPlan
from delian.simulations.scenario import recipes, scenario_file
from delian.simulations.scenario.datasets import load_data

EPSILONS = (None, 8.0, 4.0, 2.0, 1.0, 0.5)
DELTA = 1e-5
ROUNDS = 20
CLIP = 2.0
SEEDS = 3

AUDIT_EPSILONS = (None, 8.0, 2.0, 0.5)
AUDIT_DEVICES, AUDIT_ROUNDS, AUDIT_RUNS = 100, 10, 60

ROUNDING_BITS = (12, 14, 16, 20, 24)
ROUNDING_DIMENSION, ROUNDING_DEVICES = 1 << 16, 100

SETTINGS = (
    "fleet.devices=450",
    "data.held_out_devices=100",
    "data.min_examples=2",
    'data.partition="iid"',
    "data.query_fraction=0.2",
    "model.hidden=[]",
    "round.cohort=350",
    "round.over_selection=1.0",
)


@dataclass(frozen=True)
class Federation:
    """The digits, dealt out. data: every device's examples; training: who trains."""

    task: Classification
    example: Any
    data: list[SampleSet]
    training: tuple[int, ...]
    held_out: tuple[int, ...]


def federation(seed: int) -> Federation:
    scenario = scenario_file.with_algorithm(scenario_file.load("digits"), "fedavg")
    scenario = scenario_file.override(scenario, [f"seed={seed}", *SETTINGS])
    dealt = load_data(scenario, None)
    task, example = recipes.task(scenario, dealt)
    return Federation(
        task,
        example,
        [recipes.arrays(scenario, device) for device in dealt.devices],
        tuple(dealt.training),
        tuple(sorted(dealt.held_out)),
    )


def compiled(there: Federation, devices: int, promise: PrivacyTarget | None) -> tuple[Runtime, Any]:
    """The programs, and the first weights."""
    stages: list[Stage] = [chains.clip(CLIP), chains.quantise()]
    if promise is not None:
        noise = chains.noise(promise.epsilon, promise.delta)
        mask = chains.mask(corrupt=promise.corrupt)
        stages += [mask, noise] if promise.central else [noise, mask]
    bundle = build(
        there.task,
        FedAvg(epochs=5, local=sgd(0.3)),
        there.data[0],
        example=there.example,
        chain=chains.chain(*stages, chains.mean()),
        clients_max=devices,
        weight_max=1.0,
        seed=1,
        releases=promise.releases if promise is not None else 1,
        survivors=promise.survivors if promise is not None else 1,
    )
    return Runtime(bundle), bundle.weights


def secret(*names: object) -> bytes:
    """A noise key that stands for one of the operating system's: runs can be repeated."""
    return hashlib.sha256(repr(names).encode()).digest()


def train(
    runtime: Runtime, weights: Any, members: Sequence[SampleSet | None], rounds: int, seed: int
) -> Any:
    """The last model's weights. A member that is None sends zeros in place of its update."""
    plan, memory = runtime.ring, runtime.memory()
    for number in range(rounds):
        total = ring.zeros(plan)
        round_key = random.fold_in(random.key(seed), number)
        for device, data in enumerate(members):
            if data is None:
                vector = ring.zeros(plan)
                vector[-1] = plan.weight_scale
            else:
                key = random.fold_in(round_key, device)
                vector = runtime.client_update(weights, data, key).vector
            if plan.noise:
                noise_mechanism.guard(vector, plan)
                if not plan.central:
                    noise_mechanism.add(vector, plan, secret(seed, number, device))
            ring.add(total, vector)
        if plan.noise and plan.central:
            noise_mechanism.add(total, plan, secret(seed, number))
        mean, _ = ring.decode(total, plan)
        weights, memory = runtime.server_update(weights, memory, mean)
    return weights


def judged(data: SampleSet) -> SampleSet:
    """The same examples, all of them to judge by and none to train on."""
    count = int(data.support) + int(data.query)
    return SampleSet(data.x, data.y, np.array(0, np.int64), np.array(count, np.int64))


def single(data: SampleSet, row: int) -> SampleSet:
    """One example, to judge by."""
    x, y = data.x.copy(), data.y.copy()
    x[0], y[0] = data.x[row], data.y[row]
    return SampleSet(x, y, np.array(0, np.int64), np.array(1, np.int64))


def losses(runtime: Runtime, model: Any, examples: Iterable[SampleSet]) -> list[float]:
    return [runtime.evaluate(model, e, random.key(0)).loss for e in examples]


def auc(inside: Sequence[float], outside: Sequence[float]) -> float:
    """The chance that a member scores above another, ties counted half (Mann and Whitney 1947)."""
    a, b = np.array(inside), np.array(outside)
    return float(np.mean(a[:, None] > b[None, :]) + 0.5 * np.mean(a[:, None] == b[None, :]))


def auc_bound(epsilon: float, delta: float) -> float:
    """The largest AUC of any guess, from TPR <= e^epsilon FPR + delta both ways (Kairouz, Oh and
    Viswanath 2015): the area under those two lines.
    """
    corner = (1 - delta) / (1 + math.exp(epsilon))
    return corner * (delta + math.exp(epsilon)) + delta


def accuracy(epsilon: float | None, seeds: int) -> dict[str, Any]:
    """One row: what is learnt at an epsilon, and what an example's loss tells of it."""
    accuracies, by_loss, plan = [], [], None
    for seed in range(1, seeds + 1):
        there = federation(seed)
        count = len(there.training)
        promise = None if epsilon is None else PrivacyTarget(epsilon, DELTA, ROUNDS, count)
        runtime, first = compiled(there, count, promise)
        plan = runtime.ring
        weights = train(runtime, first, [there.data[d] for d in there.training], ROUNDS, seed)
        model = runtime.model_of(weights)
        scores = [
            runtime.evaluate(model, judged(there.data[d]), random.key(0)) for d in there.held_out
        ]
        accuracies.append(sum(s.correct for s in scores) / sum(s.count for s in scores))
        inside = [
            single(there.data[d], row)
            for d in there.training
            for row in range(int(there.data[d].support))
        ]
        outside = [
            single(there.data[d], row)
            for d in there.held_out
            for row in range(int(there.data[d].support) + int(there.data[d].query))
        ]
        # A small loss speaks for membership.
        scores_in, scores_out = losses(runtime, model, inside), losses(runtime, model, outside)
        by_loss.append(auc([-x for x in scores_in], [-x for x in scores_out]))
    assert plan is not None
    return {
        "epsilon": epsilon,
        "multiplier": plan.noise * math.sqrt(plan.clients_max) if plan.noise else None,
        "accuracy": statistics.mean(accuracies),
        "accuracy_deviation": statistics.stdev(accuracies) if seeds > 1 else 0.0,
        "membership_auc": statistics.mean(by_loss),
        "auc_bound": None if epsilon is None else auc_bound(epsilon, DELTA),
        "device_noise_steps": math.sqrt(plan.noise_variance),
        "ring_bits": plan.width,
    }


def audit(epsilon: float | None, runs: int) -> dict[str, Any]:
    """How well it can be told whether one chosen device took part."""
    there = federation(1)
    members = [there.data[d] for d in there.training[:AUDIT_DEVICES]]
    chosen = members[0]._replace(y=((members[0].y + 5) % 10).astype(members[0].y.dtype))
    promise = None
    if epsilon is not None:
        promise = PrivacyTarget(epsilon, DELTA, AUDIT_ROUNDS, AUDIT_DEVICES, central=True)
    runtime, first = compiled(there, AUDIT_DEVICES, promise)
    told: dict[bool, list[float]] = {True: [], False: []}
    for takes_part in told:
        everyone = [chosen if takes_part else None, *members[1:]]
        for number in range(runs):
            weights = train(runtime, first, everyone, AUDIT_ROUNDS, 2 * number + takes_part)
            told[takes_part] += losses(runtime, runtime.model_of(weights), [judged(chosen)])
    found = auc([-x for x in told[True]], [-x for x in told[False]])
    return {
        "epsilon": epsilon,
        "auc": found,
        # Hanley and McNeil 1982, for equal numbers of both and an AUC near a half.
        "auc_error": math.sqrt(1 / (6 * runs)),
        "auc_bound": None if epsilon is None else auc_bound(epsilon, DELTA),
        "runs": 2 * runs,
    }


def rounding(bits: int) -> dict[str, Any]:
    """The error of a mean in a ring of few bits, as a share of the updates' length."""
    rng = np.random.default_rng(bits)
    deltas = rng.normal(size=(ROUNDING_DEVICES, ROUNDING_DIMENSION)).astype(np.float32)
    deltas /= np.linalg.norm(deltas, axis=1, keepdims=True)
    truth = deltas.mean(0, dtype=np.float64)
    row: dict[str, Any] = {"bits": bits}
    for name, rotated in (("plain", False), ("rotated", True)):
        plan = RingPlan(1.0, ROUNDING_DEVICES, ROUNDING_DIMENSION, bits, rotated=rotated)
        total = ring.zeros(plan)
        for device, delta in enumerate(deltas):
            ring.add(total, ring.encode(delta, np.float32(1), random.key(device), plan))
        row[name] = float(np.linalg.norm(ring.decode(total, plan)[0] - truth))
    return row


def shown(value: Any) -> str:
    if value is None:
        return "none"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """A Markdown table of rows with equal keys."""
    lines = ["| " + " | ".join(rows[0]) + " |", "|---" * len(rows[0]) + "|"]
    return lines + ["| " + " | ".join(map(shown, row.values())) + " |" for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--runs", type=int, default=AUDIT_RUNS, help="audited runs of each kind")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    began = time.process_time()
    results: dict[str, list[dict[str, Any]]] = {"accuracy": [], "audit": [], "rounding": []}
    for epsilon in EPSILONS:
        results["accuracy"].append(accuracy(epsilon, args.seeds))
        print(results["accuracy"][-1], file=sys.stderr)
    for epsilon in AUDIT_EPSILONS:
        results["audit"].append(audit(epsilon, args.runs))
        print(results["audit"][-1], file=sys.stderr)
    results["rounding"] = [rounding(bits) for bits in ROUNDING_BITS]
    seconds = time.process_time() - began
    if args.json:
        print(json.dumps({"results": results, "delta": DELTA, "cpu_seconds": seconds}, indent=2))
        return
    for rows in results.values():
        print("\n".join([*table(rows), ""]))
    print(f"{seconds:.0f} s of processor time")


if __name__ == "__main__":
    main()
