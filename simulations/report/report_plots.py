"""The report's figures.

Each function gives one SVG drawing of the given width, with axes and accessible titles.

Hues mean the same everywhere: `shared` is the model that all devices have, `personal` a device's
own, `harmed` what got worse; the comparison algorithm has the same hues, dashed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from .measures import ACCURACY, Measure
from .svg import (
    Frame,
    drawing,
    duration,
    element,
    path,
    percent,
    points,
    size,
    text,
    ticks,
    title,
    whole,
)

Show: TypeAlias = Callable[[float], str]

GAIN_BINS = 10
MARKED_POINTS_MAX = 200  # a tooltip shows the value of each
DOTTED_POINTS_MAX = 12  # so few that each is drawn, and one alone is seen
LABEL_LENGTH_MAX = 20
DUMBBELLS_MAX = 120
SCATTER_MAX = 2000
BARS_MAX = 120
MAP_DEVICES_MAX = 240
MAP_LABELS_MAX = 20
NEAR = 0.8  # from here on lines of shares are near 100%
ZOOM_STEP = 0.05  # a zoomed axis begins at a multiple of this
ZOOMED_MIN = 3  # points of a zoomed line, at least
LABEL_GAP = 15.0  # pixels between two labels at the ends of lines


@dataclass(frozen=True, slots=True)
class Series:
    """A line: its name, colour class, points (x, y), and the band (x, low, high) around it."""

    name: str
    hue: str
    line: Sequence[tuple[float, float]]
    band: Sequence[tuple[float, float, float]] = field(default_factory=tuple)
    dashed: bool = False


def y_range(values: Sequence[float], measure: Measure, begins: float = 0.0) -> tuple[float, float]:
    """From zero to one for shares; of other numbers zero, the least and the largest are within.

    begins: where shares begin instead of at zero.
    """
    if not measure.error:
        return begins, 1.0
    low, high = 1.05 * min([0.0, *values]), 1.05 * max([0.0, *values])
    return (low, high) if low < high else (0.0, 1.0)


def y_ticks(limits: tuple[float, float], measure: Measure) -> tuple[list[float], Show]:
    """The axis' values, and how they are printed."""
    if not measure.error:
        return ticks(limits[0], 1, 5), percent
    return ticks(*limits, 5), lambda value: f"{value:,.6g}"


def accuracy_lines(
    series: Sequence[Series],
    width: float,
    measure: Measure = ACCURACY,
    x_title: str = "round",
    show_x: Show = whole,
    begins: float = 0.0,
) -> str:
    """Accuracy, or an error, per round or over what `x_title` says.

    Each line is named at its end. show_x: how values of the horizontal axis are printed. begins:
    where the vertical axis of shares begins; no line or band is below it.
    """
    named = [s for s in series if s.line]
    last = max((s.line[-1][0] for s in named), default=1.0)
    first = min((s.line[0][0] for s in named), default=0.0)
    if first == last:
        first, last = first - 0.5, last + 0.5  # one point stands in the middle
    wide = width > 500
    longest = max((len(s.name) for s in named), default=0)
    margin = 62 + 7 * longest if wide else 40  # room for the names at the lines' ends
    heights = [y for s in named for _, y in s.line] + [h for s in named for *_, h in s.band]
    limits = y_range(heights, measure, begins)
    frame = Frame(width, 320 if wide else 260, (first, last), limits, right=margin)
    parts = [
        frame.grid(*y_ticks(limits, measure)),
        frame.scale(x_ticks(frame, show_x), show_x, broken=begins > 0),
        frame.x_title(x_title),
    ]
    for one in named:
        if one.band:
            edge = [(frame.x(x), frame.y(high)) for x, _, high in one.band]
            edge += [(frame.x(x), frame.y(low)) for x, low, _ in reversed(one.band)]
            parts.append(element("path", d=path(edge) + "Z", cls=f"band {one.hue}"))
    for one in named:
        parts.append(_line(frame, one, measure, x_title, show_x))
    parts.append(_end_labels(frame, named, measure))
    over = "per round" if x_title == "round" else f"over {x_title}"
    cut = f"; the vertical axis begins at {percent(begins)}" if begins else ""
    return drawing(width, frame.height, f"{measure.title} {over}{cut}", parts)


