"""Personal adapters on Shakespeare by role: meta-learned ones against fine-tuned FedAvg-LoRA.

    python benchmarks/personal_adapters.py --data tinyshakespeare.txt --keep folder
    python benchmarks/personal_adapters.py --data tinyshakespeare.txt --search

The scenario is `shakespeare`: a device is a speaking role, and 14 roles never train. For each seed:

1. A transformer is trained by FedAvg on the training roles for `BASE_ROUNDS` rounds. Its loss still
   falls then, so that adapters have something to learn.
2. It is frozen, and adapters on all its linear layers are trained by FedAvg, FOMAML and Reptile:
   the same cohorts, rounds, local steps and rows of a step. "none" has adapters that were not
   trained.
3. Each held-out role adapts the adapters to ten windows of its lines, or a fifth of them where
   these are fewer, by 1, 5 and 10 steps of gradient descent on all of these, and is judged by the
   last four fifths. The rate is the best of `RATES` for each method and number of steps, by the
   loss on query rows of training roles.

`--search` is how the settings in `METHODS` were chosen: a seed that is not among those of the
table, judged as the rates are. With `--keep` trained bases and the figures of finished methods are
files of that folder, and the same command goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import delian as dl
import numpy as np
from delian import nn
from delian.simulations.runs.confidence import estimate

SCENARIO, BASELINE = "shakespeare", "fedavg"
WIDTH, DEPTH, HEADS, RANK, ALPHA = 64, 2, 4, 8, 16.0
#: Rounds of the base, its rate, and rounds of the adapters.
BASE_ROUNDS, BASE_RATE, ADAPTER_ROUNDS = 40, 0.003, 20
#: Devices of a round.
COHORT = 5
#: Of a device in a round; each step is of ten windows of 80 characters, as the scenario has it.
LOCAL_STEPS = 10
#: Steps of a role that never trained.
STEPS = (0, 1, 5, 10)
RATES = (0.03, 0.1, 0.3, 1.0, 3.0)
#: Training roles whose query rows choose the rate.
CHOOSING_ROLES = 12
#: Windows that a role adapts to: a batch, as in the inner step of FOMAML.
ROWS = 10


@dataclass(frozen=True)
class Method:
    """How adapters are trained."""

    algorithm: str
    rate: float
    """Of Adam on devices."""
    inner_rate: float = 0.0
    """Of the step of adaptation that the meta-gradient looks through."""

    @property
    def name(self) -> str:
        """Of files."""
        return f"{self.algorithm}-{self.rate}-{self.inner_rate}"

    def settings(self) -> list[str]:
        """The scenario's keys."""
        keys = [f"algorithm.learning_rate={self.rate}"]
        if self.algorithm == "reptile":
            return [*keys, f"algorithm.inner_steps={LOCAL_STEPS}"]
        keys += ["algorithm.epochs=1", f"algorithm.local_steps={LOCAL_STEPS}"]
        if self.inner_rate:
            keys.append(f"algorithm.inner_learning_rate={self.inner_rate}")
        return keys


METHODS = {
    "fedavg": Method("fedavg", 0.01),
    "fomaml": Method("fomaml", 0.003, 0.1),
    # Not the best that was found, but a larger inner rate may make a step worth more.
    "fomaml-large": Method("fomaml", 0.003, 0.3),
    "reptile": Method("reptile", 0.01),
}
#: What `--search` tries.
SEARCHED_RATES, SEARCHED_INNER = (0.003, 0.01), (0.1, 0.3, 1.0)
SEARCH_SEED = 0


def simulated(model: Any, method: Method, rounds: int, seed: int, data: Path) -> Any:
    """A run on the training roles; the held-out roles alone are judged, at its end."""
    return dl.simulate(
        SCENARIO,
        data=data,
        model=model,
        algorithm=method.algorithm,
        rounds=rounds,
        seed=seed,
        threads=1,
        progress=False,
        settings=[
            *("algorithm.optimizer=adam", "algorithm.personal_steps=1"),
            *(f"evaluation.every={rounds}", "evaluation.devices=14", f"round.cohort={COHORT}"),
            *method.settings(),
        ],
    )


