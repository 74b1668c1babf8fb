"""`delian ask`: exact answers about the data of many sites, from masked sums."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...core.common.errors import DelianError
from ..fleet.coordinator_commands import Connect, on_coordinator
from ..options import AsJson
from ..output import echo, show_progress, tell

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...core.statistics.answer import Answer
    from ...core.statistics.request import Request, Rows
    from ...core.statistics.sql.select_statement import Selected

_FLOOR = 5
Lines = list[str] | None


@on_coordinator
def ask(
    connect: Connect,
    question: Annotated[
        str, typer.Argument(metavar="SELECT|METHOD", help="A SELECT statement, or a method's name.")
    ],
    formula: Annotated[
        str | None, typer.Argument(help="Of a method: y ~ age + C(sex), Surv(time, event) ~ age.")
    ] = None,
    sites: Annotated[
        Lines,
        typer.Option(
            "--site",
            metavar="FILE",
            help="A CSV or Parquet file that stands for a site; give one for each. Without it the"
            " sites are those of the coordinator's federation.",
        ),
    ] = None,
    table: Annotated[
        str, typer.Option("--from", metavar="TABLE", help="Of a method: the table, or joins.")
    ] = "",
    where: Annotated[str, typer.Option("--where", help="Of a method: a condition in SQL.")] = "",
    columns: Annotated[
        Lines,
        typer.Option("--column", metavar="NAME=SQL", help="Of a method: a column to compute."),
    ] = None,
    settings: Annotated[
        Lines, typer.Option("--set", metavar="KEY=VALUE", help="A setting of the method.")
    ] = None,
    categories: Annotated[
        Lines,
        typer.Option(
            "--category", metavar="COLUMN=A,B", help="Categories of a column. (default: asked for)"
        ),
    ] = None,
    limits: Annotated[
        Lines,
        typer.Option("--limit", metavar="COLUMN=LOW:HIGH", help="A column's limits, for noise."),
    ] = None,
    floor: Annotated[
        int, typer.Option("--floor", min=1, help="Rows of a group at a site, at least.")
    ] = _FLOOR,
    noise: Annotated[
        float,
        typer.Option(
            "--noise", min=0.0, help="Noise of each site, in lengths of what one row changes."
        ),
    ] = 0.0,
    asked: Annotated[
        int | None, typer.Option("--sites", min=1, help="Sites to ask. (default: all there are)")
    ] = None,
    sites_min: Annotated[
        int | None,
        typer.Option("--sites-min", min=1, help="Fewer give no answer. (default: two thirds)"),
    ] = None,
    timeout: Annotated[
        float, typer.Option("--timeout", min=1.0, help="Seconds that sites have for a step.")
    ] = 120.0,
    plain: Annotated[bool, typer.Option("--plain", help="Do not mask sums.")] = False,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="PAGE", help="Also write a page with plots.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Ask a question about the data of many sites; only masked sums leave a site.

    A SELECT statement counts, adds up and averages, by groups, with conditions and joins of a
    site's tables. A method fits a model: `delian ask methods` lists them, `delian ask methods glm`
    says what the settings of one mean.

    Sites answer what their owners allow ([device.questions] in a device's configuration). The sums
    are exact: the answer is that of all rows in one place.
    """
    if question.strip().lower() == "methods":
        _tell_methods(formula, as_json)
        return
    selected = None
    if question.lstrip()[:6].lower() == "select":
        selected = _selected(question, formula, settings, floor, categories, limits, noise)
    given = _given(table, where, columns, settings, categories, limits)
    with _sites(connect, sites, asked, sites_min, timeout, plain) as answer:
        if selected is not None:
            request = selected.request
        else:
            request = _request(question, formula, *given, answer, floor, noise)
        found = answer(request)
    if selected is not None:
        found = selected.present(found)
    if out is not None:
        from ...simulations.statistics.answer_page import write_page

        write_page(out, found, question if formula is None else f"{question} {formula}")
    tell(found.to_dict(), as_json, lambda: str(found).splitlines())
    if out is not None and not as_json:
        echo(f"\npage  {out}")


def _selected(
    text: str,
    formula: str | None,
    settings: Lines,
    floor: int,
    categories: Lines,
    limits: Lines,
    noise: float,
) -> Selected:
    from ...core.statistics.sql.select_statement import selected

    if formula is not None or settings:
        raise DelianError("a SELECT takes no formula and no settings", "ask a method, or leave out")
    return selected(
        text,
        floor=floor,
        categories=_categories(categories),
        limits=dict(map(_limit, limits or [])),
        noise=noise,
    )


