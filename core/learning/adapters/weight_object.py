"""What objects that stand in the place of a frozen weight have in common."""

from __future__ import annotations

from ...compiler.ir import Tensor


class WeightObject:
    """Stands where the weight `base` stood: layers ask for its shape, and write `x @ weight`.

    A subclass is a module with a field `base` and a method `__rmatmul__`.
    """

    base: Tensor

    #: NumPy leaves `array @ weight` to `__rmatmul__`.
    __array_ufunc__ = None

    @property
    def shape(self) -> tuple[int, ...]:
        """That of the weight."""
        found: tuple[int, ...] = self.base.shape
        return found

    @property
    def ndim(self) -> int:
        """That of the weight."""
        return len(self.base.shape)
