"""Few-shot learning on Omniglot, five characters from one or five drawings each: meta-learning and
fine-tuned FedAvg beside the published figures.

    python benchmarks/omniglot.py --data omniglot_small.npz
    python benchmarks/omniglot.py --data omniglot_small.npz --long --seeds 1 --out long.jsonl

The scenario is `omniglot-characters`, where each algorithm's settings stand. They were chosen by a
short search on seed 1. A figure is the mean accuracy on characters that no device trained on, over
devices and then over seeds, with the standard deviation. Each run is kept in a line of `--out` as
soon as it is done, and the same command goes on where it was stopped. `--scale` multiplies the
rounds: published figures come of some hundred times as many episodes.

`--long` is the table of longer runs (`LONG`), of convolutions and one drawing: Adam at the server,
whose rate falls to zero along a cosine, and evaluations on the way.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from delian.simulations.report.report import summarise
from delian.simulations.runs.simulate import simulate
from delian.simulations.scenario import scenario_file

SCENARIO = "omniglot-characters"
#: What nobody who meta-learns should be below.
BASELINE = "fedavg"
ALGORITHMS = ("maml", "fomaml", "reptile", "protonet", BASELINE)
MODELS, SHOTS = ("mlp", "conv"), (1, 5)

#: (algorithm, model, shots) -> per cent, five ways. Finn, Abbeel and Levine 2017, table 1; Nichol,
#: Achiam and Schulman 2018, table 1 (transductive, as the batch's statistics make it here too);
#: Snell, Swersky and Zemel 2017, table 1 (trained on sixty ways).
PUBLISHED: Mapping[tuple[str, str, int], float] = {
    ("maml", "conv", 1): 98.7,
    ("maml", "conv", 5): 99.9,
    ("maml", "mlp", 1): 89.7,
    ("maml", "mlp", 5): 97.5,
    ("fomaml", "conv", 1): 98.3,
    ("fomaml", "conv", 5): 99.2,
    ("reptile", "conv", 1): 97.68,
    ("reptile", "conv", 5): 99.48,
    ("protonet", "conv", 1): 98.8,
    ("protonet", "conv", 5): 99.7,
}

#: Rounds at a scale of one, so that a run takes some 10 to 25 seconds of one core.
ROUNDS: Mapping[tuple[str, int], Mapping[str, int]] = {
    ("mlp", 1): {"maml": 250, "fomaml": 300, "reptile": 300, "protonet": 300, "fedavg": 100},
    ("mlp", 5): {"maml": 150, "fomaml": 200, "reptile": 200, "protonet": 200, "fedavg": 60},
    ("conv", 1): {"maml": 150, "fomaml": 180, "reptile": 220, "protonet": 200, "fedavg": 60},
    ("conv", 5): {"maml": 60, "fomaml": 110, "reptile": 80, "protonet": 120, "fedavg": 40},
}
MODEL = {
    "mlp": 'model={name = "mlp", hidden = [256, 128, 64, 64], batch_norm = true}',
    "conv": 'model={name = "omniglot", filters = 32, strided = true}',
}
#: The table of short runs has the mean of the updates, and episodes of five that train.
PLAIN_SERVER = (
    *("algorithm.server_optimizer=sgd", "algorithm.server_learning_rate=1.0"),
    "algorithm.server_decay_rounds=0",
)
PLAIN: Mapping[str, Sequence[str]] = {"protonet": ("algorithm.training_ways=0",)}


@dataclasses.dataclass(frozen=True)
class Long:
    """A longer run of one algorithm."""

    rounds: int
    rate: float
    """Adam's at the server, at first."""
    settings: Sequence[str] = ()
    """What differs from the scenario."""


#: A device trains on one episode of twenty characters in place of four episodes of five: as much
#: work, and a mean of gradients in place of four steps.
TWENTY_WAYS = ("algorithm.training_ways=20", "data.episodes=1")
#: Convolutions with max pooling, as in the paper on prototypical networks.
POOLED = "model.strided=false"
#: Rounds of some twenty minutes of one core, but for ProtoNet, which gains nothing from more than
#: two, MAML, which had twelve, and iMAML, whose rounds take five times as long.
LONG: Mapping[str, Long] = {
    "protonet": Long(1200, 0.003, (*TWENTY_WAYS, POOLED)),
    "maml": Long(8000, 0.01),
    "fomaml": Long(18_000, 0.01),
    "anil": Long(18_000, 0.01),
    "reptile": Long(20_000, 0.01),
    "imaml": Long(2000, 0.003),
}
#: Evaluations of a longer run, the last one at its end; each is of so many episodes a device.
EVALUATIONS, EPISODES = 10, 40
LONG_MODEL = "conv, long"


