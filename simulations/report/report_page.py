"""The report as one HTML page: no script, no font, no picture from anywhere else.

It reads report.json's content, nothing more, so that any report.json can be made a page again. The
story goes from the answer to the evidence: headline, learning curves, which devices gained and
lost, rounds, traffic, data, settings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from ...core.learning import algorithm_registry
from ...core.learning.aggregate import chains
from . import own_metrics_page, report_plots
from . import page_parts as parts
from .adapting_page import fairness, steps_section, target_reached
from .measures import ACCURACY, Measure, explained, measure_of
from .page_parts import escaped
from .svg import both, count, duration, size, whole

TABLE_ROWS_MAX = 500

TIMES = {
    "device_compute": ("computing", "personal"),
    "device_edge": ("device to edge links", "shared"),
    "edge_cloud": ("edge to cloud links", "newcomer"),
    "waiting": ("waiting for others", "dropped"),
}

Report = Mapping[str, Any]


def page(report: Report) -> str:
    """The whole document."""
    scenario = report["scenario"]
    sections = [
        _header(report),
        _tiles(report),
        _curves(report),
        own_metrics_page.section(report),
        steps_section(report),
        _devices(report),
        _evaluations(report),
        _rounds(report),
        _traffic(report),
        _data(report),
        _settings(report),
        _footer(report),
    ]
    return parts.document(scenario["name"], "".join(sections))


def _algorithm(report: Report) -> str:
    name: str = report["scenario"]["algorithm"]["name"]
    return algorithm_registry.title(name)


def _runs(report: Report) -> list[Report]:
    return [report, report["compare"]] if "compare" in report else [report]


def _is_real(report: Report) -> bool:
    """Whether daemons ran it, in real time."""
    return report["summary"].get("wall_seconds") is not None


def _took(report: Report) -> str:
    """How long all rounds took."""
    key = "wall_seconds" if _is_real(report) else "virtual_seconds"
    return duration(report["summary"][key])


def _ways(report: Report) -> int:
    """Classes of a few-shot episode, which numbers them again each time; 0 for other tasks."""
    ways: int = report["scenario"]["data"].get("ways", 0)
    return ways


def _measure(report: Report) -> Measure:
    return measure_of(report["scenario"])


def _header(report: Report) -> str:
    scenario, summary = report["scenario"], report["summary"]
    against = (
        f", compared with {escaped(_algorithm(report['compare']))}" if "compare" in report else ""
    )
    facts = (
        f"{escaped(_algorithm(report))}{against} · {'real daemons: ' if _is_real(report) else ''}"
        f"{count(summary['devices'], 'device')}, {count(scenario['fleet']['edges'], 'edge')} · "
        f"{count(summary['rounds'], 'round')} · seed {scenario['seed']}"
    )
    runs = _runs(report)
    stopped = "".join(
        _stopped(run, f"{_algorithm(run)}: " if len(runs) > 1 else "")
        for run in runs
        if run["summary"]["stopped_by"] or run["summary"]["why"]
    )
    stopped += "".join(
        f'<p class="notice">{escaped(f"{_algorithm(run)}: " if len(runs) > 1 else "")}'
        f"Warning: {escaped(each)}.</p>"
        for run in runs
        for each in run["summary"].get("warnings", ())
    )
    stopped += "".join(f'<p class="notice">{escaped(n)}.</p>' for n in report["data"]["notes"])
    description = f'<p class="lead">{escaped(scenario["description"].strip())}</p>'
    if _is_real(report):
        description += parts.fitted(summary.get("fitting") or {})
    return (
        f'<header>\n<div class="brand">{parts.MARK}<span>Delian</span></div>\n'
        f'<h1>{escaped(scenario["name"])}</h1>\n<p class="facts">{facts}</p>\n'
        f"{description if scenario['description'] else ''}\n{stopped}</header>\n"
    )


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


def _tile(value: str, name: str, note: str, hue: str = "") -> str:
    return (
        f'<div class="tile"><b class="{hue}">{value}</b><span>{escaped(name)}</span>'
        f"<small>{escaped(note)}</small></div>"
    )


def _tiles(report: Report) -> str:
    summary, ways, measure = report["summary"], _ways(report), _measure(report)
    tiles, unused = [], escaped(summary.get("unused_shared_model", ""))
    if summary["evaluated"]:
        tiles = [
            _tile(
                _large(summary["global_accuracy"], measure),
                "shared model",
                f"{unused}, which no device uses"
                if unused
                else f"mean {measure.name.removeprefix('mean ')} over devices"
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
                    f"personal, on {newcomers['evaluated']} devices that never trained",
                    "newcomer",
                )
            )
        tiles.append(
            _tile(
                _large(summary["harmed_share"]),
                "harmed",
                f"{summary['harmed']} of {summary['evaluated']} devices do worse with their own",
                "harmed" if summary["harmed"] else "",
            )
        )
    sent = summary["bytes"]["device_edge_up"] / max(1, summary["reported"])
    tiles.append(
        _tile(
            size(sent),
            "an update",
            f"{whole(summary['parameters'])} parameters, uploaded by a device",
        )
    )
    return f'<div class="tiles">{"".join(tiles)}</div>\n'


def _large(value: float, measure: Measure = ACCURACY) -> str:
    """A figure of a tile."""
    return measure.show(value).replace("%", "<em>%</em>")


def _curves(report: Report) -> str:
    runs = _runs(report)
    series: list[report_plots.Series] = []
    for i, run in enumerate(runs):
        suffix = "" if len(runs) == 1 else f", {_algorithm(run)}"
        for key, name, hue in (
            ("personalised", f"personal{suffix}", "personal"),
            ("global", f"shared{suffix}", "shared"),
        ):
            measured = [r for r in run["rounds"] if r[f"{key}_accuracy"] is not None]
            line = [(r["round"], r[f"{key}_accuracy"]) for r in measured]
            band = [
                (r["round"], r[f"{key}_spread"]["low"], r[f"{key}_spread"]["high"])
                for r in measured
                if r[f"{key}_spread"] and i == 0
            ]
            series.append(report_plots.Series(name, hue, line, band, dashed=i == 1))
    if not any(s.line for s in series):
        return parts.section("Learning", "No accuracy was measured before the run ended.")
    measure = _measure(report)
    caption = ["Mean over the evaluated devices, each on examples that no device trains on."]
    if measure.error:
        caption.insert(0, f"{measure.title}: less is better.")
    if any(s.band for s in series):
        caption.append("The bands leave out the best and the worst tenth of the devices.")
    if len(runs) > 1:
        caption.append(f"Dashed: {escaped(_algorithm(report['compare']))}.")
    # On a narrow page there is no room for names at the ends of the lines.
    legend = parts.legend((("personal", "personal"), ("shared", "shared")), "narrow")
    return parts.section(
        "Learning",
        _learning_story(report),
        parts.figure(
            legend + both(partial(report_plots.accuracy_lines, series, measure=measure)),
            " ".join(caption),
        ),
        _comparison_table(runs) if len(runs) > 1 else "",
    )


def _learning_story(report: Report) -> str:
    summary = report["summary"]
    if not summary["evaluated"]:
        return "The devices were not evaluated at the end."
    steps = report["scenario"]["algorithm"]["personal_steps"]
    measured = [r["round"] for r in report["rounds"] if r["global_accuracy"] is not None]
    judged = max(measured, default=summary["rounds"])
    chance = ""
    if ways := _ways(report):
        chance = (
            f", which is chance: an episode numbers its {ways} classes at random, so no model "
            "knows them before it has adapted"
        )
    show = _measure(report).show
    shared = f'<b class="shared">{show(summary["global_accuracy"])}</b>'
    told = f"is right on {shared} of a device’s examples"
    if _measure(report).error:
        told = f"is wrong by {shared} in the mean square"
    unused = summary.get("unused_shared_model")
    model = f"{escaped(unused)}, which no device uses," if unused else "the shared model"
    adapted = f"{count(steps, 'gradient step')} on the device make{'s' * (steps == 1)} that "
    first = (
        f"After {count(judged, 'round')} {model} {told}"
        f"{chance}. {adapted if steps else 'The devices’ own models, without further steps, give '}"
        f'<b class="personal">{show(summary["personalised_accuracy"])}</b>.'
        f"{explained(report['rounds'])}"
    )
    if newcomers := summary["held_out"]:
        first += (
            " On devices that never trained it is "
            f"{show(newcomers['global_accuracy'])} and then "
            f"{show(newcomers['personalised_accuracy'])}."
        )
    first += target_reached(report)
    if "compare" in report and report["compare"]["summary"]["evaluated"]:
        other = report["compare"]["summary"]
        told = _measure(report).against(
            other["personalised_accuracy"], summary["personalised_accuracy"]
        )
        first += f" Personal models are {told} those of {escaped(_algorithm(report['compare']))}."
    return first


def _comparison_table(runs: Sequence[Report]) -> str:
    time = "Real time" if all(map(_is_real, runs)) else "Virtual time"
    of = _measure(runs[0]).show
    rows: tuple[tuple[str, Callable[[Mapping[str, Any]], str]], ...] = (
        ("Shared model", lambda s: of(s["global_accuracy"])),
        ("Personal models", lambda s: of(s["personalised_accuracy"])),
        ("Worst tenth, personal", lambda s: of(s["worst_decile_personalised"])),
        ("Newcomers, personal", lambda s: of((s["held_out"] or {}).get("personalised_accuracy"))),
        ("Devices harmed", lambda s: percent1(s["harmed_share"])),
        ("Sent by devices", lambda s: size(s["bytes"]["device_edge_up"])),
    )
    head = "".join(f"<th>{escaped(_algorithm(r))}</th>" for r in runs)
    body = ""
    for name, show in rows:
        cells = "".join(f"<td>{show(run['summary'])}</td>" for run in runs)
        body += f"<tr><th>{name}</th>{cells}</tr>"
    body += f"<tr><th>{time}</th>{''.join(f'<td>{_took(run)}</td>' for run in runs)}</tr>"
    return f"<table><thead><tr><th></th>{head}</tr></thead><tbody>{body}</tbody></table>"


def percent1(share: float | None) -> str:
    """A share as a percentage with one decimal; a dash for None."""
    return "–" if share is None else f"{100 * share:.1f}%"


def _devices(report: Report) -> str:
    summary = report["summary"]
    devices = [d for d in report["devices"] if d["accuracy_before"] is not None]
    if not devices:
        return ""
    measure = _measure(report)
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
    table = _details(
        "All devices as a table"
        if len(devices) <= TABLE_ROWS_MAX
        else f"The first {TABLE_ROWS_MAX} devices",
        ("device", "edge", "examples", "rounds trained", "shared", "personal"),
        rows,
    )
    return parts.section(
        "Which devices gain",
        lead,
        parts.figure(legend + both(partial(report_plots.device_gains, devices, measure=measure))),
        parts.figure(
            both(partial(report_plots.gain_histogram, gains, measure=measure)),
            "Devices by how much they gained.",
        ),
        table,
    )


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


def _details(name: str, columns: Sequence[str], rows: Iterable[str]) -> str:
    head = "".join(f"<th>{escaped(c)}</th>" for c in columns)
    return (
        f'<details><summary>{escaped(name)}</summary><div class="scroll"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div></details>"
    )


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
    measure = _measure(report)
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
    table = _details(
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
    summary, rounds, show = report["summary"], report["rounds"], _measure(report).show
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
    table = _details(
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
        parts.figure(legend + both(partial(report_plots.cohort_bars, rounds))),
        table,
    )


def _listed(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _traffic(report: Report) -> str:
    summary, scenario = report["summary"], report["scenario"]
    moved = summary["bytes"]
    lead = (
        f"The rounds take {_took(report)} of {'real' if _is_real(report) else 'virtual'} time. "
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
        )
    tiers = both(partial(report_plots.tier_traffic, moved, summary["devices"], edges))
    return parts.section("Traffic and time", lead, parts.figure(tiers), timed)


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
    legend = ""
    if any(held_out):
        legend = parts.legend(
            (("cell", "share of the device’s examples"), ("newcomer", "never trains"))
        )
    figure = parts.figure(legend + both(partial(report_plots.label_map, card, held_out)))
    return parts.section("Data", lead, figure)


def _settings(report: Report) -> str:
    groups: list[str] = []
    scenario = report["scenario"]
    top = {k: v for k, v in scenario.items() if not isinstance(v, dict) and k != "description"}
    for name, table in {"scenario": top, **_tables(scenario)}.items():
        rows = "".join(
            f"<dt>{escaped(k)}</dt><dd>{escaped(_value(v))}</dd>" for k, v in table.items()
        )
        groups.append(f"<div><h3>{escaped(name)}</h3><dl>{rows}</dl></div>")
    if report["summary"]["chain"]:
        rows = "".join(
            f"<dt>{escaped(stage)}</dt><dd>{escaped(where)}</dd>"
            for stage, where, *_ in chains.read(report["summary"]["chain"]).rows()
        )
        groups.append(f"<div><h3>what an update goes through</h3><dl>{rows}</dl></div>")
    host = "".join(
        f"<dt>{escaped(_host_name(k))}</dt><dd>{escaped(_value(v))}</dd>"
        for k, v in report["host"].items()
        if v is not None
    )
    groups.append(f"<div><h3>host</h3><dl>{host}</dl></div>")
    return parts.section(
        "Settings",
        "All that decides the result, and the machine that computed it.",
        f'<div class="settings">{"".join(groups)}</div>',
    )


def _host_name(key: str) -> str:
    """A key of `host` in words, its unit in brackets."""
    words, _, last = key.rpartition("_")
    unit = {"seconds": "s", "mib": "MiB", "gib": "GiB"}.get(last)
    return f"{words.replace('_', ' ')} ({unit})" if unit else key.replace("_", " ")


def _tables(raw: Mapping[str, Any], prefix: str = "") -> dict[str, Mapping[str, Any]]:
    """Every table in it, flat, by dotted name."""
    found: dict[str, Mapping[str, Any]] = {}
    for key, value in raw.items():
        if isinstance(value, dict):
            name = f"{prefix}{key}"
            own = {k: v for k, v in value.items() if not isinstance(v, dict)}
            if own:
                found[name] = own
            found |= _tables(value, f"{name}.")
    return found


def _value(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if value == int(value) else f"{value:,.4g}"
    if isinstance(value, list):
        return ", ".join(_value(v) for v in value)
    return str(value)


def _footer(report: Report) -> str:
    told = (
        f"Trace <code>{escaped(report['trace_hash'])}</code>. The same scenario and seed "
        "give the same trace."
    )
    if _is_real(report):
        told = (
            "Real daemons: where the same devices report, the models are the same; times are not."
        )
    beside = "All figures are in <code>report.json</code> next to this page."
    return f"<footer>{told} {beside}</footer>\n"
