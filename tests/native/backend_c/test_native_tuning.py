"""Tuning: what is kept, what is used, what it does to bits."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from delian.core.compiler.backends.native.program import compile_native
from delian.core.compiler.backends.native.toolchain import tune as searching
from delian.core.compiler.backends.native.toolchain import tuning
from delian.core.compiler.backends.native.toolchain.toolchain import Toolchain
from delian.core.compiler.backends.native.toolchain.tune import example_of, tune
from delian.core.compiler.backends.native.toolchain.tuning import Tuning
from delian.core.compiler.ir import Array, Builder, DType, Function, TensorType
from delian.core.compiler.ir_codec import content_hash
from delian.core.compiler.passes.number_profiles import in_profile

K = 300  # more than the smallest panel


def product() -> Function:
    b = Builder([TensorType(DType.F32, (40, K)), TensorType(DType.F32, (K, 40))])
    x, y = b.params
    z = b("dot", x, y, contract_a=(1,), contract_b=(0,), batch_a=(), batch_b=())
    return Function("product", b.finish([z]), ("x", "y"), ("z",))


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DELIAN_CACHE", str(tmp_path))
    return tmp_path


def run(function: Function, toolchain: Toolchain, strict: bool = False) -> tuple[Array, Path]:
    program = compile_native({"product": function}, toolchain, strict)["product"]
    rng = np.random.default_rng(3)
    x, y = rng.standard_normal((2, 40 * K)).astype(np.float32)
    return program(x.reshape(40, K), y.reshape(K, 40))[0], program.report.library


def test_a_tuning_is_used_from_then_on_by_whoever_compiles_the_program(
    toolchain: Toolchain,
) -> None:
    function = product()
    plain, library = run(function, toolchain)
    flags = ("-DDL_KC=128", "-DDL_THIN=0", "-DDL_MR=4")
    tuning.write(toolchain, content_hash(function), Tuning(flags, 2.0, 1.0, 3))
    tuned, other = run(function, toolchain)
    assert library != other
    assert tuning.read(toolchain, content_hash(function)) == Tuning(flags, 2.0, 1.0, 3)
    np.testing.assert_allclose(tuned, plain, rtol=1e-5, atol=1e-4)
    assert not np.array_equal(tuned, plain), "panels decide in which order a sum is rounded"


def test_in_the_profile_reproducible_no_choice_changes_a_bit(toolchain: Toolchain) -> None:
    function = in_profile(product(), "reproducible")
    plain, library = run(function, toolchain, strict=True)
    flags = ("-DDL_KC=128", "-DDL_THIN=0", "-DDL_MR=4", "-DDL_FEW=0", "-O3", "-funroll-loops")
    tuning.write(toolchain, content_hash(function), Tuning(flags, 2.0, 1.0, 3))
    tuned, other = run(function, toolchain, strict=True)
    assert library != other
    np.testing.assert_array_equal(tuned, plain)


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", '{"flags": ["-DDL_KC=128"]}', "\x00"]
    + [
        f'{{"flags": ["{flag}"], "before_s": 1, "after_s": 1, "tried": 1}}'
        for flag in ("-DDL_KC=99999", "-DDL_OTHER=1", "-DDL_KC=1;x", "-fplugin=x.so", "@file")
    ],
)
def test_a_file_of_other_flags_is_left_out(toolchain: Toolchain, content: str) -> None:
    path = tuning.file_of(toolchain, "hash")
    path.parent.mkdir(parents=True)
    path.write_text(content)
    assert tuning.read(toolchain, "hash") is None
    assert tuning.applied(toolchain, ["hash"]) is toolchain


def test_another_compiler_or_program_has_a_tuning_of_its_own(toolchain: Toolchain) -> None:
    tuning.write(toolchain, "hash", Tuning(("-O3",), 1.0, 1.0, 1))
    other = toolchain.with_flags(("-g",))
    assert tuning.applied(other, ["hash"]) is other
    assert tuning.applied(toolchain, ["none"]) is toolchain
    assert "-O3" in tuning.applied(toolchain, ["none", "hash"]).flags


@pytest.mark.slow
@pytest.mark.parametrize("name", tuning.CHOICES)
def test_every_choice_computes_the_same(toolchain: Toolchain, name: str) -> None:
    """Products of many shapes, some followed by what their tiles go to."""
    rng = np.random.default_rng(5)
    for m, k, n in ((5, 300, 70), (40, 301, 33)):
        types = [TensorType(DType.F32, s) for s in ((m, k), (k, n), (n,))]
        b = Builder(types)
        x, y, bias = b.params
        z = b("dot", x, y, contract_a=(1,), contract_b=(0,), batch_a=(), batch_b=())
        z = b("add", z, b("broadcast", bias, shape=(m, n), dims=(1,)))
        w = b("dot", z, y, contract_a=(1,), contract_b=(1,), batch_a=(), batch_b=())
        function = Function("products", b.finish([z, w]), ("x", "y", "bias"), ("z", "w"))
        data = [rng.standard_normal(t.shape).astype(np.float32) for t in types]
        plain = compile_native({"f": function}, toolchain)["f"](*data)
        for value in tuning.CHOICES[name]:
            tuning.write(
                toolchain, content_hash(function), Tuning((f"-D{name}={value}",), 1.0, 1.0, 1)
            )
            tuned = compile_native({"f": function}, toolchain)["f"](*data)
            for got, wanted in zip(tuned, plain, strict=True):
                scale = float(np.abs(wanted).max())
                np.testing.assert_allclose(got, wanted, atol=1e-5 * scale, err_msg=f"{value}")


@pytest.mark.parametrize("interrupted", ["when nothing is better", "as the first is reported"])
def test_a_search_keeps_the_best_so_far_when_it_is_interrupted(
    toolchain: Toolchain, monkeypatch: pytest.MonkeyPatch, interrupted: str
) -> None:
    function, told = product(), []
    better = interrupted == "as the first is reported"

    def race(variants: Sequence[Any], *_: Any) -> None:
        """The last one is the fastest, or all are alike: no clock decides."""
        for place, variant in enumerate(variants):
            variant.least_s = 1.0 / (1 + place) if better else 1.0

    def say(text: str) -> None:
        told.append(text)
        if len(told) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(searching, "_race", race)
    with pytest.raises(KeyboardInterrupt):
        tune(function, toolchain, 600.0, say)
    kept = tuning.read(toolchain, content_hash(function))
    assert told[1].startswith("*") is better
    assert kept is None if not better else (kept is not None and " ".join(kept.flags) in told[1])


def test_a_search_ends_in_time_with_a_program_that_computes_the_same(
    toolchain: Toolchain, monkeypatch: pytest.MonkeyPatch
) -> None:
    function, told = product(), []
    plain, _ = run(function, toolchain)
    # A twentieth of a second goes by from look to look, however long a compiler takes here.
    looks = itertools.count()
    clock = SimpleNamespace(monotonic=lambda: next(looks) / 20, perf_counter=time.perf_counter)
    monkeypatch.setattr(searching, "time", clock)
    found = tune(function, toolchain, 1.0, told.append)
    assert 1 <= found.tried <= 10 and told[0].startswith("untuned: ")
    assert found.after_s <= found.before_s
    assert tuning.read(toolchain, content_hash(function)) == found
    np.testing.assert_allclose(run(function, toolchain)[0], plain, rtol=1e-5, atol=1e-4)


def test_what_is_faster_is_found_and_an_earlier_find_outlives_a_search_without_time(
    toolchain: Toolchain, monkeypatch: pytest.MonkeyPatch
) -> None:
    function, told, wins = product(), list[str](), ("-DDL_DIRECT=32",)
    plain = searching._compiled(function, toolchain, ())

    def race(variants: Sequence[Any], arguments: object, seconds: float) -> None:
        for variant in variants:
            variant.least_s = 0.5 if variant.flags == wins else 1.0

    monkeypatch.setattr(searching, "_race", race)
    monkeypatch.setattr(searching, "_compiled", lambda *_: plain)
    found = tune(function, toolchain, 600.0, told.append)
    assert found == Tuning(wins, 1.0, 0.5, found.tried)
    assert found.tried == len(told) - 1 == len(set(told[1:])), "none is timed twice"
    # The default, under its own name, is the untuned program.
    assert not any(text.endswith("-DDL_FEW=3") for text in told)
    monkeypatch.setattr(searching, "_neighbours", lambda flags: [])
    assert tune(function, toolchain, 0.0, told.append).flags == wins


def test_examples_are_what_programs_work_on() -> None:
    types = [(DType.F32, (7,)), (DType.U8, (12, 4)), (DType.I32, (12,)), (DType.I64, ())]
    b = Builder([TensorType(d, s) for d, s in types])
    weights, x, labels, count = example_of(
        Function("f", b.finish([b.params[0]]), tuple("wxyn"), ("w",))
    )
    assert np.abs(weights).max() < 1 and x.max() > 100 and set(labels) == {0, 1} and count == 6
