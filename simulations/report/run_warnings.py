"""What a reader of a result should not overlook, each with what to do about it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from ...core.privacy.mechanisms import noise_mechanism
from .measures import shown

if TYPE_CHECKING:
    from ...core.privacy.mechanisms.ring import RingPlan
    from ..runs.result import RoundRecord, SimulationResult
    from ..scenario.scenario import Scenario

#: How much better than the most frequent label a model must be.
CHANCE_MARGIN = 0.01
#: Standard errors of an accuracy within which it may be luck.
LUCK = 2.0
#: The most frequent label's share from where on accuracy says little of the others.
ONE_SIDED = 0.8
#: A training loss that is so many times the first round's has diverged.
DIVERGED = 1.5
#: Sources of a user's own data.
OWN = ("npz", "table", "series", "images")
#: How far a model falls behind what it was, and in how many rounds, to have been trained too long.
FELL = 0.05
ROUNDS_LEAST = 3
#: A training loss that has fallen to this share of the first round's has learnt its rows.
MEMORISED = 0.5
#: Noise of a sum, in lengths that its updates may add to: from here on most of the accuracy is lost
#: (docs/privacy.md: 1.3 costs 17 points and 2.5 costs 45; `digits-private`: 2 costs 5).
DROWNED = 2.0
#: And what leaves most of it.
BEARABLE = 1.0


def warnings_of(result: SimulationResult) -> list[str]:
    """Warnings, the gravest first; empty for a run that shows none."""
    return [
        *_drowned(result),
        *_diverged(result),
        *_at_chance(result),
        *_overtrained(result),
        *_unequal_data(result),
    ]


def drowned(scenario: Scenario, ring: RingPlan) -> str:
    """What to change where the noise of differential privacy leaves nothing to learn.

    ring: with the noise that was planned. Empty where it leaves enough.
    """
    cohort = scenario.round.cohort
    excess = noise_mechanism.drowning(ring, cohort)
    if excess <= DROWNED:
        return ""
    # The sum's noise hardly depends on how many devices share it; the updates' sum grows with them.
    planned = 1 if ring.central else min(cohort, max(1, scenario.round.reports_min))
    shared = cohort / planned if not ring.central else 1.0
    enough = math.ceil(excess / shared**0.5 * cohort / BEARABLE / 10) * 10
    return (
        f"the noise that epsilon {scenario.privacy.epsilon:g} takes is {shown(excess)} times as"
        f" long as the sum of a round's {cohort} updates can be: little or nothing can be learnt."
        f" It takes about {enough:,} devices in a round (round.cohort, with round.reports_min close"
        f" to it), a smaller model (this one has {ring.dimension:,} parameters), fewer rounds, or a"
        " larger privacy.epsilon"
    )


def _drowned(result: SimulationResult) -> Iterator[str]:
    if result.bundle is not None and (why := drowned(result.scenario, result.bundle.manifest.ring)):
        yield why


def _diverged(result: SimulationResult) -> Iterator[str]:
    losses = [r.training_loss for r in result.rounds if r.training_loss is not None]
    rate = getattr(result.scenario.algorithm, "learning_rate", None)
    lower = f"try --learning-rate {rate / 10:g}" if rate else "lower the learning rate"
    if len(losses) > 1 and (not np.isfinite(losses[-1]) or losses[-1] > DIVERGED * losses[0]):
        yield f"the training loss rose from {losses[0]:.3g} to {losses[-1]:.3g}: {lower}"
    refused = sum(r.refused for r in result.rounds)
    if refused:
        yield f"{refused} updates were not finite and were refused: {lower}"


def _at_chance(result: SimulationResult) -> Iterator[str]:
    last: RoundRecord | None = next(
        (r for r in reversed(result.rounds) if r.global_pooled_accuracy is not None), None
    )
    if last is None or not result.data["label_names"]:
        return  # nothing was judged, or what the labels are only a script knows
    if result.data.get("numbers"):
        known = [v for v in (last.global_r_squared, last.personalised_r_squared) if v is not None]
        if known and max(known) <= 0:
            yield (
                f"the model is no better than always giving the mean (R² {max(known):.2f}):"
                f" {_cure(result)}"
            )
        return
    counts = np.array(result.data["label_counts"]).sum(axis=0)
    chance = float(counts.max() / max(counts.sum(), 1))
    best = max(last.global_pooled_accuracy or 0.0, last.personalised_pooled_accuracy or 0.0)
    if result.rounds[-1].round <= 1:
        return
    rows = counts.sum() * getattr(result.scenario.data, "query_fraction", 1.0)
    luck = LUCK * math.sqrt(chance * (1 - chance) / max(rows, 1))
    if best <= chance + CHANCE_MARGIN:
        yield (
            f"the model is no better than always giving the most frequent label"
            f" ({100 * chance:.0f}%): {_cure(result)}"
        )
    elif best <= chance + luck:
        yield (
            f"the model's {100 * best:.0f}% may be luck on about {rows:.0f} rows, for always giving"
            f" the most frequent label has {100 * chance:.0f}%: {_by_class(chance, result)}"
        )


def _by_class(chance: float, result: SimulationResult) -> str:
    """What to do about an accuracy that is hardly better than the most frequent label's."""
    if chance <= ONE_SIDED:
        return _cure(result)
    return (
        "see the accuracy by class in the report. Few rows have the other labels: collect more of"
        " them, or judge by more rows (data.query_fraction)"
    )


