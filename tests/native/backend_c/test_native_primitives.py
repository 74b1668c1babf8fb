"""Every primitive natively, against what its oracle gives in f64."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from delian.core.compiler.backends.native.program import NativeProgram, compile_native
from delian.core.compiler.backends.native.toolchain.toolchain import Toolchain
from delian.core.compiler.ir import Block, Function
from support import primitive_cases
from support.tolerance import ACCUMULATED, ULPS

UNIT = {np.dtype(np.float32): 2.0**-23, np.dtype(np.float64): 2.0**-52}


def as_function(name: str, block: Block) -> Function:
    params = tuple(f"a{i}" for i in range(len(block.params)))
    return Function(name, block, params, tuple(f"r{i}" for i in range(len(block.results))))


@pytest.fixture(scope="session")
def programs(toolchain: Toolchain) -> Mapping[str, NativeProgram]:
    """All cases, compiled as one file."""
    table = primitive_cases.TABLE
    functions = {str(case): as_function(case.name, case.block()) for case in table}
    assert len(functions) == len(table)
    return compile_native(functions, toolchain)


def tolerances(case: Any, dtype: np.dtype[Any], expected: Any) -> tuple[float, float]:
    """Relative, and absolute for sums, whose error goes with the size of what is added."""
    if dtype not in UNIT:
        return 0, 0
    unit = UNIT[dtype]
    if dtype == np.float64:
        return 64 * unit, 64 * unit * float(
            np.max(np.abs(expected[np.isfinite(expected)]), initial=0)
        )
    if case.name in ACCUMULATED:
        finite = np.abs(expected[np.isfinite(expected)])
        return unit, ACCUMULATED[case.name] * unit * float(np.max(finite, initial=1e-30))
    return max(1, ULPS.get(case.name, 1)) * unit, 1e-29  # some oracles lose the tiniest numbers


def test_native_gives_what_the_oracle_gives(
    primitive_case: Any, programs: Mapping[str, NativeProgram]
) -> None:
    results = programs[str(primitive_case)](*primitive_case.args)
    types = [r.tensor for r in primitive_case.block().results]
    for result, expected, type_ in zip(results, primitive_case.expected(), types, strict=True):
        assert result.dtype == type_.dtype.numpy and result.shape == type_.shape
        relative, absolute = tolerances(primitive_case, result.dtype, expected)
        np.testing.assert_allclose(result, expected, rtol=relative, atol=absolute)


def test_inputs_are_left_alone_natively(
    primitive_case: Any, programs: Mapping[str, NativeProgram]
) -> None:
    args = [a.copy() for a in primitive_case.args]
    programs[str(primitive_case)](*args)
    for after, before in zip(args, primitive_case.args, strict=True):
        assert after.tobytes() == before.tobytes()
