"""What personalisation is worth: algorithms against each other on one scenario, over several seeds.

    python benchmarks/personalisation.py digits
    python benchmarks/personalisation.py omniglot --data omniglot_small.npz

Every algorithm runs with its own settings from the scenario. A figure is the mean over devices of
the accuracy on a device's query set, before and after the device has made the model its own, then
the mean over seeds with the standard deviation. Held-out devices never trained. `docs/results.md`
is made of this output.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

from delian.simulations.report.report import summarise
from delian.simulations.runs.simulate import simulate
from delian.simulations.scenario import scenario_file

COLUMNS = {
    "shared": lambda s: s["global_accuracy"],
    "personal": lambda s: s["personalised_accuracy"],
    "personal, worst tenth": lambda s: s["worst_decile_personalised"],
    "personal, held-out": lambda s: s["held_out"]["personalised_accuracy"],
    "harmed": lambda s: s["harmed_share"],
}
#: What the others are measured against: it has no inner loop, and is made personal by fine-tuning.
BASELINE = "fedavg"


def run(scenario: str, algorithm: str, seed: int, data: Path | None, changes: list[str]) -> Any:
    chosen = scenario_file.with_algorithm(scenario_file.load(scenario), algorithm)
    chosen = scenario_file.override(chosen, [f"seed={seed}", *changes])
    return summarise(simulate(chosen, data_path=data))


def table(results: dict[str, list[dict[str, Any]]]) -> list[str]:
    """A Markdown table, per cent, mean and standard deviation over seeds."""
    lines = ["| algorithm | " + " | ".join(COLUMNS) + " |", "|---" * (len(COLUMNS) + 1) + "|"]
    for name, runs in results.items():
        cells = []
        for pick in COLUMNS.values():
            values = [100 * pick(r) for r in runs]
            spread = statistics.stdev(values) if len(values) > 1 else 0.0
            cells.append(f"{statistics.mean(values):.1f} ± {spread:.1f}")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


def targets(results: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Each other algorithm is to be at least as good as the baseline, personalised."""
    means = {
        name: statistics.mean(r["personalised_accuracy"] for r in runs)
        for name, runs in results.items()
    }
    base = means.get(BASELINE)
    if base is None:
        return []
    return [
        {
            "name": f"{name} against {BASELINE}, personalised accuracy",
            "goal": round(base, 4),
            "measured": round(mean, 4),
            "met": mean >= base,
        }
        for name, mean in means.items()
        if name != BASELINE
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("scenario")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--algorithms", default="fedavg,fomaml,maml")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="changes")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    results: dict[str, list[dict[str, Any]]] = {}
    for seed in range(1, args.seeds + 1):
        for algorithm in args.algorithms.split(","):
            summary = run(args.scenario, algorithm, seed, args.data, args.changes)
            results.setdefault(algorithm, []).append(summary)
            print(
                f"seed {seed}: {algorithm:8} {summary['global_accuracy']:.1%} shared, "
                f"{summary['personalised_accuracy']:.1%} personal",
                file=sys.stderr,
            )
    if args.json:
        print(json.dumps({"results": results, "targets": targets(results)}, indent=2))
    else:
        print("\n".join(table(results)))


if __name__ == "__main__":
    main()
