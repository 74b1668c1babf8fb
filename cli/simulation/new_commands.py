"""`delian new`: a small project of one's own, from a template."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ...core.common.errors import DelianError
from ..options import AsJson
from ..output import tell, write_out

TEMPLATES = Path(__file__).parent / "templates"
#: A file of a template has this behind its name.
SUFFIX = ".in"
#: Names of projects, which become those of scenarios.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
#: A federation's name is part of certificates.
_FEDERATION = re.compile(r"[^a-z0-9-]+")


class Template(StrEnum):
    """What a project begins with."""

    numpy = "numpy"
    tabular = "tabular"
    text = "text"
    fleet = "fleet"


def new(
    folder: Annotated[Path, typer.Argument(metavar="NAME", help="The project's folder.")],
    template: Annotated[
        Template,
        typer.Option(
            help="numpy: a model of your own. tabular: a table. text: a next-character model."
            " fleet: a real fleet on one machine."
        ),
    ] = Template.tabular,
    as_json: AsJson = False,
) -> None:
    """Make a small project: a scenario, data to replace, a test, and a README with its commands."""
    name = folder.absolute().name
    if not NAME.fullmatch(name):
        raise DelianError(
            f"`{name}` is no name of a project",
            "it has letters, digits, `-`, `_` and `.`, and begins with one of the first two:"
            " delian new my-project",
        )
    try:
        there = folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
        if not there:
            folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DelianError(
            f"cannot make the folder {folder}: {error.strerror}", "name another folder"
        ) from None
    if there:
        raise DelianError(
            f"{folder} is there already, and is not empty", f"name another: delian new {name}-2"
        )
    federation = _FEDERATION.sub("-", name.lower()).strip("-") or "demo"
    files = []
    for source in sorted((TEMPLATES / template.value).glob(f"*{SUFFIX}")):
        target = folder / source.name.removesuffix(SUFFIX)
        text = source.read_text(encoding="utf-8")
        write_out(target, text.replace("@NAME@", name).replace("@FEDERATION@", federation))
        files.append(str(target))
    facts = {"folder": str(folder), "template": template.value, "files": files}

    def lines() -> list[str]:
        return [
            f"{folder}: {', '.join(Path(file).name for file in files)}",
            "next:",
            f"  cd {folder}",
            "  python make_data.py",
            "  delian simulate scenario.toml --out run",
            "README.md has the rest",
        ]

    tell(facts, as_json, lines)