def scenario(algorithm: str, model: str, shots: int, seed: int, scale: float) -> Any:
    """One run's scenario."""
    chosen = scenario_file.with_algorithm(scenario_file.load(SCENARIO), algorithm)
    rounds = max(1, round(scale * ROUNDS[model, shots][algorithm]))
    changes = [f"seed={seed}", f"data.shots={shots}", f"rounds={rounds}", MODEL[model]]
    return scenario_file.override(chosen, [*changes, *PLAIN_SERVER, *PLAIN.get(algorithm, ())])


def run(algorithm: str, model: str, shots: int, seed: int, scale: float, data: Path) -> Any:
    """A run's figures, and what they cost."""
    chosen = scenario(algorithm, model, shots, seed, scale)
    wall, cpu = time.perf_counter(), time.process_time()
    result = simulate(chosen, data_path=data, threads=1)
    summary = summarise(result)
    return {
        "algorithm": algorithm,
        "model": model,
        "shots": shots,
        "seed": seed,
        "scale": scale,
        "rounds": summary["rounds"],
        "updates": summary["updates"],
        "accuracy": summary["held_out"]["personalised_accuracy"],
        "worst_decile": summary["held_out"]["worst_decile_personalised"],
        "seen": summary["seen"]["personalised_accuracy"],
        "parameters": summary["parameters"],
        "cpu_seconds": round(time.process_time() - cpu, 2),
        "wall_seconds": round(time.perf_counter() - wall, 2),
    }


def run_long(algorithm: str, seed: int, scale: float, data: Path) -> Any:
    """A longer run's figures; `curve` has rounds and the accuracy on new characters, per cent."""
    plan = LONG[algorithm]
    rounds = max(1, round(scale * plan.rounds))
    chosen = scenario_file.with_algorithm(scenario_file.load(SCENARIO), algorithm)
    held_out = 10  # the devices that never train come first
    changes = [f"seed={seed}", f"rounds={rounds}", MODEL["conv"], *plan.settings]
    changes += [f"evaluation.every={max(1, rounds // EVALUATIONS)}"]
    changes += [f"evaluation.devices={held_out}", f"evaluation.episodes={EPISODES}"]
    changes += ["algorithm.server_optimizer=adam", f"algorithm.server_learning_rate={plan.rate}"]
    changes += [f"algorithm.server_decay_rounds={rounds}"]
    chosen = scenario_file.override(chosen, changes)
    wall, cpu = time.perf_counter(), time.process_time()

    def say(event: Any) -> None:
        record = getattr(event, "record", None)
        if record is not None and record.personalised_accuracy is not None:
            used = time.process_time() - cpu
            print(
                f"  round {record.round}: {record.personalised_accuracy:.1%} ({used:.0f} s)",
                file=sys.stderr,
                flush=True,
            )

    result = simulate(chosen, data_path=data, threads=1, on_event=say)
    summary = summarise(result)
    return {
        "algorithm": algorithm,
        "model": LONG_MODEL,
        "shots": 1,
        "seed": seed,
        "scale": scale,
        "rounds": rounds,
        "updates": summary["updates"],
        "accuracy": summary["held_out"]["personalised_accuracy"],
        "worst_decile": summary["held_out"]["worst_decile_personalised"],
        "curve": [
            (each.round, round(100 * each.personalised_accuracy, 2))
            for each in result.rounds
            if each.personalised_accuracy is not None
        ],
        "parameters": summary["parameters"],
        "cpu_seconds": round(time.process_time() - cpu, 2),
        "wall_seconds": round(time.perf_counter() - wall, 2),
    }


def key(done: Mapping[str, Any]) -> tuple[Any, ...]:
    """What a run is known by."""
    return tuple(done[name] for name in ("algorithm", "model", "shots", "seed", "scale"))


def kept(out: Path) -> list[dict[str, Any]]:
    """The runs that are done; a line that was cut off is none."""
    lines = []
    for line in out.read_text().splitlines() if out.exists() else []:
        try:
            lines.append(json.loads(line))
        except ValueError:
            print(f"{out}: a line that is not whole is left out", file=sys.stderr)
    return lines


def _of(
    some: Sequence[Mapping[str, Any]], algorithm: str, model: str, shots: int
) -> list[Mapping[str, Any]]:
    wanted = (algorithm, model, shots)
    return [r for r in some if (r["algorithm"], r["model"], r["shots"]) == wanted]