def zoomed(series: Sequence[Series], measure: Measure) -> tuple[list[Series], float] | None:
    """The lines from where all of them stay near 100%, and where an axis for them begins.

    Their bands are left out: they would reach below such an axis. None where the lines are near
    100% for less than half of the way, or measure an error.
    """
    places = sorted({x for one in series for x, _ in one.line})
    low = [x for one in series for x, y in one.line if y < NEAR]
    tail = [x for x in places if x > max(low, default=-math.inf)]
    if measure.error or len(tail) < max(ZOOMED_MIN, len(places) / 2):
        return None
    cut = [
        replace(one, line=[at for at in one.line if at[0] >= tail[0]], band=()) for one in series
    ]
    least = min(y for one in cut for _, y in one.line)
    return cut, min(math.floor(least / ZOOM_STEP + 1e-9) * ZOOM_STEP, 1 - ZOOM_STEP)


def x_ticks(frame: Frame, show: Show) -> list[float]:
    """The values under an axis: whole ones of rounds, and no more than there is room for."""
    first, last = frame.x_range
    least = 1.0 if show is whole else 0.0
    longest = max(len(show(first)), len(show(last)), 2)
    room = int((frame.x_end - frame.left) / (7.5 * longest + 14))
    return ticks(first, last, max(3, min(room + 1, 5 if frame.narrow else 10)), least)


def _line(frame: Frame, one: Series, measure: Measure, x_title: str, show_x: Show) -> str:
    at = [(frame.x(x), frame.y(y)) for x, y in one.line]
    dash = " dashed" if one.dashed else ""
    drawn = element("path", d=path(at), cls=f"line {one.hue}{dash}")
    if len(at) <= DOTTED_POINTS_MAX:
        drawn += "".join(
            element("circle", cx=px, cy=py, r=3.5, cls=f"dot {one.hue}") for px, py in at
        )
    if len(at) > MARKED_POINTS_MAX:
        return drawn
    spots = (
        element(
            "circle",
            title(f"{one.name}, {x_title} {show_x(x)}: {measure.show(y)}"),
            cx=px,
            cy=py,
            r=7,
            cls=f"spot {one.hue}",
        )
        for (x, y), (px, py) in zip(one.line, at, strict=True)
    )
    return drawn + "".join(spots)


def _end_labels(frame: Frame, named: Sequence[Series], measure: Measure) -> str:
    """The last value of each line at its end, moved apart where they would overlap."""
    wanted = sorted(named, key=lambda s: -s.line[-1][1])
    parts, places, below = [], [], -1e9
    for one in wanted:
        below = max(frame.y(one.line[-1][1]) + 4, below + LABEL_GAP)
        places.append(below)
    above = frame.y_end - 3  # the axis' values are below it
    for i in reversed(range(len(places))):
        places[i] = above = min(places[i], above)
        above -= LABEL_GAP
    for one, place in zip(wanted, places, strict=True):
        x, y = one.line[-1]
        words = percent(y) if frame.narrow and not measure.error else measure.show(y)
        if not frame.narrow:
            words += f"  {one.name}"
        parts.append(text(frame.x(x) + 8, place, words, cls=f"name {one.hue}"))
    return "".join(parts)


def device_gains(
    devices: Sequence[Mapping[str, Any]], width: float, measure: Measure = ACCURACY
) -> str:
    """Every device before and after it made the model its own.

    A stroke each, or a point each when they are many.
    """
    known = [d for d in devices if d["accuracy_before"] is not None]
    limits = y_range([d[f"accuracy_{at}"] for d in known for at in ("before", "after")], measure)
    if len(known) > DUMBBELLS_MAX:
        return _scatter(known, width, measure, limits)
    ranked = sorted(known, key=lambda d: (d["held_out"], d["accuracy_before"], d["accuracy_after"]))
    seen = sum(not d["held_out"] for d in ranked)
    gap = 2 if 0 < seen < len(ranked) else 0
    frame = Frame(width, 300 if width > 500 else 260, (-1, len(ranked) + gap), limits, bottom=34)
    parts = [frame.grid(*y_ticks(limits, measure))]
    step = (frame.x_end - frame.left) / (len(ranked) + gap + 1)
    radius = min(4.5, max(1.6, step * 0.36))
    for place, device in enumerate(ranked):
        x = frame.x(place + (gap if device["held_out"] else 0))
        parts.append(_dumbbell(frame, device, x, radius, measure))
    parts.append(_group(frame, 0, seen, "devices that trained"))
    parts.append(_group(frame, seen + gap, len(ranked) + gap, "never trained"))
    return drawing(width, frame.height, f"{measure.title} of each device before and after", parts)


