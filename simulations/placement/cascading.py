"""What a cascade of two bundles would do on labelled rows.

Accuracy, the share that goes up, bytes and latency, against thresholds.

The rows are cut in two by a seed. One half chooses the threshold
(`core.placement.cascade.calibration`), the other, which chose nothing, is what the report is about.
Both models run here and their time is measured; a link and a device's slowness are given, and a
request's latency is then

    device + [hard] (device's bytes / up + 2 latency + above + answer's bytes / down)

A row that goes up travels as the wire says, and the large model is judged on what arrives. `Random`
at the same share is the straight line between the two models: what a filter is worth is how far it
lies above.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from ...core.common.errors import DelianError
from ...core.compiler.backends import Backend, compile_function
from ...core.compiler.ir import Array, TensorType
from ...core.learning.bundle import Bundle
from ...core.learning.quantise import model_of
from ...core.placement.cascade import calibration
from ...core.placement.cascade.calibration import Held, Point
from ...core.placement.cascade.hard_examples import Made, limited
from ...core.placement.cut.link_model import LinkProfile
from ...core.placement.cut.wire_formats import decode, encode, wire_bytes
from ..report import page_parts as parts
from ..report.measures import Measure
from ..report.report_plots import Series, accuracy_lines
from ..report.svg import both, size

#: Rows of a file that are judged.
ROWS_MAX = 200_000
#: Points of the curve that a report keeps.
POINTS = 41
#: Calls of a model of which the fastest says how long it takes.
REPEATS = 30
_SURE_OF_INTERVAL = 1.96  # standard deviations of a normal number: 95 of 100 lie within


@dataclass(frozen=True, slots=True)
class Goal:
    """What a threshold is chosen for. Just one of share and accuracy is given."""

    share: float | None = None
    """A share of the rows that may go up."""
    accuracy: float | None = None
    """An accuracy on the calibration rows."""
    failure: float | None = None
    """The chance with which the promised accuracy may fail; None: nothing is promised."""

    def choose(self, held: Held) -> Point:
        """Raises DelianError where the rows do not have it."""
        if (self.share is None) == (self.accuracy is None):
            raise DelianError("a cascade is calibrated for a share or for an accuracy", "give one")
        if self.share is not None:
            return calibration.for_share(held, self.share)
        assert self.accuracy is not None
        if self.failure is None:
            return calibration.for_accuracy(held, self.accuracy)
        return calibration.sure(held, self.accuracy, self.failure)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The conditions between the models."""

    link: LinkProfile
    """Between the device and the tier above."""
    wire: str = "f32"
    """How rows are written on it: "f32", "f16" or "i8"."""
    slower: float = 1.0
    """How much slower the device is than this machine."""


class Judged:
    """A bundle's `infer` over rows of any number."""

    def __init__(self, bundle: Bundle, backend: Backend = "native") -> None:
        function = bundle.inference
        self.bundle = bundle
        self._run = compile_function(function, backend)
        self._model: list[Array] = []
        if bundle.manifest.model:
            vector, at = model_of(bundle), 0
            for leaf in bundle.manifest.model_leaves():
                self._model.append(vector[at : at + leaf.size].reshape(leaf.shape))
                at += leaf.size
            self._model += bundle.frozen
        kind = function.body.params[-1].type
        assert isinstance(kind, TensorType)
        self.batch = kind
        #: One row as it travels.
        self.row = TensorType(kind.dtype, kind.shape[1:])

    @property
    def parameters(self) -> int:
        return sum(leaf.size for leaf in self._model) or self.bundle.manifest.dimension

    def fitted(self, rows: Array) -> Array:
        """The rows as `infer` takes them; grey images may come without their one channel.

        Raises DelianError for rows of another shape.
        """
        if (*rows.shape[1:], 1) == self.row.shape:
            rows = rows[..., None]
        if not len(rows) or rows.shape[1:] != self.row.shape:
            raise DelianError(
                f"infer takes rows of shape {list(self.row.shape)}, and the data are"
                f" {list(rows.shape)}",
                "[n, ...] with at least one row",
            )
        return rows.astype(self.batch.dtype.numpy)

    def answers(self, rows: Array) -> Array:
        """[n, ...] as `fitted` gives them -> f32[n, ..., C]."""
        step, found = self.batch.shape[0], []
        for at in range(0, len(rows), step):
            some = rows[at : at + step]
            filled = np.resize(some, self.batch.shape) if len(some) < step else some
            found.append(self._run(*self._model, filled)[0][: len(some)])
        return np.concatenate(found)

    def seconds(self, rows: Array) -> float:
        """A row's share of the fastest of some calls."""
        batch = np.resize(rows, self.batch.shape)
        best = math.inf
        for _ in range(REPEATS):
            began = time.perf_counter()
            self._run(*self._model, batch)
            best = min(best, time.perf_counter() - began)
        return best / self.batch.shape[0]


