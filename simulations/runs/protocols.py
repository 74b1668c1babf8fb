"""Methods judged by what they cost: quality under a budget, cost to a target, robustness.

The three protocols by which EdgeFlowerTune (arXiv 2605.08636) compares methods that fine-tune on
phones and boards, over trials of a simulation in virtual time:

    quality under a budget   q(m, B) = best quality of the rounds whose cost is at most B
    cost to a target         c(m, T) = cost at the first round whose quality is T or better
    robustness               lost(m, d) = q(m) - q(m, d), of runs without and with disturbance d,
                             of all rounds and of those under each budget

The cost at a round is what was spent until its end: seconds of virtual time, bytes that devices
sent and received, joules (`federation.energy`); attempts that came to nothing are paid for too.
All are taken seed by seed, and then averaged. The paper's text was not at hand: how it measures is
known from its abstract and from its repository, and where they leave a choice it is made here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..report.measures import ACCURACY, SQUARED_ERROR, Measure
from ..report.svg import duration, size
from .comparison import figure
from .confidence import estimate
from .study import Trial
from .study_file import StudyFile

#: What is spent, by its key in curves: its name, the unit of figures' axes, and that unit's size.
COSTS: Mapping[str, tuple[str, str, float]] = {
    "seconds": ("time", "s", 1.0),
    "bytes": ("traffic", "MB", 1e6),
    "joules": ("energy", "kJ", 1e3),
}
_QUALITY = {"shared": "global_accuracy", "personal": "personalised_accuracy"}
Curve = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Runs:
    """The results of one method: by seed, without disturbance and with each."""

    name: str
    calm: Mapping[int, Mapping[str, Any]]
    disturbed: Mapping[str, Mapping[int, Mapping[str, Any]]]


@dataclass(frozen=True)
class Judge:
    """How a quality is read off a curve."""

    key: str
    measure: Measure

    @staticmethod
    def of(quality: str, results: Sequence[Mapping[str, Any]]) -> Judge:
        """quality: "shared" or "personal"."""
        names = {result["summary"].get("measure") for result in results}
        return Judge(_QUALITY[quality], SQUARED_ERROR if SQUARED_ERROR.name in names else ACCURACY)

    def best(self, curve: Curve, cost: str = "seconds", limit: float | None = None) -> float | None:
        """The best quality of the rounds within a limit; None where none of them was judged."""
        values = [
            point[self.key]
            for point in curve
            if point[self.key] is not None and (limit is None or point["spent"][cost] <= limit)
        ]
        return (min if self.measure.error else max)(values, default=None)

    def reached(self, curve: Curve, target: float) -> Mapping[str, Any] | None:
        """The first round that is as good as the target."""
        for point in curve:
            found = point[self.key]
            if found is not None and self.measure.gain(target, found) >= 0:
                return point
        return None


def trials_of(
    study: StudyFile, seeds: int, data: str | None = None
) -> dict[tuple[str, str, int], Trial]:
    """All trials, by method, disturbance (empty: none) and seed.

    Raises DelianError for one that makes no sense, before anything runs.
    """
    made = {}
    for method in study.methods:
        calm = (*study.settings, *method.settings)
        kinds = {"": calm, **{d.name: (*calm, *d.settings) for d in study.disturbances}}
        for kind, settings in kinds.items():
            Trial(study.source, method.algorithm or None, settings, data).scenario()
            for seed in range(1, seeds + 1):
                made[method.name, kind, seed] = Trial(
                    study.source, method.algorithm or None, (*settings, f"seed={seed}"), data
                )
    return made


def judged(
    study: StudyFile, results: Mapping[tuple[str, str, int], Mapping[str, Any]]
) -> dict[str, Any]:
    """The three protocols as plain data."""
    judge = Judge.of(study.quality, [*results.values()])
    seeds = sorted({seed for *_, seed in results})
    rows, limits = [], [*study.budgets.limits()]
    for method in study.methods:
        of = {
            kind: {seed: results[method.name, kind, seed] for seed in seeds}
            for kind in ("", *(d.name for d in study.disturbances))
        }
        runs = Runs(method.name, of.pop(""), of)
        rows.append(
            {
                "name": method.name,
                "curve": _curve(judge, runs.calm),
                "quality": _estimated([*_bests(judge, runs.calm).values()]),
                "budgets": [_under(judge, runs.calm, *limit) for limit in limits],
                "targets": [_cost_to(judge, runs.calm, target) for target in study.targets],
                "robustness": [
                    _robustness(judge, runs, d.name, limits) for d in study.disturbances
                ],
            }
        )
    return {
        "format": 1,
        "name": study.name,
        "description": study.description.strip(),
        "scenario": study.scenario,
        "quality": study.quality,
        "measure": judge.measure.name,
        "seeds": seeds,
        "disturbances": {d.name: list(d.settings) for d in study.disturbances},
        "methods": rows,
    }


def _estimated(values: Sequence[float]) -> dict[str, Any] | None:
    return asdict(estimate(values)) if values else None


def _bests(
    judge: Judge,
    by_seed: Mapping[int, Mapping[str, Any]],
    cost: str = "seconds",
    limit: float | None = None,
) -> dict[int, float]:
    found = {seed: judge.best(result["curve"], cost, limit) for seed, result in by_seed.items()}
    return {seed: value for seed, value in found.items() if value is not None}


def _under(
    judge: Judge, by_seed: Mapping[int, Mapping[str, Any]], cost: str, limit: float
) -> dict[str, Any]:
    bests = _bests(judge, by_seed, cost, limit)
    rounds = [
        float(sum(point["spent"][cost] <= limit for point in result["curve"]))
        for result in by_seed.values()
    ]
    return {
        "cost": cost,
        "limit": limit,
        "seeds": len(bests),
        "quality": _estimated([*bests.values()]),
        "rounds": _estimated(rounds),
    }


def _cost_to(
    judge: Judge, by_seed: Mapping[int, Mapping[str, Any]], target: float
) -> dict[str, Any]:
    """Costs are means over the seeds that reached the target."""
    points = [judge.reached(result["curve"], target) for result in by_seed.values()]
    there = [point for point in points if point is not None]
    return {
        "target": target,
        "seeds": len(there),
        "rounds": _estimated([float(point["round"]) for point in there]),
        **{cost: _estimated([point["spent"][cost] for point in there]) for cost in COSTS},
    }


def _robustness(
    judge: Judge, runs: Runs, disturbance: str, limits: Sequence[tuple[str, float]]
) -> dict[str, Any]:
    """What a disturbance takes, in the whole run and under each budget.

    And how many times as much each round costs under it.
    """
    disturbed = runs.disturbed[disturbance]
    ratios = {}
    for cost in COSTS:
        pairs = [(_a_round(runs.calm[s], cost), _a_round(disturbed[s], cost)) for s in runs.calm]
        ratios[cost] = _estimated([after / before for before, after in pairs if before and after])
    return {
        "disturbance": disturbance,
        "quality": _estimated([*_bests(judge, disturbed).values()]),
        "lost": _lost(judge, runs.calm, disturbed),
        "lost_within": [_lost(judge, runs.calm, disturbed, *limit) for limit in limits],
        "times": ratios,
    }


def _lost(
    judge: Judge,
    calm: Mapping[int, Mapping[str, Any]],
    disturbed: Mapping[int, Mapping[str, Any]],
    cost: str = "seconds",
    limit: float | None = None,
) -> dict[str, Any] | None:
    """How much worse the best round is, seed by seed."""
    before, after = (_bests(judge, runs, cost, limit) for runs in (calm, disturbed))
    shared = [seed for seed in before if seed in after]
    return _estimated([-judge.measure.gain(before[seed], after[seed]) for seed in shared])


def _a_round(result: Mapping[str, Any], cost: str) -> float:
    """The cost of a round, a mean over those of the run."""
    curve: Curve = result["curve"]
    return float(curve[-1]["spent"][cost]) / len(curve) if curve else 0.0


def _curve(judge: Judge, by_seed: Mapping[int, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Quality and costs by round, means over seeds, of rounds that all seeds judged."""
    by_round: dict[int, list[Mapping[str, Any]]] = {}
    for result in by_seed.values():
        for point in result["curve"]:
            if point[judge.key] is not None:
                by_round.setdefault(point["round"], []).append(point)
    return [
        {
            "round": number,
            "quality": _estimated([point[judge.key] for point in points]),
            **{cost: estimate([point["spent"][cost] for point in points]).mean for cost in COSTS},
        }
        for number, points in sorted(by_round.items())
        if len(points) == len(by_seed)
    ]


