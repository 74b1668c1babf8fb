"""Operations with regions as C's own control flow.

Tensor carries lie where the plan put them, and the copies that it could not avoid are written at
the start of a loop and at the end of each round. Rank-0 and list carries are variables that are
assigned together at the end of a round. A round of whose lists none is carried
on gives its list memory back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from ...ir import Block, ListType, Value, Values
from ...passes.schedule.block_steps import Call, Schedule, is_scalar
from .kernels.matrix_packing import write_panels
from .names import local_type

if TYPE_CHECKING:
    from .emit import FunctionWriter

#: Operations that take list memory; what makes a list with lanes does, too.
_TAKES_MEMORY = frozenset(["list_push", "list_add"])


def variable_type(value: Value) -> str:
    """The C type of a value that is a local variable."""
    if isinstance(value.type, ListType):
        return "const dl_node *"
    return local_type(value.dtype)


def constant_type(value: Value) -> str:
    """The same for a variable that does not change."""
    kind = variable_type(value)
    return f"{kind}const" if kind.endswith("*") else f"const {kind}"


def is_variable(value: Value) -> bool:
    """Whether a value is a C variable: a number or a list."""
    return isinstance(value.type, ListType) or is_scalar(value)


def expression_of(w: FunctionWriter, value: Value) -> str:
    """A variable's value."""
    return w.names[value] if isinstance(value.type, ListType) else w.scalar(value)


def _bind(w: FunctionWriter, params: Values, values: Values) -> None:
    """A region's parameters that are variables take their values, as constants of their own."""
    for p, v in zip(params, values, strict=True):
        if not is_variable(p):
            base = w.schedule.views[v].base
            if base in w.windows:
                w.windows[p] = w.windows[base]
            continue
        text = expression_of(w, v)
        if text.isidentifier():
            w.names[p] = text
        else:
            w.lines.append(f"{constant_type(p)} {w.local(p)} = {text};")


def _begin(w: FunctionWriter, call: Call, starts: Values) -> None:
    """The carries of a loop before its first round."""
    w.moves(w.plan.before.get(call.op, ()), w.schedule)
    for result, start in zip(call.op.results, starts, strict=True):
        if is_variable(result):
            text = expression_of(w, start)
            w.lines.append(f"{variable_type(result)} {w.local(result)} = {text};")


def _carry_names(w: FunctionWriter, params: Values, results: Values) -> None:
    for p, r in zip(params, results, strict=True):
        if is_variable(p):
            w.names[p] = w.names[r]


def _end_round(w: FunctionWriter, call: Call, region: int, params: Values) -> None:
    """Results of a round become the next one's start; variables are read before tensors."""
    body = call.bodies[region]
    before, w.schedule = w.schedule, body
    pairs: list[tuple[str, str]] = []
    for p, r, result in zip(params, body.results, call.op.results, strict=True):
        if is_variable(p):
            text = expression_of(w, r)
            if text != w.names[result]:
                pairs.append((w.names[result], f"next{len(pairs)}"))
                w.lines.append(f"{constant_type(p)} {pairs[-1][1]} = {text};")
    w.schedule = before
    w.moves(w.plan.after.get((call.op, region), ()), body)
    w.lines += [f"{name} = {text};" for name, text in pairs]


def _releases(call: Call) -> bool:
    """Whether a round may give back the list memory that it took: none of it is carried on."""
    takes = any(
        op.name in _TAKES_MEMORY
        or any(isinstance(r.type, ListType) and r.type.lanes for r in op.results)
        for region in call.op.regions
        for op in region.walk()
    )
    return takes and all(_is_older(call.op.regions[-1], r) for r in call.op.regions[-1].results)


def _is_older(body: Block, value: Value) -> bool:
    """Whether a round's result holds no memory that the round took."""
    while isinstance(value.type, ListType) and value not in body.params:
        made = next(op for op in body.ops if value in op.results)
        if made.name != "list_pop" or value is not made.results[0] or value.type.lanes:
            return made.name == "list_empty"
        value = made.operands[0]
    return True


