"""Sums of which all terms but one are known to be nothing.

What was centred sums to zero along the axes of its mean. The gradient of a normalisation is a sum
of such a term and of the gradient that came in, each times a number a channel, and its mean is
taken off again: that mean follows from the sum of the incoming gradient, which is known already as
the shift's gradient. So what had to be stored to be summed is computed in the loop that needs it.

    %2 = sub(%0, broadcast(div(reduce_sum(%0), n)))
    %5: f32[64] = reduce_sum(%3) {axes=[0, 1, 2]}
    %6 = add(mul(%3, broadcast(%a)), mul(%2, broadcast(%b)))
    %7: f32[64] = reduce_sum(%6) {axes=[0, 1, 2]}      =>    %7 = mul(%5, %a)

No difference of large sums is formed: the result is a product.
"""

from __future__ import annotations

from math import prod

from ...ir import Block, Builder, DType, Function, Op, Value
from ..dce import dce

Axes = tuple[int, ...]
#: Numbers that a sum must be of: of few it costs nothing.
SIZE_MIN = 4096
_TERMS_MAX = 8


def fold_single_term_sums(function: Function) -> Function:
    """The function without sums that follow from others; the same one where there are none."""
    if not any(_is_large_sum(op) for op in function.body.walk()):
        return function
    return function.with_body(_Sums(function.body).rewritten())


def _is_large_sum(op: Op) -> bool:
    is_f32 = op.name == "reduce_sum" and op.result.dtype is DType.F32
    return is_f32 and op.operands[0].tensor.size >= SIZE_MIN


