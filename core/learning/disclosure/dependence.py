"""What each output of a program depends on: a data flow analysis of the IR.

Every value v of a program has a fact, an element of a finite lattice:

    values(v)    inputs whose numbers reach v by arithmetic
    selects(v)   inputs that choose what v is: by a branch, a trip count, a predicate of `select`,
                 a comparison, an index, the order of a sort
    form(v)      whether v holds words of a random key, and of which kind

Facts are joined by union. The rules are edges between values, one for each (operand, result), so
that a fact only ever grows along edges. Each edge is followed at most about 2 x inputs times, also
in hostile programs, and once where its source is outside of loops:

    carry     y = reshape(x), concat(x, ...), take(x, i), x pushed on a list, x passed into or out
              of a region, x carried by a loop:       values, selects and form of y include x's
    mix       y = x * z and all other arithmetic:     values and selects of y include x's
    compare   y = x < z, argsort(x), ...:             mix, and selects of y include values of x
    pick      y = take(z, x), select(x, ...), if x:   selects of y include values and selects of x
    generate  y = threefry(x, ...):                   mix, and y holds words if x may hold a key,
                                                      other numbers if x may hold those

A region sees only its parameters, so a branch passes its predicate to the results of its operation.
A loop's carries feed back into the parameters of its body: the least fixed point is what any number
of trips can do. What decides the number of trips picks all results of the loop. One fact a value is
kept, whatever the call: the analysis knows no contexts.

Soundness (noninterference; Denning and Denning, "Certification of programs for secure information
flow", CACM 1977, section 4): if input a is in neither values(y) nor selects(y), then y is the same
for all a, for runs that end. Time and non-termination are not covered.

The reverse does not hold, and the two sets are not equally strong. That a is not in selects(y) says
that no operation that chooses does so by a. Arithmetic alone can choose as sharply as a comparison
(a steep sigmoid, `max`, rounding), so it is a statement about the program's form. That a is in
neither set is a statement about what it computes.

Random keys. The input `key` may be used in one way: as the key of the generator (`threefry`), whose
words are either keys again (split, fold_in) or are drawn from:

    seed      words of the input, moved about but not changed
    words     of the generator's results, moved about but not changed
    drawn     words ^ words, words & c for c < 2^16, words >> c for c >= 16: no longer a key

Anything else that is done to seeds or words is a misuse: to compare, convert or add them, to index
with them, to use them as counters, to give them as results. A program without misuse is a function
of its other inputs and of what is drawn: other names for keys (each word XOR one mask, for the
input and in the generator alike, where the mask is zero in the half that is drawn as it is) leave
its results as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

import numpy as np

from ...common.errors import Loc
from ...compiler.ir import Block, DType, Op, Value, unshared

#: Operands whose elements the results hold as they are; None: all of them.
CARRIES: dict[str, tuple[int, ...] | None] = {
    **dict.fromkeys(("reshape", "broadcast", "transpose", "reverse", "slice", "pad", "concat")),
    **dict.fromkeys(("stop_gradient", "opaque", "list_push", "list_pop")),
    **dict.fromkeys(("dynamic_slice", "take", "take_along", "list_take"), (0,)),
    "dynamic_update": (0, 1),
    "select": (1, 2),
    "list_select": (1, 2),
}
#: Operands that choose among others' elements.
PICKS: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("select", "list_select"), (0,)),
    **dict.fromkeys(("take", "take_along", "put_add", "put_along_add", "list_take"), (1,)),
}
#: Those whose operands from here on are places.
STARTS = {"dynamic_slice": 1, "dynamic_update": 2}
#: Operations whose results say how their operands compare.
COMPARES = frozenset(("eq", "ne", "lt", "le", "is_finite", "sign", "argmax", "argmin", "argsort"))
#: The rest: arithmetic. A primitive that is in none of these is taken for one of them as well;
#: a test asks that each is named.
MIXES = frozenset(
    (
        *("neg", "abs", "floor", "ceil", "round", "exp", "log", "log1p", "expm1", "sqrt", "rsqrt"),
        *("sin", "cos", "tanh", "sigmoid", "erf", "convert", "bitcast", "add", "sub", "mul", "div"),
        *("max", "min", "pow", "atan2", "floordiv", "mod", "not", "and", "or", "xor", "shl", "shr"),
        *("put_add", "put_along_add", "reduce_sum", "reduce_prod", "reduce_max", "reduce_min"),
        *("cumsum", "dot", "attention", "attention_grad", "cholesky", "solve", "slogdet", "conv"),
        *("triangular_solve", "conv_input_grad", "conv_weight_grad", "grouped_conv", "list_add"),
        *("grouped_conv_input_grad", "grouped_conv_weight_grad", "quantised_conv"),
    )
)
#: Without operands, the generator, and operations with regions, which have rules of their own.
OTHERS = frozenset(
    ("constant", "iota", "list_empty", "threefry", "if", "switch", "while", "for", "custom_vjp")
)

#: Forms, as bits: what elements a value may hold. OTHER: some that are no key's. LARGE, SMALL: some
#: of 2^16 or more, some below 16; of constants alone it is known that they hold none.
SEED, WORDS, OTHER, LARGE, SMALL = 1, 2, 4, 8, 16
_KEY = SEED | WORDS
_PLAIN = OTHER | LARGE | SMALL
#: A draw takes at most half of a word as it is.
HALF_BITS = 16


@dataclass(frozen=True, slots=True)
class Dependence:
    """What one output depends on."""

    values: frozenset[int]
    """Places of the inputs whose numbers reach it by arithmetic."""
    selects: frozenset[int]
    """Places of the inputs that choose what it is."""
    random: bool
    """Whether what the generator draws from the key reaches it by arithmetic."""
    random_selects: bool
    """Whether what the generator draws chooses what it is."""

    @property
    def inputs(self) -> frozenset[int]:
        """Places of all inputs that it may depend on, the key apart."""
        return self.values | self.selects


@dataclass(frozen=True, slots=True)
class Misuse:
    """A key that is used otherwise than as a key."""

    what: str
    """What is done to it, as a clause: "compares a random key"."""
    op: str
    """The operation's name; "" where the key is a result of the program."""
    locs: tuple[Loc, ...]
    """Where that operation came from, outermost call first."""


