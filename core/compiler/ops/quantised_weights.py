"""Frozen weights in few bits, as factors of products: `x @ weight`, and its gradient by `x`.

    weight = dl.quantise_weight(w, "i8")        # once, in plain Python
    y = x @ weight                              # in a layer, compiled or not

The value is that of the product with the weight's numbers in f32. Natively these are computed while
the product packs them (`passes.schedule.expanded_operands`), forwards and backwards: what is held
are codes and scales. The weight itself is a constant, with a derivative of zero.

    bf16   the upper half of an f32: 8 significant bits
    i8     codes of -127 to 127, and a scale an output
    i4     codes of -8 to 7, two a byte, and a scale for each `group` inputs of an output

Codes are stored output by output, as f32[outputs, inputs] would be. A group of 4-bit codes lies in
halves, as in llama.cpp's Q4_0: its byte b has the code of input b in its low bits, and the code of
input b + group / 2 in its high ones. Its scale is its number of the largest magnitude over -8, so
that this number is exact.
"""

from __future__ import annotations

import numpy as np

from ...common.errors import DelianError
from ..api import module
from ..intrinsics import stop_gradient
from ..ir import Array, DType
from ..tree import static_field

KINDS = ("bf16", "i8", "i4")
#: Inputs of an output that share a scale of 4-bit codes: 4.5 bits a number.
GROUP = 64
_GROUP_MAX = 4096
_LARGEST = 127
#: What is added to a 4-bit code of -8 to 7, the bits of one, and their mask.
_MIDDLE, _BITS, _MASK = 8, 4, 15
#: By how much the codes of a group's two halves are shifted.
_SHIFTS = np.array([[0], [_BITS]], np.int32)


@module
class QuantisedWeight:
    """A frozen matrix in few bits, made by `quantise_weight`; a factor in `x @ weight`."""

    codes: Array
    """bf16[outputs, inputs], i8[outputs, inputs], or of i4 u8[outputs, groups, group / 2]."""
    scales: Array | None
    """f32: of i8 [outputs, 1], of i4 [outputs, groups, 1]; None of bf16."""
    kind: str = static_field(default="i8")
    """One of `KINDS`."""
    shape: tuple[int, int] = static_field(default=(0, 0))
    """Rows and columns: (inputs, outputs), or of a `table` (outputs, inputs)."""
    table: bool = static_field(default=False)
    """It has an output a row, such as the vector of a symbol."""

    #: NumPy leaves `x @ weight` to `__rmatmul__`.
    __array_ufunc__ = None

    @property
    def frozen(self) -> bool:
        """True: it has no derivative."""
        return True

    @property
    def ndim(self) -> int:
        """2, as of any matrix."""
        return len(self.shape)

    @property
    def T(self) -> QuantisedWeight:
        """The transposed matrix, with the same codes: a tied head is its embedding's table."""
        shape = (self.shape[1], self.shape[0])
        return QuantisedWeight(self.codes, self.scales, self.kind, shape, not self.table)

    def __rmatmul__(self, x: Array) -> Array:
        """x @ weight: f32[..., rows] -> f32[..., columns]; ValueError for another last axis."""
        if x.ndim == 0 or x.shape[-1] != self.shape[0]:
            raise ValueError(
                f"x @ weight takes x [..., {self.shape[0]}] for a weight of shape "
                f"{list(self.shape)}, not shape {list(x.shape)}"
            )
        return x @ self.expanded()

    def __getitem__(self, places: Array) -> Array:
        """Rows of a table, such as embeddings: integers [...] -> f32[..., columns]."""
        if not self.table:
            raise ValueError("rows are read from a table, such as dl.quantise_weight(table.T).T")
        scales = None if self.scales is None else self.scales[places]
        return _numbers(self.codes[places], scales, self.kind, self.shape[1])

    def expanded(self) -> Array:
        """The matrix in f32. Natively it is not stored where only products read it."""
        inputs = self.shape[1] if self.table else self.shape[0]
        made = _numbers(self.codes, self.scales, self.kind, inputs)
        return made if self.table else np.transpose(made)