def _given(
    table: str, where: str, columns: Lines, settings: Lines, categories: Lines, limits: Lines
) -> tuple[Rows, dict[str, Any]]:
    """The rows and the settings that the options say. Raises DelianError."""
    from ...core.statistics.request import Rows

    given = dict(map(_setting, settings or []))
    if named := _categories(categories):
        given["categories"] = {**named, **given.get("categories", {})}
    if limits:
        given["limits"] = {**given.get("limits", {}), **dict(map(_limit, limits))}
    computed = dict(_pair(text, "--column") for text in columns or [])
    return Rows(table, where, computed), given


def _request(
    method: str,
    formula: str | None,
    rows: Rows,
    given: dict[str, Any],
    answer: Callable[[Request], Answer],
    floor: int,
    noise: float,
) -> Request:
    from ...core.statistics.building import build, finder
    from ...core.statistics.request import Request

    find = finder(answer, rows, floor, noise)
    return Request(build(method, formula or "", given, find, floor), rows, noise)


@contextmanager
def _sites(
    connect: Connect,
    files: Lines,
    asked: int | None,
    sites_min: int | None,
    timeout: float,
    plain: bool,
) -> Iterator[Callable[[Request], Answer]]:
    """What answers questions: files that stand for sites, or a federation."""
    progress = _Progress()
    if files:
        from ...simulations.statistics.local_sites import LocalSites

        local = LocalSites(files, masked=not plain)
        yield lambda request: progress.of(local.answer, request)
        return
    from ...core.node.service.live_sites import LiveSites, Terms

    terms = Terms(asked, sites_min, timeout, not plain)
    with connect() as client:
        live = LiveSites(client, terms, on_refusal=_tell_refusals)
        yield lambda request: progress.of(live.answer, request)


class _Progress:
    """The step at hand, on a terminal's last line."""

    def of(self, answer: Callable[..., Answer], request: Request) -> Answer:
        import sys

        shows, count = sys.stderr.isatty(), 0

        def step(each: Any) -> None:
            nonlocal count
            count += 1
            if shows:
                show_progress(f"{request.question.method}: step {count} ({each.name})")

        try:
            return answer(request, on_step=step)
        finally:
            if shows:
                show_progress("")


def _tell_refusals(reasons: dict[str, int]) -> None:
    each = ", ".join(f"{name.replace('_', ' ')} {n}" for name, n in sorted(reasons.items()))
    echo(f"sites that did not answer: {each}", err=True)


def _tell_methods(name: str | None, as_json: bool) -> None:
    """All methods with their settings; or one, with what its settings mean."""
    from ...core.common.field_docs import field_docs
    from ...core.statistics.question import methods

    known = methods()
    if name is not None and name not in known:
        raise DelianError(f"there is no method `{name}`", f"one of {', '.join(known)}")
    chosen = {n: kind for n, kind in known.items() if name in (None, n)}
    found = {n: _settings_of(kind) for n, kind in chosen.items()}

    def lines() -> list[str]:
        made = []
        for each, kind in chosen.items():
            text = (kind.__doc__ or "").strip().partition("\n")[0]
            meanings = field_docs(kind) if name else {}
            made.append(f"{each}: {text}")
            for setting in found[each]:
                made.append(f"    {setting}")
                if meaning := meanings.get(setting.partition(" ")[0]):
                    made.append(f"        {meaning}")
            made.append("")
        return made[:-1]

    tell({"methods": found}, as_json, lines)


def _settings_of(kind: type[Any]) -> list[str]:
    """A method's settings with their defaults."""
    from dataclasses import MISSING, fields

    made = []
    for each in fields(kind):
        default = each.default
        if default is MISSING and each.default_factory is not MISSING:
            default = each.default_factory()
        made.append(each.name if default is MISSING else f"{each.name} = {_text(default)}")
    return made


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        value = list(value)
    return json.dumps(value)


def _pair(text: str, option: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise DelianError(f"{option} {text}: this is not NAME=VALUE", f"{option} name=value")
    return name.strip(), value.strip()


def _setting(text: str) -> tuple[str, Any]:
    name, value = _pair(text, "--set")
    try:
        return name, tomllib.loads(f"value = {value}")["value"]
    except (tomllib.TOMLDecodeError, KeyError, RecursionError):
        return name, value


def _categories(given: Sequence[str] | None) -> dict[str, tuple[str, ...]]:
    found = (_pair(text, "--category") for text in given or [])
    return {name: tuple(part.strip() for part in value.split(",")) for name, value in found}


def _limit(text: str) -> tuple[str, tuple[float, float]]:
    name, value = _pair(text, "--limit")
    low, colon, high = value.partition(":")
    try:
        if not colon:
            raise ValueError("no colon")
        return name, (float(low), float(high))
    except ValueError:
        raise DelianError(f"--limit {text}: this is not COLUMN=LOW:HIGH", "age=0:120") from None