@dataclass(frozen=True, slots=True)
class Choice:
    """An operation that chooses or compares, or a loop, and what decides it."""

    op: str
    """Its name; of a loop "for", whose trips are counted before the first, or "while"."""
    inputs: frozenset[int]
    """Places of the inputs that it chooses by, or that the number of trips depends on."""
    random: bool
    """Whether it depends on what the generator draws from the key."""
    locs: tuple[Loc, ...]
    """Where it came from, outermost call first."""


@dataclass(frozen=True, slots=True)
class Analysis:
    """What is known of a program."""

    outputs: tuple[Dependence, ...]
    """The dependences of each output, in order."""
    misuses: tuple[Misuse, ...]
    """Of the key, in the order of the program."""
    choices: tuple[Choice, ...]
    """Of operations that choose by an input or by what is drawn, in that order too."""
    loops: tuple[Choice, ...]
    """All loops, in that order too."""


def analyse(block: Block, key: int | None = None) -> Analysis:
    """Analyses a block that is well formed.

    key: the place of the parameter that is a random key, u32[2]; None: there is none, and every
    parameter is an input like all others.
    """
    graph = _Graph(unshared(block), key)
    graph.solve()
    choices, loops = graph.choices()
    return Analysis(graph.dependences(), graph.misuses(), choices, loops)


def misuses_of(block: Block, key: int | None) -> tuple[Misuse, ...]:
    """The misuses of `analyse` alone: a device asks for them before it runs a program."""
    graph = _Graph(unshared(block), key)
    graph.solve()
    return graph.misuses()


_CARRY, _MIX, _COMPARE, _PICK, _GENERATE, _DRAW = range(6)


@dataclass(slots=True)
class _Fact:
    """What is known of one value."""

    place: int
    """Its place in the order of the program; what it is computed from comes before it, except in
    loops.
    """
    values: int = 0
    """The inputs whose numbers reach it, as bits."""
    selects: int = 0
    """The inputs that choose it, as bits."""
    form: int = 0
    """What its elements may hold, as bits."""
    edges: list[tuple[int, _Fact]] = field(default_factory=list)
    """A rule, and the fact that it leads to."""
    waits: bool = False
    """Whether it has grown since its edges were followed last."""