def _overtrained(result: SimulationResult) -> Iterator[str]:
    """Of a user's own data: a model that was better before the last round."""
    numbers = bool(result.data.get("numbers"))
    if result.scenario.data.source not in OWN:
        return
    curve: list[tuple[float, int]] = []
    for r in result.rounds:
        pair = (
            (r.global_r_squared, r.personalised_r_squared)
            if numbers
            else (r.global_pooled_accuracy, r.personalised_pooled_accuracy)
        )
        if known := [value for value in pair if value is not None]:
            curve.append((max(known), r.round))
    if len(curve) < ROUNDS_LEAST:
        return
    (best, at), last = max(curve, key=lambda each: each[0]), curve[-1][0]
    margin = FELL
    if not numbers:
        rows = sum(result.data["examples"]) * getattr(result.scenario.data, "query_fraction", 1.0)
        margin = max(margin, LUCK * math.sqrt(best * (1 - best) / max(rows, 1)))
    if best <= 0 or best - last <= margin:
        return
    was, now = (f"R² {v:.2f}" if numbers else f"{100 * v:.0f}%" for v in (best, last))
    rate = getattr(result.scenario.algorithm, "learning_rate", None)
    lower = f" or --learning-rate {rate / 10:g}" if rate else ""
    yield (
        f"the model was best after round {at} ({was}; {now} after the last): it fits the rows that"
        f" are trained on too closely. Try --rounds {at}{lower}"
    )


def _cure(result: SimulationResult) -> str:
    privacy: Any = result.scenario.privacy
    if privacy.noise not in (None, "none"):
        return "the noise of differential privacy drowns it; more devices in a round help most"
    what = "numbers" if result.data.get("numbers") else "labels"
    losses = [r.training_loss for r in result.rounds if r.training_loss is not None]
    if len(losses) > 1 and losses[-1] < MEMORISED * losses[0]:
        return (
            f"rows that are trained on are learnt (loss {losses[0]:.3g} to {losses[-1]:.3g}) and"
            f" others are not. Either the {what} have nothing to do with the rows, and no model is"
            " better than chance, or there are too few rows"
        )
    standard = getattr(result.scenario.data, "standardise", None)
    more = " standardise the features (data.standardise)," if standard is False else ""
    rate = getattr(result.scenario.algorithm, "learning_rate", None)
    lower = f"try --learning-rate {rate / 10:g}" if rate else "try another learning rate"
    return (
        f"train for more rounds,{more} or {lower}. Where the {what} have nothing to do with the"
        " rows no model is better"
    )


def _unequal_data(result: SimulationResult) -> Iterator[str]:
    if result.data.get("numbers") or result.scenario.data.source not in OWN:
        return
    counts = np.array(result.data["label_counts"]).sum(axis=0)
    names = result.data["label_names"]
    empty = [str(name) for name, count in zip(names, counts, strict=True) if count == 0]
    if empty:
        yield (
            f"no row has the label {', '.join(empty[:5])}{' ...' if len(empty) > 5 else ''}:"
            " labels count from 0"
        )
