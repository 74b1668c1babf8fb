"""The page of a run of partitioned execution.

Latencies against the two simple ways, the cut over time with its link, the cuts themselves.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from ..report import page_parts as parts
from ..report.page_parts import escaped
from ..report.svg import Frame, both, drawing, element, path, size, text, ticks, title, whole

Report = Mapping[str, Any]

#: Each way's colour.
HUES = {"together": "shared", "device only": "dropped", "all above": "personal"}
LINK_NAMES = {"3g": "3G", "4g": "4G", "wifi": "Wi-Fi", "steady": "steady", "file": "from a file"}
TIER_NAMES = {"edge": "the edge", "cloud": "the cloud"}
#: A distribution's axis ends where this share of the slowest way's answers is shown.
SHOWN = 0.99
#: And at so many times the whole program's time on a device.
WHOLES_MAX = 4.0


def page(report: Report) -> str:
    """The whole page."""
    body = [
        f'<p class="brand">{parts.MARK} Delian</p>\n<h1>{escaped(report["name"])}</h1>\n',
        f'<p class="facts">{escaped(_facts(report))}</p>\n',
        f'<p class="lead">{escaped(report["description"])}</p>\n' if report["description"] else "",
        _tiles(report),
        _latency_section(report),
        _time_section(report),
        _cuts_section(report),
        _footer(report),
    ]
    return parts.document(report["name"], "".join(body))


def _facts(report: Report) -> str:
    devices, edges = report["scenario"]["devices"]["count"], report["scenario"]["edges"]["count"]
    return (
        f"{devices} device{'s' if devices > 1 else ''}, {edges} edge{'s' if edges > 1 else ''},"
        f" {report['seconds']:g} s, seed {report['seed']}"
    )


def ms(value: float | None) -> str:
    """Milliseconds for people."""
    if value is None:
        return "–"
    return f"{value:,.0f} ms" if value >= 10 else f"{value:.1f} ms"


def _all(report: Report, name: str) -> Mapping[str, Any]:
    arm = next(a for a in report["arms"] if a["name"] == name)
    everybody: Mapping[str, Any] = arm["groups"]["all"]
    return everybody


def _tiles(report: Report) -> str:
    together, alone = _all(report, "together"), _all(report, "device only")
    arm = next(a for a in report["arms"] if a["name"] == "together")
    lost = together["requests"] - together["answered"]
    fell = sum(together["fallback"].values())
    tiles = [
        (ms(together["p50_ms"]), "median latency", f"a device alone: {ms(alone['p50_ms'])}"),
        (ms(together["p99_ms"]), "99th percentile", f"a device alone: {ms(alone['p99_ms'])}"),
        (whole(lost), "without an answer", f"of {together['requests']:,} requests"),
        (whole(fell), "by a fallback", f"{arm['hedged']} begun while a request ran"),
        (whole(arm["switches"]), "switches of the cut", "over all devices"),
    ]
    inner = "".join(
        f'<div class="tile"><b>{escaped(number)}</b><span>{escaped(name)}</span>'
        f"<small>{escaped(told)}</small></div>"
        for number, name, told in tiles
    )
    return f'<div class="tiles">{inner}</div>\n'


# ---------------------------------------------------------------- latency


def _latency_section(report: Report) -> str:
    kinds = [k for k in report["arms"][0]["groups"] if k != "all"]
    groups = ["all", *kinds] if len(kinds) > 1 else ["all"]
    figures = []
    for group in groups if len(groups) == 1 else groups[1:]:
        legend = parts.legend((HUES[a["name"]], a["name"]) for a in report["arms"])
        draw = partial(latency_curves, report, group)
        name = "" if group == "all" else f"<h3>{escaped(LINK_NAMES.get(group, group))}</h3>"
        figures.append(name + parts.figure(legend + both(draw)))
    return parts.section(
        "Latency",
        "From a request to its answer, on the same requests, links and outages: cut as the plan and"
        " the link say, by the device alone, and with everything above that can be there.",
        *figures,
        _latency_table(report, groups),
    )


def latency_curves(report: Report, group: str, width: float) -> str:
    """The share of requests that were answered within a time, a line for each way."""
    lines = [
        (arm["name"], arm["groups"][group]["cdf"], arm["groups"][group])
        for arm in report["arms"]
        if arm["groups"][group]["cdf"]
    ]
    longest = max((cdf[round(SHOWN * (len(cdf) - 1))] for _, cdf, _ in lines), default=1.0)
    longest = min(longest, WHOLES_MAX * report["whole_ms"])
    frame = Frame(width, 260, (0.0, longest * 1.05), (0.0, 1.0))
    drawn = [
        frame.grid(ticks(0, 1, 4), lambda v: f"{100 * v:.0f}%"),
        frame.scale(ticks(0, longest * 1.05, 5 if frame.narrow else 10), whole),
        frame.x_title("milliseconds"),
    ]
    for name, cdf, figures in reversed(lines):  # the first is drawn last, over the others
        # What was refused is never answered: its share is missing at the top.
        share = figures["answered"] / figures["requests"]
        count = len(cdf) - 1
        points = [
            (min(x, longest * 1.05), share * k / count)
            for k, x in enumerate(cdf)
            if x <= longest * 1.05
        ]
        if not points:
            continue
        at = [(frame.x(points[0][0]), frame.y(0.0))]
        at += [(frame.x(x), frame.y(y)) for x, y in points]
        told = f"{name}: half within {ms(figures['p50_ms'])}, 99% within {ms(figures['p99_ms'])}"
        drawn.append(element("path", title(told), d=path(at), cls=f"line {HUES[name]}"))
    return drawing(width, frame.height, "Latency: share of requests answered within a time", drawn)


def _latency_table(report: Report, groups: Sequence[str]) -> str:
    head = ("", "median", "95%", "99%", "longest", "refused", "late", "fallback")
    rows = []
    for group in groups:
        for arm in report["arms"]:
            f = arm["groups"][group]
            link = "" if len(groups) == 1 else f"{LINK_NAMES.get(group, 'all links')}: "
            rows.append(
                (
                    f"{link}{arm['name']}",
                    ms(f["p50_ms"]),
                    ms(f["p95_ms"]),
                    ms(f["p99_ms"]),
                    ms(f["max_ms"]),
                    whole(f["refused"]),
                    whole(f["late"]),
                    whole(sum(f["fallback"].values())),
                )
            )
    return _table(head, rows)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    cells = "".join(f"<th>{escaped(h)}</th>" for h in head)
    body = "".join(
        f'<tr><th scope="row">{escaped(first)}</th>'
        + "".join(f"<td>{escaped(c)}</td>" for c in rest)
        + "</tr>"
        for first, *rest in rows
    )
    return (
        f'<div class="scroll"><table><thead><tr>{cells}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


# ---------------------------------------------------------------- over time


def _time_section(report: Report) -> str:
    figures = []
    for device in report["devices"]:
        kind = LINK_NAMES.get(device["link"], device["link"])
        legend = parts.legend(
            (("dropped", "bandwidth upwards"), ("personal", "estimated by the device"))
        )
        figures.append(
            f"<h3>Device {device['device']}, {escaped(kind)}, mean"
            f" {device['mean_mbps']:.3g} Mbit/s, {len(device['switches'])} switches</h3>"
            + parts.figure(legend + both(partial(over_time, report, device)))
        )
    away = "" if not report["outages"] else " Shaded: a node above was away."
    return parts.section(
        "The cut over time",
        "Above, the link; below, which cut a request got that was made then, and what its answer"
        f" took.{away}",
        *figures,
    )


def over_time(report: Report, device: Mapping[str, Any], width: float) -> str:
    """Bandwidth, cut and latency of one device over time, one above the other."""
    seconds = report["seconds"]
    heights = (120.0, 26.0 + 22.0 * len(report["cuts"]), 130.0)
    left = 104.0 if width > 500 else 64.0
    drawn, top = [], 0.0
    shades = [(o["from_s"], min(o["to_s"], seconds)) for o in report["outages"]]
    draws = (_bandwidth, _cut_lines, _latencies)
    for draw, height in zip(draws, heights, strict=True):
        frame = Frame(
            width, top + height, (0.0, seconds), (0.0, 1.0), left=left, top=top + 18, bottom=12
        )
        for start, end in shades:
            if start < seconds:
                drawn.append(
                    element(
                        "rect",
                        x=frame.x(start),
                        y=frame.top,
                        width=frame.x(end) - frame.x(start),
                        height=frame.y_end - frame.top,
                        cls="band harmed",
                    )
                )
        drawn.append(draw(report, device, frame))
        top += height
    last = Frame(width, top + 36, (0.0, seconds), (0.0, 1.0), left=left)
    drawn.append(last.scale(ticks(0, seconds, 5 if last.narrow else 10), whole))
    drawn.append(last.x_title("seconds"))
    return drawing(width, top + 36, f"Device {device['device']}: link, cut and latency", drawn)


def _bandwidth(report: Report, device: Mapping[str, Any], frame: Frame) -> str:
    """Bandwidth on a logarithmic scale."""
    points = [(x, y) for x, y in device["mbps"]]
    values = [y for _, y in points] + [y for _, y in device["estimated"] if y > 0]
    low = math.floor(math.log10(max(min(values), 1e-3)))
    high = max(low + 1, math.ceil(math.log10(max(values))))
    scaled = _with_range(frame, (float(low), float(high)))
    marks = [float(k) for k in range(low, high + 1)]
    lines = scaled.grid(marks, lambda v: f"{10**v:g}")
    lines += text(scaled.left, scaled.top - 6, "Mbit/s", cls="label")
    steps = _steps(points, report["seconds"])
    at = [(scaled.x(x), scaled.y(math.log10(y))) for x, y in steps]
    lines += element("path", d=path(at), cls="line dropped")
    estimated = [
        (scaled.x(x), scaled.y(max(low, math.log10(max(y, 1e-9))))) for x, y in device["estimated"]
    ]
    if estimated:
        lines += element("path", d=path(estimated), cls="line personal dashed")
    return lines


def _cut_lines(report: Report, device: Mapping[str, Any], frame: Frame) -> str:
    """Which cut, as steps between named rows."""
    cuts = report["cuts"]
    rows = _with_range(frame, (len(cuts) - 0.5, -0.5))
    lines = []
    for cut in cuts:
        y = rows.y(cut["number"])
        lines.append(element("line", x1=rows.left, x2=rows.x_end, y1=y, y2=y, cls="grid"))
        name = cut["name"] if frame.width > 500 else f"{cut['number'] + 1}"
        lines.append(text(rows.left - 8, y + 4, name, cls="tick", text_anchor="end"))
    home = next((c["number"] for c in cuts if not c["up_bytes"]), None)
    switches = device["switches"]
    first = switches[0]["before"] if switches else home
    points = [(0.0, first), *((s["at"], s["after"]) for s in switches)]
    steps = _steps([(x, y) for x, y in points if y is not None], report["seconds"])
    if steps:
        at = [(rows.x(x), rows.y(y)) for x, y in steps]
        lines.append(element("path", d=path(at), cls="line shared"))
    for s in switches:
        if s["after"] is None:
            continue
        told = f"{s['at']:.2f} s: to {cuts[s['after']]['name']}, at {s['mbps']:.3g} Mbit/s"
        lines.append(
            element(
                "circle",
                title(told),
                cx=rows.x(s["at"]),
                cy=rows.y(s["after"]),
                r=5,
                cls="spot shared",
            )
        )
    return "".join(lines)


def _latencies(report: Report, device: Mapping[str, Any], frame: Frame) -> str:
    """A dot a request; the line is the whole program on the device."""
    took = [y for _, y in device["latency"]]
    high = max([*took, report["whole_ms"]]) * 1.05
    scaled = _with_range(frame, (0.0, high))
    lines = scaled.grid(ticks(0, high, 4), whole)
    lines += text(scaled.left, scaled.top - 6, "ms", cls="label")
    y = scaled.y(report["whole_ms"])
    told = f"the whole program on the device: {ms(report['whole_ms'])}"
    lines += element(
        "line", title(told), x1=scaled.left, x2=scaled.x_end, y1=y, y2=y, cls="axis dashed"
    )
    return lines + "".join(
        element("circle", cx=scaled.x(x), cy=scaled.y(y), r=2, cls="dot shared faint")
        for x, y in device["latency"]
    )


def _with_range(frame: Frame, y_range: tuple[float, float]) -> Frame:
    return Frame(
        frame.width,
        frame.height,
        frame.x_range,
        y_range,
        left=frame.left,
        right=frame.right,
        top=frame.top,
        bottom=frame.bottom,
    )


def _steps(points: Sequence[tuple[float, float]], end: float) -> list[tuple[float, float]]:
    """A line that keeps each value until the next."""
    found: list[tuple[float, float]] = []
    for x, y in points:
        if found:
            found.append((x, found[-1][1]))
        found.append((x, y))
    if found:
        found.append((end, found[-1][1]))
    return found


# ---------------------------------------------------------------- the rest


def _cuts_section(report: Report) -> str:
    head = ("cut", "device", "edge", "cloud", "up", "down", "on to the cloud", "requests")
    rows = [
        (
            c["name"],
            ms(c["device_ms"]) if c["device_ms"] else "–",
            ms(c["edge_ms"]) if c["edge_ms"] else "–",
            ms(c["cloud_ms"]) if c["cloud_ms"] else "–",
            size(c["up_bytes"]) if c["up_bytes"] else "–",
            size(c["down_bytes"]) if c["down_bytes"] else "–",
            size(c["cloud_up_bytes"]) if c["cloud_up_bytes"] else "–",
            whole(c["requests"]),
        )
        for c in report["cuts"]
    ]
    batches = report["batches"]
    told = "What each tier computes for a request, what crosses, and how many were answered so."
    if batches["runs"]:
        told += (
            f" The edges ran {batches['requests']:,} parts in {batches['runs']:,} batches, the"
            f" largest of {batches['max']}."
        )
    checked = ""
    if report["checked"] is not None:
        worst = max((c["difference"] for c in report["checked"]), default=0.0)
        largest = max((c["largest"] for c in report["checked"]), default=0.0)
        checked = (
            f"<p>Parts were really run: over {len(report['checked'])} cuts the results differ from"
            f" the whole program’s by at most {worst:.2g}, of values up to {largest:.2g}.</p>"
        )
    return parts.section("The cuts", escaped(told), _table(head, rows), checked)


def _footer(report: Report) -> str:
    outages = "; ".join(
        f"{TIER_NAMES[o['tier']]} was away from {o['from_s']:g} to {o['to_s']:g} s"
        for o in report["outages"]
    )
    told = f"{outages}. " if outages else ""
    return (
        f"<footer>{escaped(told)}Computing times are predicted, links simulated; the machines are"
        f" those of real nodes. Trace <code>{escaped(report['trace'])}</code></footer>\n"
    )
