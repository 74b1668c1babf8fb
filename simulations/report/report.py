"""From a result to a report: the summary's figures, report.json, and report.html.

report.json, format 1: `scenario`, `summary`, `rounds`, `devices`, `evaluations` (what devices said
through the protocol, where the scenario asks them), `classes`, `baselines`, `trace_hash`, `data`
(the card), `host`, and
with a comparison the same again under `compare`. Same seed, same file, but for `host`: wall times
and machine facts stand there and nowhere else. (Of real daemons the rounds' wall times and bytes
differ too.)
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...core.common import files
from ...core.common.errors import DelianError
from ..runs.result import LINKS, TIMES, USES, DeviceRecord, RoundRecord, SimulationResult
from . import adapting
from .measures import Measure, measure_of
from .report_page import page
from .run_warnings import warnings_of

if TYPE_CHECKING:
    from ...core.learning.bundle import Bundle

FORMAT = 1
JSON_NAME, PAGE_NAME = "report.json", "report.html"
#: A folder in a run's folder, for what there is of it while it goes on.
UNFINISHED = "unfinished"
#: And one for what it can be resumed by (`resumable`).
RESUME = "resume"
ACCURACY = (
    "global_accuracy",
    "personalised_accuracy",
    "gain",
    "harmed",
    "harmed_share",
    "worst_decile_global",
    "worst_decile_personalised",
    "deviation_global",
    "deviation_personalised",
    "jain_global",
    "jain_personalised",
)
"""Figures of a group of devices; None when none of them was evaluated."""


def build_report(
    result: SimulationResult, compare: SimulationResult | None = None, command: str = ""
) -> dict[str, Any]:
    """The report as plain data.

    Args:
        result: of the run.
        compare: the same scenario under another algorithm.
        command: that gives the same run; empty where it was none.
    """
    report = _report_of(result)
    if command:
        report["host"]["command"] = command
    if compare is not None:
        report["compare"] = _report_of(compare)
    return report


def _report_of(result: SimulationResult) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "scenario": _scenario_of(result),
        "summary": summarise(result),
        "rounds": [dataclasses.asdict(r) for r in result.rounds],
        "devices": [dataclasses.asdict(d) for d in result.devices],
        "evaluations": [dataclasses.asdict(e) for e in result.evaluations],
        "classes": dict(result.classes) if result.classes is not None else None,
        "baselines": _baselines(result),
        "trace_hash": result.trace_hash,
        "data": dict(result.data),
        "host": dict(result.host),
    }


def _scenario_of(result: SimulationResult) -> dict[str, Any]:
    """The scenario as it was run: with the caller's own algorithm, if there was one."""
    scenario = result.scenario.to_json()
    if result.algorithm is not None:
        scenario["algorithm"] = dict(result.algorithm)
    return scenario


def summarise(result: SimulationResult) -> dict[str, Any]:
    """The headline figures.

    Accuracies are means over devices, each device counting the same; they are errors where
    `measure` says so.

    A device is harmed when its own model is worse on its query set than the shared one. The worst
    decile is the mean of the tenth of the devices with the lowest accuracy, or the largest error.
    """
    measure = measure_of(result.scenario.to_json())
    rounds, devices = result.rounds, result.devices
    seen = [d for d in devices if not d.held_out]
    newcomers = [d for d in devices if d.held_out]
    return {
        "algorithm": _scenario_of(result)["algorithm"]["name"],
        "chain": result.chain,
        "rounds": sum(r.applied for r in rounds),
        "interrupted": result.interrupted,
        "stopped_by": result.stopped_by,
        "fitting": dict(result.fitting) if result.fitting is not None else None,
        "why": result.why,
        "warnings": warnings_of(result),
        "devices": len(devices),
        "parameters": result.parameters,
        "measure": measure.name,
        "unused_shared_model": _unused(result),
        **_accuracy(devices, measure),
        "seen": _accuracy(seen, measure),
        "held_out": _accuracy(newcomers, measure) if newcomers else None,
        "adaptation": adapting.summary(devices, result.scenario.evaluation.steps, measure),
        "target": _target(result, measure),
        "privacy": _privacy(result),
        "updates": sum(r.reported for r in rounds),
        "selected": sum(r.selected for r in rounds),
        "reported": sum(r.reported for r in rounds),
        "dropped": sum(r.dropped for r in rounds),
        "late": sum(r.late for r in rounds),
        "refused": sum(r.refused for r in rounds),
        "spare": sum(r.spare for r in rounds),
        "rounds_without_quorum": sum(not r.applied for r in rounds),
        "bytes": _totals((r.bytes for r in rounds), LINKS),
        "seconds": _totals((r.seconds for r in rounds), TIMES),
        "joules": _totals((r.joules for r in rounds), USES),
        "exhausted": rounds[-1].exhausted if rounds else 0,
        "virtual_seconds": math.fsum(r.virtual_seconds for r in rounds),
        "wall_seconds": _wall(rounds),
    }


