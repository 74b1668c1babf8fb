"""Questions to a federation's data, answered through its own protocol: `delian analyse`.

A question becomes an algorithm (`core.learning.analytics`) in place of the scenario's, and as many
rounds as it takes, with all devices that train in each; masks and links are the scenario's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...core.common.errors import DelianError
from ...core.compiler import tree
from ...core.compiler.ir import Array
from ...core.learning import analytics
from ...core.learning.analytics import HeavyHitters, Histogram, Moments, Quantiles, Query
from ..scenario.data_settings import OmniglotData
from ..scenario.datasets import load_data
from ..scenario.scenario import Scenario
from ..scenario.scenario_file import override
from .simulate import simulate

KINDS = ("moments", "histogram", "quantiles", "heavy-hitters")
#: The default column: labels or x. Moments are of x alone.
DEFAULT_OF = {"histogram": "label", "quantiles": "x", "heavy-hitters": "label"}
#: An answer's bracket is so much narrower than the range that was asked about.
QUANTILE_ROUNDS = 16


@dataclass(frozen=True)
class Question:
    """What is asked."""

    kind: str
    """Moments, histogram, quantiles or heavy-hitters."""
    of: str | None = None
    """Label or x."""
    bins: int = 10
    low: float = 0.0
    """Lower bound of the range of x."""
    high: float = 1.0
    """Upper bound of the range of x."""
    wanted: tuple[float, ...] = (0.1, 0.25, 0.5, 0.75, 0.9)
    most: int = 8
    bits: int = 16
    least: float = 0.0
    clip: float | None = None
    """Bounds a device's measure, where its values may lie outside 0..1; None: to the length that
    values within it allow.
    """


def ask(question: Question, scenario: Scenario, data_path: Path | None = None) -> dict[str, Any]:
    """The answer as plain data. Raises DelianError for a question that the data cannot answer."""
    if isinstance(scenario.data, OmniglotData):
        raise DelianError("episodes have no rows to count", "ask another data source")
    data = load_data(scenario, data_path)
    if data.card.numbers and (question.of or DEFAULT_OF.get(question.kind)) == "label":
        raise DelianError("the data has numbers to learn, and no labels to count", "--of x")
    features = math.prod(data.example_shape)
    query, rounds, bound = _query(question, features, data.classes)
    count = len(data.training)
    settings = [
        f"rounds={rounds}",
        f"round.cohort={count}",
        "round.over_selection=1.0",
        f"evaluation.every={rounds}",
        "evaluation.devices=1",
        f"privacy.clip={float(question.clip or bound)}",
    ]
    result = simulate(override(scenario, settings), algorithm=query, data=data)
    if result.stopped_by or result.bundle is None:
        raise DelianError(f"the question was not answered: {result.why or result.stopped_by}")
    state = _state(query, result.bundle.weights)
    answer = _answer(question, state)
    reported = [r.reported for r in result.rounds if r.applied]
    return {"question": question.kind, "devices": count, "reported": min(reported), **answer}


def _query(question: Question, features: int, classes: int) -> tuple[Query, int, float]:
    """The algorithm, its rounds, and a bound on the length of a device's measure."""
    kind = question.kind
    if not (math.isfinite(question.high - question.low) and question.low < question.high):
        raise DelianError("the range is empty or has no end", "--low below --high, both numbers")
    of = question.of or DEFAULT_OF.get(kind, "label")
    whole: dict[str, Any] = {"of": of, "classes": classes}
    if kind == "moments":
        return Moments(features=features), 1, math.sqrt(2 * features)
    if kind == "histogram":
        asked = Histogram(bins=question.bins, low=question.low, high=question.high, **whole)
        return asked, 1, 1.0
    if kind == "quantiles":
        if not question.wanted or not all(0 < q < 1 for q in question.wanted):
            raise DelianError("quantiles lie between 0 and 1", "--wanted 0.1,0.5,0.9")
        made = Quantiles(wanted=question.wanted, low=question.low, high=question.high, **whole)
        return made, QUANTILE_ROUNDS, math.sqrt(len(question.wanted))
    if kind == "heavy-hitters":
        bits = question.bits
        if not 1 <= bits <= analytics.BITS_MAX:
            raise DelianError(f"{bits} bits", f"from 1 to {analytics.BITS_MAX}")
        step = next(s for s in (4, 3, 2, 1) if bits % s == 0)
        found = HeavyHitters(
            most=question.most, bits=bits, step=step, least=question.least, **whole
        )
        return found, bits // step, 1.0
    raise DelianError(f"there is no question `{kind}`", f"one of {', '.join(KINDS)}")


def _state(query: Query, weights: Array) -> Any:
    """The query's state from the run's flat weights."""
    first = tree.map(np.asarray, query.init(None, None))  # type: ignore[arg-type]
    leaves, structure = tree.flatten(first)
    parts, at = [], 0
    for leaf in leaves:
        parts.append(weights[at : at + leaf.size].reshape(leaf.shape))
        at += leaf.size
    return tree.unflatten(structure, parts)


def _answer(question: Question, state: Any) -> Mapping[str, Any]:
    if question.kind == "moments":
        deviation = np.sqrt(np.maximum(state.square - state.mean**2, 0.0))
        return {"mean": state.mean.tolist(), "deviation": deviation.tolist()}
    if question.kind == "histogram":
        said: dict[str, Any] = {"shares": state.tolist()}
        if question.of == "x":
            said["edges"] = np.linspace(question.low, question.high, question.bins + 1).tolist()
        return said
    if question.kind == "quantiles":
        middle = (state.low + state.high) / 2
        error = float(np.max(state.high - state.low)) / 2
        return {"wanted": list(question.wanted), "values": middle.tolist(), "error": error}
    pairs = [(int(f), float(s)) for f, s in zip(state.found, state.shares, strict=True) if f >= 0]
    return {"found": sorted(pairs, key=lambda pair: -pair[1])}
