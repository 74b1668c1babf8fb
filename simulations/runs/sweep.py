"""A search over a scenario's keys: every combination, or the best of them by successive halving.

Successive halving (Karnin, Koren and Somekh 2013; Jamieson and Talwalkar 2016, algorithm 1): all
candidates run for few rounds, the best part of them for more, and so on; only the last ones run to
the end. It spends about as much on each rung as on the others. Runs are trials, so a sweep that was
stopped goes on where it was, and what it finds depends neither on how many run at once nor where.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...core.common.errors import DelianError
from .comparison import Entry, more_is_better
from .confidence import Estimate, estimate
from .study import Executor, Trial, run

CANDIDATES_MAX = 10_000


@dataclass(frozen=True)
class Axis:
    """One key and the values to try."""

    key: str
    values: tuple[str, ...]

    @staticmethod
    def parse(text: str) -> Axis:
        """KEY=VALUE,VALUE,...; commas within brackets belong to a value. Raises DelianError."""
        key, equals, rest = text.partition("=")
        values = tuple(_split(rest))
        if not equals or not key.strip() or not all(values):
            raise DelianError(f"`{text}` is no key with values", "algorithm.learning_rate=0.1,0.3")
        if len(set(values)) != len(values):
            raise DelianError(f"`{text}` has a value twice", "give each once")
        return Axis(key.strip(), values)


def _split(text: str) -> list[str]:
    parts, depth = [""], 0
    for c in text:
        depth += (c in "[{") - (c in "]}")
        if c == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += c
    return [part.strip() for part in parts]


@dataclass(frozen=True)
class Candidate:
    """One combination: KEY=VALUE by axis."""

    settings: tuple[str, ...]

    @property
    def label(self) -> str:
        return ", ".join(self.settings)


@dataclass(frozen=True)
class Rung:
    """What all candidates that were left did in so many rounds, the best first."""

    rounds: int
    ranking: tuple[tuple[Candidate, Estimate], ...]


def candidates(axes: Sequence[Axis]) -> list[Candidate]:
    """Every combination, in the order in which the axes were given. Raises DelianError."""
    keys = [axis.key for axis in axes]
    if len(set(keys)) != len(keys):
        raise DelianError("a key is swept twice", "give all its values at once: KEY=A,B,C")
    count = math.prod(len(axis.values) for axis in axes)
    if count > CANDIDATES_MAX:
        raise DelianError(f"{count} combinations are more than {CANDIDATES_MAX}", "sweep less")
    return [
        Candidate(tuple(f"{key}={value}" for key, value in zip(keys, values, strict=True)))
        for values in itertools.product(*(axis.values for axis in axes))
    ]


def budgets(rounds: int, count: int, eta: int) -> list[int]:
    """The rungs' rounds: the last has all, each before it an eta-th.

    As many rungs as candidates can be halved; without halving (eta 1) one rung.
    """
    if eta == 1:
        return [rounds]
    rungs = 0
    while eta ** (rungs + 1) <= count and rounds // eta ** (rungs + 1) >= 1:
        rungs += 1
    return [max(1, rounds // eta**k) for k in range(rungs, -1, -1)]


def sweep(
    base: Trial,
    axes: Sequence[Axis],
    seeds: Sequence[int],
    folder: Path,
    executor: Executor,
    figure: str = "personal",
    eta: int = 1,
    on_rung: Callable[[int, int], None] = lambda rounds, count: None,
    on_done: Callable[[Trial, int, int], None] = lambda trial, done, of: None,
) -> list[Rung]:
    """Runs it.

    figure: of `comparison.FIGURES`, what makes a candidate good, the mean over seeds. eta: of so
    many candidates one goes on to the next rung; 1: all run to the end. on_rung: called with each
    rung's rounds and candidates.

    Raises DelianError for a combination that the scenario refuses, before anything runs.
    """
    left = candidates(axes)
    for candidate in left:
        _trial(base, candidate, seeds[0], None).scenario()
    rounds = base.scenario().rounds
    rungs = []
    for budget in budgets(rounds, len(left), eta):
        on_rung(budget, len(left))
        trials = {c: {s: _trial(base, c, s, budget) for s in seeds} for c in left}
        every = [trial for by_seed in trials.values() for trial in by_seed.values()]
        results = run(every, folder, executor, on_done)
        ranking = _ranked(trials, results, figure)
        rungs.append(Rung(budget, tuple(ranking)))
        left = [candidate for candidate, _ in ranking[: max(1, len(ranking) // eta)]]
    return rungs


def _trial(base: Trial, candidate: Candidate, seed: int, rounds: int | None) -> Trial:
    budget = () if rounds is None else (f"rounds={rounds}", f"evaluation.every={rounds}")
    settings = (*base.settings, *candidate.settings, f"seed={seed}", *budget)
    return Trial(base.source, base.algorithm, settings, base.data)


def _ranked(
    trials: Mapping[Candidate, Mapping[int, Trial]],
    results: Mapping[Trial, Mapping[str, Any]],
    figure: str,
) -> list[tuple[Candidate, Estimate]]:
    found, more = [], True
    for candidate, by_seed in trials.items():
        entry = Entry(candidate.label, {s: results[t] for s, t in by_seed.items()})
        values = entry.values(figure)
        if not values:
            raise DelianError(
                f"the scenario's runs have no figure `{figure}`", "choose another with --by"
            )
        found.append((candidate, estimate(list(values.values()))))
        more = more_is_better(figure, entry.measure)
    sign = -1.0 if more else 1.0
    return sorted(found, key=lambda pair: sign * pair[1].mean)  # stable: ties as they were given