def _numbers(codes: Array, scales: Array | None, kind: str, inputs: int) -> Array:
    """Codes and scales of outputs [...] as f32[..., inputs], constants."""
    if scales is None:
        return stop_gradient(codes.astype(np.float32))
    scales = stop_gradient(scales)
    if kind == "i8":
        return codes.astype(np.float32) * scales
    outputs, (groups, half) = codes.shape[:-2], codes.shape[-2:]
    pairs = np.broadcast_to(codes[..., None, :], (*outputs, groups, 2, half)).astype(np.int32)
    signed = ((pairs >> _SHIFTS) & _MASK) - _MIDDLE
    made = signed.astype(np.float32) * scales[..., None]
    return made.reshape((*outputs, groups * 2 * half))[..., :inputs]


def quantise_weight(weight: Array, kind: str = "i8", group: int = GROUP) -> QuantisedWeight:
    """A frozen weight in few bits, in plain Python: f32[inputs, outputs].

    Args:
        weight: any floats that are finite in f32.
        kind: "bf16" (needs ml_dtypes), "i8" or "i4". Of i8 the error of a number is at most 1/254
            of its output's largest magnitude, of i4 1/8 of its group's.
        group: of i4, the inputs that share a scale, an even number. Inputs that fill no group are
            followed by zeros.

    Raises:
        DelianError: the weight is no matrix of finite floats, or the kind or the group is unknown.
    """
    found = np.asarray(weight)
    if found.ndim != 2 or 0 in found.shape:
        raise DelianError(
            f"quantise_weight takes a matrix [inputs, outputs], not shape {list(found.shape)}",
            "biases, norms and other vectors stay in f32",
        )
    if not DType.of(found.dtype).is_float:
        raise DelianError(f"quantise_weight takes floats, not {found.dtype}")
    if kind not in KINDS:
        raise DelianError(f"quantise_weight: unknown kind {kind!r}", f"one of {', '.join(KINDS)}")
    by_output = np.ascontiguousarray(found.T, dtype=np.float32)
    if not np.isfinite(by_output).all():
        raise DelianError("quantise_weight: the weight has numbers that are not finite in f32")
    shape = (found.shape[0], found.shape[1])
    if kind == "bf16":
        return QuantisedWeight(by_output.astype(DType.BF16.numpy), None, kind, shape)
    if kind == "i8":
        return QuantisedWeight(*_bytes(by_output), kind, shape)
    if type(group) is not int or group % 2 or not 2 <= group <= _GROUP_MAX:
        raise DelianError(
            f"quantise_weight: a group of {group} inputs", f"an even number from 2 to {_GROUP_MAX}"
        )
    return QuantisedWeight(*_nibbles(by_output, group), kind, shape)


def _bytes(weight: Array) -> tuple[Array, Array]:
    largest = np.abs(weight).max(axis=1, keepdims=True)
    scales = np.where(largest == 0, np.float32(1), largest / np.float32(_LARGEST))
    return np.rint(weight / scales).astype(np.int8), scales.astype(np.float32)


def _nibbles(weight: Array, group: int) -> tuple[Array, Array]:
    outputs, inputs = weight.shape
    groups = -(-inputs // group)
    padded = np.zeros((outputs, groups * group), np.float32)
    padded[:, :inputs] = weight
    padded = padded.reshape(outputs, groups, group)
    place = np.abs(padded).argmax(axis=2)[..., None]
    scales = np.take_along_axis(padded, place, axis=2) / np.float32(-_MIDDLE)
    scales = np.where(scales == 0, np.float32(1), scales)
    codes = np.clip(np.rint(padded / scales) + _MIDDLE, 0, _MASK).astype(np.uint8)
    half = group // 2
    return codes[..., :half] | codes[..., half:] << _BITS, scales.astype(np.float32)
