"""The experiments of `published.py`: each a scenario as its paper ran it, and the figures to set
beside the paper's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import delian as dl
import numpy as np
from delian.core.learning import Batch, Maml, evaluate
from delian.simulations.runs.result import SimulationResult
from delian.simulations.runs.simulate import simulate
from delian.simulations.scenario import recipes
from delian.simulations.scenario.datasets import load_data
from delian.simulations.scenario.scenario import Scenario


@dataclass(frozen=True)
class Figure:
    """One number: its name in tables, its key in a run's figures, and what was published of it."""

    label: str
    key: str
    published: str = "–"


@dataclass(frozen=True)
class Experiment:
    """A kind of run. measure: a scenario and its data file -> figures by key."""

    name: str
    scenario: str
    algorithm: str
    figures: tuple[Figure, ...]
    settings: tuple[str, ...] = ()
    measure: Callable[[Scenario, Path | None], dict[str, float]] | None = None


# Synthetic(0.5, 0.5): Dinh, Tran and Nguyen, NeurIPS 2020, table 1, strongly convex, fine-tuned
# settings. The published figures are quoted from memory, not from the page.


def best_rounds(
    scenario: Scenario, data: Path | None, algorithm: Any | None = None
) -> dict[str, float]:
    """The best share of right answers over all devices' rows of any evaluation, per cent: what the
    authors' script counts.
    """
    rounds = simulate(scenario, data_path=data, algorithm=algorithm).rounds
    found = {}
    for key in ("global", "personalised"):
        values = [getattr(r, f"{key}_pooled_accuracy") for r in rounds]
        found[key] = 100 * max(v for v in values if v is not None)
    return found


@dataclass(frozen=True)
class AsScripted(Maml):
    """Per-FedAvg as the authors' script had it when the paper appeared (`UserPerAvg`; a later
    version mends both): a local step keeps its adaptation, so that it is two steps of plain SGD, on
    a batch each, at the inner rate and at the local optimiser's; and a device adapts by two such
    steps on rows of its *test* set, before right answers on all of them are counted.
    """

    local_learning_rate: float = 0.002

    def gradient(
        self, task: Any, current: Any, state: Any, data: Any, order: Any, step: Any
    ) -> Any:
        """What the local optimiser, plain SGD, makes both steps of."""
        first = task.source.cyclic(data, order, 2 * step)
        loss, slope = dl.value_and_grad(task.loss)(current, first)
        adapted = dl.tree.map(lambda p, g: p - self.inner_learning_rate * g, current, slope)
        second = dl.grad(task.loss)(adapted, task.source.cyclic(data, order, 2 * step + 1))
        ratio = self.inner_learning_rate / self.local_learning_rate
        return loss, dl.tree.map(lambda g, h: ratio * g + h, slope, second)

    def personalise(self, task: Any, state: Any, data: Any, key: Any, kept: Any = ()) -> Any:
        model = state
        for step, rate in ((0, self.inner_learning_rate), (1, self.local_learning_rate)):
            position = step * task.source.batch_size + np.arange(task.source.batch_size)
            position = position % np.maximum(data.query, 1)
            rows: Batch = task.source.rows(data, data.support + position, position < data.query)
            slope = dl.grad(task.loss)(model, rows)
            model = dl.tree.map(lambda p, g, rate=rate: p - rate * g, model, slope)
        return model


def as_scripted(scenario: Scenario, data: Path | None) -> dict[str, float]:
    """`best_rounds` of Per-FedAvg as its authors' script computes it."""
    made = recipes.algorithm(scenario, load_data(scenario, data))
    assert isinstance(made, Maml)
    fields = {name: getattr(made, name) for name in made.__dataclass_fields__}
    chosen: Any = scenario.algorithm
    algorithm = AsScripted(**fields, local_learning_rate=chosen.learning_rate)
    return best_rounds(scenario, data, algorithm)


