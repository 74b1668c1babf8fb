"""Back ends: what runs a program. `reference` is NumPy, slow and plain; `native` is generated C."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol, TypeAlias

from ..ir import Array, Function
from .reference import ReferenceProgram

Backend: TypeAlias = Literal["native", "reference"]


class Executable(Protocol):
    """A program ready to run. It may be called from many threads at once."""

    @property
    def function(self) -> Function: ...

    def __call__(self, *args: Array, out: Sequence[Array] | None = None) -> tuple[Array, ...]: ...


def compile_function(function: Function, backend: Backend) -> Executable:
    return compile_module({function.name: function}, backend)[function.name]


def compile_module(functions: Mapping[str, Function], backend: Backend) -> Mapping[str, Executable]:
    return {name: ReferenceProgram(f) for name, f in functions.items()}