def _unused(result: SimulationResult) -> str:
    """What the shared model is, where no device uses it; empty: a model like any other."""
    about = result.scenario.algorithm.algorithm_class.about
    if result.algorithm is None and about.unused_model:
        return about.unused_model
    kept = () if result.bundle is None else result.bundle.manifest.client_state
    personal = any(leaf.name.startswith("personal.") for leaf in kept)
    return "the shared leaves with the first values of the personal ones" if personal else ""


def _target(result: SimulationResult, measure: Measure) -> dict[str, Any] | None:
    target = result.scenario.evaluation.target
    if target is None:
        return None
    return adapting.reached([dataclasses.asdict(r) for r in result.rounds], target, measure.gain)


def _privacy(result: SimulationResult) -> dict[str, Any] | None:
    """What differential privacy promised and what was spent; None of a run without noise."""
    asked = result.scenario.privacy
    if asked.noise == "none":
        return None
    spent = [r.epsilon for r in result.rounds if r.epsilon is not None]
    return {
        "noise": asked.noise,
        "epsilon": spent[-1] if spent else 0.0,
        "promised": asked.epsilon,
        "delta": asked.delta,
    }


def _baselines(result: SimulationResult) -> dict[str, Any] | None:
    """The figures of devices alone, and of all rows in one place; None where not asked for."""
    if result.baselines is None:
        return None
    measure = measure_of(result.scenario.to_json())
    found = {}
    for name, baseline in result.baselines.items():
        judged = {
            d.device: dataclasses.replace(d, accuracy_before=pair[0], accuracy_after=pair[1])
            for d in result.devices
            if (pair := baseline.accuracies.get(d.device)) is not None
        }
        out = [d for d in judged.values() if d.held_out]
        found[name] = {
            "updates": baseline.updates,
            **_accuracy([*judged.values()], measure),
            "held_out": _accuracy(out, measure) if out else None,
        }
    return found


def _wall(rounds: Sequence[RoundRecord]) -> float | None:
    """What the rounds of real daemons took; None of a simulation."""
    walls = [r.wall_seconds for r in rounds if r.wall_seconds is not None]
    return math.fsum(walls) if walls else None


def _accuracy(devices: Sequence[DeviceRecord], measure: Measure) -> dict[str, Any]:
    pairs = [
        (d.accuracy_before, d.accuracy_after)
        for d in devices
        if d.accuracy_before is not None and d.accuracy_after is not None
    ]
    if not pairs:
        return {"evaluated": 0, **dict.fromkeys(ACCURACY)}
    before, after = [b for b, _ in pairs], [a for _, a in pairs]
    harmed = sum(measure.gain(b, a) < 0 for b, a in pairs)
    return {
        "evaluated": len(pairs),
        "global_accuracy": _mean(before),
        "personalised_accuracy": _mean(after),
        "gain": measure.gain(_mean(before), _mean(after)),
        "harmed": harmed,
        "harmed_share": harmed / len(pairs),
        "worst_decile_global": adapting.worst_decile(before, measure),
        "worst_decile_personalised": adapting.worst_decile(after, measure),
        "deviation_global": adapting.deviation(before),
        "deviation_personalised": adapting.deviation(after),
        "jain_global": adapting.jain(before),
        "jain_personalised": adapting.jain(after),
    }


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _totals(rows: Iterable[Mapping[str, float]], first: Sequence[str]) -> dict[str, float]:
    """Sums by key, the known keys first."""
    totals: dict[str, float] = dict.fromkeys(first, 0)
    for row in rows:
        for key, value in row.items():
            totals[key] = totals.get(key, 0) + value
    return totals


