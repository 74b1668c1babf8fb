"""The list of passes: run in order, verified after each, shown by name."""

from __future__ import annotations

import numpy as np
import pytest
from delian.core.common.errors import VerifyError
from delian.core.compiler.ir import Block, Builder, DType, Function, TensorType, Value
from delian.core.compiler.passes.pass_manager import Pass, run
from delian.core.compiler.passes.pipeline import NATIVE, PIPELINE, lowered

VECTOR = TensorType(DType.F32, (4,))


def doubled() -> Function:
    b = Builder([VECTOR])
    return Function("f", b.finish([b("add", b.params[0], b.params[0])]), ("x",), ("y",))


def returns_an_undefined_value(function: Function) -> Function:
    body = function.body
    return function.with_body(Block(body.params, body.ops, (Value(VECTOR),)))


def rebuilt(function: Function) -> Function:
    b = Builder(function.param_types)
    return function.with_body(b.finish(b.inline(function.body, b.params)))


def test_each_pass_has_one_name_and_one_line() -> None:
    names = [each.name for each in PIPELINE]
    assert len(set(names)) == len(names)
    for each in PIPELINE:
        assert each.text and "\n" not in each.text
        assert set(each.changed_by) <= set(names)


def test_an_error_names_the_pass_that_left_a_program_malformed() -> None:
    broken = Pass("break-it", returns_an_undefined_value, "Breaks a program.")
    with pytest.raises(VerifyError, match="after the pass break-it"):
        run(doubled(), [Pass("rebuild", rebuilt, "Copies a program."), broken])


def test_a_pass_that_depends_on_a_change_runs_only_after_one() -> None:
    seen = []

    def record(function: Function) -> Function:
        seen.append(function)
        return function

    same = Pass("same", lambda function: function, "Changes nothing.")
    after = Pass("record", record, "Records that it ran.", changed_by=("same", "rebuild"))
    run(doubled(), [same, after])
    assert not seen
    run(doubled(), [same, Pass("rebuild", rebuilt, "Copies a program."), after])
    assert len(seen) == 1


def test_a_run_ends_after_the_pass_that_is_asked_for() -> None:
    b = Builder([TensorType(DType.F32, (1,))])
    function = Function("f", b.finish([b("neg", b("exp", b.params[0]))]), ("x",), ("y",))
    before = run(function, NATIVE, last="rematerialize-masks")
    assert before.body is function.body
    assert str(lowered(function)) != str(before)  # tensors of one element have become scalars


def test_a_program_from_the_cache_is_not_lowered_again(monkeypatch: pytest.MonkeyPatch) -> None:
    from delian.core.compiler.backends.native.program import compile_native
    from delian.core.compiler.backends.native.toolchain.toolchain import find
    from delian.core.compiler.passes import pass_manager

    toolchain = find()
    if toolchain is None:
        pytest.skip("no C compiler")
    table = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    flags = np.arange(100) % 3 == 0

    def functions() -> dict[str, Function]:
        made = {}
        for k, value in enumerate((table, np.float64(table), flags)):
            b = Builder([TensorType.of(value)])
            y = b("xor" if value.dtype == bool else "add", b.params[0], b.constant(value))
            made[f"shift_{k}"] = Function(f"shift_{k}", b.finish([y]), ("x",), ("y",))
        return made

    compile_native(functions(), toolchain)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("lowered again")

    monkeypatch.setattr(pass_manager, "run", refuse)
    monkeypatch.setattr("delian.core.compiler.passes.pipeline.run", refuse)
    found = compile_native(functions(), toolchain)
    for value, program in zip((table, np.float64(table), ~flags), found.values(), strict=True):
        want = value ^ flags if value.dtype == bool else value + value
        np.testing.assert_array_equal(program(value)[0], want)
