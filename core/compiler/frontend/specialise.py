"""HIR and abstract arguments to typed IR: abstract interpretation.

The specialiser runs a function's HIR over abstract values (`values`). Everything static is computed
by Python as it goes; everything else adds operations to the scope at hand. Calls are inlined. An
`if` or loop whose condition is static is taken as Python would take it; one whose condition belongs
to the running program becomes an operation with regions (`control`).

The state is small: the scope under construction, the chain of call sites (for spans), and which
lists and dicts were made in the present region, since only those may be changed. One `Specialiser`
makes one program.
"""

from __future__ import annotations

import builtins
import dataclasses
import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from operator import getitem
from typing import Any
from weakref import ref

import numpy as np

from ...common.errors import Loc, ProgramError
from ..complex_numbers import Complex, is_complex
from ..ir import Value
from ..ragged import Ragged
from ..traced import Seen, Transform
from . import calls, complexes, operators, special_methods
from .containers import containers, list_stacks
from .containers.body_functions import stand_in
from .containers.texts import text_of
from .flow import branches, choices, generators, iteration, reduction_loops, unroll_limits
from .flow.index_ranges import Ranges
from .flow.named_parts import bind
from .flow.picked_numbers import Picks
from .flow.raises import Faults, Raised, only_faults
from .hir import hir
from .memory import stores
from .numpy import arithmetic, concatenators, indexing
from .ragged import ragged_lists, ragged_selection
from .scope import Scope
from .values import (
    Activation,
    ClassFrame,
    Closure,
    Frame,
    Once,
    Picked,
    RaggedList,
    Tensor,
    Text,
    Unbound,
    describe,
    is_static,
)

#: Of a long chain of calls, how many an operation keeps at either end.
_CHAIN_ENDS = 16


class StaticNeeded(ProgramError):
    """A value of the running program stands where one known at compile time is needed.

    A loop may unroll and retry.
    """