# ---------------------------------------------------------------- tables


def amount(cost: str, value: float) -> str:
    """A cost with its unit, for people."""
    if cost == "seconds":
        return duration(value)
    return size(value) if cost == "bytes" else energy(value)


def energy(joules: float) -> str:
    """Joules for people: 3.2 J, 42 J, 1.5 kJ, 320 kJ."""
    for unit in ("J", "kJ", "MJ"):
        if joules < 1000 or unit == "MJ":
            return f"{joules:.0f} {unit}" if joules >= 99.5 else f"{joules:.2g} {unit}"
        joules /= 1000
    raise AssertionError("the last unit returns")


def _plain(found: Mapping[str, Any]) -> bool:
    return bool(found["measure"] == SQUARED_ERROR.name)


def _some(seeds: int, found: Mapping[str, Any]) -> str:
    """How many seeds, where not all."""
    of = len(found["seeds"])
    return "" if seeds == of else f" ({seeds} of {of})"


def budget_table(found: Mapping[str, Any]) -> list[list[str]]:
    """Quality under each budget, a line a method, the head first; empty without budgets."""
    rows, plain = found["methods"], _plain(found)
    if not rows[0]["budgets"]:
        return []
    lines = [["within", *(amount(b["cost"], b["limit"]) for b in rows[0]["budgets"])]]
    for row in rows:
        cells = [figure(b["quality"], plain) + _some(b["seeds"], found) for b in row["budgets"]]
        lines.append([row["name"], *cells])
    return lines