def network(key: Any, shape: Any, classes: int) -> Any:
    """The base: a causal transformer over characters."""
    return nn.transformer(key, classes, width=WIDTH, depth=DEPTH, heads=HEADS)


def base_model(seed: int, data: Path, rounds: int) -> tuple[Any, float]:
    """The trained base, and its accuracy on held-out roles."""
    run = simulated(network, Method("fedavg", BASE_RATE), rounds, seed, data)
    model = with_leaves([np.array(value) for value in run.weights.values()])
    return model, run.summary["held_out"]["global_accuracy"]


def with_leaves(leaves: Sequence[Any]) -> Any:
    """A base with these arrays, in the tree's order, of which the last is the head's bias."""
    first, structure = dl.tree.flatten(network(dl.random.key(0), (), leaves[-1].size))
    assert [leaf.shape for leaf in first] == [leaf.shape for leaf in leaves]
    return dl.tree.unflatten(structure, leaves)


@dataclass(frozen=True)
class Role:
    """A role's rows: it adapts to `support`, and `query` judges. Each is (x, y) of windows."""

    support: tuple[Any, Any]
    query: tuple[Any, Any]


def roles(seed: int, data: Path) -> tuple[list[Role], list[Role]]:
    """(held-out roles, training roles that choose the rate), each with as much to adapt to.

    A training role adapts to rows that it trained on. Its query rows were never trained on.
    """
    from delian.simulations.scenario import scenario_file
    from delian.simulations.scenario.datasets import load_data

    federation = load_data(
        scenario_file.override(scenario_file.load(SCENARIO), [f"seed={seed}"]), data
    )
    rng = np.random.default_rng(seed)
    chosen = sorted(rng.choice(federation.training, CHOOSING_ROLES, replace=False))
    held_out = [_role(federation.devices[d]) for d in sorted(federation.held_out)]
    return held_out, [_role(federation.devices[d]) for d in chosen]