def _write_for(w: FunctionWriter, call: Call) -> None:
    lo, hi, *rest = call.operands
    split = call.op.attrs["consts"]
    body = call.bodies[0]
    index, params = body.params[0], body.params[1:]
    _begin(w, call, rest[split:])
    _bind(w, params[:split], rest[:split])
    _carry_names(w, params[split:], call.op.results)
    w.lines.append(f"const int64_t end{w.count} = {w.scalar(hi)};")
    end = f"end{w.count}"
    i, start = w.local(index), w.scalar(lo)
    write_panels(w, call)
    w.lines.append(f"for (int64_t {i} = {start}; {i} < {end}; {i}++) {{")
    _round(w, call, 0, params[split:])
    w.lines.append("}")


def _round(w: FunctionWriter, call: Call, region: int, params: Values) -> None:
    block, names = call.op.regions[region], w.names
    for p, r in zip(params, block.results, strict=True):
        if is_scalar(p) and p.dtype.is_float and _is_added_to(block, p, r):
            w.lines.append(f"DL_IN_ORDER({names[p]});")
    releases = _releases(call)
    if releases:
        w.lines.append("const dl_mark mark = dl_mark_of(&heap);")
    w.block(call.bodies[region])
    _end_round(w, call, region, params)
    if releases:
        w.lines.append("dl_release(&heap, mark);")


#: What a sum goes through.
_ADDS = frozenset(["add", "sub", "select"])


def _is_added_to(block: Block, start: Value, end: Value) -> bool:
    """Whether a round adds to a number more than once (DL_IN_ORDER)."""
    sums = {start: 0}
    for op in block.ops:
        given = [sums[v] for v in op.operands if v in sums]
        if given and (op.regions or op.name in _ADDS):
            sums.update(dict.fromkeys(op.results, max(given) + (2 if op.regions else 1)))
    return sums.get(end, 0) > 1


def _write_while(w: FunctionWriter, call: Call) -> None:
    split = call.op.attrs["consts"]
    consts, starts = call.operands[:split], call.operands[split:]
    cond, body = call.bodies
    _begin(w, call, starts)
    for region in (cond, body):
        _bind(w, region.params[:split], consts)
        _carry_names(w, region.params[split:], call.op.results)
    w.lines.append("for (;;) {")
    w.block(cond)
    w.lines.append(f"if (!{_scalar_in(w, cond, cond.results[0])}) break;")
    _round(w, call, 1, body.params[split:])
    w.lines.append("}")


def _scalar_in(w: FunctionWriter, schedule: Schedule, value: Value) -> str:
    before, w.schedule = w.schedule, schedule
    text = w.scalar(value)
    w.schedule = before
    return f"({text})"


def _write_if(w: FunctionWriter, call: Call) -> None:
    pred, *args = call.operands
    for result in call.op.results:
        if is_variable(result):
            w.lines.append(f"{variable_type(result)} {w.local(result)};")
    for body in call.bodies:
        _bind(w, body.params, args)
    w.lines.append(f"if ({w.scalar(pred)}) {{")
    _branch(w, call, 0)
    w.lines += ["}", "else {"]
    _branch(w, call, 1)
    w.lines.append("}")


def _branch(w: FunctionWriter, call: Call, region: int) -> None:
    """One branch, its results put where the operation gives them."""
    body = call.bodies[region]
    w.block(body)
    w.moves(w.plan.after.get((call.op, region), ()), body)
    before, w.schedule = w.schedule, body
    for r, result in zip(body.results, call.op.results, strict=True):
        if is_variable(result):
            w.lines.append(f"{w.names[result]} = {expression_of(w, r)};")
    w.schedule = before


def _write_switch(w: FunctionWriter, call: Call) -> None:
    """Cases as `switch`; the last one is also the default, and an index below 0 is 0."""
    index, *args = call.operands
    for result in call.op.results:
        if is_variable(result):
            w.lines.append(f"{variable_type(result)} {w.local(result)};")
    for body in call.bodies:
        _bind(w, body.params, args)
    w.count += 1
    at = f"case{w.count}"
    w.lines.append(f"const int64_t {at} = {w.scalar(index)};")
    w.lines.append(f"switch ({at} < 0 ? 0 : {at}) {{")
    last = len(call.bodies) - 1
    for region in range(len(call.bodies)):
        w.lines.append(f"case {region}: {{" if region < last else "default: {")
        _branch(w, call, region)
        w.lines += ["break;", "}"]
    w.lines.append("}")


WRITERS: Mapping[str, Callable[[FunctionWriter, Call], None]] = {
    "for": _write_for,
    "while": _write_while,
    "if": _write_if,
    "switch": _write_switch,
}
