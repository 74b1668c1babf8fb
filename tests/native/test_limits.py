"""What a program may ask of a machine: working memory and operations, refused beforehand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from delian.core.common.errors import VerifyError
from delian.core.compiler.backends.native.kernels import depthwise, kernels
from delian.core.compiler.ir import Block, Builder, DType, Function, Op, TensorType, Value
from delian.core.compiler.ir_codec import decode_function, encode_function
from delian.core.compiler.primitives import PRIMITIVES
from delian.core.compiler.primitives.attributes import PADDING_MAX, STRIDE_MAX
from delian.core.compiler.verify import Limits, verify
from delian.core.learning.runtime import verify_programs

F32, I64 = DType.F32, DType.I64


def named(block: Block) -> Function:
    params = tuple(f"p{i}" for i in range(len(block.params)))
    return Function("f", block, params, tuple(f"r{i}" for i in range(len(block.results))))


def padded(stride: int, padding: int) -> Block:
    """A convolution of one pixel with padding after it."""
    b = Builder([TensorType(F32, (1, 1, 1, 1))] * 2)
    edges = ((0, padding), (0, padding))
    return b.finish([b("conv", *b.params, strides=(stride, stride), padding=edges)])


def test_padding_that_takes_terabytes_is_refused_from_the_wire() -> None:
    """The result has 257 by 257 numbers, the padded image 2^48."""
    data = encode_function(named(padded(STRIDE_MAX, PADDING_MAX)))
    assert len(data) < 200
    with pytest.raises(VerifyError, match=r"'conv': takes up to \d+ bytes of working memory") as it:
        decode_function(data, Limits())
    assert "worker.memory_mib" in it.value.hint
    decode_function(encode_function(named(padded(4, 64))), Limits())


def test_working_memory_is_bounded_by_what_a_machine_gives() -> None:
    block = padded(1, 1000)
    verify(block, Limits.of_memory(64 << 20))
    with pytest.raises(VerifyError, match="at most 1048576"):
        verify(block, Limits.of_memory(1 << 20))


def convolutions(seed: int) -> Op:
    """A convolution or a gradient of any geometry, as large as the limits on tensors allow."""
    rng = np.random.default_rng(seed)

    def size(most: int) -> int:
        return int(2 ** rng.uniform(0, np.log2(most)))

    family = ("conv", "grouped_conv")[seed % 2]
    which = ("", "_input_grad", "_weight_grad")[seed // 2 % 3]
    while True:
        n, h, w, c, o = size(64), size(4096), size(4096), size(512), size(512)
        kh, kw = (size(40), size(40)) if rng.random() < 0.5 else (int(rng.choice([3, 5])),) * 2
        if rng.random() < 0.4:
            c, o = 16 * size(16), 16 * size(16)
        top, bottom, left, right = (size(2 * kh) - 1 for _ in range(4))
        sh, sw = (1, 1) if rng.random() < 0.4 else (size(2 * kh), size(2 * kw))
        oh, ow = (h + top + bottom - kh) // sh + 1, (w + left + right - kw) // sw + 1
        each, o = (1, c) if family == "grouped_conv" else (c, o)
        x, k, y = (n, h, w, c), (kh, kw, each, o), (n, oh, ow, o)
        good = h + top + bottom >= kh and w + left + right >= kw
        if good and max(map(np.prod, (x, k, y))) <= 2**28:
            break
    attrs: dict[str, Any] = {"strides": (sh, sw), "padding": ((top, bottom), (left, right))}
    if family == "grouped_conv":
        attrs["groups"] = c
    shapes = {"": (x, k), "_input_grad": (y, k), "_weight_grad": (x, y)}[which]
    more = {
        "": {},
        "_input_grad": {"input_size": (h, w)},
        "_weight_grad": {"kernel_size": (kh, kw)},
    }
    b = Builder([TensorType(F32, s) for s in shapes])
    b(family + which, *b.params, **attrs, **more[which])
    return b.ops[0]


#: The sizes of blocks of tiles, which do not depend on the operands'.
_FIXED = 2**24


@pytest.mark.parametrize("tiles", [True, False])
def test_a_rows_working_memory_is_at_least_what_kernels_take(tiles: bool) -> None:
    for seed in range(600):
        op = convolutions(seed)
        call: Any = SimpleNamespace(op=op, operands=op.operands, taken=False)
        if op.name.startswith("grouped"):
            taken = depthwise.scratch_bytes(call)
        else:
            taken = 4 * kernels._conv_scratch(call, tiles)
        rule = PRIMITIVES[op.name].workspace
        assert rule is not None
        assert taken <= rule(op) + _FIXED, (op.name, [v.shape for v in op.operands], op.attrs)


def counted(lo: int, hi: int, nested: int = 0) -> Block:
    """A loop of constant bounds that adds to one number, perhaps around others."""
    b = Builder([TensorType(F32)])
    body = Builder([TensorType(I64), TensorType(F32)])
    x = body.params[1]
    if nested:
        x = body.inline(counted(lo, hi, nested - 1), [x])[0]
    region = body.finish([body("add", x, x)])
    bounds = b.constant(lo, I64), b.constant(hi, I64)
    return b.finish(b.emit("for", (*bounds, b.params[0]), {"consts": 0}, (region,)))


def switched(count: int) -> Block:
    b = Builder([TensorType(I64), TensorType(F32, (100,))])
    cases = []
    for _ in range(count):
        case = Builder([TensorType(F32, (100,))])
        cases.append(case.finish([case("exp", case.params[0])]))
    return b.finish(b.emit("switch", b.params, {}, cases))


def multiplied(m: int, n: int, k: int) -> Block:
    b = Builder([TensorType(F32, (m, k)), TensorType(F32, (k, n))])
    axes: dict[str, Any] = {"contract_a": (1,), "contract_b": (0,), "batch_a": (), "batch_b": ()}
    return b.finish([b("dot", *b.params, **axes)])


@pytest.mark.parametrize(
    ("make", "fits", "too_many"),
    [
        (lambda n: counted(0, n), 100, 2**62),
        (lambda n: counted(-n, 0), 100, 2**62),
        (lambda n: counted(0, n, nested=5), 3, 1000),
        (lambda n: multiplied(n, n, n), 64, 2**10),
        # Nothing is summed, and the loops around it run all the same.
        (lambda n: multiplied(n, n, 0), 64, 2**14),
        (lambda n: padded(1, n), 100, 2**12),
    ],
)
def test_operations_of_a_call_are_bounded(
    make: Callable[[int], Block], fits: int, too_many: int
) -> None:
    limits = Limits(operations_max=10**6, working_bytes_max=2**40)
    decode_function(encode_function(named(make(fits))), limits)
    with pytest.raises(
        VerifyError, match=r"a call does \d+ operations up to here; at most 1000000"
    ):
        decode_function(encode_function(named(make(too_many))), limits)


def test_a_branch_counts_as_its_longest_case() -> None:
    verify(switched(50), Limits(operations_max=1002))
    with pytest.raises(VerifyError, match="operations up to here"):
        verify(switched(1), Limits(operations_max=1000))


def test_a_compiled_program_that_needs_more_than_a_machine_gives_is_refused_uncalled() -> None:
    function = named(padded(1, 1000))
    programs: Mapping[str, Any] = {
        "f": SimpleNamespace(function=function, report=SimpleNamespace(arena_bytes=5 << 20))
    }
    verify_programs(programs, Limits.of_memory(5 << 20))
    with pytest.raises(VerifyError, match=r"f: needs 5242880 bytes of working memory.* of conv"):
        verify_programs(programs, Limits.of_memory(4 << 20))


def test_the_limits_of_a_machine_follow_from_its_memory() -> None:
    limits = Limits.of_memory(256 << 20, 10**9)
    assert limits.working_bytes_max == limits.tensor_bytes_max == 256 << 20
    assert limits.block_bytes_max == 2 << 30 and limits.operations_max == 10**9
    assert Limits.of_memory(64 << 30).tensor_bytes_max == Limits().tensor_bytes_max
    assert replace(limits, rank_max=3).rank_max == 3
    assert Value(TensorType(F32)).shape == ()
