"""How a scenario's data lie on its devices, as figures and as a page."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from functools import partial
from typing import Any

from ...core.learning.data import FederatedData
from . import device_amounts, report_plots
from . import page_parts as parts
from .page_parts import escaped
from .svg import both, whole


def facts(data: FederatedData) -> dict[str, Any]:
    """The card, and what describes it.

    Sizes, labels a device, and how far a device's labels are from those of all devices.

    skew: the mean over devices of the total variation distance between the device's labels and all
    of them: 0 where all are alike, towards 1 where each has its own. Rows of tokens have no labels:
    it is 0, and so is `labels_median`.
    """
    sizes = sorted(data.card.examples)
    counts = data.card.label_counts
    totals = [sum(column) for column in zip(*counts, strict=True)]
    everybody = [t / sum(totals) for t in totals]
    distances = [
        sum(abs(c / sum(row) - e) for c, e in zip(row, everybody, strict=True)) / 2
        for row in counts
        if sum(row)
    ]
    return {
        **data.card.to_json(),
        "devices": len(data.devices),
        "held_out": sorted(data.held_out),
        "names": list(data.names),
        "example_shape": list(data.example_shape),
        "classes": data.classes,
        "examples_least": sizes[0],
        "examples_median": statistics.median(sizes),
        "examples_most": sizes[-1],
        "labels_median": statistics.median(sum(c > 0 for c in row) for row in counts),
        "skew": statistics.fmean(distances) if distances else 0.0,
    }


def lines(known: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The facts in words, for a terminal."""
    shape = " x ".join(map(str, known["example_shape"]))
    return [
        ("source", known["source"]),
        ("partition", known["partition"]),
        ("devices", f"{known['devices']}, of which {len(known['held_out'])} never train"),
        *([("left out", known["left_out_text"])] if known["left_out"] else []),
        (known["unit"], whole(known["examples_total"])),
        (
            "on a device",
            f"{known['examples_least']} to {known['examples_most']}, "
            f"median {known['examples_median']:g}",
        ),
        ("an example", f"{shape}; {known['classes']} {_learnt(known)}"),
        *_labels(known),
        *([("features", known["preparation"]["how"])] if known["preparation"] else []),
        *_images(known),
        *(("note", note) for note in known["notes"]),
    ]


def _learnt(known: Mapping[str, Any]) -> str:
    if known["numbers"]:
        return "to learn"
    return "labels" if known["label_names"] else "tokens"


def _labels(known: Mapping[str, Any]) -> list[tuple[str, str]]:
    if not known["label_names"]:
        return []
    numbers = known["numbers"]
    return [
        (
            "ranges of values" if numbers else "labels",
            f"median {known['labels_median']:g} on a device",
        ),
        (
            "skew of values" if numbers else "label skew",
            f"{known['skew']:.2f} (0: all devices alike)",
        ),
    ]


def _images(known: Mapping[str, Any]) -> list[tuple[str, str]]:
    found = known.get("images")
    if not found:
        return []
    (w0, w1, w2), (h0, h1, h2) = found["width"], found["height"]
    modes = ", ".join(f"{mode} {whole(count)}" for mode, count in found["modes"].items())
    return [
        ("images", f"{whole(found['count'])}, of which {len(found['broken'])} are broken"),
        ("their size", f"{w0} to {w2} wide, median {w1}; {h0} to {h2} high, median {h1}"),
        ("their form", modes),
    ]


def page(known: Mapping[str, Any], name: str, more: str = "") -> str:
    """The whole document. more: sections that come after the first."""
    header = (
        f'<header>\n<div class="brand">{parts.MARK}<span>Delian</span></div>\n'
        f'<h1>{escaped(name)}</h1>\n<p class="facts">{escaped(known["source"])}, '
        f"{escaped(known['partition'])}</p>\n</header>\n"
    )
    rows = "".join(
        f"<tr><th>{escaped(what)}</th><td>{escaped(said)}</td></tr>" for what, said in lines(known)
    )
    table = f"<table><tbody>{rows}</tbody></table>"
    held_out = set(known["held_out"])
    out = [device in held_out for device in range(known["devices"])]
    keys = [("cell", "share of the device’s examples")]
    if any(out):
        keys.append(("newcomer", "never trains"))
    amounts = parts.section(
        "Amounts",
        f"A bar is a device: how many {escaped(known['unit'])} it has.",
        parts.figure(both(partial(device_amounts.bars, known, out))),
    )
    beginning = header + parts.section("Data", "", table) + more + amounts
    if not known["label_names"]:
        return parts.document(name, beginning)
    drawn = both(partial(report_plots.label_map, known, out))
    what = "range of values" if known["numbers"] else "label"
    skew = parts.section(
        "Values" if known["numbers"] else "Labels",
        f"A column is a device, a row a {what}; darker where more of the device's examples have"
        " it.",
        parts.figure(parts.legend(keys) + drawn),
    )
    return parts.document(name, beginning + skew)
