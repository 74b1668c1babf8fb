"""The sanitizer harness: it covers every primitive and every header, and finds planted errors."""

from __future__ import annotations

import contextlib
import itertools
from pathlib import Path
from typing import Any

import delian.core.compiler.backends.native as native
import pytest
from delian.core.compiler.primitives import PRIMITIVES
from hostile import build, geometry, mutants, search

#: What .ci/run draws: each variant once.
FILES = 6
#: Programs of a file where one error is looked for.
TOGETHER = 24


@pytest.fixture
def compiler() -> str:
    found = build.compiler()
    if found is None:
        pytest.skip("no C compiler with AddressSanitizer here")
    return found


def test_programs_of_every_primitive_are_drawn() -> None:
    assert set(geometry.MAKERS) == set(PRIMITIVES)


def test_the_programs_of_the_short_run_need_every_header_and_every_primitive() -> None:
    here = {path.name for path in (Path(native.__file__).parent / "c").glob("*.h")}
    headers: set[str] = set()
    primitives: set[str] = set()
    for batch in itertools.islice(search.units(list(geometry.MAKERS), 1), FILES):
        headers |= build.written(batch.functions, batch.variant).headers
        for function in batch.functions.values():
            primitives |= {op.name for op in function.body.walk()}
    assert headers == here
    assert primitives == set(PRIMITIVES)


def test_a_program_follows_from_its_primitive_and_a_seed() -> None:
    one, two = (str(geometry.draw("grouped_conv", 3)) for _ in range(2))
    assert one == two != str(geometry.draw("grouped_conv", 4))


@pytest.mark.slow
def test_a_file_of_programs_passes(compiler: str) -> None:
    found = search.Found()
    search.tried(next(search.units(list(geometry.MAKERS), 2)), compiler, found)
    assert not found.findings and found.programs == search.TOGETHER


@pytest.mark.parametrize(
    "mutant",
    [
        # One in the gate: its programs are small.
        pytest.param(m, id=m.name, marks=[] if "clamped" in m.name else pytest.mark.slow)
        for m in mutants.MUTANTS
    ],
)
def test_a_planted_error_is_found(mutant: Any, compiler: str) -> None:
    found = search.Found()
    with mutant.where() if mutant.where else contextlib.nullcontext():
        for batch in search.units(list(mutant.primitives), 1, TOGETHER):
            search.tried(batch, compiler, found, mutant.text)
            if found.findings:
                break
            assert found.units < FILES, "not found"
    assert found.findings


def test_every_header_says_what_bounds_its_indices() -> None:
    for path in (Path(native.__file__).parent / "c").glob("*.h"):
        head = path.read_text(encoding="utf-8").split("*/", 1)[0]
        says = ("Bounds: ", "No memory is touched", "reads and writes nothing")
        assert any(text in head for text in says), path.name
