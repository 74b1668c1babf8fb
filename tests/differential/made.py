"""What random programs on tensors are made of."""

from __future__ import annotations

from dataclasses import dataclass

from delian.core.compiler.ir import DType, Value


@dataclass
class Made:
    """A value, and a number that no element's magnitude exceeds, if it is a float."""

    value: Value
    bound: float

    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.shape

    @property
    def dtype(self) -> DType:
        return self.value.dtype


class Nothing(Exception):
    """There is nothing that a step could do."""
