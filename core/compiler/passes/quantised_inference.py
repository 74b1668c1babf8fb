"""Quantised inference: products with constant matrices and kernels in bytes.

Jacob et al. 2018, "Quantization and training of neural networks for efficient
integer-arithmetic-only inference". A tensor of bytes q stands for scale * (q - zero). Activations
are u8, their scale and zero from the range that calibration found. A weight is a signed byte and a
scale for its output channel, with no zero (symmetric). The product of the two is a sum of bytes in
i32 (`ops.quantised`), and with

    y[o] = sx sw[o] (sum_c (x[c] - zx) w[c,o]) + b[o]
         = s[o] (sum_c x[c] w[c,o]  +  B[o]),    s = sx sw,   B = round(b / s) - zx sum_c w[c,o]

the bias, and every addition and multiplication by a constant a channel that follows (a batch
normalisation with fixed statistics), is one vector of integers B and one of scales s. Going on to
the next product takes one multiplication, one rounding and a clamp, which relu is part of:

    q' = clamp(round(f32(sum + B) * f32(s / s')) + zero')

So integers are followed by one rounded product and a rounding to integers, and never by a product
and a sum that a compiler could fuse: back ends agree to the bit. Moves and maxima of bytes are
those of the numbers; a sum of two tensors (a residual connection) is done in fixed point, 16 bits
behind the point. Everything else takes numbers in f32 and gives them, and goes back to bytes where
a product wants them.

`Quantiser` walks a straight program. It is run twice: once to learn whose ranges it needs, and,
when calibration has found those, once to build.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..ir import Array, Block, Builder, DType, Op, TensorType, Value
from ..primitives import PRIMITIVES
from ..primitives.quantised import NAME, TERMS_MAX, TOGETHER, packed
from .dce import dce
from .simplify import simplify

#: The least and the largest number of a tensor, as calibration has them.
Range = tuple[float, float]

BYTE_MAX = 255
WEIGHT_MAX = 127
#: Bits behind the point of a residual sum.
_POINT = 16
#: A ratio of scales that fixed point has room for: beyond it, the sum is done in f32.
_RATIO_MAX = 32.0
#: Constants of more numbers are not worked out while a program is quantised.
_KNOWN_MAX = 1 << 24
_MOVES = ("reshape", "transpose", "slice", "reverse", "reduce_max")


@dataclass(frozen=True, slots=True)
class Scale:
    """What bytes stand for: scale * (byte - zero)."""

    scale: float
    zero: int

    @classmethod
    def of(cls, range: Range) -> Scale:
        """The finest that holds a range and zero itself exactly."""
        low, high = min(range[0], 0.0), max(range[1], 0.0)
        scale = float(np.float32(max(high - low, 1e-12) / BYTE_MAX))
        return cls(scale, round(-low / scale))


@dataclass(frozen=True, slots=True)
class _Bytes:
    """A tensor as bytes."""

    value: Value
    scale: Scale


@dataclass(frozen=True, slots=True)
class _Sums:
    """A tensor as scale[o] * (value + whole[o]) + shift[o] on the last axis, relu after it."""

    value: Value
    whole: Array
    scale: Array
    shift: Array
    relu: bool = False

    def integers(self) -> Array:
        """What is added to the sums: i32[O]."""
        return np.rint(self.whole + self.shift / self.scale).astype(np.int32)


@dataclass(frozen=True, slots=True)
class Policy:
    """Which products stay in f32: the small last one, and perhaps the first one."""

    keep_first: bool = False
    keep_last: bool = True


def eligible(op: Op, known: Mapping[Value, Array]) -> bool:
    """Whether an operation is a product with a constant that bytes can do."""
    if op.name == "conv":
        kernel = known.get(op.operands[1])
        if kernel is None or kernel.dtype != np.float32 or 0 in op.result.shape:
            return False
        return kernel.shape[2] % TOGETHER == 0 and int(np.prod(kernel.shape[:3])) <= TERMS_MAX
    if op.name != "dot":
        return False
    x, matrix = op.operands[0], known.get(op.operands[1])
    return (
        matrix is not None
        and matrix.dtype == np.float32
        and matrix.ndim == 2
        and op.attrs["contract_a"] == (len(x.shape) - 1,)
        and not op.attrs["batch_a"]
        and 0 not in (*x.shape, *matrix.shape)
        and matrix.shape[op.attrs["contract_b"][0]] + TOGETHER <= TERMS_MAX
    )


def known_values(block: Block) -> dict[Value, Array]:
    """Constant-folds, but keeps constants spread to a tensor of more than one axis."""
    known: dict[Value, Array] = {}
    for op in block.ops:
        if op.name == "constant":
            known[op.result] = op.attrs["value"]
        elif (
            op.regions
            or len(op.results) != 1
            or (op.name == "broadcast" and len(op.result.shape) > 1)
        ):
            continue
        elif op.operands and all(v in known for v in op.operands):
            reference = PRIMITIVES[op.name].reference
            if reference is not None and op.result.tensor.size <= _KNOWN_MAX:
                known[op.result] = reference([known[v] for v in op.operands], op.attrs)[0]
    return known


def quantised(
    block: Block, policy: Policy, range_of: Callable[[Value], Range]
) -> tuple[Block, int]:
    """The block with products in bytes, and how many they are.

    `range_of` is asked for the range of values of the block; what is built has the same structure
    whatever it answers.
    """
    quantiser = _Quantiser(block, policy, range_of)
    made = quantiser.run()
    return simplify(dce(made)), len(quantiser.products)


class _Quantiser:
    def __init__(self, block: Block, policy: Policy, range_of: Callable[[Value], Range]) -> None:
        self.block, self.range_of = block, range_of
        self.b = Builder(block.params)
        self.known = known_values(block)
        #: Constants spread along axes: what is spread, and along which.
        self.spread: dict[Value, tuple[Array, tuple[int, ...]]] = {}
        self.makers = {r: op for op in block.ops for r in op.results}
        #: Each value in f32 (or as it is, where it is no f32), and in the other forms that it has.
        self.plain: dict[Value, Value] = {p: p for p in block.params}
        self.sums: dict[Value, _Sums] = {}
        self.bytes: dict[Value, _Bytes] = {}
        products = [op for op in block.ops if op.name in ("dot", "conv")]
        out = set(products[:1] if policy.keep_first else [])
        out |= set(products[-1:] if policy.keep_last else [])
        self.products = {op for op in products if op not in out and eligible(op, self.known)}

    def run(self) -> Block:
        for op in self.block.ops:
            with self.b.at(op.locs):
                self._op(op)
        return self.b.finish([self.plain[r] for r in self.block.results])

    def _op(self, op: Op) -> None:
        if op.name == "broadcast" and op.operands[0] in self.known:
            self.spread[op.result] = (self.known[op.operands[0]], op.attrs["dims"])
        if len(op.results) == 1:
            if op in self.products:
                return self._has_sums(op.result, self._product(op))
            if (sums := self._followed(op)) is not None:
                return self._has_sums(op.result, sums)
            if (made := self._moved(op) or self._added(op)) is not None:
                self.bytes[op.result] = made
                self.plain[op.result] = self._numbers(made)
                return None
        if (
            len(op.results) == 1
            and op.result in self.known
            and op.name not in ("constant", "broadcast")
        ):
            self.plain[op.result] = self.b.constant(self.known[op.result])
            return None
        self.b.copy(op, self.plain)
        return None

    def _has_sums(self, value: Value, sums: _Sums) -> None:
        self.sums[value] = sums
        self.plain[value] = self._dequantised(sums)

    # Forms

    def _along_last(self, vector: Array, like: Value) -> Value:
        shape = like.shape
        spread = self.b.constant(vector)
        return self.b("broadcast", spread, shape=shape, dims=(len(shape) - 1,))

    def _wide(self, sums: _Sums) -> Value:
        """The sums with what is added to them, in f32."""
        b = self.b
        whole = b("add", sums.value, self._along_last(sums.integers(), sums.value))
        return b("convert", whole, dtype=DType.F32)

    def _dequantised(self, sums: _Sums) -> Value:
        b, wide = self.b, self._wide(sums)
        made = b("mul", wide, self._along_last(sums.scale.astype(np.float32), wide))
        return b("max", made, b.zeros(made.type)) if sums.relu else made

    def _numbers(self, given: _Bytes) -> Value:
        b = self.b
        wide = b("convert", given.value, dtype=DType.I32)
        whole = b("sub", wide, b.full(wide.tensor, given.scale.zero))
        made = b("convert", whole, dtype=DType.F32)
        return b("mul", made, b.full(made.tensor, given.scale.scale))

    def _clamped(self, x: Value, zero: int, least: int = 0) -> Value:
        """Whole numbers in f32 as bytes, `zero` added."""
        b, kind = self.b, x.tensor
        if zero:
            x = b("add", x, b.full(kind, zero))
        x = b("min", b("max", x, b.full(kind, least)), b.full(kind, BYTE_MAX))
        return b("convert", x, dtype=DType.U8)

    def as_bytes(self, value: Value) -> _Bytes:
        """A value as bytes; from its sums, or rounded from f32."""
        if value in self.bytes:
            return self.bytes[value]
        b, scale = self.b, Scale.of(self.range_of(value))
        sums = self.sums.get(value)
        if sums is not None:
            wide = self._wide(sums)
            ratio = (sums.scale / scale.scale).astype(np.float32)
            moved = b("round", b("mul", wide, self._along_last(ratio, wide)))
            made = self._clamped(moved, scale.zero, scale.zero if sums.relu else 0)
        else:
            x = self.plain[value]
            inverse = float(np.float32(1 / scale.scale))
            made = self._clamped(b("round", b("mul", x, b.full(x.tensor, inverse))), scale.zero)
        self.bytes[value] = _Bytes(made, scale)
        return self.bytes[value]

    # Products

    def _product(self, op: Op) -> _Sums:
        x = self.as_bytes(op.operands[0])
        kernel = self.known[op.operands[1]].astype(np.float64)
        if op.name == "dot":
            if op.attrs["contract_b"] == (1,):
                kernel = kernel.T
            return self._dense(op, x, kernel)
        largest = np.abs(kernel).max(axis=(0, 1, 2))
        weights, scale = _rounded(kernel, largest)
        (low, high), zero = tuple(zip(*op.attrs["padding"], strict=True)), x.scale.zero
        image = x.value
        if any((*low, *high)):
            edge = self.b.constant(zero, DType.U8)
            edges = {"low": (0, *low, 0), "high": (0, *high, 0), "interior": (0, 0, 0, 0)}
            image = self.b("pad", image, edge, **edges)
        value = self._summed(image, weights, op.attrs["strides"])
        return self._sums_of(value, weights, scale, x.scale)

    def _dense(self, op: Op, x: _Bytes, matrix: Array) -> _Sums:
        weights, scale = _rounded(matrix, np.abs(matrix).max(axis=0))
        inner = len(weights)
        rows = x.value.tensor.size // inner
        short = -inner % TOGETHER
        flat = self.b("reshape", x.value, shape=(rows, 1, 1, inner))
        if short:  # weights of zero meet what is put there
            zero = self.b.constant(0, DType.U8)
            flat = self.b("pad", flat, zero, low=(0,) * 4, high=(0, 0, 0, short), interior=(0,) * 4)
        whole = np.pad(weights, ((0, short), (0, 0)))[None, None]
        value = self._summed(flat, whole, (1, 1))
        value = self.b("reshape", value, shape=op.result.shape)
        return self._sums_of(value, weights[None, None], scale, x.scale)

    def _summed(self, image: Value, weights: Array, strides: Sequence[int]) -> Value:
        kernel = self.b.constant(packed(weights))
        return self.b(NAME, image, kernel, strides=tuple(strides))

    def _sums_of(self, value: Value, weights: Array, scale: Array, x: Scale) -> _Sums:
        whole = -x.zero * weights.astype(np.int64).sum(axis=(0, 1, 2))
        return _Sums(value, whole, scale * x.scale, np.zeros(len(scale)))

    # What follows a product

    def _channels(self, value: Value, count: int) -> Array | None:
        """A constant with one number for each of the last axis, or one for all: f64[count]."""
        if value in self.spread:
            vector, dims = self.spread[value]
            along_last = vector.ndim == 1 and dims == (len(value.shape) - 1,)
            if vector.ndim == 0 or (along_last and vector.size in (1, count)):
                return np.broadcast_to(vector.astype(np.float64), (count,))
        known = self.known.get(value)
        if known is not None and known.size and len(value.shape) > 0:
            rows = known.reshape(-1, known.shape[-1])
            if np.array_equal(rows, np.broadcast_to(rows[:1], rows.shape)):
                first: Array = rows[0].astype(np.float64)
                return first
        return None

    def _followed(self, op: Op) -> _Sums | None:
        """An addition or a product with a constant a channel, or relu, of sums."""
        if (source := self._relu(op)) is not None and source in self.sums:
            return replace(self.sums[source], relu=True)
        if op.name not in ("add", "sub", "mul", "div"):
            return None
        for i, value in enumerate(op.operands):
            sums, other = self.sums.get(value), op.operands[1 - i]
            if sums is None or sums.relu or (i == 1 and op.name in ("sub", "div")):
                continue
            vector = self._channels(other, len(sums.scale))
            if vector is None:
                continue
            if op.name in ("add", "sub"):
                return replace(sums, shift=sums.shift + (vector if op.name == "add" else -vector))
            factor = vector if op.name == "mul" else 1 / vector
            if np.all(np.isfinite(factor)) and np.all(factor != 0):
                return replace(sums, scale=sums.scale * factor, shift=sums.shift * factor)
        return None

    def _relu(self, op: Op) -> Value | None:
        """What an operation is relu of: select(x <= 0, 0, x), select(0 < x, x, 0) or max(x, 0)."""
        if op.name == "max":
            for x, zero in (op.operands, reversed(op.operands)):
                if self._is_zero(zero):
                    return x
        if op.name == "select":
            pred, first, second = op.operands
            test = self.makers.get(pred)
            if test is not None and test.name in ("le", "lt"):
                below = test.operands[0] is second and self._is_zero(test.operands[1])
                if below and self._is_zero(first):
                    return second
                above = test.operands[1] is first and self._is_zero(test.operands[0])
                if above and self._is_zero(second):
                    return first
        return None

    def _is_zero(self, value: Value) -> bool:
        found = self.spread[value][0] if value in self.spread else self.known.get(value)
        return found is not None and not np.any(found)

    def _moved(self, op: Op) -> _Bytes | None:
        """A move, or a largest element, of what is in bytes or can go there."""
        if op.name not in _MOVES or not self._is_quantised(op.operands[0]):
            return None
        given = self.as_bytes(op.operands[0])
        return _Bytes(self.b.emit(op.name, (given.value,), op.attrs)[0], given.scale)

    def _is_quantised(self, value: Value) -> bool:
        return value in self.sums or value in self.bytes

    def _added(self, op: Op) -> _Bytes | None:
        """The sum of two tensors that are in bytes or can go there, in fixed point."""
        if op.name != "add" or not all(self._is_quantised(v) for v in op.operands):
            return None
        b, scale = self.b, Scale.of(self.range_of(op.result))
        terms = [self.as_bytes(v) for v in op.operands]
        if any(t.scale.scale > _RATIO_MAX * scale.scale for t in terms):
            return None
        total = b.full(TensorType(DType.I32, op.result.shape), 1 << (_POINT - 1))
        for given in terms:
            factor = round(given.scale.scale / scale.scale * (1 << _POINT))
            wide = b("convert", given.value, dtype=DType.I32)
            whole = b("sub", wide, b.full(wide.tensor, given.scale.zero))
            total = b("add", total, b("mul", whole, b.full(whole.tensor, factor)))
        kind = total.tensor
        moved = b("shr", total, b.full(kind, _POINT))
        moved = b("add", moved, b.full(kind, scale.zero))
        moved = b("min", b("max", moved, b.full(kind, 0)), b.full(kind, BYTE_MAX))
        return _Bytes(b("convert", moved, dtype=DType.U8), scale)


def _rounded(weights: Array, largest: Array) -> tuple[Array, Array]:
    """Signed bytes i8[..., O] and their scales f64[O]."""
    scale = np.where(largest > 0, largest, 1.0) / WEIGHT_MAX
    return np.rint(weights / scale).clip(-WEIGHT_MAX, WEIGHT_MAX).astype(np.int8), scale


def needed(block: Block, policy: Policy) -> list[Value]:
    """The values whose ranges quantising this block asks for."""
    asked: dict[Value, Any] = {}

    def note(value: Value) -> Range:
        asked[value] = None
        return 0.0, 1.0

    quantised(block, policy, note)
    return list(asked)