SYNTHETIC = (
    Experiment(
        "fedavg",
        "synthetic-logistic",
        "fedavg",
        (Figure("FedAvg", "global", "77.62"),),
        measure=best_rounds,
    ),
    Experiment(
        "per-fedavg",
        "synthetic-logistic",
        "fomaml",
        (Figure("Per-FedAvg, first order", "personalised", "81.49"),),
        measure=best_rounds,
    ),
    Experiment(
        "per-fedavg-as-scripted",
        "synthetic-logistic",
        "fomaml",
        (Figure("the same as its authors' script computes it", "personalised", "81.49"),),
        ("evaluation.every=1",),
        measure=as_scripted,
    ),
    Experiment(
        "pfedme",
        "synthetic-logistic",
        "pfedme",
        (
            Figure("pFedMe, shared", "global", "78.65"),
            Figure("pFedMe, personal", "personalised", "83.20"),
        ),
        measure=best_rounds,
    ),
)

# Sinusoids: Finn, Abbeel and Levine, ICML 2017, section 5.1 and figure 3. The paper has curves and
# no table; Li et al. 2017 (Meta-SGD, table 1) give MAML's errors after one step, quoted from
# memory.

STEPS = (0, 1, 5, 10)
#: The baseline's rate is the best of these for each number of steps, judged by the very points that
#: it is reported on: it is flattered, and MAML, whose rate is the one it trained for, is not.
RATES = (0.001, 0.003, 0.01, 0.03)


ONCE = "evaluation.every=400"


def errors_by_steps(
    result: SimulationResult, scenario: Scenario, rates: Sequence[float]
) -> dict[float, list[float]]:
    """The mean squared error over newcomers after 0, 1, ... gradient steps on their points, by the
    rate of the steps.
    """
    data = load_data(scenario)
    task, _ = recipes.task(scenario, data)
    bundle = result.bundle
    assert bundle is not None
    key = np.zeros(2, np.uint32)
    leaves, structure = dl.tree.flatten(task.init(key))
    ends = np.cumsum([leaf.size for leaf in leaves])[:-1]
    parts = np.split(bundle.weights, ends)
    model = dl.tree.unflatten(
        structure, [p.reshape(leaf.shape) for p, leaf in zip(parts, leaves, strict=True)]
    )

    def curve(model: Any, rows: Any, rate: Any) -> Any:
        errors = []
        for step in range(STEPS[-1] + 1):
            if step:
                batch = task.source.adaptation(rows, task.source.order(rows, key), 0)
                slope = dl.grad(task.loss)(model, batch)
                model = dl.tree.map(lambda p, g: p - rate * g, model, slope)
            judged = evaluate(task, model, rows, key)
            errors.append(judged.loss / judged.count)
        return np.stack(errors)

    compiled = dl.compile(curve)
    newcomers = [recipes.arrays(scenario, data.devices[d]) for d in sorted(data.held_out)]
    return {
        rate: np.mean([compiled(model, n, np.float32(rate)) for n in newcomers], axis=0).tolist()
        for rate in rates
    }


def maml_steps(scenario: Scenario, data: Path | None) -> dict[str, float]:
    """MAML's errors at the rate that it was trained for."""
    chosen: Any = scenario.algorithm
    rate = chosen.inner_learning_rate
    errors = errors_by_steps(simulate(scenario), scenario, [rate])[rate]
    return {str(step): errors[step] for step in STEPS}


def pretrained_steps(scenario: Scenario, data: Path | None) -> dict[str, float]:
    """FedAvg's, at the rate that is best for each number of steps."""
    errors = errors_by_steps(simulate(scenario), scenario, RATES)
    return {str(step): min(curve[step] for curve in errors.values()) for step in STEPS}