class _Sums:
    """The sums of one block."""

    def __init__(self, block: Block) -> None:
        self.block = block
        self.made = {r: op for op in block.ops for r in op.results}
        #: Sums that are made in any case: of which value, over which axes. One that comes later is
        #: made when the first asks for it.
        self.sums = {
            (op.operands[0], op.attrs["axes"]): op for op in block.ops if _is_large_sum(op)
        }
        self.ready: dict[tuple[Value, Axes], Value] = {}
        #: What is the same along the axes of a mean that is taken off, and added before: the value
        #: that it is added to, and the axes.
        self.shifted: dict[Value, tuple[Value, Axes]] = {}
        users: dict[Value, list[Op]] = {}
        for op in block.ops:
            for v in dict.fromkeys(op.operands):
                users.setdefault(v, []).append(op)
        for op in filter(_is_large_sum, block.ops):
            self._shift(op, users)

    def rewritten(self) -> Block:
        b = Builder(self.block.params)
        mapping: dict[Value, Value] = {p: p for p in self.block.params}
        for op in self.block.ops:
            op = op.with_regions(_Sums(r).rewritten() for r in op.regions)
            if op.name == "sub" and op.operands[0] in self.shifted:
                mapping[op.result] = self._centre(b, op, mapping)
                continue
            if not _is_large_sum(op):
                b.copy(op, mapping)
                continue
            axes: Axes = op.attrs["axes"]
            made = self.made.get(op.operands[0])
            if made is not None and self._is_centred(made, axes):
                with b.at(op.locs):  # nothing, but no number where the mean is none
                    mean = self._along(b, made.operands[1], axes, mapping)
                    mapping[op.result] = b("mul", mean, b.full(mean.tensor, 0.0))
                continue
            found = self._only_term(op.operands[0], axes)
            if found is None or found[0][0] not in mapping:
                mapping[op.result] = self._sum(b, (op.operands[0], axes), mapping)
                continue
            (term, minus), factors = found
            total = self._sum(b, (term, axes), mapping)
            with b.at(op.locs):
                for factor in factors:
                    total = b("mul", total, self._along(b, factor, axes, mapping))
                mapping[op.result] = b("neg", total) if minus else total
        return dce(b.finish([mapping[r] for r in self.block.results]))

    def _shift(self, op: Op, users: dict[Value, list[Op]]) -> None:
        """Enters what a sum is of, if that is a value and something that its mean takes off."""
        (x,), axes = op.operands, op.attrs["axes"]
        made = self.made.get(x)
        if made is None or made.name != "add" or x in self.block.results:
            return
        same = [self._is_same(v, axes) for v in made.operands]
        others = [u for u in users[x] if u is not op]
        centred = all(u.operands[0] is x and self._is_centred(u, axes) for u in others)
        if sum(same) == 1 and others and centred and all(u.name == "sub" for u in others):
            self.shifted[x] = made.operands[same.index(False)], axes

    def _centre(self, b: Builder, op: Op, mapping: dict[Value, Value]) -> Value:
        """What is centred, without what was added to all of it alike."""
        x, axes = self.shifted[op.operands[0]]
        spread = self.made[op.operands[1]]
        mean = self.made[spread.operands[0]]
        with b.at(self.made[mean.operands[0]].locs):
            if (x, axes) not in self.ready:
                self.ready[x, axes] = b("reduce_sum", mapping[x], axes=axes)
        with b.at(mean.locs):
            each = b(mean.name, self.ready[x, axes], mapping[mean.operands[1]])
        with b.at(op.locs):
            return b("sub", mapping[x], b.emit("broadcast", (each,), spread.attrs)[0])

    def _sum(self, b: Builder, of: tuple[Value, Axes], mapping: dict[Value, Value]) -> Value:
        """A sum that is made in any case, made now if it is not yet."""
        if of not in self.ready:
            op = self.sums[of]
            with b.at(op.locs):
                self.ready[of] = b("reduce_sum", mapping[of[0]], axes=of[1])
        return self.ready[of]

    def _only_term(self, value: Value, axes: Axes) -> tuple[tuple[Value, bool], list[Value]] | None:
        """The one term of a sum that is not centred: it, whether it is taken off, its factors."""
        left: list[tuple[Value, bool, list[Value]]] = [(value, False, [])]
        only: list[tuple[tuple[Value, bool], list[Value]]] = []
        centred = steps = 0
        while left and steps < _TERMS_MAX:
            steps += 1
            term, minus, factors = left.pop()
            op = self.made.get(term)
            if self._is_centred(op, axes):
                centred += 1
            elif term is not value and (term, axes) in self.sums:
                only.append(((term, minus), factors))
            elif op is None:
                return None
            elif op.name in ("add", "sub"):
                first, second = op.operands
                left += [(first, minus, factors), (second, minus ^ (op.name == "sub"), factors)]
            elif op.name == "neg":
                left.append((op.operands[0], not minus, factors))
            elif op.name == "mul":
                same = [self._is_same(v, axes) for v in op.operands]
                if True not in same:
                    return None
                factor = op.operands[same.index(True)]
                left.append((op.operands[1 - same.index(True)], minus, [*factors, factor]))
            else:
                return None
        return only[0] if not left and centred and len(only) == 1 else None

    def _is_centred(self, op: Op | None, axes: Axes) -> bool:
        """Whether it takes the mean over axes off its operand: x - mean, or x + (-sum / count)."""
        if op is None or op.name not in ("sub", "add") or not self._is_same(op.operands[1], axes):
            return False
        x = op.operands[0]
        mean = self.made.get(self.made[op.operands[1]].operands[0])
        if mean is None or mean.name not in ("div", "mul"):
            return False
        total, by = self.made.get(mean.operands[0]), self._number(mean.operands[1])
        if op.name == "add":
            if total is None or total.name != "neg":
                return False
            total = self.made.get(total.operands[0])
        if total is None or total.name != "reduce_sum" or by is None:
            return False
        count = prod(x.shape[a] for a in axes)
        over = total.operands[0] is x and total.attrs["axes"] == axes
        return over and (by == count if mean.name == "div" else by * count == 1)

    def _is_same(self, value: Value, axes: Axes) -> bool:
        """Whether a value is the same along these axes."""
        op = self.made.get(value)
        return op is not None and op.name == "broadcast" and not set(op.attrs["dims"]) & set(axes)

    def _number(self, value: Value) -> float | None:
        op = self.made.get(value)
        if op is not None and op.name == "broadcast":
            op = self.made.get(op.operands[0])
        if op is None or op.name != "constant" or op.attrs["value"].size != 1:
            return None
        return float(op.attrs["value"].item())

    def _along(self, b: Builder, factor: Value, axes: Axes, mapping: dict[Value, Value]) -> Value:
        """What a factor is along the axes that are left of a sum."""
        op = self.made[factor]
        left = [a for a in range(len(factor.shape)) if a not in axes]
        shape = tuple(factor.shape[a] for a in left)
        dims = tuple(left.index(d) for d in op.attrs["dims"])
        source = mapping[op.operands[0]]
        return source if source.shape == shape else b("broadcast", source, shape=shape, dims=dims)
