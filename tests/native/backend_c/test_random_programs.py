"""Random programs of every kind, compiled, give what the reference gives (`core/differential`)."""

from __future__ import annotations

import shutil
from types import ModuleType

import pytest
from delian.core.compiler.backends.native import program
from delian.core.compiler.backends.native.toolchain.toolchain import Toolchain, find

#: Programs of each kind in an ordinary run, and how many files more in a slow one.
USUAL = {"tensors": 12, "convolutions": 4, "models": 2}
FILES = 7


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


def test_what_is_judged_leaves_no_memory_that_is_watched(
    differential: ModuleType, toolchain: Toolchain
) -> None:
    made = differential.cases("tensors", [0])
    with differential.eager_lowering():
        differential.judged(made, toolchain, strict=False)
    for size in (1 << k for k in range(21)):
        begin = program._thread.arena(size)
        memory = program._thread.memory
        assert begin + size <= memory.ctypes.data + memory.size, size


@pytest.mark.slow
@pytest.mark.parametrize("file", range(1, FILES + 1))
@pytest.mark.parametrize("kind", USUAL)
def test_more_random_programs_give_what_the_reference_gives(
    differential: ModuleType, toolchain: Toolchain, kind: str, file: int
) -> None:
    check(differential, toolchain, kind, file * USUAL[kind])


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("gcc") is None, reason="its options are GCC's")
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        *((kind, options) for kind in USUAL for options in ("-mno-avx512f", "-mno-avx")),
        ("convolutions", "-DDL_PORTABLE"),  # others have lists, for which its caller has memory
    ],
)
def test_narrower_vectors_give_it_too(
    differential: ModuleType, kind: str, options: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DELIAN_CC", f"gcc {options}")
    narrow = find()
    assert narrow is not None
    check(differential, narrow, kind, 1000)
