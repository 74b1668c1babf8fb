"""What the tests of `delian.ops` share: many functions in one comparison with torch.

A case says the same thing twice, in delian and in torch. Eagerly, compiled by the reference back
end, and (gradients too) as one program, delian must give torch's numbers in f64; natively, all
cases of a file are one C file, and give in f32 what f64 gives.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import delian as dl
import numpy as np
import pytest
from delian.core.compiler.backends import compile_module
from delian.core.compiler.backends.reference import ReferenceProgram
from delian.core.compiler.frontend import trace
from delian.core.compiler.ir import Function
from delian.core.compiler.verify import verify

#: Of f64 worked out in another order.
TOLERANCE = 1e-9
#: Of f32, relative to the largest number of a result.
TOLERANCE_F32 = 2e-5


@dataclass(frozen=True)
class Case:
    """`ours` and `theirs` of the same arguments, arrays and tensors, give one array or tensor.

    Floats are differentiated by.
    """

    name: str
    ours: Callable[..., Any]
    theirs: Callable[..., Any]
    args: tuple[Any, ...]

    @property
    def moving(self) -> tuple[int, ...]:
        return tuple(k for k, a in enumerate(self.args) if a.dtype.kind == "f")

    def weights(self, shape: tuple[int, ...]) -> Any:
        """What the result is weighed by, so that its gradient is that of one number."""
        rng = np.random.default_rng(zlib.crc32(self.name.encode()))
        return rng.uniform(0.5, 1.5, shape)

    def whole(self, shape: tuple[int, ...]) -> Callable[..., Any]:
        """The result and the gradients of its weighed sum, as one program."""
        weights = self.weights(shape)

        def weighed(*args: Any) -> Any:
            result = self.ours(*args)
            return np.sum(result * weights.astype(result.dtype)), result

        def run(*args: Any) -> Any:
            (_, result), slopes = dl.value_and_grad(weighed, self.moving, has_aux=True)(*args)
            return result, slopes

        return run if self.moving else lambda *args: (self.ours(*args), ())


def judged(case: Case, torch: Any) -> list[Any]:
    """Torch's result and gradients."""
    leaves = [torch.tensor(a, requires_grad=k in case.moving) for k, a in enumerate(case.args)]
    result = case.theirs(*leaves)
    out = [result.detach().numpy()]
    if case.moving:
        (result * torch.tensor(case.weights(tuple(result.shape)))).sum().backward()
        out += [leaves[k].grad.numpy() for k in case.moving]
    return out


def narrow(a: Any) -> Any:
    return a.astype(np.float32) if a.dtype == np.float64 else a


def traced(case: Case, args: Sequence[Any], shape: tuple[int, ...]) -> Function:
    function = trace(case.whole(shape), *args).function
    verify(function)
    return function


def check_cases(cases: Sequence[Case], native: bool = True) -> None:
    """Every case by every way, natively if asked for. One C file serves them all."""
    torch = pytest.importorskip("torch", reason="torch is the judge here and is not installed")
    functions, expected = {}, {}
    for case in cases:
        with np.errstate(all="ignore"):
            eager = np.asarray(case.ours(*case.args))
        want = judged(case, torch)
        close(case, "eager", [eager], want[:1], TOLERANCE)
        got = ReferenceProgram(traced(case, case.args, want[0].shape))(*case.args)
        close(case, "compiled", got, want, TOLERANCE)
        expected[case.name] = want
    assert len(expected) == len(cases), "two cases have one name"
    if not native:
        return
    for case in cases:
        shape = expected[case.name][0].shape
        functions[case.name] = traced(case, [narrow(a) for a in case.args], shape)
    programs = compile_module(functions)
    for case in cases:
        got = programs[case.name](*[narrow(a) for a in case.args])
        close(case, "native", got, expected[case.name], TOLERANCE_F32)


def close(case: Case, way: str, got: Sequence[Any], want: Sequence[Any], tolerance: float) -> None:
    assert len(got) == len(want)
    for k, (x, y) in enumerate(zip(got, want, strict=True)):
        what = f"{case.name}, {way}, {'result' if k == 0 else f'gradient {k - 1}'}"
        assert x.shape == y.shape, what
        finite = np.abs(y[np.isfinite(y)])
        scale = max(float(finite.max(initial=0)), 1e-3)
        np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance * scale, err_msg=what)


@pytest.fixture
def check() -> Callable[..., None]:
    return check_cases


@pytest.fixture
def case() -> Callable[..., Case]:
    """Makes a case: (name, ours, theirs, *args)."""
    return lambda name, ours, theirs, *args: Case(name, ours, theirs, args)
