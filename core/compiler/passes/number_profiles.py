"""Profiles: how much of a program's arithmetic is the same everywhere.

    fast           each back end computes as it does best; `tests/support/tolerance.py` says how
                   far a result may be from the exact one.
    reproducible   f32 and halves give the same bits on every tier: what back ends compute each in
                   its own way (functions, sums, products of matrices) is done in f64 and rounded
                   once, one operation on numbers at a time is rounded by IEEE 754 as it is.
    exact          integers, random bits, moves and comparisons alone: floating-point arithmetic is
                   refused.

    %1: f32[] = reduce_sum(%0) {axes=[0]}     =>    %1: f64[8] = convert(%0) {dtype=f64}
                                                    %2: f64[] = reduce_sum(%1) {axes=[0]}
                                                    %3: f32[] = convert(%2) {dtype=f32}

That the order of a sum, or which library's function it is, does not show after rounding f64 to f32
is an observation, not a theorem: of ten million values of each function none differed. f64 has
nothing wider to be computed in, so in this profile its functions and sums are refused, but for
tables: what depends on no argument and is rounded before it meets one is in f64 already.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from ...common.errors import DelianError
from ..ir import Block, Builder, DType, Function, Op, TensorType, Type, Value
from .lowering.attention_products import decompose_attention
from .lowering.half_storage import widen_halves

Profile: TypeAlias = Literal["fast", "reproducible", "exact"]

PROFILES: tuple[Profile, ...] = ("fast", "reproducible", "exact")

#: What back ends compute each in its own way.
_OWN_WAY = frozenset(
    (
        *("exp", "expm1", "log", "log1p", "sin", "cos", "tanh", "sigmoid", "erf", "rsqrt", "pow"),
        *("atan2", "mod", "floordiv", "dot", "conv", "conv_input_grad", "conv_weight_grad"),
        *("grouped_conv", "grouped_conv_input_grad", "grouped_conv_weight_grad"),
        *("reduce_sum", "reduce_prod", "cumsum", "put_add", "put_along_add"),
        *("cholesky", "solve", "triangular_solve", "slogdet"),
    )
)
#: On floats, exact or a choice: nothing is rounded. Comparisons give bools.
_EXACT = frozenset(
    (
        *("constant", "iota", "reshape", "broadcast", "transpose", "reverse", "slice", "pad"),
        *("concat", "dynamic_slice", "dynamic_update", "take", "take_along", "select"),
        *("stop_gradient", "neg", "abs", "sign", "max", "min", "floor", "ceil", "round"),
        *("eq", "ne", "lt", "le", "is_finite", "reduce_max", "reduce_min", "argmax", "argmin"),
        *("argsort", "bitcast", "list_empty", "list_push", "list_pop", "list_select", "list_take"),
    )
)


def in_profile(function: Function, profile: Profile) -> Function:
    """The function in this profile. Raises DelianError for another name or operation."""
    if profile not in PROFILES:
        names = ", ".join(f'"{p}"' for p in PROFILES)
        raise DelianError(f"there is no profile {profile!r}", f"the profiles are {names}")
    if profile == "fast":
        return function
    if profile == "exact":
        for op in function.body.walk():
            _check_exact(function, op)
        return function
    narrow = decompose_attention(widen_halves(function))
    return narrow.with_body(_reproducible(narrow, narrow.body))


def _floats(type_: Type) -> bool:
    return isinstance(type_, TensorType) and type_.dtype.is_float


def _is_float(op: Op) -> bool:
    return any(_floats(v.type) for v in (*op.operands, *op.results))


def _where(op: Op) -> str:
    """The user's innermost line, for that is the one to change; else Delian's."""
    users = [loc for loc in op.locs if not loc.is_own()]
    return f" at {(users or op.locs)[0]}" if op.locs else ""


def _mended(op: Op) -> str:
    """What to do about an operation on f64."""
    if op.locs and all(loc.is_own() for loc in op.locs):
        return (
            "this is Delian's own arithmetic and no line of yours: such a program is fast on every"
            " machine, and others are built without it (`delian build --program infer`)"
        )
    return "use f32: x.astype(np.float32)"


def _check_exact(function: Function, op: Op) -> None:
    if op.regions or op.name in _EXACT or not _is_float(op):
        return
    if op.name == "convert" and _keeps_all(op.operands[0].dtype, op.results[0].dtype):
        return
    raise DelianError(
        f"{function.name}: {op.name}{_where(op)} is floating-point arithmetic, which the profile"
        " exact refuses",
        'compute in integers, or compile with profile="reproducible"',
    )


def _keeps_all(source: DType, target: DType) -> bool:
    """Whether a conversion to a float loses nothing."""
    if not target.is_float:
        return False
    if source.is_float:
        return source.itemsize < target.itemsize or source is target
    return source is DType.BOOL or 2 * source.itemsize <= target.itemsize


def _rounds(op: Op) -> bool:
    """Whether it rounds f64 to a narrower float."""
    return op.name == "convert" and op.results[0].dtype.is_float and not _is_f64(op.results[0])


def _is_f64(value: Value) -> bool:
    return _floats(value.type) and value.dtype is DType.F64


def _tables(block: Block) -> set[Op]:
    """The f64 operations on constants alone whose results are all rounded."""
    fixed: set[Value] = set()
    for op in block.ops:
        if not op.regions and fixed.issuperset(op.operands):
            fixed.update(op.results)
    loose = set(block.results)  # values that something else sees
    found = set()
    for op in reversed(block.ops):
        table = fixed.issuperset(op.results) and all(map(_is_f64, op.results))
        if table and loose.isdisjoint(op.results):
            found.add(op)
        elif not _rounds(op):
            loose.update(op.operands)
    return found


def _reproducible(function: Function, block: Block) -> Block:
    b = Builder(block.params)
    mapping: dict[Value, Value] = {p: p for p in block.params}
    tables = _tables(block)
    for op in block.ops:
        op = op.with_regions(_reproducible(function, r) for r in op.regions)
        if op.name not in _OWN_WAY or not _is_float(op) or op in tables:
            b.copy(op, mapping)
            continue
        if any(map(_is_f64, (*op.operands, *op.results))):
            raise DelianError(
                f"{function.name}: {op.name}{_where(op)} is on f64, which the profile reproducible"
                " cannot compute in anything wider",
                _mended(op),
            )
        with b.at(op.locs):
            wide = [
                b("convert", mapping[v], dtype=DType.F64) if _floats(v.type) else mapping[v]
                for v in op.operands
            ]
            made = b.emit(op.name, wide, op.attrs)
            mapping.update(
                (r, b("convert", m, dtype=r.dtype) if _floats(r.type) else m)
                for r, m in zip(op.results, made, strict=True)
            )
    return b.finish([mapping[r] for r in block.results])