def _dumbbell(
    frame: Frame, device: Mapping[str, Any], x: float, radius: float, measure: Measure
) -> str:
    before, after = frame.y(device["accuracy_before"]), frame.y(device["accuracy_after"])
    hue = _hue(device, measure)
    told = title(_told(device, measure))
    stroke = element("line", x1=x, x2=x, y1=before, y2=after, cls=f"stroke {hue}")
    start = element("circle", cx=x, cy=before, r=radius * 0.8, cls="dot shared")
    end = element("circle", cx=x, cy=after, r=radius, cls=f"dot {hue}")
    target = element(
        "rect",
        x=x - radius - 1,
        y=frame.top,
        width=2 * radius + 2,
        height=frame.y_end - frame.top,
        cls="hit",
    )
    return element("g", told + stroke + start + end + target)


def _hue(device: Mapping[str, Any], measure: Measure) -> str:
    gain = measure.gain(device["accuracy_before"], device["accuracy_after"])
    return "harmed" if gain < 0 else "personal" if gain > 0 else "shared"


def _told(device: Mapping[str, Any], measure: Measure) -> str:
    kind = "never trained" if device["held_out"] else "trained"
    return (
        f"{device['name']} ({kind}, {device['examples']} examples): "
        f"{measure.show(device['accuracy_before'])} → {measure.show(device['accuracy_after'])}"
    )


def _group(frame: Frame, start: int, end: int, words: str) -> str:
    """A line under some devices, with a caption."""
    if end <= start:
        return ""
    x1, x2, y = frame.x(start - 0.4), frame.x(end - 0.6), frame.y_end + 8
    line = element("line", x1=x1, x2=x2, y1=y, y2=y, cls="axis")
    if (x2 - x1) < len(
        words
    ) * 5.5:  # too narrow for the words in the middle: end them at its right
        return line + text(x2, y + 17, words, cls="label", text_anchor="end")
    return line + text((x1 + x2) / 2, y + 17, words, cls="label", text_anchor="middle")