def rows(runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Means over seeds, in per cent."""
    found = []
    for model, shots, algorithm in itertools.product(MODELS, SHOTS, ALGORITHMS):
        of = _of(runs, algorithm, model, shots)
        if not of:
            continue
        values = [100 * r["accuracy"] for r in of]
        found.append(
            {
                "algorithm": algorithm,
                "model": model,
                "shots": shots,
                "seeds": len(of),
                "accuracy": round(statistics.mean(values), 2),
                "deviation": round(statistics.stdev(values), 2) if len(values) > 1 else 0.0,
                "seen": round(100 * statistics.mean(r["seen"] for r in of), 2),
                "published": PUBLISHED.get((algorithm, model, shots)),
                "cpu_seconds": round(statistics.median(r["cpu_seconds"] for r in of), 1),
            }
        )
    return found


def targets(found: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The published figures, and that who learns to learn is above who does not."""
    base = {(r["model"], r["shots"]): r["accuracy"] for r in found if r["algorithm"] == BASELINE}
    goals = []
    for row in found:
        name = f"{row['algorithm']}, {row['model']}, {row['shots']}-shot"
        if row["published"] is not None:
            goals.append((f"{name}, published", row["published"], row["accuracy"]))
        if row["algorithm"] != BASELINE and (row["model"], row["shots"]) in base:
            goals.append(
                (f"{name}, above {BASELINE}", base[row["model"], row["shots"]], row["accuracy"])
            )
    return [
        {"name": name, "goal": goal, "measured": ours, "met": ours >= goal}
        for name, goal, ours in goals
    ]


def table(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """Markdown: ours, published and seconds of one core, by network and drawings."""
    columns = list(itertools.product(MODELS, SHOTS))
    heads = " | ".join(f"{model}, {shots}-shot | published | s" for model, shots in columns)
    lines = [f"| algorithm | {heads} |", "|---" * (1 + 3 * len(columns)) + "|"]
    for algorithm in ALGORITHMS:
        cells = []
        for model, shots in columns:
            of = _of(found, algorithm, model, shots)
            if not of:
                cells += ["", "", ""]
                continue
            (row,) = of
            published = "" if row["published"] is None else f"{row['published']:g}"
            cells += [f"{row['accuracy']:.1f} ± {row['deviation']:.1f}", published]
            cells.append(f"{row['cpu_seconds']:.0f}")
        lines.append(f"| {algorithm} | " + " | ".join(cells) + " |")
    return lines


def long_table(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Markdown: an algorithm's accuracy on new characters, rounds, seconds of one core."""
    lines = ["| algorithm | held out | worst tenth | rounds | s | published |", "|---" * 6 + "|"]
    for algorithm in LONG:
        of = _of(runs, algorithm, LONG_MODEL, 1)
        if not of:
            continue
        values = [100 * r["accuracy"] for r in of]
        spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
        worst = 100 * statistics.mean(r["worst_decile"] for r in of)
        used = statistics.median(r["cpu_seconds"] for r in of)
        published = PUBLISHED.get((algorithm, "conv", 1), "")
        lines.append(
            f"| {algorithm} | {statistics.mean(values):.1f}{spread} | {worst:.1f} |"
            f" {of[0]['rounds']} | {used:.0f} | {published} |"
        )
    return lines


def finished(wanted: Sequence[tuple[Any, ...]], out: Path, data: Path) -> list[dict[str, Any]]:
    """The runs of these keys: those that are kept, and the others when they are done."""
    runs = {key(one): one for one in kept(out)}
    out.write_text("".join(f"{json.dumps(one)}\n" for one in runs.values()))
    with out.open("a") as file:
        for one in wanted:
            if one in runs:
                continue
            algorithm, model, shots, seed, scale = one
            if model == LONG_MODEL:
                runs[one] = run_long(algorithm, seed, scale, data)
            else:
                runs[one] = run(*one, data)
            print(json.dumps(runs[one]), file=file, flush=True)
            print(
                f"{algorithm}, {model}, {shots}-shot, seed {seed}: {runs[one]['accuracy']:.1%}"
                f" ({runs[one]['cpu_seconds']:.0f} s)",
                file=sys.stderr,
            )
    return [runs[one] for one in wanted]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("omniglot.jsonl"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--algorithms", help="names with commas between (default: all)")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--long", action="store_true", help="the table of longer runs")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    names = (args.algorithms or ",".join(LONG if args.long else ALGORITHMS)).split(",")
    models, shots = ([LONG_MODEL], (1,)) if args.long else (args.models.split(","), SHOTS)
    wanted = [
        (name, model, each, seed, args.scale)
        for seed, model, each, name in itertools.product(
            range(1, args.seeds + 1), models, shots, names
        )
    ]
    runs = finished(wanted, args.out, args.data)
    if args.long:
        print(json.dumps(runs, indent=2) if args.json else "\n".join(long_table(runs)))
        return
    found = rows(runs)
    if args.json:
        print(json.dumps({"results": found, "targets": targets(found)}, indent=2))
    else:
        print("\n".join(table(found)))


if __name__ == "__main__":
    main()