def _role(device: Any) -> Role:
    end = device.support + device.query
    few = max(1, min(device.support, end // 5, ROWS))
    support = device.x[:few], device.y[:few]
    return Role(support, (device.x[device.support : end], device.y[device.support : end]))


class Adaptation:
    """Steps of gradient descent on a role's rows, and figures of what they give."""

    def __init__(self, model: Any) -> None:
        join = dl.adapters.split(model).join

        def losses(trained: Any, frozen: Any, x: Any, y: Any, weight: Any) -> Any:
            logits = join(trained, frozen)(x)
            rows = np.mean(dl.ops.cross_entropy(logits, y), axis=-1)
            right = np.mean((np.argmax(logits, axis=-1) == y).astype(np.float32), axis=-1)
            return np.sum(rows * weight), np.sum(right * weight)

        def step(trained: Any, frozen: Any, x: Any, y: Any, weight: Any, rate: Any) -> Any:
            def loss(at: Any) -> Any:
                logits = join(at, frozen)(x)
                rows = np.mean(dl.ops.cross_entropy(logits, y), axis=-1)
                return np.sum(rows * weight) / np.sum(weight)

            slope = dl.grad(loss)(trained)
            return dl.tree.map(lambda p, g: p - rate * g, trained, slope)

        self._losses, self._step = dl.compile(losses, threads=1), dl.compile(step, threads=1)

    def judge(self, trained: Any, frozen: Any, rows: tuple[Any, Any]) -> tuple[float, float]:
        """(accuracy, mean loss) over the characters of these rows."""
        loss = right = 0.0
        for start in range(0, len(rows[0]), ROWS):
            part = tuple(each[start : start + ROWS] for each in rows)
            more = self._losses(trained, frozen, *filled(part))
            loss, right = loss + float(more[0]), right + float(more[1])
        return right / len(rows[0]), loss / len(rows[0])

    def path(
        self, trained: Any, frozen: Any, role: Role, rate: float, steps: Sequence[int]
    ) -> list[tuple[float, float]]:
        """(accuracy, loss) on the query rows after each of these numbers of steps, which rise."""
        found, support = [], filled(role.support)
        for count in range(steps[-1] + 1):
            if count:
                trained = self._step(trained, frozen, *support, np.float32(rate))
            if count in steps:
                found.append(self.judge(trained, frozen, role.query))
        return found


def filled(rows: Sequence[Any]) -> tuple[Any, Any, Any]:
    """Up to `ROWS` rows as that many, and the weights that leave the filling out."""
    count = len(rows[0])
    x, y = (np.zeros((ROWS, *each.shape[1:]), each.dtype) for each in rows)
    x[:count], y[:count] = rows
    return x, y, (np.arange(ROWS) < count).astype(np.float32)


def best_rates(
    adaptation: Adaptation,
    trained: Any,
    frozen: Any,
    training: Sequence[Role],
    steps: Sequence[int],
) -> tuple[dict[int, float], dict[int, float]]:
    """By number of steps, the rate with the least mean loss on training roles, and that loss."""
    losses: dict[int, dict[float, float]] = {count: {} for count in steps if count}
    for rate in RATES:
        paths = [adaptation.path(trained, frozen, role, rate, steps) for role in training]
        for place, count in enumerate(steps):
            mean = statistics.fmean(path[place][1] for path in paths)
            if count:
                losses[count][rate] = mean if math.isfinite(mean) else math.inf
    rates = {count: min(tried, key=tried.__getitem__) for count, tried in losses.items()}
    return rates, {count: losses[count][rate] for count, rate in rates.items()}


def judged(
    adaptation: Adaptation, trained: Any, frozen: Any, held_out: Sequence[Role], rates: Any
) -> list[dict[str, float]]:
    """By number of steps, figures of each held-out role with the rate of that number."""
    found = []
    for count in STEPS:
        rate = rates.get(count, 0.0)
        ends = [adaptation.path(trained, frozen, role, rate, (count,))[0] for role in held_out]
        accuracies, losses = zip(*ends, strict=True)
        found.append({"steps": count, "rate": rate, "accuracy": accuracies, "loss": losses})
    return found


def adapters_of(model: Any, method: Method, rounds: int, seed: int, data: Path) -> Any:
    """The trained adapters by name."""
    run = simulated(model, method, rounds, seed, data)
    return {name: np.array(value) for name, value in run.weights.items()}


def one_seed(
    seed: int, data: Path, sizes: Mapping[str, Any], keep: Keep, say: Any
) -> dict[str, Any]:
    """All methods on one seed."""
    (_, accuracy), model = adapted_base(seed, data, sizes["base_rounds"], keep)
    say(f"seed {seed}: base {accuracy:.1%} on held-out roles")
    parts, adaptation = dl.adapters.split(model), Adaptation(model)
    held_out, training = roles(seed, data)

    def figures(name: str) -> dict[str, Any]:
        load, cpu, trained = os.getloadavg()[0], time.process_time(), parts.trained
        if name != "none":
            trained = adapters_of(model, METHODS[name], sizes["rounds"], seed, data)
        rates, _ = best_rates(adaptation, trained, parts.frozen, training, STEPS)
        ends = judged(adaptation, trained, parts.frozen, held_out, rates)
        spent = round(time.process_time() - cpu, 1)
        return {"ends": ends, "cpu_seconds": spent, "load": round(load, 1)}

    found: dict[str, Any] = {}
    for name in ("none", *sizes["methods"]):
        named = METHODS[name].name if name in METHODS else name
        file = f"{named}-{seed}-{sizes['base_rounds']}-{sizes['rounds']}"
        found[name] = keep.figures(file, lambda name=name: figures(name))
        means = [statistics.fmean(each["accuracy"]) for each in found[name]["ends"]]
        rates = [each["rate"] for each in found[name]["ends"]]
        shown = ", ".join(
            f"{s} steps {m:.2%} ({r})" for s, m, r in zip(STEPS, means, rates, strict=True)
        )
        say(f"  {name:8} {shown}; {found[name]['cpu_seconds']:.0f} s of a processor")
    return {
        "seed": seed,
        "base": accuracy,
        "parameters": sum(value.size for value in parts.frozen.values()),
        "adapter_parameters": sum(value.size for value in parts.trained.values()),
        "found": {name: each["ends"] for name, each in found.items()},
        "cpu_seconds": {name: each["cpu_seconds"] for name, each in found.items()},
        "load": [each["load"] for each in found.values()],
    }


def adapted_base(seed: int, data: Path, rounds: int, keep: Keep) -> tuple[Any, Any]:
    """((the trained base, its accuracy on held-out roles), the base with adapters)."""
    found = keep.base(f"base-{seed}-{rounds}", lambda: base_model(seed, data, rounds))
    return found, dl.lora(found[0], RANK, "all-linear", ALPHA, seed=seed)


def search(data: Path, sizes: Mapping[str, Any], keep: Keep, say: Any) -> None:
    """Says the loss of training roles after one step, for each setting that is tried."""
    (_, accuracy), model = adapted_base(SEARCH_SEED, data, sizes["base_rounds"], keep)
    say(f"base {accuracy:.1%} on held-out roles")
    parts, adaptation = dl.adapters.split(model), Adaptation(model)
    _, training = roles(SEARCH_SEED, data)
    for name in sizes["methods"]:
        inner = SEARCHED_INNER if METHODS[name].inner_rate else (0.0,)
        for method in (
            replace(METHODS[name], rate=rate, inner_rate=each)
            for rate in SEARCHED_RATES
            for each in inner
        ):
            trained = adapters_of(model, method, sizes["rounds"], SEARCH_SEED, data)
            rates, losses = best_rates(adaptation, trained, parts.frozen, training, (0, 1))
            say(f"{method}: loss {losses[1]:.4f} after a step at {rates[1]}")


class Keep:
    """Trained bases and figures as files of a folder, if there is one."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)

    def base(self, name: str, make: Callable[[], tuple[Any, float]]) -> tuple[Any, float]:
        """(a model, its accuracy): the ones of the file, or made and kept there."""
        path = None if self._folder is None else self._folder / f"{name}.npz"
        if path is not None and path.exists():
            with np.load(path) as file:
                leaves = [file[f"leaf{k}"] for k in range(len(file.files) - 1)]
                return with_leaves(leaves), float(file["accuracy"])
        model, accuracy = make()
        if path is not None:
            leaves = dl.tree.leaves(model)
            named = {f"leaf{k}": leaf for k, leaf in enumerate(leaves)}
            part = path.with_suffix(".part.npz")
            np.savez(part, accuracy=accuracy, **named)
            part.replace(path)
        return model, accuracy

    def figures(self, name: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Those of the file, or made and kept there."""
        path = None if self._folder is None else self._folder / f"{name}.json"
        if path is not None and path.exists():
            kept: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            return kept
        made = make()
        if path is not None:
            part = path.with_suffix(".part")
            part.write_text(json.dumps(made), encoding="utf-8")
            part.replace(path)
        return made


def differences(
    runs: Sequence[Mapping[str, Any]], method: str, place: int, key: str
) -> list[list[float]]:
    """By seed, each held-out role's figure with a method less that with the baseline."""
    return [
        [
            ours - theirs
            for ours, theirs in zip(
                run["found"][method][place][key],
                run["found"][BASELINE][place][key],
                strict=True,
            )
        ]
        for run in runs
    ]


def compared(runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Each method against the baseline after as many steps, paired by role.

    Intervals are of 95 %: over all roles of all seeds, of which those of one seed have one model in
    common, and over the seeds' means.
    """
    found = []
    for method in runs[0]["found"]:
        if method == BASELINE:
            continue
        for place, steps in enumerate(STEPS):
            for key in ("accuracy", "loss"):
                by_seed = differences(runs, method, place, key)
                by_role = estimate([each for seed in by_seed for each in seed])
                seeds = estimate([statistics.fmean(seed) for seed in by_seed])
                better = [(d > 0) == (key == "accuracy") for seed in by_seed for d in seed if d]
                found.append(
                    {
                        "method": method,
                        "steps": steps,
                        "figure": key,
                        "difference": by_role.mean,
                        "margin_roles": by_role.margin,
                        "margin_seeds": seeds.margin,
                        "by_seed": [statistics.fmean(seed) for seed in by_seed],
                        "better_roles": sum(better),
                        "roles": by_role.count,
                    }
                )
    return found


def table(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Markdown tables: figures of each method, and differences to the baseline."""
    head = " | ".join("1 step" if s == 1 else f"{s} steps" for s in STEPS)
    lines = [f"| accuracy, % (loss) | {head} |", "|---" * (len(STEPS) + 1) + "|"]
    for method in runs[0]["found"]:
        cells = []
        for place in range(len(STEPS)):
            mean = {
                key: [statistics.fmean(run["found"][method][place][key]) for run in runs]
                for key in ("accuracy", "loss")
            }
            right, loss = 100 * statistics.fmean(mean["accuracy"]), statistics.fmean(mean["loss"])
            cells.append(f"{right:.2f} ({loss:.4f})")
        lines.append(f"| {method} | {' | '.join(cells)} |")
    lines += ["", "| less FedAvg-LoRA | steps | difference | ± roles | ± seeds | better roles |"]
    lines.append("|---" * 6 + "|")
    for row in compared(runs):
        points = row["figure"] == "accuracy"
        margins = [row["difference"], row["margin_roles"], row["margin_seeds"]]
        shown = ["–" if m is None else f"{100 * m:.2f}" if points else f"{m:.4f}" for m in margins]
        name = f"{row['method']}, {'accuracy, points' if points else 'loss'}"
        cells = [name, str(row["steps"]), *shown, f"{row['better_roles']} of {row['roles']}"]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def targets(runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One step from a meta-learned adapter is to be at least as good as one from FedAvg-LoRA."""
    return [
        {
            "name": f"{row['method']} less FedAvg-LoRA after one step, held-out accuracy",
            "goal": 0.0,
            "measured": round(row["difference"], 5),
            "met": row["difference"] >= 0,
        }
        for row in compared(runs)
        if row["steps"] == 1 and row["figure"] == "accuracy" and row["method"] != "none"
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="tinyshakespeare.txt")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--methods", default=",".join(METHODS), help="fedavg is always among them")
    parser.add_argument("--base-rounds", type=int, default=BASE_ROUNDS)
    parser.add_argument("--rounds", type=int, default=ADAPTER_ROUNDS, help="of adapters")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="what is done, to go on from")
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--search", action="store_true", help="try settings on another seed")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    named = [BASELINE, *(m for m in args.methods.split(",") if m != BASELINE)]
    if unknown := sorted({*named} - {*METHODS}):
        parser.error(f"--methods: {', '.join(unknown)}: there are {', '.join(METHODS)}")
    sizes = {"base_rounds": args.base_rounds, "rounds": args.rounds, "methods": named}

    def say(words: str) -> None:
        print(words, file=sys.stderr, flush=True)

    keep = Keep(args.keep)
    if args.search:
        search(args.data, sizes, keep, say)
        return
    seeds = range(args.first_seed, args.first_seed + args.seeds)
    runs = [one_seed(seed, args.data, sizes, keep, say) for seed in seeds]
    if args.json:
        results = {"seeds": runs, "compared": compared(runs)}
        print(json.dumps({"results": results, "targets": targets(runs)}, indent=2))
    else:
        print("\n".join(table(runs)))


if __name__ == "__main__":
    main()
