"""The report as one HTML page: no script, no font, no picture from anywhere else.

It reads report.json's content, nothing more, so that any report.json can be made a page again. The
story goes from the answer to the evidence: headline, learning curves, which devices gained and
lost, rounds, traffic, data, settings, words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from . import (
    baselines_page,
    classes_page,
    device_amounts,
    learning_page,
    own_metrics_page,
    report_plots,
    settings_page,
    tiles_page,
    words_page,
)
from . import page_parts as parts
from .adapting_page import fairness, steps_section
from .page_parts import escaped
from .report_facts import Report, algorithm_of, is_real, measured_by, runs_of, took
from .svg import both, count, duration, size, whole

TABLE_ROWS_MAX = 500

TIMES = {
    "device_compute": ("computing", "personal"),
    "device_edge": ("device to edge links", "shared"),
    "edge_cloud": ("edge to cloud links", "newcomer"),
    "waiting": ("waiting for others", "dropped"),
}


def page(report: Report) -> str:
    """The whole document."""
    scenario = report["scenario"]
    sections = [
        _header(report),
        tiles_page.tiles(report),
        *learning_page.sections(report),
        own_metrics_page.section(report),
        steps_section(report),
        baselines_page.section(report),
        _devices(report),
        classes_page.section(report),
        _evaluations(report),
        _rounds(report),
        _traffic(report),
        _data(report),
        settings_page.section(report),
        words_page.section(report),
        _footer(report),
    ]
    return parts.document(scenario["name"], "".join(sections))


def _header(report: Report) -> str:
    scenario, summary = report["scenario"], report["summary"]
    against = (
        f", compared with {escaped(algorithm_of(report['compare']))}" if "compare" in report else ""
    )
    facts = (
        f"{escaped(algorithm_of(report))}{against} · {'real daemons: ' if is_real(report) else ''}"
        f"{count(summary['devices'], 'device')}, {count(scenario['fleet']['edges'], 'edge')} · "
        f"{count(summary['rounds'], 'round')} · seed {scenario['seed']}"
    )
    runs = runs_of(report)
    stopped = "".join(
        _stopped(run, f"{algorithm_of(run)}: " if len(runs) > 1 else "")
        for run in runs
        if run["summary"]["stopped_by"] or run["summary"]["why"]
    )
    stopped += "".join(
        f'<p class="notice">{escaped(f"{algorithm_of(run)}: " if len(runs) > 1 else "")}'
        f"Warning: {escaped(each)}.</p>"
        for run in runs
        for each in run["summary"].get("warnings", ())
    )
    stopped += "".join(f'<p class="notice">{escaped(n)}.</p>' for n in report["data"]["notes"])
    description = f'<p class="lead">{escaped(scenario["description"].strip())}</p>'
    if is_real(report):
        description += parts.fitted(summary.get("fitting") or {})
    return (
        f'<header>\n<div class="brand">{parts.MARK}<span>Delian</span></div>\n'
        f'<h1>{escaped(scenario["name"])}</h1>\n<p class="facts">{facts}</p>\n'
        f"{description if scenario['description'] else ''}\n{stopped}{_command(report)}</header>\n"
    )


def _command(report: Report) -> str:
    """The command that gives the same run."""
    command = report["host"].get("command")
    return f'<p class="command">Made by <code>{escaped(command)}</code></p>\n' if command else ""


def _stopped(run: Report, whose: str) -> str:
    summary = run["summary"]
    done = f"{summary['rounds']} of {count(run['scenario']['rounds'], 'round')}"
    told = f"Stopped after {done}."
    if summary["stopped_by"] == "failure":
        told = f"Gave up after {done}: {escaped(summary['why'])}."
    elif summary["stopped_by"] == "unfinished":
        told = f"Not finished: this is how it stood after {done}."
        return f'<p class="notice">{escaped(whose)}{told}</p>'
    elif not summary["stopped_by"]:
        told = f"Ended early, after {done}: {escaped(summary['why'])}."
        return f'<p class="notice">{escaped(whose)}{told}</p>'
    return f'<p class="notice">{escaped(whose)}{told} What follows is what was done by then.</p>'


def _devices(report: Report) -> str:
    summary = report["summary"]
    devices = [d for d in report["devices"] if d["accuracy_before"] is not None]
    if not devices:
        return ""
    measure = measured_by(report)
    gains = [measure.gain(d["accuracy_before"], d["accuracy_after"]) for d in devices]
    better = sum(g > 0 for g in gains)
    lead = (
        f"{_who(better, summary['harmed'], len(devices))} The mean of the worst tenth went "
        f"from {measure.show(summary['worst_decile_global'])} to "
        f"{measure.show(summary['worst_decile_personalised'])}.{fairness(report)}"
    )
    first = ("shared", "shared model")
    if len(devices) > report_plots.DUMBBELLS_MAX:
        first = ("shared", "no change")
    legend = parts.legend(
        (first, ("personal", "own model, better"), ("harmed", "own model, worse"))
    )
    rows = (
        f"<tr><th>{escaped(d['name'])}</th><td>{d['edge']}</td><td>{d['examples']}</td><td>{d['rounds']}</td>"
        f"<td>{measure.show(d['accuracy_before'])}</td>"
        f"<td>{measure.show(d['accuracy_after'])}</td></tr>"
        for d in devices[:TABLE_ROWS_MAX]
    )
    table = parts.details(
        "All devices as a table"
        if len(devices) <= TABLE_ROWS_MAX
        else f"The first {TABLE_ROWS_MAX} devices",
        ("device", "edge", "examples", "rounds trained", "shared", "personal"),
        rows,
    )
    return parts.section(
        "Which devices gain",
        lead,
        parts.figure(
            legend + both(partial(report_plots.device_gains, devices, measure=measure)),
            "",
            _device_csv(devices),
        ),
        parts.figure(
            both(partial(report_plots.gain_histogram, gains, measure=measure)),
            "Devices by how much they gained.",
        ),
        table,
    )


def _device_csv(devices: Sequence[Mapping[str, Any]]) -> str:
    keys = ["device", "name", "edge", "examples", "held_out", "rounds"]
    keys += ["accuracy_before", "accuracy_after"]
    return parts.csv_link("devices", keys, ([d[key] for key in keys] for d in devices))


def _who(better: int, worse: int, all_: int) -> str:
    """How many are better and worse off with their own model."""
    if better == all_:
        return f"All {all_} devices are better off with their own model."
    if not better and not worse:
        return "No device is better or worse off with its own model."
    told = [f"{better} of {all_} devices {'is' if better == 1 else 'are'} better off"]
    if worse:
        told.append(f"{worse} {'is' if worse == 1 else 'are'} worse off")
    if same := all_ - better - worse:
        told.append(f"for {same} nothing changed")
    return f"With their own model {_listed(told)}."


def _evaluations(report: Report) -> str:
    """What devices said of models through the protocol, where they were asked."""
    said = report.get("evaluations") or []
    if not said:
        return ""
    settings = report["scenario"]["evaluation"]
    asked = sorted({e["devices"] for e in said})
    lead = (
        f"{count(len(said), 'model')} {'was' if len(said) == 1 else 'were'} judged through the "
        f"protocol, by {_span(asked)} devices each. What they found was added up on the way, as "
        "updates are. Here each example counts the same; above, each device."
    )
    if patience := settings.get("patience"):
        lead += f" The run ends when {count(patience, 'evaluation')} in a row bring nothing better."
    back = [e for e in said if e.get("rolled_back_to") is not None]
    gone = {e["round"]: f"back to model {e['rolled_back_to']}" for e in back}
    if gone:
        lead += f" {count(len(gone), 'round')} rolled back: the best model took its place again."
    measure = measured_by(report)
    figure = "loss" if measure.error else "accuracy"
    series = [
        report_plots.Series(
            name, hue, [(e["round"], e["metrics"][f"{key}_{figure}"]) for e in said]
        )
        for key, name, hue in (
            ("personalised", "personal", "personal"),
            ("global", "shared", "shared"),
        )
    ]
    legend = parts.legend((("personal", "personal"), ("shared", "shared")), "narrow")
    table = parts.details(
        "All evaluations as a table",
        ("round", "devices", "examples", "shared", "personal", "shared loss", "personal loss", ""),
        (
            f"<tr><th>{e['round']}</th><td>{e['devices']}</td>"
            f"<td>{whole(e['metrics'].get('queries', 0))}</td>"
            f"<td>{measure.show(e['metrics'][f'global_{figure}'])}</td>"
            f"<td>{measure.show(e['metrics'][f'personalised_{figure}'])}</td>"
            f"<td>{_loss(e['metrics']['global_loss'])}</td>"
            f"<td>{_loss(e['metrics']['personalised_loss'])}</td>"
            f"<td>{gone.get(e['round'], '')}</td></tr>"
            for e in said[-TABLE_ROWS_MAX:]
        ),
    )
    drawn = both(partial(report_plots.accuracy_lines, series, measure=measure))
    return parts.section("What devices say", lead, parts.figure(legend + drawn), table)


def _loss(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"


def _span(counts: Sequence[int]) -> str:
    """The smallest to the largest of sorted numbers."""
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"


def _rounds(report: Report) -> str:
    summary, rounds, show = report["summary"], report["rounds"], measured_by(report).show
    if not rounds:
        return parts.section("Rounds", "No round was finished.")
    lost = [
        f"{whole(summary[kind])} {words}"
        for kind, words in (
            ("dropped", "vanished"),
            ("late", "came too late"),
            ("refused", "sent an update that was refused"),
            ("spare", "had not answered yet when the round had enough"),
        )
        if summary[kind]
    ]
    lead = f"{whole(summary['reported'])} of {whole(summary['selected'])} selected devices reported"
    lead += f"; {_listed(lost)}." if lost else "; none was lost."
    if few := summary["rounds_without_quorum"]:
        lead += f" {count(few, 'attempt')} had too few reports and changed nothing."
    legend = parts.legend(
        [("reported", "reported")]
        + [(k, k) for k in ("spare", "late", "dropped", "refused") if summary[k]]
    )
    table = parts.details(
        "All rounds as a table"
        if len(rounds) <= TABLE_ROWS_MAX
        else f"The last {TABLE_ROWS_MAX} rounds",
        ("round", "shared", "personal", "reported", "of", "up", "down", "time"),
        (
            f"<tr><th>{r['round']}</th><td>{show(r['global_accuracy'])}</td>"
            f"<td>{show(r['personalised_accuracy'])}</td><td>{r['reported']}</td><td>{r['selected']}</td>"
            f"<td>{size(r['bytes']['device_edge_up'])}</td><td>{size(r['bytes']['device_edge_down'])}</td>"
            f"<td>{duration(r.get('wall_seconds') or r['virtual_seconds'])}</td></tr>"
            for r in rounds[-TABLE_ROWS_MAX:]
        ),
    )
    return parts.section(
        "Rounds",
        lead,
        parts.figure(
            legend + both(partial(report_plots.cohort_bars, rounds)), "", _round_csv(rounds)
        ),
        table,
    )


def _round_csv(rounds: Sequence[Mapping[str, Any]]) -> str:
    keys = ("round", "selected", "reported", "dropped", "late", "refused", "spare", "applied")
    hops = list(rounds[0]["bytes"])
    return parts.csv_link(
        "rounds",
        (*keys, *(f"bytes_{hop}" for hop in hops), "seconds"),
        (
            [
                *(r[key] for key in keys),
                *(r["bytes"][hop] for hop in hops),
                r.get("wall_seconds") or r["virtual_seconds"],
            ]
            for r in rounds
        ),
    )


def _listed(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _traffic(report: Report) -> str:
    summary, scenario = report["summary"], report["scenario"]
    moved = summary["bytes"]
    lead = (
        f"The rounds take {took(report)} of {'real' if is_real(report) else 'virtual'} time. "
        "Devices send "
        f"{size(moved['device_edge_up'])} up to their edges; edges add what they get and pass "
        f"{size(moved['edge_cloud_up'])} on to the cloud."
    )
    edges = scenario["fleet"]["edges"]
    spent = {k: v for k, v in summary["seconds"].items() if v > 0}
    timed = ""
    if spent:
        names = {k: TIMES.get(k, (k, "shared")) for k in spent}
        legend = parts.legend(
            (hue, f"{name} {duration(spent[k])}") for k, (name, hue) in names.items()
        )
        timed = parts.figure(
            legend + both(partial(report_plots.time_bar, spent, names)),
            "Where the devices’ time went in all rounds, summed over devices.",
            parts.csv_link("time", ("part", "seconds"), spent.items()),
        )
    tiers = both(partial(report_plots.tier_traffic, moved, summary["devices"], edges))
    moved_csv = parts.csv_link("traffic", ("link", "bytes"), moved.items())
    return parts.section("Traffic and time", lead, parts.figure(tiers, "", moved_csv), timed)


def _data(report: Report) -> str:
    card, devices = report["data"], report["devices"]
    counts = sorted(card["examples"])
    least, middle, most = counts[0], counts[len(counts) // 2], counts[-1]
    spread = str(least) if least == most else f"{least} to {most}, the middle one {middle}"
    held_out = [bool(d["held_out"]) for d in devices]
    lead = (
        f"{whole(card['examples_total'])} {escaped(card['unit'])} of {escaped(card['source'])}, "
        f"{escaped(card['partition'])}. A device has {spread}."
    )
    if card.get("left_out"):
        lead += f" Of the data’s own devices {escaped(card['left_out_text'])}."
    if prepared := card.get("preparation"):
        lead += f" Features of {count(len(prepared['columns']), 'column')} were"
        lead += f" {escaped(prepared['how'])}."
    legend = ""
    if any(held_out):
        legend = parts.legend(
            (("cell", "share of the device’s examples"), ("newcomer", "never trains"))
        )
    amounts = parts.figure(both(partial(device_amounts.bars, card, held_out)))
    figure = ""
    if card["label_names"]:
        figure = parts.figure(
            legend + both(partial(report_plots.label_map, card, held_out)), "", _label_csv(card)
        )
    elif not card["examples_total"]:
        lead = f"Clients train on {escaped(card['source'])}; no client has trained yet."
    return parts.section("Data", lead, amounts if least < most else "", figure)


def _label_csv(card: Mapping[str, Any]) -> str:
    rows = ([device, *counts] for device, counts in enumerate(card["label_counts"]))
    return parts.csv_link("labels", ("device", *card["label_names"]), rows)


def _footer(report: Report) -> str:
    told = (
        f"Trace <code>{escaped(report['trace_hash'])}</code>. The same scenario and seed "
        "give the same trace."
    )
    if is_real(report):
        told = (
            "Real daemons: where the same devices report, the models are the same; times are not."
        )
    beside = (
        "All figures are in <code>report.json</code> next to this page, the model in"
        " <code>model.bundle</code>: <code>delian predict FOLDER rows.csv</code>."
    )
    return f"<footer>{told} {beside}</footer>\n"
