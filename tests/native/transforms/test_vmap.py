"""A block over many lanes gives, lane by lane, what the block gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from delian.core.compiler.backends import compile_function
from delian.core.compiler.backends.reference import run_block
from delian.core.compiler.ir import Builder, DType, Function, TensorType
from delian.core.compiler.passes.simplify import simplify
from delian.core.compiler.transforms.jvp import jvp
from delian.core.compiler.transforms.vjp import vjp
from delian.core.compiler.transforms.vmap import vmap
from delian.core.compiler.verify import verify
from hypothesis import given, settings
from hypothesis import strategies as st

LANES = 3
F64 = TensorType(DType.F64)


def lanes_of(arg: Any, count: int = LANES) -> Any:
    """The operand, somewhat different in each lane."""
    arg = np.asarray(arg)
    if arg.dtype.kind == "f":
        return np.stack([arg * arg.dtype.type(1 + k / 8) for k in range(count)])
    return np.stack([np.roll(arg.reshape(-1), k).reshape(arg.shape) for k in range(count)])


def check(block: Any, args: list[Any], flags: list[bool], tolerance: float = 1e-12) -> Any:
    """Holds the block over lanes against the block run lane by lane; gives the former."""
    many, batched = vmap(block, flags, LANES)
    verify(many)
    results = run_block(many, args)
    for lane in range(LANES):
        own = [a[lane] if f else a for a, f in zip(args, flags, strict=True)]
        for result, flag, want in zip(results, batched, run_block(block, own), strict=True):
            have = result[lane] if flag else result
            np.testing.assert_allclose(have, want, rtol=tolerance, atol=tolerance)
    return many


def test_every_primitive_over_lanes(primitive_case: Any) -> None:
    block = primitive_case.block()
    args = list(primitive_case.args)
    tolerance = 1e-5 if any(np.asarray(a).dtype == np.float32 for a in args) else 1e-11
    count = len(args)
    patterns = {(True,) * count, *(tuple(i == k for i in range(count)) for k in range(count))}
    with np.errstate(all="ignore"):
        for flags in sorted(patterns):
            given_args = [lanes_of(a) if f else a for a, f in zip(args, flags, strict=True)]
            check(block, given_args, list(flags), tolerance)


def batched_program(program: Any, seed: int) -> tuple[list[Any], list[bool]]:
    """Arguments of a random program for each lane, at least one of them batched."""
    rng = np.random.default_rng(seed)
    flags = [bool(rng.integers(2)) for _ in program.args]
    flags[int(rng.integers(len(flags)))] = True
    args = []
    for arg, flag in zip(program.args, flags, strict=True):
        if not flag:
            args.append(arg)
        elif np.asarray(arg).dtype == np.int64:
            args.append(rng.integers(0, 5, LANES))
        else:
            args.append(rng.uniform(-2, 2, (LANES, *np.shape(arg))))
    return args, flags


def test_random_programs_over_lanes(random_programs: Any) -> None:
    @settings(max_examples=40, deadline=None)
    @given(program=random_programs.programs(steps=8), seed=st.integers(0, 999))
    def holds(program: Any, seed: int) -> None:
        args, flags = batched_program(program, seed)
        check(program.block, args, flags)

    holds()


def test_derivatives_of_random_programs_over_lanes(random_programs: Any) -> None:
    """vmap(vjp), vmap(jvp) and vjp(vmap) agree, through masked loops and branches too."""

    @settings(max_examples=25, deadline=None)
    @given(program=random_programs.programs(steps=6), seed=st.integers(0, 999))
    def holds(program: Any, seed: int) -> None:
        args, flags = batched_program(program, seed)
        block, wrt = program.block, program.wrt
        rng = np.random.default_rng(seed)
        cotangents = [rng.standard_normal((LANES, *r.shape)) for r in block.results]
        reverse = vjp(block, wrt)
        every = [*flags, *(True for _ in cotangents)]
        many = check(reverse, [*args, *cotangents], every, 1e-9)
        tangents = [rng.standard_normal((LANES, *block.params[i].shape)) for i in wrt]
        check(jvp(block, wrt), [*args, *tangents], [*flags, *(True for _ in tangents)], 1e-9)
        over, batched = vmap(block, flags, LANES)
        own = [c if f else c.sum(0) for c, f in zip(cotangents, batched, strict=True)]
        got = run_block(vjp(over, wrt), [*args, *own])[len(block.results) :]
        want = run_block(many, [*args, *cotangents])[len(block.results) :]
        kinds = vmap(reverse, every, LANES)[1][len(block.results) :]
        for i, g, w, spread in zip(wrt, got, want, kinds, strict=True):
            each = w if spread else np.broadcast_to(w, (LANES, *np.shape(w)))
            total = each if flags[i] else each.sum(0)
            np.testing.assert_allclose(g, total, rtol=1e-9, atol=1e-9)

    holds()


def loop_until(limit: float) -> Any:
    """while x < limit: x = x * x + 1."""
    cond, body = Builder([F64]), Builder([F64])
    less = cond("lt", cond.params[0], cond.constant(limit, DType.F64))
    grown = body("mul", body.params[0], body.params[0])
    grown = body("add", grown, body.constant(1.0, DType.F64))
    b = Builder([F64])
    regions = (cond.finish([less]), body.finish([grown]))
    return b.finish(b.emit("while", b.params, {"consts": 0}, regions))


@pytest.mark.parametrize("backend", ["reference", "native"])
@pytest.mark.parametrize("order", [0, 1, 2])
def test_lanes_leave_a_loop_at_different_times(order: int, backend: Any) -> None:
    block = loop_until(10.0)
    for _ in range(order):
        block = vjp(block, [0])
    args: list[Any] = [np.array([0.0, 1.0, 2.0, 11.0])]
    args += [np.ones(4) for _ in block.params[1:]]
    many, _ = vmap(block, [True] * len(args), 4)
    names = [f"p{i}" for i in range(len(args))]
    outs = tuple(f"r{i}" for i in range(len(many.results)))
    function = Function("loop", simplify(many), tuple(names), outs)
    results = compile_function(function, backend)(*args)
    for lane in range(4):
        want = run_block(block, [a[lane] for a in args])
        np.testing.assert_allclose([r[lane] for r in results], want, rtol=1e-12)


def test_nested_lanes_through_a_masked_loop() -> None:
    block = vjp(loop_until(10.0), [0])
    inner, _ = vmap(block, [True, True], 2)
    outer, _ = vmap(inner, [True, False], 3)
    verify(outer)
    x = np.array([[0.0, 1.0], [2.0, 11.0], [3.0, 0.5]])
    value, slope = run_block(outer, [x, np.ones(2)])
    for at in np.ndindex(x.shape):
        want = run_block(block, [x[at], np.array(1.0)])
        np.testing.assert_allclose([value[at], slope[at]], want, rtol=1e-12)


def guarded_sqrt() -> Any:
    """sqrt(x) if x > 0 else 0: its slope must not be NaN where x is 0 or less."""
    then, otherwise = Builder([F64]), Builder([F64])
    b = Builder([F64])
    positive = b("lt", b.constant(0.0, DType.F64), b.params[0])
    regions = (
        then.finish([then("sqrt", then.params[0])]),
        otherwise.finish([otherwise.constant(0.0, DType.F64)]),
    )
    return b.finish(b.emit("if", (positive, b.params[0]), {}, regions))


@pytest.mark.parametrize("x", [[-1.0, 0.0, 4.0], [-1.0, 0.0, -2.0], [1.0, 4.0, 9.0]])
def test_no_nan_leaks_from_a_branch_not_taken(x: list[float]) -> None:
    many, _ = vmap(guarded_sqrt(), [True], 3)
    value, slope = run_block(vjp(many, [0]), [np.array(x), np.ones(3)])
    at = np.array(x)
    assert value.tolist() == [max(v, 0) ** 0.5 for v in x]
    want = [0 if v <= 0 else 0.5 / v**0.5 for v in at.tolist()]
    assert slope.tolist() == pytest.approx(want)


def test_a_loop_that_would_not_end_on_a_lane_that_is_out_ends() -> None:
    """if x > 0: while y < 100: y = y * (1 + x); a lane with x <= 0 would loop for ever."""
    cond, body = Builder([F64, F64]), Builder([F64, F64])
    less = cond("lt", cond.params[1], cond.constant(100.0, DType.F64))
    one = body.constant(1.0, DType.F64)
    grown = body("mul", body.params[1], body("add", one, body.params[0]))
    then, otherwise = Builder([F64]), Builder([F64])
    start = then.constant(1.0, DType.F64)
    regions = (cond.finish([less]), body.finish([grown]))
    done = then.emit("while", (then.params[0], start), {"consts": 1}, regions)
    b = Builder([F64])
    positive = b("lt", b.constant(0.0, DType.F64), b.params[0])
    branches = (then.finish(done), otherwise.finish([otherwise.params[0]]))
    block = b.finish(b.emit("if", (positive, b.params[0]), {}, branches))
    many, _ = vmap(block, [True], 3)
    (result,) = run_block(many, [np.array([1.0, -0.5, 0.0])])
    assert result.tolist() == [128.0, -0.5, 0.0]


def test_what_is_the_same_in_all_lanes_is_computed_once() -> None:
    b = Builder([TensorType(DType.F64, (4,)), F64])
    shared = b("sin", b.params[0])
    wide = b("broadcast", b.params[1], shape=(4,), dims=())
    block = b.finish([b("mul", shared, wide), shared])
    many, flags = vmap(block, [False, True], LANES)
    assert flags == (True, False)
    sine = next(op for op in many.ops if op.name == "sin")
    assert sine.result.shape == (4,)


def test_wrong_lanes_are_refused() -> None:
    block = loop_until(1.0)
    with pytest.raises(ValueError, match="at least one lane"):
        vmap(block, [True], 0)
    with pytest.raises(ValueError, match="2 flags for 1"):
        vmap(block, [True, False], 2)