@dataclass(slots=True)
class _Graph:
    """The edges of a block, and the facts that travel along them."""

    block: Block
    """The block that is analysed."""
    key: int | None
    """The place of the parameter that is a random key; None: there is none."""
    facts: dict[Value, _Fact] = field(default_factory=dict)
    """The fact of each value."""
    placed: list[_Fact] = field(default_factory=list)
    """The same facts, by their places."""
    waiting: list[int] = field(default_factory=list)
    """A heap of the places of facts that wait. The earliest is followed first, so that a value
    outside of loops is followed once.
    """

    @property
    def random(self) -> int:
        """The bit of what the generator draws."""
        return 1 << len(self.block.params)

    # ------------------------------------------------ edges

    def solve(self) -> None:
        """The least fixed point."""
        self._enter(self.block)
        for place, param in enumerate(self.block.params):
            is_key = place == self.key
            fact = self.facts[param]
            self._grow(fact, 0 if is_key else 1 << place, 0, SEED if is_key else _PLAIN)
        while self.waiting:
            fact = self.placed[heappop(self.waiting)]
            fact.waits = False
            self._follow(fact)

    def _enter(self, block: Block) -> None:
        self._place(block.params)
        for op in block.ops:
            for region in _run(op):
                self._enter(region)
            self._place(op.results)
            self._add(op)

    def _place(self, values: Sequence[Value]) -> None:
        for value in values:
            self.facts[value] = fact = _Fact(len(self.placed))
            self.placed.append(fact)

    def _link(self, role: int, source: Value, target: Value) -> None:
        self.facts[source].edges.append((role, self.facts[target]))

    def _add(self, op: Op) -> None:
        if op.regions:
            self._add_regions(op)
            return
        for place, operand in enumerate(op.operands):
            role = _role(op, place)
            for result in op.results:
                self._link(role, operand, result)
        for result in op.results:
            if op.name == "constant":
                self._grow(self.facts[result], 0, 0, _constant(op))
            elif op.name not in CARRIES and op.name != "threefry":
                self._grow(self.facts[result], 0, 0, _PLAIN)

    def _add_regions(self, op: Op) -> None:
        if op.name in ("while", "for"):
            self._add_loop(op)
            return
        first = 0 if op.name == "custom_vjp" else 1
        for region in _run(op):
            for operand, param in zip(op.operands[first:], region.params, strict=True):
                self._link(_CARRY, operand, param)
            for given, result in zip(region.results, op.results, strict=True):
                self._link(_CARRY, given, result)
        for result in op.results[: len(op.results) * first]:
            self._link(_PICK, op.operands[0], result)

    def _add_loop(self, op: Op) -> None:
        *conds, body = op.regions
        lead = 2 if op.name == "for" else 0
        consts = int(op.attrs["consts"])
        carries = body.params[len(body.params) - len(op.results) :]
        if op.name == "for":
            self._link(_MIX, op.operands[0], body.params[0])
            self._grow(self.facts[body.params[0]], 0, 0, _PLAIN)
        for region, skip in [*((c, 0) for c in conds), (body, lead // 2)]:
            for operand, param in zip(op.operands[lead:], region.params[skip:], strict=True):
                self._link(_CARRY, operand, param)
            for given, param in zip(body.results, region.params[skip + consts :], strict=True):
                self._link(_CARRY, given, param)
        for carry, result in zip(carries, op.results, strict=True):
            self._link(_CARRY, carry, result)
        for decides in (*(c.results[0] for c in conds), *op.operands[:lead]):
            for result in op.results:
                self._link(_PICK, decides, result)

    # ------------------------------------------------ facts

    def _follow(self, fact: _Fact) -> None:
        """Takes what is known of a value to all that its edges lead to."""
        values, selects, form = fact.values, fact.selects, fact.form
        # A key that is not carried is misused, unless it is the generator's or is drawn from;
        # either way the result is random.
        mixed = values | self.random if form & _KEY else values
        for role, target in fact.edges:
            if role == _CARRY:
                self._grow(target, values, selects, form)
            elif role == _COMPARE:
                self._grow(target, mixed, selects | mixed, 0)
            elif role == _PICK:
                self._grow(target, 0, selects | mixed, 0)
            elif role == _GENERATE:
                self._grow(target, mixed, selects, _generated(form))
            else:  # _MIX, _DRAW
                self._grow(target, mixed, selects, 0)

    def _grow(self, fact: _Fact, values: int, selects: int, form: int) -> None:
        values |= fact.values
        selects |= fact.selects
        form |= fact.form
        if values == fact.values and selects == fact.selects and form == fact.form:
            return
        fact.values, fact.selects, fact.form = values, selects, form
        if not fact.waits:
            fact.waits = True
            heappush(self.waiting, fact.place)

    # ------------------------------------------------ answers

    def dependences(self) -> tuple[Dependence, ...]:
        """What each result of the block depends on."""
        made = []
        for result in self.block.results:
            fact = self.facts[result]
            made.append(
                Dependence(
                    self._places(fact.values),
                    self._places(fact.selects),
                    bool(fact.values & self.random or fact.form & _KEY),
                    bool(fact.selects & self.random),
                )
            )
        return tuple(made)

    def _places(self, mask: int) -> frozenset[int]:
        return frozenset(i for i in range(len(self.block.params)) if mask >> i & 1)

    def choices(self) -> tuple[tuple[Choice, ...], tuple[Choice, ...]]:
        """The operations that choose by anything but constants, and all loops."""
        made: list[Choice] = []
        loops: list[Choice] = []
        for op in _walk(self.block):
            mask = 0
            for value in _choosing(op):
                fact = self.facts[value]
                mask |= fact.values | fact.selects
            inputs, random = self._places(mask), bool(mask & self.random)
            if op.name in ("for", "while"):
                loops.append(Choice(op.name, inputs, random, op.locs))
            if inputs or random:
                made.append(Choice(op.name, inputs, random, op.locs))
        return tuple(made), tuple(loops)

    def misuses(self) -> tuple[Misuse, ...]:
        """What is done to keys that may not be."""
        found: list[Misuse] = []
        if self.key is not None:
            for op in _walk(self.block):
                if what := self._misuse(op):
                    found.append(Misuse(f"{what} a random key", op.name, op.locs))
            if any(self.facts[r].form & _KEY for r in self.block.results):
                found.append(Misuse("gives a random key as a result", "", ()))
        return tuple(found)

    def _misuse(self, op: Op) -> str:
        """What an operation does to a key; empty where it may."""
        for place, operand in enumerate(op.operands):
            if not self.facts[operand].form & _KEY:
                continue
            if op.regions:
                if place < _leading(op):
                    return "chooses by"
                continue
            role = _role(op, place)
            if role in (_CARRY, _GENERATE) or (role == _DRAW and self._draws(op)):
                continue
            return _SAID.get(op.name) or ("chooses by" if role == _PICK else "computes with")
        return ""

    def _draws(self, op: Op) -> bool:
        """Whether an operation on the generator's words leaves no key."""
        (x, y) = (self.facts[v].form for v in op.operands)
        if (x | y) & SEED:
            return False
        if op.name == "xor":
            return x == y == WORDS
        if op.name == "shr":
            return y & (WORDS | SMALL) == 0
        mask = y if x & WORDS else x
        return mask & (WORDS | LARGE) == 0


def _generated(form: int) -> int:
    """The form of what the generator gives for a key of a form; it grows with that."""
    return (WORDS if form & _KEY else 0) | (_PLAIN if form & _PLAIN else 0)


_DRAWS = frozenset(("xor", "and", "shr"))
_SAID = {
    **dict.fromkeys(("eq", "ne", "lt", "le", "argmax", "argmin", "argsort", "sign"), "compares"),
    **dict.fromkeys(("convert", "bitcast"), "converts"),
    "threefry": "counts with",
}


def _run(op: Op) -> Sequence[Block]:
    """The regions of an operation that run: of a `custom_vjp` that is left, the first."""
    return op.regions[:1] if op.name == "custom_vjp" else op.regions


def _walk(block: Block) -> Iterator[Op]:
    """Every operation that may run, those of regions after the one that holds them."""
    for op in block.ops:
        yield op
        for region in _run(op):
            yield from _walk(region)


def _choosing(op: Op) -> list[Value]:
    """The values that an operation chooses or compares by."""
    if op.regions:
        conds = [region.results[0] for region in op.regions[:1]] if op.name == "while" else []
        return [*op.operands[: _leading(op)], *conds]
    roles = (_COMPARE, _PICK)
    return [v for place, v in enumerate(op.operands) if _role(op, place) in roles]


def _leading(op: Op) -> int:
    """How many operands of an operation with regions decide what runs."""
    return {"if": 1, "switch": 1, "for": 2}.get(op.name, 0)


def _role(op: Op, place: int) -> int:
    """How an operand of an operation without regions reaches its results."""
    name = op.name
    if name in _DRAWS:
        return _DRAW
    if name == "threefry":
        return _GENERATE if place < 2 else _MIX
    if place in PICKS.get(name, ()) or place >= STARTS.get(name, len(op.operands)):
        return _PICK
    if name in CARRIES and ((carried := CARRIES[name]) is None or place in carried):
        return _CARRY
    if name in COMPARES:
        return _COMPARE
    type_ = op.operands[place].type
    if name.startswith("attention") and getattr(type_, "dtype", None) is DType.BOOL:
        return _PICK
    return _MIX


def _constant(op: Op) -> int:
    array = op.attrs["value"]
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "iu" or not array.size:
        return _PLAIN
    least, most = int(array.min()), int(array.max())
    large = 0 if least >= 0 and most < 1 << HALF_BITS else LARGE
    return OTHER | large | (0 if least >= HALF_BITS else SMALL)