def plain(value: Any) -> Any:
    """The same with NaN and infinities as null: JSON has no others."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def to_json(report: Mapping[str, Any]) -> str:
    """The text of report.json."""
    text = json.dumps(plain(report), indent=1, allow_nan=False, ensure_ascii=False) + "\n"
    return printable(text)


def printable(text: str) -> str:
    r"""Text that UTF-8 can be made of.

    The bytes of a file's name that were none, and other lone surrogates, as \udcff. (JSON reads
    that as what it was.)
    """
    return text.encode(errors="backslashreplace").decode()


def claim_folder(out: Path, ours: bool = False) -> None:
    """Make the folder for a report.

    Raises DelianError when it is a file or holds an earlier report, or what is left of a run that
    was killed, unless that is `ours`.
    """
    if (out / RESUME).exists() and not ours:
        raise DelianError(
            f"{out} holds a run that has not finished",
            f"go on with it: delian simulate --resume {out}; or choose another folder with --out"
            " DIR, or move or delete this one",
        )
    if (out / UNFINISHED).exists() and not ours:
        raise DelianError(
            f"{out} holds what there is of a run that has not finished, in {UNFINISHED}",
            "choose another folder with --out DIR, or move or delete it if it was killed",
        )
    if (out / JSON_NAME).exists() or (out / PAGE_NAME).exists():
        raise DelianError(
            f"{out} holds an earlier report",
            "choose another folder with --out DIR, or move or delete the report in this one",
        )
    make_folder(out)


def make_folder(out: Path) -> None:
    """Make a folder to write into, where there is none. Raises DelianError."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise DelianError(f"{out} is a file", "name a folder with --out DIR") from None
    except OSError as error:
        raise DelianError(
            f"cannot make the folder {out}: {error.strerror}", "choose another with --out DIR"
        ) from None
    if not os.access(out, os.W_OK):
        raise DelianError(f"cannot write into {out}", "choose another folder with --out DIR")


def write_report(report: Mapping[str, Any], out: Path) -> Path:
    """Write report.json and report.html into `out`, which exists; returns the page's path.

    Each file appears whole or not at all. Raises DelianError when the disk refuses.
    """
    write_whole(out / JSON_NAME, to_json(plain(report)))
    write_page(report, out / PAGE_NAME)
    return out / PAGE_NAME


def write_page(report: Mapping[str, Any], file: Path) -> None:
    """Write the page alone. Raises DelianError when the disk refuses."""
    write_whole(file, page(plain(report)))


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file that appears whole or not at all. Raises DelianError when the disk refuses."""
    with _writing(path):
        files.write_whole(path, printable(content) if isinstance(content, str) else content)


def save_bundle(bundle: Bundle, path: Path) -> None:
    """Write a bundle's file whole or not at all. Raises DelianError when the disk refuses."""
    with _writing(path):
        bundle.save(path)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DelianError(
            f"cannot write {path}: {error.strerror}", "is the folder there, and the disk not full?"
        ) from None


__all__ = [
    "FORMAT",
    "RoundRecord",
    "build_report",
    "claim_folder",
    "make_folder",
    "printable",
    "save_bundle",
    "summarise",
    "to_json",
    "write_report",
    "write_whole",
]