def over_the_wire(rows: Array, kind: TensorType, wire: str) -> Array:
    """The rows as they arrive above, each written for itself."""
    if wire == kind.dtype.value:
        return rows
    return np.stack([decode(encode(row, wire), kind) for row in rows])


def measure(
    small: Bundle,
    large: Bundle,
    rows: Array,
    labels: Array,
    chosen: Made,
    goal: Goal,
    around: Surroundings,
    seed: int = 0,
    backend: Backend = "native",
) -> dict[str, Any]:
    """The report, as JSON has it.

    Args:
        rows, labels: [n, ...] as devices have them, and integers [n].

    Raises:
        DelianError: the rows fit one of the bundles not, there are fewer than two, or the goal
            cannot be met.
    """
    _check(rows, labels)
    models = Judged(small, backend), Judged(large, backend)
    below, above = (model.fitted(rows) for model in models)
    answers = models[0].answers(below)
    others = models[1].answers(over_the_wire(above, models[1].row, around.wire))
    held = Held(chosen.confidence(answers), _right(answers, labels), _right(others, labels))
    order = np.random.default_rng(seed).permutation(len(rows))
    calibrating, judging = np.sort(order[: len(rows) // 2]), np.sort(order[len(rows) // 2 :])
    point = goal.choose(_some(held, calibrating))
    judged = _some(held, judging)
    costs = _Costs(
        models[0].seconds(below) * around.slower,
        models[1].seconds(above),
        wire_bytes(models[1].row, around.wire),
        4 * math.prod(answers.shape[1:]),  # an answer is f32
        around.link,
    )
    return {
        "filter": chosen.name,
        "threshold": _threshold(limited(chosen, point.threshold)),
        "rows": {"calibrating": len(calibrating), "judging": len(judging)},
        "small": _model(models[0], judged.small, costs.small),
        "large": _model(models[1], judged.large, costs.large),
        "calibrated": {"share": point.share, "accuracy": point.accuracy},
        "cascade": costs.row(judged.at(point.threshold), len(judging)),
        "oracle": costs.row(_oracle(judged), len(judging)),
        "curve": [costs.row(p, len(judging)) for p in _thinned(calibration.curve(judged))],
        "bytes": {"up": costs.up_bytes, "down": costs.down_bytes, "wire": around.wire},
        "link": {
            "up": around.link.up,
            "down": around.link.down,
            "latency_s": around.link.latency_s,
        },
        "slower": around.slower,
    }


def _check(rows: Array, labels: Array) -> None:
    if not 2 <= len(rows) <= ROWS_MAX or labels.shape != (len(rows),):
        raise DelianError(
            f"{len(rows)} rows and labels of shape {list(labels.shape)}",
            f"from 2 to {ROWS_MAX} rows, and one label for each",
        )
    if labels.dtype.kind not in "iu":
        raise DelianError(f"labels of {labels.dtype}", "whole numbers, as devices have them")


def _right(answers: Array, labels: Array) -> Array:
    if answers.ndim != 2:
        raise DelianError(
            f"answers of shape {list(answers.shape)} are no classes of rows",
            "cascades are measured on classifications",
        )
    found: Array = answers.argmax(axis=-1) == labels
    return found


def _some(held: Held, at: Array) -> Held:
    return Held(held.confidence[at], held.small[at], held.large[at])


def _oracle(held: Held) -> Point:
    """What a filter would give that sends just the rows that the small model alone has wrong."""
    up = ~held.small & held.large
    return Point(math.nan, float(np.mean(up)), float(np.mean(held.small | held.large)))


def _thinned(points: list[Point]) -> list[Point]:
    """Those nearest to even shares, each once."""
    shares = np.array([p.share for p in points])
    wanted = np.linspace(0.0, 1.0, POINTS)
    return [points[i] for i in dict.fromkeys(int(np.argmin(abs(shares - w))) for w in wanted)]


def _threshold(chosen: Made) -> dict[str, float]:
    return {
        field.name: float(getattr(chosen, field.name))
        for field in fields(chosen)
        if field.name not in ("says", "seed")
    }


def _model(model: Judged, right: Array, seconds: float) -> dict[str, Any]:
    low, high = interval(int(np.sum(right)), len(right))
    return {
        "task": model.bundle.manifest.task,
        "parameters": model.parameters,
        "accuracy": float(np.mean(right)),
        "low": low,
        "high": high,
        "seconds": seconds,
    }


def interval(right: int, n: int) -> tuple[float, float]:
    """Where an accuracy lies, with 95% (Wilson 1927)."""
    z2 = _SURE_OF_INTERVAL**2
    p = right / n
    middle = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = _SURE_OF_INTERVAL * math.sqrt(p * (1 - p) / n + z2 / (4 * n * n)) / (1 + z2 / n)
    return max(0.0, middle - half), min(1.0, middle + half)


@dataclass(frozen=True, slots=True)
class _Costs:
    """Of a request: seconds of each model where it runs, bytes each way, the link."""

    small: float
    large: float
    up_bytes: int
    down_bytes: int
    link: LinkProfile

    def row(self, point: Point, n: int) -> dict[str, Any]:
        way = self.up_bytes / self.link.up + self.down_bytes / self.link.down
        hard = self.small + way + 2 * self.link.latency_s + self.large
        low, high = interval(round(point.accuracy * n), n)
        return {
            "share": point.share,
            "accuracy": point.accuracy,
            "low": low,
            "high": high,
            "bytes_up": point.share * self.up_bytes,
            "latency_s": self.small + point.share * (hard - self.small),
            "hard_latency_s": hard,
        }


def page(facts: Mapping[str, Any]) -> str:
    """The report as a page."""
    small, large, both_of = facts["small"], facts["large"], facts["cascade"]
    rows = facts["rows"]["judging"]
    lead = (
        f"Of {rows:,} rows that chose nothing, {100 * both_of['share']:.1f}% went up to the large"
        f" model, and {100 * both_of['accuracy']:.1f}% were answered right: the small model alone"
        f" has {100 * small['accuracy']:.1f}%, the large one {100 * large['accuracy']:.1f}%. A"
        f" filter that knew which answers are wrong would have"
        f" {100 * facts['oracle']['accuracy']:.1f}% with"
        f" {100 * facts['oracle']['share']:.1f}% sent up."
    )
    wrong = Measure("wrong answers, %", error=True)
    lines = [
        Series(facts["filter"], "personal", [_wrong(p) for p in facts["curve"]]),
        Series("Random", "dropped", [(0.0, _error(small)), (100.0, _error(large))], dashed=True),
    ]
    table = "".join(
        f"<tr>{''.join(f'<td>{parts.escaped(cell)}</td>' for cell in _cells(p))}</tr>"
        for p in facts["curve"]
    )
    head = "".join(f"<th>{name}</th>" for name in HEAD)
    body = parts.section(
        "Wrong answers against what goes up",
        lead,
        parts.figure(both(lambda width: accuracy_lines(lines, width, wrong, "% sent up"))),
    )
    body += parts.section(
        "Thresholds",
        "Accuracies with 95% intervals, bytes and latency of a request on the mean.",
        f"<table><thead><tr>{head}</tr></thead><tbody>{table}</tbody></table>",
    )
    return parts.document("Cascade", body)


HEAD = ("sent up", "accuracy", "bytes up", "latency", "latency if hard")


def _cells(point: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        f"{100 * point['share']:.1f}%",
        f"{100 * point['accuracy']:.2f}% ({100 * point['low']:.1f} to {100 * point['high']:.1f})",
        size(point["bytes_up"]),
        _brief(point["latency_s"]),
        _brief(point["hard_latency_s"]),
    )


def _brief(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"


def lines_of(facts: Mapping[str, Any], most: int = 11) -> list[str]:
    """The report for a terminal: the models, what was chosen, and some of the curve."""
    where = ", ".join(f"{k} = {v:.6g}" for k, v in facts["threshold"].items())
    rows: list[tuple[str, ...]] = [("", *HEAD)]
    curve = facts["curve"]
    step = max(1, (len(curve) - 1) // (most - 1))
    rows += [("", *_cells(p)) for p in curve[::step]]
    rows += [("chosen", *_cells(facts["cascade"])), ("oracle", *_cells(facts["oracle"]))]
    widths = [max(len(r[i]) for r in rows) for i in range(len(rows[0]))]
    table = ["  ".join(c.ljust(w) for c, w in zip(r, widths, strict=True)).rstrip() for r in rows]
    named = (
        f"{name}: {facts[name]['parameters']:,} numbers, "
        f"{100 * facts[name]['accuracy']:.2f}% right, {_brief(facts[name]['seconds'])} a row"
        for name in ("small", "large")
    )
    counts = facts["rows"]
    return [
        *named,
        f"{facts['filter']}: {where}, chosen on {counts['calibrating']:,} rows, judged on"
        f" {counts['judging']:,} others",
        "",
        *table,
    ]


def _error(found: Mapping[str, Any]) -> float:
    return 100.0 * (1.0 - float(found["accuracy"]))


def _wrong(point: Mapping[str, Any]) -> tuple[float, float]:
    return 100.0 * float(point["share"]), _error(point)
