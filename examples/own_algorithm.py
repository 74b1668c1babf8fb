"""An algorithm of your own: FedAvg with clipped local gradients, on the digits.

    delian simulate --scenario examples/own_algorithm.toml
    delian sweep examples/own_algorithm.toml algorithm.settings.length=0.5,1,2
    delian compare digits:fedavg digits:examples/own_algorithm.py --seeds 3
    python examples/own_algorithm.py

Liu, Zhuang, Lei and Liao, "A Communication-Efficient Distributed Gradient Clipping Algorithm for
Training Deep Neural Networks", NeurIPS 2022: each device clips the gradient of each local step. An
algorithm is a dataclass of hyperparameters; the methods that it overrides are compiled into what
devices run. What happens to updates on their way (clip, masks, noise, a robust mean) is a chain of
its own: docs/algorithms.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import delian as dl
import numpy as np


@dataclass(frozen=True)
class ClippedAvg(dl.learn.FedAvg):
    """FedAvg with clipped local gradients."""

    length: Annotated[float, dl.learn.Bounds(gt=0.0, le=100.0)] = 1.0
    """L2 norm that a step's gradient is scaled down to if it is longer (gamma / eta)."""

    def gradient(
        self, task: Any, current: Any, state: Any, data: Any, order: Any, step: Any
    ) -> Any:
        loss, slope = dl.learn.FedAvg.gradient(self, task, current, state, data, order, step)
        norm = np.sqrt(sum(np.sum(part * part) for part in dl.tree.leaves(slope)))
        factor = self.length / np.maximum(norm, self.length)
        return loss, dl.tree.map(lambda part: factor * part, slope)


def main(out: Path = Path("delian-runs/digits-clipped"), rounds: int = 30) -> dict[str, Any]:
    """Runs it from Python and writes its report; gives the report's figures."""
    from delian.simulations.report.report import build_report, claim_folder, write_report
    from delian.simulations.runs.simulate import simulate
    from delian.simulations.scenario.scenario_file import load, override

    claim_folder(out)
    scenario = override(load("digits"), [f"rounds={rounds}"])
    algorithm = ClippedAvg(epochs=5, local=dl.nn.sgd(0.3))
    report = build_report(simulate(scenario, algorithm=algorithm))
    print(f"report  {write_report(report, out)}")
    return report


if __name__ == "__main__":
    summary = main()["summary"]
    print(
        f"shared {summary['global_accuracy']:.1%}, personal {summary['personalised_accuracy']:.1%}"
    )
