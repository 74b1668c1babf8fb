"""Split training: devices train the first and the last layer of a net, an edge the large middle.

    python examples/split_training.py

Twenty devices hold handwritten digits, most of them of a few kinds. Activations go up to two edges,
gradients come down; images, labels and the device's layers go nowhere: these layers are added up
under masks. It is compared with federated averaging of the whole model, in accuracy and in bytes.

`--epsilon 1000` releases what goes up under local differential privacy, example by example: a
promise to everyone who sees it, and a price in accuracy that docs/placement.md has figures of.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import delian as dl
import numpy as np
from delian.core.placement.split_training.step_sides import Sharing
from delian.core.privacy.mechanisms.activation_noise import noise_for
from delian.simulations.runs.split_federation import SplitPlan, SplitRun

DEVICES, HIDDEN, BATCH, STEPS, DELTA = 20, (16, 256, 256, 16), 10, 10, 1e-5
#: Of a row of activations that goes up, and of a row of gradients.
CLIPS = (2.0, 0.05)


def devices(seed: int) -> list[dl.learn.SampleSet]:
    """Their digits: some to train on, some to judge by."""
    dealt = dl.learn.datasets.federate(
        dl.learn.datasets.digits(),
        deal=dl.learn.datasets.Deal(partition="dirichlet", alpha=0.5, min_examples=30),
        devices=DEVICES,
        query_fraction=0.25,
        held_out_devices=0,
        seed=seed,
    )
    return [
        dl.learn.SampleSet(d.x.astype(np.float32), d.y, np.array(d.support), np.array(d.query))
        for d in dealt.devices
    ]


def task(hidden: tuple[int, ...]) -> dl.learn.Classification:
    return dl.learn.Classification(
        "digits",
        lambda key: dl.nn.Mlp.init(key, 64, hidden, 10),
        dl.learn.Samples(BATCH, 1 / 16),
    )


def told(name: str, report: Mapping[str, Any]) -> str:
    last, rounds = report["rounds"][-1], report["rounds"]
    each = sum(r["devices"] for r in rounds) * 1e3
    boundary = sum(r["boundary_bytes_up"] + r["boundary_bytes_down"] for r in rounds) / each
    part = sum(r["part_bytes_up"] + r["part_bytes_down"] for r in rounds) / each
    spent = f"   epsilon {last['epsilon']:.1f}" if last["epsilon"] is not None else ""
    below = report["numbers_below"]
    return (
        f"{name:<26}{100 * last['accuracy']:6.1f}%{below:>10,}{boundary:>11.1f}{part:>9.1f}{spent}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--epsilon", type=float, help="of each example, at a delta of 1e-5")
    chosen = parser.parse_args()
    fleet = devices(chosen.seed)
    plan = SplitPlan(
        above=("layers.1.", "layers.2.", "layers.3."),
        rounds=chosen.rounds,
        local_steps=STEPS,
        edges=2,
        optimizer=dl.nn.sgd(0.2),
        seed=chosen.seed,
    )
    plans = {
        "whole model, averaged": replace(plan, above=()),
        "copies": plan,
        "sequential": replace(plan, sharing=Sharing.SEQUENTIAL),
        "synchronous": replace(plan, sharing=Sharing.SYNCHRONOUS),
        "copies, i8 on the wire": replace(plan, wire="i8"),
    }
    if chosen.epsilon is not None:
        # The device with the fewest rows goes through them most often.
        rows = min(int(d.support) for d in fleet)
        passes = chosen.rounds * -(-STEPS * min(BATCH, rows) // rows)
        shields = noise_for(chosen.epsilon, DELTA, passes, (HIDDEN[0], HIDDEN[-1]), CLIPS)
        private = replace(plan, sharing=Sharing.SYNCHRONOUS, shields=shields, delta=DELTA)
        plans = {f"noise of {shields[0].noise:.2f} clips": private}
    print(f"{'':<26}{'right':>7}{'numbers':>10}{'boundary':>11}{'part':>9}")
    print(f"{'':<26}{'':>7}{'below':>10}{'kB':>11}{'kB':>9}   a device and round, both ways")
    for name, one in plans.items():
        print(told(name, SplitRun(one, task(HIDDEN), fleet).run()), flush=True)


if __name__ == "__main__":
    main()
