"""Study files: methods, budgets, targets and disturbances for `delian study`.

A file names a scenario and what is to be compared in it; every run is the scenario with settings,
as `--set` has them. Units come last in names.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError, model_validator

from ...core.common.errors import DelianError
from ..scenario.scenario_keys import markdown, reference_of
from ..scenario.settings_table import FileTable, Table, conflict

BUNDLED = Path(__file__).parent / "studies"
STUDY_BYTES_MAX = 1 << 20
PROBLEMS_SHOWN_MAX = 5
SEEDS_MAX = 1000

Name = Annotated[str, Field(min_length=1, max_length=40)]
Settings = Annotated[
    tuple[Annotated[str, Field(max_length=1000)], ...], Field(strict=False, max_length=64)
]
Limits = Annotated[
    tuple[Annotated[float, Field(gt=0.0, le=1e12)], ...], Field(strict=False, max_length=8)
]


class Method(Table):
    """One method: an algorithm of the scenario, with settings."""

    name: Name
    """What tables and figures call it."""
    algorithm: str = ""
    """An algorithm, as `--algorithm` takes it. Empty: the scenario's."""
    settings: Settings = ()
    """KEY=VALUE, as `--set` takes it."""


class Disturbance(Table):
    """What is made worse, for all methods."""

    name: Name
    """What tables and figures call it."""
    settings: Settings
    """KEY=VALUE, as `--set` takes it."""


class Budgets(Table):
    """What may be spent: quality is that of the best round until then."""

    seconds: Limits = ()
    """Virtual time of the rounds."""
    megabytes: Limits = ()
    """What all devices send and receive, in millions of bytes."""
    joules: Limits = ()
    """Energy of all devices."""

    def limits(self) -> Iterator[tuple[str, float]]:
        """The cost that is limited, as curves have it, and the limit."""
        yield from (("seconds", limit) for limit in self.seconds)
        yield from (("bytes", limit * 1e6) for limit in self.megabytes)
        yield from (("joules", limit) for limit in self.joules)


class StudyFile(FileTable):
    """A study: the same scenario by several methods, under budgets, to targets, and disturbed."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")
    """Names the study in reports and folders."""
    description: str = Field(default="", max_length=2000)
    """One or two sentences for the report."""
    scenario: str
    """A bundled scenario, or a file from the study's folder."""
    seeds: int = Field(default=3, ge=1, le=SEEDS_MAX)
    """Runs of each: seeds 1 to so many."""
    quality: Literal["shared", "personal"] = "shared"
    """Which models are judged: the one that all devices have, or those that they made their own."""
    settings: Settings = ()
    """KEY=VALUE for all runs."""
    targets: Limits = ()
    """Accuracies, or errors, to which costs are counted."""
    methods: list[Method] = Field(min_length=1, max_length=12)
    """What is compared."""
    budgets: Budgets = Budgets.model_construct()
    """What may be spent."""
    disturbances: list[Disturbance] = Field(default=[], max_length=12)
    """What is made worse, one at a time."""

    @model_validator(mode="after")
    def _names_differ(self) -> StudyFile:
        for key in ("methods", "disturbances"):
            names = [each.name for each in getattr(self, key)]
            if len(set(names)) != len(names):
                raise conflict(key, "a name is there twice", "give each a name of its own")
        return self

    @property
    def source(self) -> str:
        """The scenario's file, from the study's folder where there is one, or its bundled name."""
        file = self.folder / self.scenario
        return str(file) if file.is_file() else self.scenario


def bundled() -> dict[str, Path]:
    """The studies that come with Delian, by name."""
    return {path.stem: path for path in sorted(BUNDLED.glob("*.toml"))}


def load_study(source: str | Path) -> StudyFile:
    """The study of a file, or the bundled one of that name. Raises DelianError."""
    path = Path(source)
    if not path.is_file():
        known = bundled()
        if str(source) not in known:
            raise DelianError(
                f"there is no study file {source}", f"bundled studies: {', '.join(known)}"
            )
        path = known[str(source)]
    try:
        if path.stat().st_size > STUDY_BYTES_MAX:
            raise DelianError(f"{path} is larger than a study can be")
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
        return StudyFile.model_validate(raw).placed_in(path.parent)
    except ValidationError as error:
        raise DelianError(
            f"{path}: {_problems(error)}", "docs/scenarios.md lists the keys"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise DelianError(f"{path}: {error}", "a study is a TOML file") from None


def _problems(error: ValidationError) -> str:
    shown: Sequence[str] = [
        f"`{'.'.join(map(str, one['loc'])) or 'the file'}`: {one['msg']}"
        for one in error.errors(include_url=False)[:PROBLEMS_SHOWN_MAX]
    ]
    return "; ".join(shown)


def study_keys() -> str:
    """The keys of study files, for docs/scenarios.md."""
    keys = markdown(reference_of(StudyFile))
    return keys.replace("### At the top", "## Keys of study files", 1)
