"""The headline of a report: a few large figures."""

from __future__ import annotations

import re

from .measures import ACCURACY, Measure, shown
from .page_parts import escaped
from .report_facts import Report, measured_by, percent1, ways_of
from .svg import count, size, whole

#: Characters of a large figure that a tile has room for.
TILE_LENGTH = 7


def _tile(value: str, name: str, note: str, hue: str = "") -> str:
    plain = re.sub("<[^>]*>", "", value)
    long = " long" if len(plain) > TILE_LENGTH else ""
    return (
        f'<div class="tile"><b class="{hue}{long}">{value}</b><span>{escaped(name)}</span>'
        f"<small>{escaped(note)}</small></div>"
    )


def tiles(report: Report) -> str:
    """The figures that a reader looks for first."""
    summary, ways, measure = report["summary"], ways_of(report), measured_by(report)
    tiles, unused = [], escaped(summary.get("unused_shared_model", ""))
    if summary["evaluated"]:
        tiles = [
            _tile(
                _large(summary["global_accuracy"], measure),
                "shared model",
                f"{unused}, which no device uses"
                if unused
                else _meaning(summary["global_accuracy"], measure)
                if not ways
                else f"chance is {percent1(1 / ways)}",
                "shared",
            ),
            _tile(
                _large(summary["personalised_accuracy"], measure),
                "personal models",
                f"{measure.show_gain(summary['gain'])} after adapting on the device",
                "personal",
            ),
        ]
        if newcomers := summary["held_out"]:
            tiles.append(
                _tile(
                    _large(newcomers["personalised_accuracy"], measure),
                    "newcomers",
                    f"personal, on {count(newcomers['evaluated'], 'device')} that never trained",
                    "newcomer",
                )
            )
        tiles.append(
            _tile(
                _large(summary["harmed_share"]),
                "harmed",
                f"{summary['harmed']} of {summary['evaluated']} devices"
                f" {'does' if summary['harmed'] == 1 else 'do'} worse with their own",
                "harmed" if summary["harmed"] else "",
            )
        )
    if spent := summary.get("privacy"):
        note = f"of {spent['promised']:g}, delta {spent['delta']:g}: differential privacy"
        tiles.append(_tile(f"{spent['epsilon']:.3g}", "epsilon", note))
    sent = summary["bytes"]["device_edge_up"] / max(1, summary["reported"])
    tiles.append(
        _tile(
            size(sent),
            "an update",
            f"{whole(summary['parameters'])} parameters, uploaded by a device",
        )
    )
    return f'<div class="tiles">{"".join(tiles)}</div>\n'


def _meaning(value: float, measure: Measure) -> str:
    """What the shared model's figure is; of a squared error also its root, in the target's unit."""
    told = f"mean {measure.name.removeprefix('mean ')} over devices"
    return f"{told}; its root is {shown(value**0.5)}" if measure.error else told


def _large(value: float, measure: Measure = ACCURACY) -> str:
    """A figure of a tile."""
    return measure.show(value).replace("%", "<em>%</em>")