def _sinusoids(shots: int, one_step: str) -> tuple[Experiment, ...]:
    points = (f"data.shots={shots}", f"algorithm.batch_size={shots}", ONCE)

    def figures(name: str, published: Mapping[int, str], steps: Sequence[int]) -> Any:
        return tuple(
            Figure(f"{name}, {shots} points, {step} steps", str(step), published.get(step, "–"))
            for step in steps
        )

    return (
        Experiment(
            f"maml-{shots}",
            "sinusoid",
            "maml",
            figures("MAML", {1: one_step}, STEPS),
            points,
            maml_steps,
        ),
        Experiment(
            f"pretrained-{shots}",
            "sinusoid",
            "fedavg",
            figures("FedAvg, fine-tuned", {}, STEPS),
            points,
            pretrained_steps,
        ),
    )


#: Pre-training as the paper has it, and its oracle: one step a round along the mean gradient of all
#: points of the round's devices, so that no device's own curve is followed on the way.
POOLED = (
    "rounds=800",
    "evaluation.every=800",
    "algorithm.local_steps=1",
    "algorithm.batch_size=50",
    "algorithm.optimizer=sgd",
    "algorithm.learning_rate=1.0",
    "algorithm.server_optimizer=adam",
    "algorithm.server_learning_rate=0.01",
)
SINUSOID = (
    *_sinusoids(10, "0.77"),
    *_sinusoids(5, "1.13"),
    Experiment(
        "pooled-10",
        "sinusoid",
        "fedavg",
        tuple(
            Figure(f"pooled gradients, fine-tuned, 10 points, {step} steps", str(step))
            for step in STEPS
        ),
        POOLED,
        pretrained_steps,
    ),
    Experiment(
        "oracle",
        "sinusoid",
        "fedavg",
        (Figure("oracle (told amplitude and phase)", "0"),),
        ("data.oracle=true", *POOLED),
        pretrained_steps,
    ),
)

# Shakespeare by role: Chen et al. 2018 (FedMeta), table 2, LEAF's Shakespeare, support fraction 20
# %; quoted from memory. Newcomers adapt to a fifth of their lines and are judged by the rest.
# Twenty of the scenario's forty rounds, so that three seeds are done in minutes.


def newcomers(scenario: Scenario, data: Path | None) -> dict[str, float]:
    """Accuracy over roles that never trained, per cent: with the shared model, with their own."""
    devices = [d for d in simulate(scenario, data_path=data).devices if d.held_out]
    pairs = [(d.accuracy_before, d.accuracy_after) for d in devices if d.accuracy_after is not None]
    before, after = np.mean(np.array(pairs, np.float64), axis=0) * 100
    return {"global": float(before), "personalised": float(after)}


TWENTY = ("rounds=20",)
SHAKESPEARE = (
    Experiment(
        "fedavg",
        "shakespeare",
        "fedavg",
        (
            Figure("FedAvg", "global", "40.76"),
            Figure("FedAvg, fine-tuned", "personalised", "38.71"),
        ),
        settings=TWENTY,
        measure=newcomers,
    ),
    Experiment(
        "maml",
        "shakespeare",
        "maml",
        (Figure("FedMeta, MAML", "personalised", "46.06"),),
        settings=TWENTY,
        measure=newcomers,
    ),
    Experiment(
        "metasgd",
        "shakespeare",
        "metasgd",
        (Figure("FedMeta, Meta-SGD", "personalised", "44.72"),),
        settings=TWENTY,
        measure=newcomers,
    ),
)
#: The baseline alone, at two of its device's rates: how much of the published gap is the rate.
SHAKESPEARE_RATES = tuple(
    Experiment(
        f"fedavg at {rate}",
        "shakespeare",
        "fedavg",
        (
            Figure(f"FedAvg at {rate}", "global", "40.76"),
            Figure(f"FedAvg at {rate}, fine-tuned", "personalised", "38.71"),
        ),
        settings=(*TWENTY, f"algorithm.learning_rate={rate}"),
        measure=newcomers,
    )
    for rate in (0.001, 0.01)
)
SUITES = {
    "synthetic": SYNTHETIC,
    "sinusoid": SINUSOID,
    "shakespeare": SHAKESPEARE,
    "shakespeare-rates": SHAKESPEARE_RATES,
}
#: Those that make their own data.
OWN_DATA = ("synthetic", "sinusoid")