def _scatter(
    devices: Sequence[Mapping[str, Any]],
    width: float,
    measure: Measure,
    limits: tuple[float, float],
) -> str:
    frame = Frame(width, 420 if width > 500 else 320, limits, limits)
    every = -(-len(devices) // SCATTER_MAX)
    marks = y_ticks(limits, measure)
    parts = [frame.grid(*marks), frame.scale(*marks)]
    better = ", less is better" if measure.error else ""
    parts.append(frame.x_title(f"{measure.name} with the shared model (up: with its own{better})"))
    diagonal = [(frame.x(end), frame.y(end)) for end in limits]
    parts.append(element("path", d=path(diagonal), cls="axis dashed"))
    for device in devices[::every]:
        before, after = device["accuracy_before"], device["accuracy_after"]
        hue = _hue(device, measure)
        hollow = " hollow" if device["held_out"] else ""
        spot = element(
            "circle",
            title(_told(device, measure)),
            cx=frame.x(before),
            cy=frame.y(after),
            r=3,
            cls=f"dot faint {hue}{hollow}",
        )
        parts.append(spot)
    return drawing(width, frame.height, f"{measure.title} of each device before and after", parts)


def gain_histogram(gains: Sequence[float], width: float, measure: Measure = ACCURACY) -> str:
    """How many devices gained how much.

    In bins of ten points, or of about a tenth of the range of errors; bins below zero are in the
    hue of harm.
    """
    unit = _bin(gains) if measure.error else 0.1
    gains = [gain * (1 / unit) for gain in gains]
    lowest = min(gains, default=0.0)
    # A bar for no change stands astride the zero.
    low = 0 if lowest > 0 else min(-1, math.floor(lowest))
    high = max(1, math.ceil(max(gains, default=0.0)))
    counts: dict[int, int] = {}
    even = 0
    for gain in gains:
        if gain == 0.0:
            even += 1
            continue
        place = min(high - 1, max(low, math.floor(gain)))
        counts[place] = counts.get(place, 0) + 1
    tallest = max([even, *counts.values()], default=1)
    frame = Frame(width, 220, (low, high), (0, tallest))
    parts = [frame.grid(ticks(0, tallest, 4, 1), whole)]
    wide = frame.x(1) - frame.x(0)
    for place, count in sorted(counts.items()):
        hue = "harmed" if place < 0 else "personal"
        span = f"{_gained(place * unit, measure)} to {_gained((place + 1) * unit, measure)}"
        who = f"{count} device{'s' * (count != 1)}"
        told = title(f"{who}: {span}{'' if measure.error else ' points'}")
        box = element(
            "rect",
            told,
            x=frame.x(place) + 1.5,
            y=frame.y(count),
            width=wide - 3,
            height=frame.y_end - frame.y(count),
            rx=2,
            cls=f"bar {hue}",
        )
        parts.append(box)
    if even:
        told = title(f"{even} device{'s' * (even != 1)}: no change")
        parts.append(
            element(
                "rect",
                told,
                x=frame.x(0) - 4,
                y=frame.y(even),
                width=8,
                height=frame.y_end - frame.y(even),
                rx=2,
                cls="bar shared",
            )
        )
    every = 2 if frame.narrow and high - low > 8 else 1
    shown = [v for v in range(low, high + 1) if v % every == 0]
    parts.append(frame.scale(shown, lambda v: _gained(v * unit, measure)))
    words = "how much the error fell" if measure.error else "gain in percentage points"
    parts.append(frame.x_title(words))
    return drawing(width, frame.height, "Distribution of the devices' gains", parts)


def _bin(gains: Sequence[float]) -> float:
    """A round number: about a tenth of the gains' range."""
    reach = max((abs(gain) for gain in gains), default=0.0)
    if not 0.0 < reach < math.inf:
        return 1.0
    found = ticks(0.0, reach, GAIN_BINS)
    return found[1] - found[0] if len(found) > 1 else reach


def _gained(gain: float, measure: Measure) -> str:
    return f"{gain:+.3g}" if measure.error and gain else points(gain)


def cohort_bars(rounds: Sequence[Mapping[str, Any]], width: float) -> str:
    """What became of the devices selected in each round, stacked."""
    kinds = ("reported", "spare", "late", "dropped", "refused")
    each = -(-len(rounds) // (BARS_MAX if width > 500 else BARS_MAX // 3))
    bins = [rounds[i : i + each] for i in range(0, len(rounds), each)]
    tallest = max((sum(r["selected"] for r in b) / len(b) for b in bins), default=1)
    frame = Frame(width, 220, (0.5, len(bins) * each + 0.5), (0, tallest * 1.02))
    parts = [frame.grid(ticks(0, tallest, 4, 1), whole)]
    wide = max(1.0, (frame.x(each) - frame.x(0)) * 0.78)
    for i, some in enumerate(bins):
        x, base = frame.x((i + 0.5) * each + 0.5) - wide / 2, 0.0
        for kind in kinds:
            mean = sum(r[kind] for r in some) / len(some)
            if mean == 0:
                continue
            span = f"round {some[0]['round']}"
            if each > 1:
                span = f"rounds {some[0]['round']} to {some[-1]['round']}, on average"
            parts.append(
                element(
                    "rect",
                    title(f"{span}: {mean:.3g} {kind}"),
                    x=x,
                    y=frame.y(base + mean),
                    width=wide,
                    height=frame.y(base) - frame.y(base + mean),
                    cls=f"bar {kind}",
                )
            )
            base += mean
    parts.append(frame.scale(ticks(1, len(rounds), 5 if frame.narrow else 10, 1) or [1], whole))
    retried = any(not r["applied"] for r in rounds)
    parts.append(frame.x_title("attempt; a round may take more than one" if retried else "round"))
    return drawing(
        width, frame.height, "Devices selected in each round and what became of them", parts
    )


def tier_traffic(totals: Mapping[str, float], devices: int, edges: int, width: float) -> str:
    """Devices, edges and cloud, with the bytes that crossed between them."""
    wide = width > 500
    height, box = 150.0, (150.0 if wide else 76.0)
    tiers = (("devices", whole(devices)), ("edges", whole(edges)), ("cloud", "1"))
    centres = (box / 2 + 1, width / 2, width - box / 2 - 1)
    parts = []
    for (name, count), x in zip(tiers, centres, strict=True):
        parts.append(element("rect", x=x - box / 2, y=35, width=box, height=80, rx=10, cls="tier"))
        parts.append(text(x, 72, count, cls="figure", text_anchor="middle"))
        parts.append(text(x, 95, name, cls="label", text_anchor="middle"))
    for i, link in enumerate(("device_edge", "edge_cloud")):
        start, end = centres[i] + box / 2 + 6, centres[i + 1] - box / 2 - 6
        parts.append(_arrow(start, end, 62, "up", totals.get(f"{link}_up", 0)))
        parts.append(_arrow(end, start, 92, "down", totals.get(f"{link}_down", 0)))
    return drawing(width, height, "Bytes between the tiers", parts)


def _arrow(start: float, end: float, y: float, words: str, count: float) -> str:
    way = 1 if end > start else -1
    head = [(end - 7 * way, y - 4.5), (end, y), (end - 7 * way, y + 4.5)]
    hue = "personal" if words == "up" else "shared"
    line = element("path", d=path([(start, y), (end - 2 * way, y)]), cls=f"line {hue}")
    tip = element("path", d=path(head) + "Z", cls=f"tip {hue}")
    place = y - 9 if words == "up" else y + 19
    label = text((start + end) / 2, place, size(count), cls="tick strong", text_anchor="middle")
    return element("g", title(f"{size(count)} {words}") + line + tip + label)


def time_bar(
    seconds: Mapping[str, float], names: Mapping[str, tuple[str, str]], width: float
) -> str:
    """One bar of where time went. `names`: what each key is called, and its hue."""
    total = sum(seconds.values()) or 1.0
    parts, x = [], 0.0
    for key, (name, hue) in names.items():
        share = seconds.get(key, 0.0) / total
        if share == 0:
            continue
        told = title(f"{name}: {duration(seconds[key])}, {percent(share)}")
        parts.append(
            element("rect", told, x=x, y=4, width=share * width, height=26, cls=f"bar {hue}")
        )
        x += share * width
    return drawing(width, 34, "Where the devices' time went", parts)


def label_map(card: Mapping[str, Any], held_out: Sequence[bool], width: float) -> str:
    """Which labels are on which device.

    A column a device, a row a label, darker for a larger share.
    """
    counts = card["label_counts"][:MAP_DEVICES_MAX]
    totals = [sum(column) for column in zip(*card["label_counts"], strict=True)]
    largest = sorted(range(len(totals)), key=lambda i: -totals[i])[:MAP_LABELS_MAX]
    labels = sorted(largest)
    names = [visible(card["label_names"][i]) for i in labels]
    left = 14 + 7.0 * max(map(len, names))
    rows = 15.0
    frame = Frame(
        width,
        34 + rows * len(labels) + 8,
        (0, len(counts)),
        (len(labels), 0),
        left=left,
        top=4,
        bottom=38,
    )
    wide, high = frame.x(1) - frame.x(0), frame.y(1) - frame.y(0)
    parts = []
    for row, (label, name) in enumerate(zip(labels, names, strict=True)):
        parts.append(
            text(left - 8, frame.y(row) + high / 2 + 4, name, cls="tick", text_anchor="end")
        )
        for device, have in enumerate(counts):
            if not have[label]:
                continue
            share = have[label] / sum(have)
            told = title(f"device {device}: {have[label]} of {sum(have)} {card['unit']} are {name}")
            parts.append(
                element(
                    "rect",
                    told,
                    x=frame.x(device),
                    y=frame.y(row) + 0.5,
                    width=max(0.6, wide - (1 if wide > 4 else 0)),
                    height=high - 1,
                    cls="cell",
                    fill_opacity=f"{0.12 + 0.88 * share**0.7:.2f}",
                )
            )
    for device, out in enumerate(held_out[: len(counts)]):
        if out:
            x, y = frame.x(device), frame.y_end + 3
            parts.append(
                element(
                    "rect",
                    title("never trains"),
                    x=x,
                    y=y,
                    width=max(1, wide - 1),
                    height=4,
                    cls="bar newcomer",
                )
            )
    some = (
        f"the first {len(counts)} devices" if len(counts) < len(card["label_counts"]) else "devices"
    )
    parts.append(frame.x_title(some))
    return drawing(width, frame.height, "Labels on each device", parts)


def visible(label: str) -> str:
    """A label that can be seen: blanks by their names, long ones cut."""
    name = {" ": "space", "\n": "newline", "\t": "tab"}.get(label, label.replace("_", " "))
    return name if len(name) <= LABEL_LENGTH_MAX else name[: LABEL_LENGTH_MAX - 1] + "…"
