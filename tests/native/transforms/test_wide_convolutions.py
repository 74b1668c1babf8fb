"""Convolutions over lanes whose kernels differ, as groups and as patches, against the lanes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from delian.core.compiler.backends.reference import run_block
from delian.core.compiler.ir import Block, Builder, DType, TensorType
from delian.core.compiler.transforms.vmap import Manner, vmap
from delian.core.compiler.transforms.wide import GROUPED, PATCHES
from delian.core.compiler.verify import verify

LANES = 3
RULES = pytest.mark.parametrize("rules", [GROUPED, PATCHES], ids=["grouped", "patches"])

#: Input, kernel, strides, padding.
SHAPES: list[tuple[tuple[int, ...], tuple[int, ...], Any, Any]] = [
    ((2, 6, 5, 3), (3, 3, 3, 4), (1, 1), ((1, 1), (1, 1))),
    ((2, 6, 5, 3), (3, 2, 3, 4), (1, 1), ((0, 0), (0, 0))),
    ((2, 7, 8, 2), (3, 3, 2, 4), (2, 3), ((1, 0), (0, 2))),
    ((1, 4, 4, 2), (1, 1, 2, 3), (1, 1), ((0, 0), (0, 0))),
    ((1, 4, 4, 2), (1, 2, 2, 3), (2, 2), ((2, 0), (0, 3))),  # edges wider than the kernel
]


def programs(x: Any, k: Any, strides: Any, padding: Any) -> list[tuple[Block, list[Any]]]:
    rng = np.random.default_rng(4)
    attrs = {"strides": strides, "padding": padding}
    b = Builder([TensorType(DType.F64, x), TensorType(DType.F64, k)])
    block = b.finish([b("conv", *b.params, **attrs)])
    y = block.results[0].shape
    arrays = {"x": x, "k": k, "y": y}
    made = {name: rng.normal(size=(LANES, *shape)) for name, shape in arrays.items()}
    out = [(block, [made["x"], made["k"]])]
    for name, first, second, size in (
        ("conv_input_grad", "y", "k", {"input_size": x[1:3]}),
        ("conv_weight_grad", "x", "y", {"kernel_size": k[:2]}),
    ):
        b = Builder([TensorType(DType.F64, arrays[n]) for n in (first, second)])
        out.append((b.finish([b(name, *b.params, **attrs, **size)]), [made[first], made[second]]))
    return out


@RULES
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "x".join(map(str, (*s[0], *s[1]))))
@pytest.mark.parametrize("flags", [(True, True), (False, True), (True, False)])
def test_lanes_give_what_each_gives_alone(rules: Any, shape: Any, flags: Any) -> None:
    for block, args in programs(*shape):
        given = [a if f else a[0] for a, f in zip(args, flags, strict=True)]
        wide, _ = vmap(block, flags, LANES, Manner(rules=rules))
        verify(wide)
        assert not any(op.name == "for" for op in wide.walk())
        (found,) = run_block(wide, given)
        for lane in range(LANES):
            own = [a[lane] if f else a for a, f in zip(given, flags, strict=True)]
            np.testing.assert_allclose(found[lane], run_block(block, own)[0], atol=1e-12)


def test_what_is_never_differentiated_runs_on_its_own_values() -> None:
    """A lane that has left a loop divides by zero, and nothing comes of it."""
    number = TensorType(DType.F64)
    body = Builder([TensorType(DType.I64), number])
    one = body.constant(1, DType.F64)
    less = body("sub", body.params[1], one)
    inner = body.finish([body("div", less, less)])
    b = Builder([TensorType(DType.I64), number])
    block = b.finish(b.emit("for", [b.constant(0, DType.I64), *b.params], {"consts": 0}, [inner]))
    args = [np.array([0, 1, 1]), np.array([1.0, 3.0, 2.5])]
    plain, _ = vmap(block, [True, True], LANES)
    last, _ = vmap(block, [True, True], LANES, Manner(last=True))
    with np.errstate(all="ignore"):
        assert run_block(last, args)[0].tolist() == run_block(plain, args)[0].tolist() == [1, 1, 1]
    assert len(list(last.walk())) < len(list(plain.walk()))