class Specialiser:
    """Makes one program."""

    def __init__(self) -> None:
        #: What is known of whole numbers; `value in natural`: it is not negative.
        self.natural = Ranges()
        self.tally = [0]
        self.scope = Scope((), self.natural, self.tally)
        #: The scopes that are being built, outermost first.
        self.open = [self.scope]
        #: Lists of numbers are arrays where a loop needs it (`stacks`).
        self.stacking = False
        #: Whether there are arrays whose length the data decide (`ragged`).
        self.ragged = False
        #: A list was indexed by a number of the program, which that may allow.
        self.wants_stacks = False
        #: Whether reductions may be loops (`reduction_loops`), and whether one failed without.
        self.looping = self.wants_loops = False
        #: The last error of a comprehension's condition that the program decides.
        self.undecided: ProgramError | None = None
        #: Generator expressions that were gone through to their ends: they are empty.
        self.spent: tuple[Once, ...] = ()
        #: The memories of joined arrays (`stores.Guard`).
        self.guards: list[ref[stores.Memory]] = []
        #: What `:=` has bound in the present part of an expression, and what the names were before.
        self.named: list[tuple[Frame, str, Any]] | None = None
        #: What lists, dicts, sets and objects held.
        self.container_log = containers.Log()
        #: How far it may be unrolled (`limits`).
        self.size_max = unroll_limits.FIRST_MAX
        #: The loops that are being unrolled; what those before made; the count at their end.
        self.unrolling: list[Loc] = []
        self.unrolled_size = self.unrolled_from = 0
        self.chain: tuple[Loc, ...] = ()
        self.loc: Loc | None = None
        #: The function that the program is made of, for errors about the call of it.
        self.entry: Loc | None = None
        self.region = containers.Region()
        #: What is raised there is raised whatever the numbers are.
        self.outermost = self.region
        #: The calls whose bodies are being run, innermost last.
        self.calls: list[Activation] = []
        #: Lists and dicts that this program made, by id: (the object, the region it was made in).
        self.owned: dict[int, tuple[Any, containers.Region]] = {}
        #: Those of them that may not change, by id (`containers.Copies`).
        self.shared: dict[int, Any] = {}
        #: The changes in place that may have to be undone (`stores.set_value`).
        self.changes: list[Any] = []
        #: The numbers that are one of two others.
        self.picks = Picks()
        #: The errors that the program may meet; None where no caller would raise them.
        self.faults: Faults | None = None
        #: How many `try` are around what is specialised, and what a statement does once it is known
        #: that nothing in it has raised an error; the errors that handlers are at (`tries`).
        self.tries = 0
        self.deferred: Callable[[], None] | None = None
        self.handled: list[Any] = []
        #: Whether `assert` is checked, and what operations are given.
        self.checks = True
        #: Loops that a first attempt showed to need unrolling, by node identity.
        self.unrolled: set[int] = set()
        #: Loops whose first round alone is.
        self.peeled: set[int] = set()
        #: How many functions that are written in NumPy are being inlined (`vocabulary.Defined`).
        self.defining = 0
        #: The arrays, lists, dicts and sets among it, by id.
        self.seen: dict[int, Seen] = {}
        #: Dataclasses among it whose fields were looked at, by id.
        self.looked: dict[int, Any] = {}
        #: The classes that the program defines (`containers.local_classes`).
        self.classes: set[type] = set()
        #: What was read from outside: (id of the owner, name) -> (owner, name, value). An owner is
        #: a module's dict, a cell, or an object.
        self.outside: dict[tuple[int, str], tuple[Any, str, Any]] = {}

    # Errors and spans

    def at(self, loc: Loc) -> None:
        """What follows comes from this span."""
        self.loc = loc
        chain = self.chain
        if len(chain) > 2 * _CHAIN_ENDS:  # An operation need not know every call of a recursion.
            chain = (*chain[:_CHAIN_ENDS], *chain[-_CHAIN_ENDS:])
        self.scope.locs = (*chain, loc)

    def locs(self) -> tuple[Loc, ...]:
        """The present span and the calls that led to it, innermost first."""
        here = self.loc or self.entry
        chain = self.chain if here is None else (*self.chain, here)
        return tuple(reversed(chain))

    def error(self, code: str, message: str, hint: str = "") -> ProgramError:
        return ProgramError(code, message, self.locs(), hint)

    def needs_static(self, value: Any, what: str, hint: str = "") -> ProgramError:
        message = f"{what} must be known when the program is compiled, not {describe(value)}"
        default = "pass it as dl.Static(value), close over it, or compute it from shapes"
        return StaticNeeded("DL107", message, self.locs(), hint or default)

    def static_needed(self, message: str, hint: str) -> ProgramError:
        """The error for a question that only values known now can answer."""
        return StaticNeeded("DL107", message, self.locs(), hint)

    # Building

    def emit(self, name: str, *operands: Value, **attrs: Any) -> Value:
        """Adds an operation of one result."""
        return self.scope.emit(name, operands, attrs)[0]

    @contextmanager
    def inside(self, scope: Scope, changes: bool = False, faults: bool = False) -> Iterator[Scope]:
        """Builds a region: operations go to `scope`, and what was made outside stays as it is.

        `changes`: arrays and containers from outside may be changed in place; `scope.changed` and
        `scope.contents` are what they hold at the region's end. A region that was left is entered
        again with its changes.
        `faults`: the fault code may change (`raises`), and no array. With neither, nothing is
        checked and `raise` is refused.
        """
        before = self.scope, self.region, self.faults
        self.scope, self.region = scope, containers.Region(changes)
        scope.region = scope.region or self.region
        self.faults = self.faults if changes or faults else None
        self.open.append(scope)
        again, at = scope.changed, stores.mark(self)
        try:
            if again:
                with stores.replayed(again):
                    yield scope
            else:
                yield scope
        except Raised as e:
            if not changes:
                raise e.refused(self) from None
            raise
        finally:
            self.open.pop()
            scope.contents = self.region.undo() or scope.contents
            self.scope, self.region, self.faults = before
            changed = stores.undo(self, at)
            scope.changed = changed or again
        if changed and not changes and not (faults and only_faults(self, changed)):
            raise stores.refuse_changes(self, changed)

    def new_scope(self) -> Scope:
        return Scope(self.scope.locs, self.natural, self.tally)

    def state(self) -> tuple[Any, ...]:
        kept = self.scope, self.region, self.chain, self.loc, dict(self.shared), self.spent
        return *kept, len(self.calls), self.container_log.mark(), stores.mark(self)

    def restore(self, state: tuple[Any, ...]) -> None:
        """Back to before an attempt that failed."""
        self.scope, self.region, self.chain, self.loc, shared, self.spent, depth, held, at = state
        self.shared = dict(shared)
        self.container_log.undo(held)
        stores.undo(self, at)
        self.scope.checked.clear()  # Their errors are undone.
        del self.calls[depth:]

    def own(self, value: Any) -> Any:
        """Marks a new list, dict or set as one that the present region may change."""
        self.owned[id(value)] = (value, self.region)
        self.container_log.noted.add(id(value))
        return value

    # Names

    def lookup(self, frame: Frame, name: str) -> Any:
        at: Frame | None = frame
        while at is not None:
            if name in at.vars:
                value = at.vars[name]
                if type(value) is Unbound:
                    raise unroll_limits.unbound(self, value)
                return value
            if name in at.local:
                hint = "assign it before; a name that a function assigns anywhere is its own"
                raise self.error("DL103", f"`{name}` is read before it is assigned", hint)
            if at.parent is None:
                break
            at = at.parent
        assert at is not None
        if name in at.cells:
            return self.cell(at.cells[name], name)
        if name in at.module:
            value = at.module[name]
            self.read(at.module, name, value)
            return value
        if hasattr(builtins, name):
            self.outside[(id(at.module), name)] = (at.module, name, None)
            return getattr(builtins, name)
        known = [*frame.vars, *at.cells, *at.module]
        raise self.error("DL103", f"there is no name `{name}`", self.nearest(name, known))

    def cell(self, cell: Any, name: str) -> Any:
        try:
            value = cell.cell_contents
        except ValueError:
            message = f"`{name}` of the enclosing function has no value yet"
            raise self.error("DL103", message) from None
        self.read(cell, "cell_contents", value)
        return value

    def read(self, owner: Any, name: str, value: Any) -> None:
        """Notes what was read from outside: another value there asks for another program."""
        iteration.not_from_outside(self, value)
        if (key := (id(owner), name)) not in self.outside:
            self.outside[key] = (owner, name, value)
            self.look(value)

    def look(self, value: Any) -> None:
        """Notes what a value from outside holds, where that may change."""
        kind = type(value)
        parts: Iterable[Any]
        if isinstance(value, np.ndarray | list | dict | set):
            if id(value) in self.seen or id(value) in self.owned:
                return
            self.seen[id(value)] = Seen(value)
            held = value if isinstance(value, list) else ()
            parts = value.values() if isinstance(value, dict) else held
        elif isinstance(value, tuple):
            parts = value
        elif kind is partial:
            parts = (*value.args, *value.keywords.values())
        elif isinstance(value, Transform):
            parts = (value.f,)
        elif dataclasses.is_dataclass(kind) and id(value) not in self.looked:
            self.looked[id(value)] = value
            names = [f.name for f in dataclasses.fields(kind) if iteration.stays(value, f.name)]
            if not kind.__dataclass_params__.frozen:  # type: ignore[attr-defined]
                for name in names:
                    self.read(value, name, getattr(value, name))
                return
            parts = [getattr(value, name) for name in names]
        else:
            return
        for part in parts:
            self.look(part)

    def nearest(self, name: str, known: Sequence[str]) -> str:
        near = difflib.get_close_matches(name, known, 1)
        return f"did you mean `{near[0]}`?" if near else ""

    # Expressions

    def eval(self, node: hir.Expr, frame: Frame) -> Any:
        return _EVALUATE[type(node)](self, node, frame)

    def eval_name(self, node: hir.Name, frame: Frame) -> Any:
        found = frame.vars.get(node.name, _MISSING)
        if found is not _MISSING and type(found) is not Unbound:
            return found
        self.at(node.loc)
        return self.lookup(frame, node.name)

    def eval_constant(self, node: hir.Constant, frame: Frame) -> Any:
        return node.value

    def eval_attribute(self, node: hir.Attribute, frame: Frame) -> Any:
        value = self.eval(node.value, frame)
        self.at(node.loc)
        return calls.attribute(self, value, node.name)

    def eval_call(self, node: hir.Call, frame: Frame) -> Any:
        if type(node.function) is hir.Name and node.function.name == "super" and not node.args:
            self.at(node.loc)
            return special_methods.super_of(self, frame)
        function = self.eval(node.function, frame)
        if function is locals and not (node.args or node.keywords):
            self.at(node.loc)
            return special_methods.locals_of(self, frame)
        first = node.args[0] if len(node.args) == 1 else None
        # Python takes a `*value` that stands alone apart when all arguments are computed.
        alone = self.eval(first.value, frame) if isinstance(first, hir.Starred) else _MISSING
        args = self.items(node.args, frame) if alone is _MISSING else []
        keywords: dict[str, Any] = {}
        for name, value in node.keywords:
            given = self.eval(value, frame)
            self.at(node.loc)
            more = given if name is None else {name: given}
            if not isinstance(more, Mapping):
                raise self.error("DL105", f"`**` takes a dict, not {describe(more)}")
            if twice := next((k for k in more if k in keywords), None):
                raise self.error("DL105", f"the argument `{twice}` is given twice")
            keywords.update(more)
        self.at(node.loc)
        args = args if alone is _MISSING else iteration.items(self, alone)
        return calls.call(self, function, args, keywords)

    def items(self, nodes: Sequence[hir.Expr], frame: Frame) -> list[Any]:
        """Several expressions, `*value` taken apart."""
        out: list[Any] = []
        for node in nodes:
            if type(node) is hir.Starred:
                value = self.eval(node.value, frame)
                self.at(node.loc)
                out += iteration.items(self, value)
            else:
                out.append(self.eval(node, frame))
        return out

    def eval_binary(self, node: hir.Binary, frame: Frame) -> Any:
        left, right = self.eval(node.left, frame), self.eval(node.right, frame)
        self.at(node.loc)
        return operators.binary(self, node.op, left, right)

    def eval_unary(self, node: hir.Unary, frame: Frame) -> Any:
        value = self.eval(node.operand, frame)
        self.at(node.loc)
        return operators.unary(self, node.op, value)

    def eval_compare(self, node: hir.Compare, frame: Frame) -> Any:
        return self._compared(node, frame, self.eval(node.operands[0], frame), 0)

    def _compared(self, node: hir.Compare, frame: Frame, left: Any, k: int) -> Any:
        """A chain from its `k`-th operator on: `a < b < c` is `a < b and b < c`."""
        right = self.eval(node.operands[k + 1], frame)
        self.at(node.loc)
        one = operators.compare(self, node.ops[k], left, right)
        if k + 1 == len(node.ops):
            return one
        runs = (lambda: one, lambda: self._compared(node, frame, right, k + 1))
        return branches.boolean(self, "and", runs, node.loc)

    def eval_boolean(self, node: hir.Boolean, frame: Frame) -> Any:
        runs = [partial(self.eval, operand, frame) for operand in node.operands]
        return branches.boolean(self, node.op, runs, node.loc)

    def eval_conditional(self, node: hir.Conditional, frame: Frame) -> Any:
        test = branches.tested(self, node.test, frame)
        self.at(node.test.loc)
        test = operators.condition(self, test)
        if isinstance(test, bool):
            return self.eval(node.then if test else node.otherwise, frame)
        runs = (lambda: self.eval(node.then, frame), lambda: self.eval(node.otherwise, frame))
        lines = node.then.loc.line, node.otherwise.loc.line
        where = (f"on one path (line {lines[0]})", f"on the other (line {lines[1]})")
        return branches.choose(self, "if", test, runs, node.loc, where)

    def eval_subscript(self, node: hir.Subscript, frame: Frame) -> Any:
        value = self.eval(node.value, frame)
        index = self.eval(node.index, frame)
        self.at(node.loc)
        return self.subscript(value, index)

    def subscript(self, value: Any, index: Any) -> Any:
        if type(index) is RaggedList and isinstance(value, Tensor | np.ndarray):
            index = ragged_lists.as_array(self, index, "an index", True)
        if type(value) is Tensor:
            if value.weak:
                text = f"a Python {value.classes[0].__name__} has no items"
                raise self.error("DL119", text, "np.asarray(x) makes an array of it")
            return indexing.subscript(self, value, index)
        if type(value) is Complex or (is_complex(value) and not is_static(index)):
            return complexes.subscript(self, value, index)
        if type(value) is Ragged:
            return ragged_selection.subscript(self, value, index)
        if type(value) is RaggedList:
            return ragged_lists.item(self, value, index)
        if concatenators.is_concatenator(value):
            return concatenators.joined(self, value, index)
        if type(value) is Text or type(index) is Text:
            raise operators.text_needed(self, "an index")
        if type(value) is Picked and type(index) is int:
            return list_stacks.picked(self, value, index)
        if is_static(index) or special_methods.find(value, "__getitem__") is not None:
            if isinstance(value, np.ndarray) and not isinstance(index, tuple | list | np.ndarray):
                return operators.python(self, lambda: value[index], "an index")
            if isinstance(value, type):
                return operators.python(self, partial(getitem, value, index), "an index")
            return calls.item(self, value, index)
        if isinstance(value, np.ndarray):
            return indexing.subscript(self, arithmetic.tensor(self, value), index)
        if self.stacking and choices.is_index(index) and isinstance(value, list | Picked):
            item = list_stacks.picked(self, value, index)
            if item is not None:
                return item
        functions = isinstance(value, tuple | list) and all(map(choices.is_function, value))
        if functions and value and choices.is_index(index):
            return choices.picked(self, value, index)
        what = f"an index into {describe(value)}"
        hint = "stack the items with np.stack to index them in the running program"
        self.wants_stacks = self.wants_stacks or type(value) is list
        raise self.needs_static(index, what, hint)

    def eval_slice(self, node: hir.Slice, frame: Frame) -> Any:
        parts = (node.start, node.stop, node.step)
        start, stop, step = (None if p is None else self.eval(p, frame) for p in parts)
        return slice(start, stop, step)

    def eval_sequence(self, node: hir.Sequence, frame: Frame) -> Any:
        items = self.items(node.items, frame)
        if node.kind is tuple:
            return tuple(items)
        if node.kind is list:
            return self.own(items)
        self.at(node.loc)
        self.hashable(tuple(items), "an item of a set")
        return self.own(operators.python(self, lambda: set(items), "a set"))

    def eval_dict(self, node: hir.DictDisplay, frame: Frame) -> Any:
        out: dict[Any, Any] = {}
        for key, value in node.items:
            if key is None:
                more = self.eval(value, frame)
                self.at(node.loc)
                if not isinstance(more, Mapping):
                    raise self.error("DL105", f"`**` takes a dict, not {describe(more)}")
                out.update(more)
            else:
                name = self.eval(key, frame)
                self.at(key.loc)
                self.hashable(name, "a dict's key")
                out[name] = self.eval(value, frame)
        return self.own(out)

    def hashable(self, key: Any, what: str) -> None:
        if not is_static(key):
            hint = "use an index, or a list of pairs, or pass the key as dl.Static(value)"
            raise self.needs_static(key, what, hint)
        operators.python(self, lambda: hash(key), what)

    def eval_lambda(self, node: hir.Lambda, frame: Frame) -> Any:
        return self.closure(node.function, frame)

    def closure(self, function: hir.FunctionDef, frame: Frame) -> Any:
        """A nested function; in the body of a class, a stand-in of Python's."""
        parameters = function.parameters
        defaults = tuple(self.eval(d, frame) for d in parameters.defaults)
        keyword_defaults = {n: self.eval(d, frame) for n, d in parameters.keyword_defaults}
        if isinstance(frame, ClassFrame):
            assert frame.parent is not None, "a class frame has one around it"
            return stand_in(Closure(function, frame.parent, defaults, keyword_defaults))
        return Closure(function, frame, defaults, keyword_defaults)

    def static_condition(self, node: hir.Expr, frame: Frame) -> bool:
        test = branches.tested(self, node, frame)
        self.at(node.loc)
        test = operators.condition(self, test)
        if not isinstance(test, bool):
            what = "a comprehension's condition"
            hint = "select from an array, v[v > t], or write it as a `for` statement"
            self.undecided = self.needs_static(Tensor(test), what, hint)
            raise self.undecided
        return test

    def eval_format(self, node: hir.Format, frame: Frame) -> Any:
        out: list[Any] = []
        for part in node.parts:
            if isinstance(part, str):
                out.append(part)
                continue
            value, conversion, spec = part
            shown = self.eval(value, frame)
            layout = "" if spec is None else self.eval(spec, frame)
            self.at(node.loc)
            write = partial(_formatted, conversion)
            if is_static((shown, layout)):
                out.append(operators.python(self, partial(write, shown, layout), "a format"))
            else:
                out.append(text_of(self, describe(shown), write, shown, layout))
        if all(type(part) is str for part in out):
            return "".join(out)
        return text_of(self, "".join(map(str, out)), lambda *parts: "".join(parts), *out)

    def eval_named(self, node: hir.Named, frame: Frame) -> Any:
        return bind(self, frame, node.name, self.eval(node.value, frame))

    def eval_starred(self, node: hir.Starred, frame: Frame) -> Any:
        raise self.error("DL102", "`*` cannot stand here")

    def refuse(self, node: hir.Refused, frame: Frame) -> Any:
        self.at(node.loc)
        raise self.error(node.code, node.message, node.hint)

    # Used by the vocabulary

    def stack(self, values: Sequence[Any], axis: int = 0) -> Tensor:
        from .numpy import shapes

        return shapes.stack(self, values, axis)

    def array(self, values: Any, dtype: Any = None) -> Any:
        from .numpy import shapes

        if isinstance(values, tuple | list) and complexes.among(values):
            from .complexes import complex_functions as functions

            return functions.array(self, values)
        return shapes.array(self, values, dtype)

    def call(self, function: Any, *args: Any, **keywords: Any) -> Any:
        return calls.call(self, function, args, keywords)


