"""What a primitive is: one row with all of its rules.

Every row lives in the module of its family (`unary`, `binary`, `shape`, `index`, `reduce`,
`linear`, `solve`, `conv`, `random`, `lists`, `control`) and is collected, by name, in
`delian.core.compiler.primitives.PRIMITIVES`. A test checks that no row has a hole.

The rules of differentiation build IR with a `Builder`. A cotangent or tangent of None is a symbolic
zero, on the way in and on the way out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ..ir import Block, Builder, Op, Type, Value, Values

Attrs: TypeAlias = Mapping[str, Any]
Maybe: TypeAlias = "Value | None"

#: (operand types, attributes, regions) -> result types; raises TypeRuleError.
InferRule: TypeAlias = Callable[[Sequence[Type], Attrs, Sequence[Block]], tuple[Type, ...]]
#: (operand arrays, attributes) -> result arrays: the primitive's meaning in NumPy, slow and plain.
ReferenceRule: TypeAlias = Callable[[Sequence[Any], Attrs], Sequence[Any]]
#: (builder, operation in its scope, cotangents of the results) -> cotangents of the operands.
VjpRule: TypeAlias = Callable[[Builder, Op, Sequence[Maybe]], Sequence[Maybe]]
#: (builder, operation in its scope, total, cotangent of the result) -> the total plus the cotangent
#: of the first operand; None where adding that up as a whole is no worse.
PutRule: TypeAlias = Callable[[Builder, Op, Value, Value], Maybe]
#: (builder, operation in its scope, tangents of the operands) -> tangents of the results.
JvpRule: TypeAlias = Callable[[Builder, Op, Sequence[Maybe]], Sequence[Maybe]]
#: (builder, operation of one lane, operands, which of them have a leading axis of lanes, how many
#: lanes) -> results, each with that axis; None where there is nothing better than a loop.
BatchRule: TypeAlias = Callable[[Builder, Op, Values, Sequence[bool], int], "Values | None"]
#: The operation -> floating-point (or integer) operations it does, for the cost model.
CostRule: TypeAlias = Callable[[Op], int]


@dataclass(frozen=True, slots=True)
class Primitive:
    """One row."""

    name: str
    """The operation's name in the IR."""
    infer: InferRule
    """Its type rule."""
    reference: ReferenceRule | None
    """Its meaning in NumPy; None for the operations with regions, which the interpreter runs
    itself.
    """
    vjp: VjpRule | None
    """Its reverse rule; None when nothing flows through it (comparisons, integers, random bits) and
    for operations with regions, which `transforms` differentiates.
    """
    jvp: JvpRule | None
    """Its forward rule; None as for `vjp`."""
    cost: CostRule
    """Operations done, from the types alone."""
    c: str | None = None
    """For an elementwise primitive, the C expression of one element, with {0}, {1}... for the
    operands, {t} for the C type of the result, {s} for the suffix of its helper functions (`f32`,
    `i64`, `bool`...) and {s0} for the first operand's suffix. Operands are names, so an expression
    may use one twice. {w} stands before an operand of arithmetic that wraps: a cast to the unsigned
    type of that width for a signed integer, else nothing. None for any other.
    """
    attrs: tuple[str, ...] = ()
    """Names of the attributes that it must carry, no more and no fewer."""
    operands: int | None = None
    """How many operands it takes; None when that varies."""
    regions: int | None = 0
    """How many regions it takes; None when that varies."""
    version: int = 1
    """Raised when the meaning changes; a serialised program names the versions that it was made
    with.
    """
    batch: BatchRule | None = None
    """Its rule for many lanes at once (`batching`); None for an elementwise primitive (one with
    `c`), whose operands are repeated, for one on lists or with regions, which `transforms.vmap`
    batches itself, and for one that runs lane by lane.
    """
    put: PutRule | None = None
    """For one that reads a part of its first operand, and has no other with a cotangent: adds the
    cotangent of the part to that of the whole, without work in the size of the whole.
    """
    workspace: CostRule | None = None
    """Bytes of working memory besides operands and results, from the types and the attributes: an
    upper bound for every back end. None for one whose working memory is a few times its operands
    and results, or fixed.
    """
