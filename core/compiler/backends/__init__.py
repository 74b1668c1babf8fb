"""Back ends: ways to run a program.

`reference` runs it with NumPy, an operation at a time. `native` compiles it to machine code through
C; where there is no C compiler it says so once and runs the reference instead. `torch:cpu`,
`torch:cuda` and `torch:npu` run it with PyTorch, and take switches (`torch.options`).
"""

from __future__ import annotations

import functools
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias

from ...common.errors import DelianError
from ..ir import Array, Function

if TYPE_CHECKING:
    from ..passes.number_profiles import Profile

#: "native", "reference", or a name that begins with "torch:".
Backend: TypeAlias = str
TORCH = "torch:"


class Executable(Protocol):
    """A function that can be called, from several threads at once, on NumPy arrays.

    It checks the element types and shapes of its arguments and raises DelianError. `out` are
    C-contiguous arrays for the results to be written into; they are then what is returned.
    """

    @property
    def function(self) -> Function: ...

    def __call__(self, *args: Array, out: Sequence[Array] | None = None) -> tuple[Array, ...]: ...


def compile_function(
    function: Function,
    backend: Backend = "native",
    profile: Profile = "fast",
    threads: int | None = None,
) -> Executable:
    """A function ready to be called, its arithmetic as the profile says (`passes.profiles`).

    threads: how many a call may use natively, itself included; $DELIAN_THREADS or 1 when it is not
    given. Results are the same bit for bit. Raises DelianError when the back end is unknown or
    fails, or the profile refuses the function.
    """
    return compile_module({function.name: function}, backend, profile, threads)[function.name]


def compile_module(
    functions: Mapping[str, Function],
    backend: Backend = "native",
    profile: Profile = "fast",
    threads: int | None = None,
) -> Mapping[str, Executable]:
    """Several functions ready to be called; natively they are one C file and one shared object."""
    if profile != "fast":
        from ..passes.number_profiles import in_profile

        functions = {name: in_profile(f, profile) for name, f in functions.items()}
    if backend == "native":
        from .native.program import compile_native
        from .native.toolchain.toolchain import find

        toolchain = find()
        if toolchain is not None:
            return compile_native(functions, toolchain, profile != "fast", threads)
        _warn_once()
    elif backend.startswith(TORCH):
        check(backend)
        from .torch.torch_program import compile_torch

        return compile_torch(functions, backend)
    else:
        check(backend)
    from .reference import ReferenceProgram

    return {name: ReferenceProgram(function) for name, function in functions.items()}


def check(backend: Backend) -> None:
    """Raises DelianError when there is no such back end, or its package is not installed."""
    if backend.startswith(TORCH):
        from .torch.torch_options import parse

        parse(backend)
        if importlib.util.find_spec("torch") is None:
            raise DelianError(
                f"the back end {backend!r} needs PyTorch, which is not installed",
                "install delian[torch]",
            )
    elif backend not in ("native", "reference"):
        raise DelianError(
            f"there is no back end {backend!r}",
            'the back ends are "native", "reference", "torch:cpu", "torch:cuda" and "torch:npu"',
        )


@functools.cache
def _warn_once() -> None:
    print(
        "delian: no C compiler (cc, gcc, clang or the extra delian[compile]) was found:"
        " programs run on NumPy, much slower",
        file=sys.stderr,
    )