_MISSING = object()


def _formatted(conversion: str | None, value: Any, layout: str) -> str:
    return format(_CONVERT[conversion](value) if conversion else value, layout)


_CONVERT: dict[str, Callable[[Any], Any]] = {"s": str, "r": repr, "a": ascii}
_EVALUATE: dict[type, Callable[[Specialiser, Any, Frame], Any]] = {
    hir.Name: Specialiser.eval_name,
    hir.Constant: Specialiser.eval_constant,
    hir.Attribute: Specialiser.eval_attribute,
    hir.Call: Specialiser.eval_call,
    hir.Binary: Specialiser.eval_binary,
    hir.Unary: Specialiser.eval_unary,
    hir.Compare: Specialiser.eval_compare,
    hir.Boolean: Specialiser.eval_boolean,
    hir.Conditional: Specialiser.eval_conditional,
    hir.Subscript: Specialiser.eval_subscript,
    hir.Slice: Specialiser.eval_slice,
    hir.Sequence: Specialiser.eval_sequence,
    hir.DictDisplay: Specialiser.eval_dict,
    hir.Starred: Specialiser.eval_starred,
    hir.Lambda: Specialiser.eval_lambda,
    hir.Comprehension: generators.comprehension,
    hir.Reduction: reduction_loops.reduction,
    hir.Yield: generators.give,
    hir.Format: Specialiser.eval_format,
    hir.Named: Specialiser.eval_named,
    hir.Refused: Specialiser.refuse,
}
