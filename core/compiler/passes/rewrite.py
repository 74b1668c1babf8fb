"""One forward pass of rewriting over a block: local rules, constant folding, common subexpressions.

Operations are visited in order, each with its operands already rewritten, so that a chain folds in
one pass. A rule sees the operations that define its operands through `Rewriter.origin` and answers
with a value that stands for the operation's result, built of operations that are themselves
rewritten as they are added. An operation that no rule takes is looked up among those already there
(hash-consing: name, operands, attributes) and else kept; where nothing about it changed, it is the
very same object.

Constants stay small: nothing larger than `FOLD_SIZE_MAX` elements is computed, and a tensor of one
repeated number is always a scalar constant and a `broadcast`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np

from ...common.errors import Loc
from ..ir import Array, Block, Op, TensorType, Value, Values
from ..primitives import PRIMITIVES, infer
from ..primitives.halves import reference_of

#: The largest tensor, in elements, that is computed while compiling.
FOLD_SIZE_MAX = 64

#: A rule gives the value that stands for the operation's one result, or None.
Rule: TypeAlias = "Callable[[Rewriter, Op], Value | None]"
#: The same for operations of several results and for those with regions.
MultiRule: TypeAlias = "Callable[[Rewriter, Op], Values | None]"

#: Commutative primitives: a constant goes to the right, and CSE looks at the operands in either
#: order.
COMMUTATIVE = frozenset({"add", "mul", "max", "min", "and", "or", "xor", "eq", "ne", "list_add"})
#: Not computed while compiling: they cost nothing to keep, and are what constants are written with.
_NOT_FOLDED = frozenset({"constant", "broadcast", "iota", "list_empty", "opaque"})


class Shared:
    """What the rewriters of a program's blocks know in common.

    Attributes:
        stable: regions in which nothing is left to rewrite.
    """

    def __init__(self) -> None:
        self.stable: set[Block] = set()
        self._numbers: dict[Any, int] = {}
        self._blocks: dict[Block, int] = {}

    def key(self, op: Op) -> Any:
        """Equal for operations of a block that compute the same."""
        operands = tuple([id(v) for v in op.operands])
        if op.name in COMMUTATIVE and operands[0] > operands[1]:
            operands = (operands[1], operands[0])
        if op.regions:
            regions = tuple([self.number(region) for region in op.regions])
            return op.name, operands, _attrs_key(op), regions
        return (op.name, operands, _attrs_key(op)) if op.attrs else (op.name, operands)

    def number(self, block: Block) -> int:
        """Equal for regions that are the same but for the names of their values."""
        known = self._blocks.get(block)
        if known is not None:
            return known
        place = {p: i for i, p in enumerate(block.params)}
        rows: list[Any] = [tuple([p.type for p in block.params])]
        for op in block.ops:
            operands = tuple([place[v] for v in op.operands])
            regions = tuple([self.number(region) for region in op.regions])
            rows.append((op.name, operands, _attrs_key(op), regions))
            for r in op.results:
                place[r] = len(place)
        rows.append(tuple([place[r] for r in block.results]))
        self._blocks[block] = self._numbers.setdefault(tuple(rows), len(self._numbers))
        return self._blocks[block]


def _attrs_key(op: Op) -> Any:
    if op.name == "constant":
        array: Array = op.attrs["value"]
        # A large one is distinguished by identity, which the operation kept in the table makes
        # safe.
        data = array.tobytes() if array.size <= FOLD_SIZE_MAX else id(array)
        return array.dtype.char, array.shape, data
    return tuple(sorted(op.attrs.items()))


class Rewriter:
    """Builds the rewritten operations of one block.

    Attributes:
        ops: the operations so far.
        changed: whether the block differs from the one that was given.
        locs: the source spans for operations that rules add.
    """

    def __init__(
        self,
        rules: Mapping[str, Rule],
        multi_rules: Mapping[str, MultiRule],
        shared: Shared | None = None,
    ) -> None:
        self.ops: list[Op] = []
        self.changed = False
        self.locs: tuple[Loc, ...] = ()
        self.rules = rules
        self.multi_rules = multi_rules
        self.shared = Shared() if shared is None else shared
        self._made: dict[Value, Op] = {}
        self._seen: dict[Any, Op] = {}
        self._uses: dict[Value, int] = {}

    def child(self) -> Rewriter:
        """A rewriter for a region."""
        return Rewriter(self.rules, self.multi_rules, self.shared)

    def region(self, block: Block, known: Mapping[Value, Value]) -> Block:
        """A region rewritten, as `block` does; at once when it is known to be finished."""
        if not known and block in self.shared.stable:
            return block
        after = self.block(block, known)
        if after is block:
            self.shared.stable.add(block)
        return after

    def block(self, block: Block, known: Mapping[Value, Value] | None = None) -> Block:
        """The block rewritten; `known` replaces some of its parameters, whose list stays."""
        mapping: dict[Value, Value] = dict(known or {})
        self.changed = self.changed or bool(mapping)
        self._uses = _count_uses(block)
        for op in block.ops:
            self._visit(op, mapping)
        if not self.changed:
            return block
        return Block(block.params, self.ops, tuple(mapping.get(r, r) for r in block.results))

    def _visit(self, op: Op, mapping: dict[Value, Value]) -> None:
        operands = tuple([mapping.get(v, v) for v in op.operands])
        if operands != op.operands:
            op = Op(op.name, operands, op.results, op.attrs, op.regions, op.locs)
        self.locs = op.locs
        for r, value in zip(op.results, self.add(op), strict=True):
            if r is not value:
                mapping[r] = value
                self.changed = True
                self._uses[value] = self._uses.get(value, 0) + self._uses.get(r, 0)

    def inline(self, block: Block, args: Values) -> list[Value]:
        """Adds a block's operations with its parameters replaced; gives what its results became."""
        mapping = dict(zip(block.params, args, strict=True))
        uses = _count_uses(block)
        for op in block.ops:
            operands = tuple(mapping[v] for v in op.operands)
            results = tuple(Value(r.type) for r in op.results)
            for old, new in zip(op.results, results, strict=True):
                self._uses[new] = uses.get(old, 0)
            self.locs = op.locs
            fresh = Op(op.name, operands, results, op.attrs, op.regions, op.locs)
            mapping.update(zip(op.results, self.add(fresh), strict=True))
        return [mapping[r] for r in block.results]

    def __call__(self, name: str, *operands: Value, **attrs: Any) -> Value:
        """Adds an operation of one result, rewritten; gives what its result became."""
        results = tuple(Value(t) for t in infer(name, operands, attrs, ()))
        return self.add(Op(name, operands, results, attrs, (), self.locs))[0]

    def add(self, op: Op) -> Values:
        """Adds an operation, or what it is rewritten to, and gives what its results became."""
        if op.name in self.multi_rules:
            found = self.multi_rules[op.name](self, op)
            if found is not None:
                return found
        elif len(op.results) == 1:
            rule = self.rules.get(op.name)
            value = rule(self, op) if rule is not None else None
            if value is None:
                value = self._fold(op)
            if value is not None:
                return (value,)
        return self.keep(op)

    def keep(self, op: Op) -> Values:
        """Adds an operation as it is, unless an equal one is there already."""
        known = self._seen.setdefault(self.shared.key(op), op)
        if known is not op:
            self.changed = True
            return known.results
        self.ops.append(op)
        for r in op.results:
            self._made[r] = op
        return op.results

    def origin(self, value: Value, name: str) -> Op | None:
        """The operation of that name that defines a value, if one does."""
        op = self._made.get(value)
        return op if op is not None and op.name == name else None

    def maker(self, value: Value) -> Op | None:
        """The operation in this block that defines a value; None for a parameter."""
        return self._made.get(value)

    def used_once(self, value: Value) -> bool:
        return self._uses.get(value, 0) <= 1

    def splat(self, value: Value) -> np.generic | None:
        """The one number that a tensor repeats, if that is known."""
        op = self._made.get(value)
        if op is not None and op.name == "broadcast":
            op = self._made.get(op.operands[0])
        if op is None or op.name != "constant":
            return None
        array: Array = op.attrs["value"]
        return array.reshape(-1)[0] if array.size == 1 else None

    def is_splat(self, value: Value, number: float) -> bool:
        known = self.splat(value)
        return known is not None and bool(known == number)

    def known(self, value: Value) -> Array | None:
        """The whole tensor, if it is constant and small."""
        op = self._made.get(value)
        if op is None:
            return None
        if op.name == "constant":
            array: Array = op.attrs["value"]
            return array if array.size <= FOLD_SIZE_MAX else None
        if op.name == "broadcast" and value.tensor.size <= FOLD_SIZE_MAX:
            number = self.splat(value)
            if number is not None:
                return np.full(value.shape, number, value.dtype.numpy)
        return None

    def constant(self, array: Array) -> Value:
        fixed = np.array(array)
        fixed.setflags(write=False)
        return self("constant", value=fixed)

    def full(self, type: TensorType, number: Any) -> Value:
        """A tensor of one repeated number: a scalar constant, broadcast."""
        scalar = self.constant(np.asarray(number).astype(type.dtype.numpy))
        if type.shape == ():
            return scalar
        return self("broadcast", scalar, shape=type.shape, dims=())

    def _fold(self, op: Op) -> Value | None:
        """The constant that an operation on small constants gives."""
        if op.name in _NOT_FOLDED or not op.operands:
            return None
        out = op.results[0].type
        if not isinstance(out, TensorType) or out.size > FOLD_SIZE_MAX:
            return None
        arrays = []
        for v in op.operands:
            array = self.known(v)
            if array is None:
                return None
            arrays.append(array)
        reference = PRIMITIVES[op.name].reference
        if reference is None:
            return None
        with np.errstate(all="ignore"):
            rule = reference_of(op, reference)
            result = np.asarray(rule(arrays, op.attrs)[0], out.dtype.numpy)
        return self.constant(result.reshape(out.shape))


def _count_uses(block: Block) -> dict[Value, int]:
    uses: dict[Value, int] = {}
    for op in block.ops:
        for v in op.operands:
            uses[v] = uses.get(v, 0) + 1
    for v in block.results:
        uses[v] = uses.get(v, 0) + 1
    return uses
