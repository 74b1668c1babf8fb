"""Client updates a second of a PyTorch script's training, next to Flower and pfl-research.

    python benchmarks/training_scripts.py --model mlp --rounds 60 --repeat 3 \
        --peer 'Flower=F/bin/python flwr_sim.py --model mlp --rounds 12' \
        --peer 'pfl-research=P/bin/python pfl_sim.py --model mlp --threads 1 --rounds 60'

The work: 100 clients of 60 made-up images of 28 x 28, ten a round, one epoch of SGD in batches of
ten at rate 0.1 in PyTorch, no evaluation (here one client judges the last model). Delian's clients
are `training_script.py`, simulated as by `delian simulate`: in processes of the script, through
the tiers, the network and the sums; with masks and without. A peer is any command that does the
same work and prints `##ROUND number unixtime` at the end of each round.

Commands run in turn, `--repeat` times. Counted are the rounds after the second. Given are medians
and best runs, the time from the start to the end of round 1, the peak memory of the process tree,
and how many runs had more than 0.3 cores of other work next to them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
from simulation import DISTURBED, Run, measure, peers_of

CLIENTS, PER_ROUND = 100, 10
SCRIPT = Path(__file__).parent / "training_script.py"
#: Times as many updates a second as a peer whose name begins so.
GOALS = {"flower": 3.0, "pfl": 1.0}
#: The accuracy on test data that shows that the work was done.
ACCURACY = 0.9


def child(model: str, rounds: int, threads: int, aggregation: str) -> None:
    """Delian's side, with a mark at each round's end."""
    from delian.simulations.runs.result import RoundFinished
    from delian.simulations.runs.simulate import simulate
    from delian.simulations.scenario import scenario_file
    from delian.simulations.scenario.own_data import fitted_to_script

    scenario = scenario_file.override(
        fitted_to_script(SCRIPT, CLIENTS),
        [
            f'data.arguments=["{model}"]',
            "data.settings={samples=60, batch=10, lr=0.1}",
            f"rounds={rounds}",
            f"evaluation.every={rounds}",
            "evaluation.devices=1",
            f"round.cohort={PER_ROUND}",
            "fleet.edges=2",
            f'privacy.aggregation="{aggregation}"',
        ],
    )

    def mark(event: object) -> None:
        if isinstance(event, RoundFinished):
            print(f"##ROUND {event.record.round} {time.time():.6f}", flush=True)

    result = simulate(scenario, threads=threads, on_event=mark)
    accuracy = result.rounds[-1].global_accuracy
    print(f"##FINAL {accuracy}")
    if accuracy is None or accuracy < ACCURACY:
        raise SystemExit(f"an accuracy of {accuracy} after {rounds} rounds: it has not learnt")


def summarise(runs: list[Run], model: str) -> dict[str, Any]:
    """Medians and bests by command, ratios of Delian to each peer, and the targets."""
    table: dict[str, Any] = {}
    for name in dict.fromkeys(run.name for run in runs):
        mine = [run for run in runs if run.name == name]
        table[name] = {
            "updates_per_s": statistics.median(run.updates_per_s for run in mine),
            "updates_per_s_best": max(run.updates_per_s for run in mine),
            "first_round_s": statistics.median(run.first_round_s for run in mine),
            "rss_mib": statistics.median(run.rss_mib for run in mine),
            "disturbed_runs": sum(run.other_cores > DISTURBED for run in mine),
        }
    ours = table["Delian"]["updates_per_s"]
    ratios = {
        name: ours / row["updates_per_s"]
        for name, row in table.items()
        if not name.startswith("Delian")
    }
    targets = [
        {
            "name": f"times as many updates a second as {name}",
            "goal": goal,
            "measured": round(ratio, 2),
            "met": ratio >= goal,
        }
        for name, ratio in ratios.items()
        for start, goal in GOALS.items()
        if name.lower().startswith(start)
    ]
    return {
        "model": model,
        "cores": psutil.cpu_count(),
        "runs": [asdict(run) for run in runs],
        "table": table,
        "times_faster_than": {name: round(ratio, 2) for name, ratio in ratios.items()},
        "targets": targets,
    }


def print_table(result: dict[str, Any]) -> None:
    print(f"\n{result['model']}, {result['cores']} cores; medians (best)")
    print(f"{'':24}{'updates/s':>18}{'first round, s':>16}{'memory, MiB':>13}{'disturbed':>11}")
    for name, row in result["table"].items():
        rate = f"{row['updates_per_s']:.1f} ({row['updates_per_s_best']:.1f})"
        print(
            f"{name:24}{rate:>18}{row['first_round_s']:>16.2f}{row['rss_mib']:>13.0f}"
            f"{row['disturbed_runs']:>11}"
        )
    for target in result["targets"]:
        mark = "met" if target["met"] else "MISSED"
        print(f"  {target['name']}: {target['measured']} (goal {target['goal']:g}): {mark}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=("mlp", "cnn"), default="mlp")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=COMMAND")
    parser.add_argument("--limit-s", type=float, default=300.0)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--child", metavar="AGGREGATION", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.repeat < 1 or args.rounds < 4 or args.threads < 1:
        parser.error("at least one repeat, 4 rounds and one thread")
    if args.child:
        child(args.model, args.rounds, args.threads, args.child)
        return
    own = [sys.executable, __file__, "--model", args.model, "--rounds", str(args.rounds)]
    own += ["--threads", str(args.threads), "--child"]
    commands = {"Delian": [*own, "plain"], "Delian, masks": [*own, "secure"]}
    commands |= peers_of(args.peer, parser)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    runs = []
    for turn in range(args.repeat):
        for name, command in commands.items():
            run = measure(name, command, args.limit_s)
            print(f"run {turn + 1}: {name:20} {run.updates_per_s:8.1f} updates/s", file=sys.stderr)
            runs.append(run)
    result = summarise(runs, args.model)
    if args.json:
        print(json.dumps(result, indent=2))
    else:
        print_table(result)


if __name__ == "__main__":
    main()
