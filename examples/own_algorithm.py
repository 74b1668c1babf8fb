"""An algorithm of your own: FedAvg whose devices look for flat minima, on the digits.

    delian simulate --scenario examples/own_algorithm.toml
    delian sweep examples/own_algorithm.toml algorithm.settings.rho=0,0.05,0.1
    delian compare digits:fedavg digits:examples/own_algorithm.py --seeds 3
    python examples/own_algorithm.py

Qu, Li, Duan, Liu, Tang and Lu, "Generalized Federated Learning via Sharpness Aware Minimization",
ICML 2022: each local step descends on the gradient from a little way uphill. An algorithm is a
dataclass of numbers; whichever method it changes is compiled into what devices run. What happens to
updates on their way (clip, masks, noise, a robust mean) is composed beside it: docs/algorithms.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import delian as dl
import numpy as np


@dataclass(frozen=True)
class FedSam(dl.learn.FedAvg):
    """`rho` is how far uphill a device looks."""

    rho: float = 0.05

    def gradient(
        self, task: Any, current: Any, state: Any, data: Any, order: Any, step: Any
    ) -> Any:
        _, slope = dl.learn.FedAvg.gradient(self, task, current, state, data, order, step)
        norm = np.sqrt(sum(np.sum(part * part) for part in dl.tree.leaves(slope))) + 1e-12
        uphill = dl.tree.map(lambda w, s: w + self.rho * s / norm, current, slope)
        return dl.learn.FedAvg.gradient(self, task, uphill, state, data, order, step)


def main(out: Path = Path("delian-runs/digits-fedsam"), rounds: int = 30) -> dict[str, Any]:
    """Runs it from Python and writes its report; gives the report's figures."""
    from delian.simulations.report import build_report, claim_folder, write_report
    from delian.simulations.scenario_file import load, override
    from delian.simulations.simulate import simulate

    claim_folder(out)
    scenario = override(load("digits"), [f"rounds={rounds}"])
    algorithm = FedSam(epochs=5, local=dl.nn.sgd(0.3), rho=0.05)
    report = build_report(simulate(scenario, algorithm=algorithm))
    print(f"report  {write_report(report, out)}")
    return report


if __name__ == "__main__":
    summary = main()["summary"]
    print(
        f"shared {summary['global_accuracy']:.1%}, personal {summary['personalised_accuracy']:.1%}"
    )
