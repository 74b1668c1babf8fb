"""What a device's model is judged by, and how reports show it.

Accuracy for classification, the mean squared error where numbers are learnt.

Records have one name for both, `accuracy`, so that all that is made of them is written once; what
is better, and how it is printed, is asked here. A *gain* is how much better it became: it is
positive where accuracy rose or an error fell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...core.learning.runtime import Score
from ..scenario.data_settings import learns_numbers

#: An error above this, or one that is no number, is shown as this: the model has come apart.
#: Squared errors of large numbers (prices, say) are far below it; its own square is still a float.
ERROR_MAX = 1e30


def shown(value: float) -> str:
    """A number of any size in at most nine characters: 3,083, 0.105, 1.2e+12."""
    size = abs(value)
    if size >= 1e6 or 0 < size < 1e-3:
        return f"{value:.3g}"
    digits = 0 if size >= 1000 else 1 if size >= 100 else 2 if size >= 10 else 3
    return f"{value:,.{digits}f}"


@dataclass(frozen=True, slots=True)
class Measure:
    """What a report measures models by."""

    name: str
    """Its name within a sentence."""
    error: bool
    """Whether less is better and it is a plain number; otherwise more is, and it is a fraction."""

    @property
    def title(self) -> str:
        return self.name.capitalize()

    def of(self, score: Score) -> float:
        """The mean over the rows of a score."""
        if not self.error:
            return score.accuracy
        mean = score.loss / score.count if score.count else 0.0
        return mean if mean <= ERROR_MAX else ERROR_MAX

    def gain(self, before: float, after: float) -> float:
        """How much better `after` is."""
        return before - after if self.error else after - before

    def worst(self, values: Sequence[float]) -> list[float]:
        """The values, the worst first."""
        return sorted(values, reverse=self.error)

    def show(self, value: float | None) -> str:
        if value is None:
            return "–"
        return shown(value) if self.error else f"{100 * value:.1f}%"

    def show_gain(self, gain: float) -> str:
        """In words: "+3.1 points", of an error "0.42 less"."""
        if not self.error:
            return f"{100 * gain:+.1f} points"
        return f"{shown(abs(gain))} {'less' if gain >= 0 else 'more'}"

    def against(self, other: float, own: float) -> str:
        """How far one's own is ahead of the other, in words that end before its name."""
        gain = self.gain(other, own)
        if self.error:
            return f"wrong by {self.show_gain(gain)} than"
        if abs(100 * gain) < 0.05:
            return "level with"
        return f"{abs(100 * gain):.1f} points {'ahead of' if gain > 0 else 'behind'}"


ACCURACY = Measure("accuracy", error=False)
SQUARED_ERROR = Measure("mean squared error", error=True)
#: Of a training script that says no accuracy.
LOSS = Measure("loss", error=True)


def measure_of(scenario: Mapping[str, Any]) -> Measure:
    """The measure of a scenario, as reports have it (`Scenario.to_json`)."""
    data = scenario["data"]
    if data.get("measure") == "loss":
        return LOSS
    return SQUARED_ERROR if learns_numbers(data["source"], data.get("targets", "")) else ACCURACY


def explained(rounds: Sequence[Mapping[str, Any]]) -> str:
    """A sentence on what share of the numbers' variance a regression explained at last.

    None for classification.
    """
    judged = [r for r in rounds if r.get("personalised_r_squared") is not None]
    if not judged:
        return ""
    last = judged[-1]

    def told(key: str) -> str:
        """A figure that is not finite is None in a report."""
        return "no number" if last[key] is None else shown(last[key])

    return (
        f" Over all examples R² is {told('global_r_squared')} and then "
        f"{told('personalised_r_squared')}; the mean absolute error "
        f"{told('global_absolute_error')} and then "
        f"{told('personalised_absolute_error')}."
    )
