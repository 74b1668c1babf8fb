"""Mixed precision: products and convolutions in 16 bits, what needs range in f32.

Micikevicius et al., "Mixed precision training", ICLR 2018.

    dot, conv                      on halves, kept in f32 while they add, rounded once
    moves, choices, max, min, neg  on halves where all their operands are
    everything else                in f32: sums, functions, softmax, norms, losses

    %2: f32[8,4] = dot(%0, %1)      =>      %2: bf16[8,3] = convert(%0) {dtype=bf16}
                                            %3: bf16[3,4] = convert(%1) {dtype=bf16}
                                            %4: bf16[8,4] = dot(%2, %3)
                                            %5: f32[8,4] = convert(%4) {dtype=f32}

Parameters and results keep their types, so weights, their gradients and the optimiser's state stay
f32: a conversion's derivative is a conversion back. Only f32 is touched; f64 and integers are as
they were.
"""

from __future__ import annotations

from ..ir import Block, Builder, DType, ListType, Op, Value

#: Worth doing in 16 bits: their inputs are read often, and their sums are kept wide.
_LOWERED = frozenset(
    (
        *("dot", "conv", "conv_input_grad", "conv_weight_grad"),
        *("grouped_conv", "grouped_conv_input_grad", "grouped_conv_weight_grad"),
    )
)
#: Lose nothing in 16 bits that is not lost already.
_FOLLOWING = frozenset(
    (
        *("reshape", "broadcast", "transpose", "reverse", "slice", "pad", "concat", "neg", "abs"),
        *("dynamic_slice", "take", "take_along", "select", "stop_gradient", "max", "min"),
        *("reduce_max", "reduce_min"),
    )
)


def mixed_precision(block: Block, dtype: DType) -> Block:
    """The block with its products on halves of this type; same parameters and results.

    Raises:
        ValueError: the type is not bf16 or f16.
    """
    if not dtype.is_half:
        raise ValueError(f"mixed precision computes in bf16 or f16, not {dtype.value}")
    return _Caster(Builder(block.params), dtype).run(block)


def _is_f32(value: Value) -> bool:
    return not isinstance(value.type, ListType) and value.dtype is DType.F32


class _Caster:
    """Copies a block; an f32 value may be there as f32, as a half, or as both."""

    def __init__(self, builder: Builder, dtype: DType) -> None:
        self.b = builder
        self.dtype = dtype
        self.full: dict[Value, Value] = {}
        self.half: dict[Value, Value] = {}
        #: Values that were made as halves, or are constants: a half of them is no loss.
        self.lowered: set[Value] = set()

    def run(self, block: Block) -> Block:
        self.full.update({p: p for p in block.params})
        for op in block.ops:
            with self.b.at(op.locs):
                self._op(op)
        return self.b.finish([self._full(r) for r in block.results])

    def _op(self, op: Op) -> None:
        b = self.b
        casters = [_Caster(Builder(r.params, op.locs), self.dtype) for r in op.regions]
        op = op.with_regions(c.run(r) for c, r in zip(casters, op.regions, strict=True))
        floats = [v for v in op.operands if _is_f32(v)]
        lower = op.name in _LOWERED or (
            op.name in _FOLLOWING
            and all(v in self.lowered for v in floats)
            and any(v in self.half for v in floats)
        )
        if lower and floats and all(_is_f32(r) for r in op.results):
            operands = [self._half(v) if _is_f32(v) else self._full(v) for v in op.operands]
            made = b.emit(op.name, operands, op.attrs)
            self.half.update(zip(op.results, made, strict=True))
            self.lowered.update(op.results)
            return
        mapping = {v: self._full(v) for v in op.operands}
        b.copy(op, mapping)
        self.full.update((r, mapping[r]) for r in op.results)
        if op.name == "constant" or (
            op.name == "broadcast" and all(v in self.lowered for v in op.operands)
        ):
            self.lowered.update(r for r in op.results if _is_f32(r))

    def _full(self, value: Value) -> Value:
        if value not in self.full:
            self.full[value] = self.b("convert", self.half[value], dtype=DType.F32)
        return self.full[value]

    def _half(self, value: Value) -> Value:
        if value not in self.half:
            self.half[value] = self.b("convert", self.full[value], dtype=self.dtype)
        return self.half[value]
