"""Random programs of every kind, compiled, give what the reference gives (`core/differential`)."""

from __future__ import annotations

from types import ModuleType

import pytest
from delian.core.backends.native.toolchain import Toolchain

#: Programs of each kind in an ordinary run, and how many files more in a slow one.
USUAL = {"tensors": 24, "convolutions": 8, "models": 4}
FILES = 8


def check(differential: ModuleType, toolchain: Toolchain, kind: str, first: int) -> None:
    made = differential.cases(kind, range(first, first + USUAL[kind]))
    with differential.eager_lowering():
        found = differential.judged(made, toolchain, strict=True)
    assert not found, "\n".join(map(str, found))


@pytest.mark.parametrize("kind", USUAL)
def test_random_programs_give_what_the_reference_gives(
    differential: ModuleType, toolchain: Toolchain, kind: str
) -> None:
    check(differential, toolchain, kind, 0)


@pytest.mark.slow
@pytest.mark.parametrize("file", range(1, FILES + 1))
@pytest.mark.parametrize("kind", USUAL)
def test_more_random_programs_give_what_the_reference_gives(
    differential: ModuleType, toolchain: Toolchain, kind: str, file: int
) -> None:
    check(differential, toolchain, kind, file * USUAL[kind])