def target_table(found: Mapping[str, Any]) -> list[list[str]]:
    """Costs to each target, a line a method and target; empty without targets."""
    lines = [["until", "quality", "rounds", *(name for name, *_ in COSTS.values())]]
    for row in found["methods"]:
        for one in row["targets"]:
            goal = f"{one['target']:g}" if _plain(found) else f"{100 * one['target']:g}"
            if not one["seeds"]:
                lines.append([row["name"], goal, "never", *("" for _ in COSTS)])
                continue
            rounds = f"{one['rounds']['mean']:.3g}{_some(one['seeds'], found)}"
            costs = [amount(cost, one[cost]["mean"]) for cost in COSTS]
            lines.append([row["name"], goal, rounds, *costs])
    return lines if len(lines) > 1 else []


def robustness_table(found: Mapping[str, Any]) -> list[list[str]]:
    """What each disturbance takes, a line a method and disturbance; empty without any.

    In the whole run, and under the first budget if there is one.
    """
    plain = _plain(found)
    costs = [f"{name} a round" for name, *_ in COSTS.values()]
    budgets = found["methods"][0]["budgets"][:1]
    within = [f"lost within {amount(b['cost'], b['limit'])}" for b in budgets]
    lines = [["disturbed by", "", "quality", "lost", *within, *costs]]
    for row in found["methods"]:
        if row["robustness"]:
            empty = [""] * (len(lines[0]) - 3)
            lines.append([row["name"], "nothing", figure(row["quality"], plain), *empty])
        for one in row["robustness"]:
            times = [one["times"][cost] for cost in COSTS]
            cells = [f"x {t['mean']:.2f}" if t else "–" for t in times]
            quality, lost = figure(one["quality"], plain), figure(one["lost"], plain)
            early = [figure(of, plain) for of in one["lost_within"][: len(within)]]
            lines.append([row["name"], one["disturbance"], quality, lost, *early, *cells])
    return lines if len(lines) > 1 else []
