"""Statements: assignment, stores into local lists and dicts, assertions.

Branches and loops are in `flow`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import debugging
from ..complex_numbers import Complex, is_complex
from ..ragged import Ragged
from ..traced import ARRAY
from . import calls, complexes, contexts, operators, ragged, special_methods
from .containers import containers, list_stacks, local_classes, program_objects
from .flow import branches, choices, iteration, loops, named_parts, raises, tries
from .hir import hir, liveness
from .memory import array_changes, shared_memory, stores
from .numpy import arithmetic
from .ragged import ragged_selection
from .values import Error, Frame, Picked, RaggedList, Tensor, describe, is_static
from .vocabulary import vocabulary_table

if TYPE_CHECKING:
    from .specialise import Specialiser


def run(s: Specialiser, block: hir.Block, frame: Frame) -> None:
    """Runs a block; within a `try`, each statement where no error came before it."""
    if s.tries:
        tries.run(s, block, frame)
        return
    for statement in block:
        RUN[type(statement)](s, statement, frame)


def _assign(s: Specialiser, node: hir.Assign, frame: Frame) -> None:
    value = s.eval(node.value, frame)
    if node.changed and isinstance(value, np.ndarray):
        value = _changeable(s, node.value, value, frame)
    if s.tries and tries.deferred(s, lambda: _bind(s, node, value, frame)):
        return
    _bind(s, node, value, frame)


def _errors(s: Specialiser) -> Any:
    """What is another once an error may have been met that a handler takes."""
    return s.faults.memories[0].value if s.tries and s.faults is not None else None


def _check_errors(s: Specialiser, before: Any) -> None:
    """Refuses to bind what follows a target that may have raised an error."""
    if _errors(s) is not before:
        text = "a target stands within a `try`, after one that may raise an error"
        raise s.error("DL102", text, "assign in statements of their own")


def _bind(s: Specialiser, node: hir.Assign, value: Any, frame: Frame) -> None:
    before = _errors(s)
    for target in node.targets:
        _check_errors(s, before)
        if type(target) is hir.Name:
            frame.vars[target.name] = value
        else:
            assign(s, target, value, frame)


def _changeable(s: Specialiser, node: hir.Expr, value: Any, frame: Frame) -> Any:
    """An array that NumPy has just made of known values, as one of the program.

    It is about to be changed in place.
    """
    if isinstance(node, hir.Call):
        function = s.eval(node.function, frame)
        row = vocabulary_table.find(function)
        copied = getattr(function, "__name__", "") in ("copy", "astype", "flatten")
        of_array = isinstance(getattr(function, "__self__", None), np.ndarray)
        made = (
            row is not None and row.name.startswith("np.") and not shared_memory.is_view(row.name)
        )
        if not made and not (copied and of_array):
            return value
    if is_complex(value):
        pair = complexes.lift(s, value)
        return complexes.new(s, (pair.re, pair.im), ARRAY, value.flags.c_contiguous)
    return stores.fresh(s, arithmetic.tensor(s, value).value, row_major=value.flags.c_contiguous)


def assign(s: Specialiser, target: hir.Target, value: Any, frame: Frame) -> None:
    """Binds a name, unpacks a sequence, or stores an item or an attribute."""
    if type(target) is hir.Name:
        frame.vars[target.name] = value
        return
    s.at(target.loc)
    if isinstance(target, hir.Sequence):
        _unpack(s, target, iteration.items(s, value), frame)
    elif isinstance(target, hir.Subscript):
        owner = s.eval(target.value, frame)
        index = s.eval(target.index, frame)
        s.at(target.loc)
        store(s, owner, index, value)
    elif isinstance(target, hir.Attribute):
        owner = s.eval(target.value, frame)
        s.at(target.loc)
        program_objects.store(s, owner, target.name, value)
    elif isinstance(target, hir.Refused):
        s.refuse(target, frame)
    else:
        raise s.error("DL102", "`*` cannot stand here")


def _unpack(s: Specialiser, target: hir.Sequence, values: list[Any], frame: Frame) -> None:
    targets = target.items
    star = next((k for k, t in enumerate(targets) if isinstance(t, hir.Starred)), None)
    if star is None and len(values) != len(targets):
        hint = "one name may take the rest: `first, *rest = values`"
        raise s.error("DL113", f"{len(values)} values for {len(targets)} names", hint)
    if star is not None:
        after = len(targets) - star - 1
        if len(values) < star + after:
            raise s.error("DL113", f"{len(values)} values for at least {star + after} names")
        middle = s.own(values[star : len(values) - after])
        values = [*values[:star], middle, *values[len(values) - after :]]
    before = _errors(s)
    for place, value in zip(targets, values, strict=True):
        _check_errors(s, before)
        inner = place.value if isinstance(place, hir.Starred) else place
        assign(s, inner, value, frame)  # type: ignore[arg-type]


def _check_items(s: Specialiser, owner: Tensor) -> None:
    """A number has no items to assign, whatever it is: a handler of TypeError takes that."""
    if owner.kind & ARRAY or len(owner.classes) != 1:
        return
    name = owner.classes[0].__name__
    name = name if owner.weak else f"numpy.{name}"
    raise s.error(
        "DL111",
        f"a number ({describe(owner)}) cannot be changed in place",
        "NumPy's numbers are not arrays: assign a new one to the name",
    ) from raises.SureTypeError(f"'{name}' object does not support item assignment")


def store(s: Specialiser, owner: Any, index: Any, value: Any) -> None:
    """`owner[index] = value` on an array, or on a list or dict that the program made."""
    if type(owner) is Tensor:
        _check_items(s, owner)
        array_changes.store(s, owner, index, value)
        return
    if type(owner) in (Complex, Ragged):
        (complexes if type(owner) is Complex else ragged_selection).store(s, owner, index, value)
        return
    if isinstance(owner, np.ndarray):
        raise s.error(
            "DL111",
            f"an array known when the program is compiled cannot be changed in place"
            f" ({describe(owner)})",
            "copy it first: x = x.copy()",
        )
    if type(owner) is Picked or (type(owner) is list and choices.is_index(index) and s.stacking):
        if not list_stacks.store(s, owner, index, value):
            raise s.needs_static(index, "the place of a store")
        return
    if type(owner) is RaggedList:
        raise s.static_needed(f"a store into {describe(owner)}", operators.OF_ITEMS)
    if not isinstance(owner, list | dict):
        method = special_methods.find(owner, "__setitem__")
        if method is not None:
            calls.call(s, method, (owner, index, value), {})
            return
        raise s.error("DL111", f"{describe(owner)} cannot be changed", "make a new one")
    if not is_static(index):
        s.wants_stacks = s.wants_stacks or type(owner) is list
        raise s.needs_static(index, "the place of a store")
    containers.may_change(s, owner)
    operators.python(s, lambda: owner.__setitem__(index, value), "the store")


def _update(s: Specialiser, node: hir.Update, frame: Frame) -> None:
    target = node.target
    if isinstance(target, hir.Subscript):
        owner, index = s.eval(target.value, frame), s.eval(target.index, frame)
        s.at(target.loc)
        if type(owner) is Ragged:
            value = s.eval(node.value, frame)
            ragged_selection.update_item(s, node.op, owner, index, value)
            return
        if type(owner) is Tensor:
            array_changes.update_item(s, node.op, owner, index, lambda: s.eval(node.value, frame))
            return
        if type(owner) is Complex:
            complexes.update_item(s, node.op, owner, index, lambda: s.eval(node.value, frame))
            return
        old = s.subscript(owner, index)
        value = s.eval(node.value, frame)
        s.at(node.loc)
        made = updated(s, node.op, old, value)
        if made is old and type(index) is not slice and isinstance(owner, list | dict | Picked):
            return
        if not (s.tries and tries.deferred(s, lambda: store(s, owner, index, made))):
            store(s, owner, index, made)
        return
    if isinstance(target, hir.Attribute):
        owner = s.eval(target.value, frame)
        s.at(target.loc)
        old = calls.attribute(s, owner, target.name)
        value = s.eval(node.value, frame)
        s.at(node.loc)
        made = updated(s, node.op, old, value)
        keep = partial(program_objects.store, s, owner, target.name, made)
        done = made is old and program_objects.holds(owner, target.name, made)
        if not done and not (s.tries and tries.deferred(s, keep)):
            keep()
        return
    if not isinstance(target, hir.Name):
        assign(s, target, None, frame)
        return
    old = s.eval(target, frame)
    value = s.eval(node.value, frame)
    s.at(node.loc)
    made = updated(s, node.op, old, value)
    if made is not old and not (
        s.tries and tries.deferred(s, lambda: frame.vars.update({target.name: made}))
    ):
        frame.vars[target.name] = made


def updated(s: Specialiser, op: str, old: Any, value: Any) -> Any:
    """`old op= value`.

    An array, list, dict or set is changed in place, anything else gives a new value.
    """
    if op == "@" and complexes.is_operand(old) and complexes.shape_of(old):
        value = s.array(value) if isinstance(value, list | tuple) else value
        if complexes.is_operand(value) and len(complexes.shape_of(value)) < 2:
            text = "`@=` fails: ValueError: inplace matrix multiplication requires the second"
            text += " operand to have at least two dimensions"
            raise s.error("DL113", text, "write x = x @ y")
    if type(old) is Tensor and old.kind & ARRAY:
        array_changes.update(s, op, old, value)
        return old
    if type(old) is Ragged:
        ragged.update(s, op, old, value)
        return old
    if type(old) is Complex and complexes.kind(old) & ARRAY:
        complexes.update(s, op, old, value)
        return old
    if isinstance(old, np.ndarray):
        raise s.error(
            "DL111",
            f"{describe(old)} is known while compiling, and cannot be changed in place",
            "copy it first: x = x.copy(), or write x = x + v",
        )
    made = special_methods.in_place(s, op, old, value)
    if made is not NotImplemented:
        return made
    if _is_changed(op, old, value):
        _update_container(s, op, old, value)
        return old
    return operators.binary(s, op, old, value)


def _is_changed(op: str, old: Any, value: Any) -> bool:
    """Whether `op=` changes a list, dict or set.

    NumPy's own operators come before a list's `+=`, and `*=` wants a number that is known.
    """
    if isinstance(old, list):
        known = isinstance(value, int | np.integer)
        return known if op == "*" else op == "+" and not complexes.is_operand(value)
    if complexes.is_operand(value):
        return False
    return op == "|" if isinstance(old, dict) else isinstance(old, set) and op in "|&-^"


def _update_container(s: Specialiser, op: str, old: Any, value: Any) -> None:
    if isinstance(old, list) and op == "+":
        value = iteration.items(s, value)
    elif isinstance(old, dict) and not isinstance(value, dict):
        value = [tuple(iteration.items(s, pair)) for pair in iteration.items(s, value)]
    containers.may_change(s, old)
    operators.python(s, lambda: operators.IN_PLACE[op](old, value), f"`{op}=`")


def _evaluate(s: Specialiser, node: hir.Evaluate, frame: Frame) -> None:
    if debugging.on and _is_for_people(s, node.value, frame):
        return
    if s.tries and _changes_a_list(node.value):
        _evaluate_change(s, node.value, frame)
        return
    s.eval(node.value, frame)


def _changes_a_list(value: hir.Expr) -> bool:
    if not isinstance(value, hir.Call) or not isinstance(value.function, hir.Attribute):
        return False
    return value.function.name in liveness.MUTATORS and not value.keywords


def _evaluate_change(s: Specialiser, node: Any, frame: Frame) -> None:
    """`items.append(v)` within a `try`: the change comes after the errors of `v`."""
    function = s.eval(node.function, frame)
    args = s.items(node.args, frame)
    s.at(node.loc)
    if not tries.deferred(s, lambda: calls.call(s, function, args, {})):
        calls.call(s, function, args, {})


def _is_for_people(s: Specialiser, value: hir.Expr, frame: Frame) -> bool:
    """Whether it is a call of print or breakpoint: plain Python has made it already."""
    if not isinstance(value, hir.Call) or not isinstance(value.function, hir.Name | hir.Attribute):
        return False
    return debugging.is_for_people(s.eval(value.function, frame))


def _set_flag(s: Specialiser, node: hir.SetFlag, frame: Frame) -> None:
    frame.vars[node.name] = node.value


def _define(s: Specialiser, node: hir.Define, frame: Frame) -> None:
    decorators = [s.eval(decorator, frame) for decorator in node.decorators]
    value: Any = s.closure(node.function, frame)
    for decorator, function in zip(reversed(node.decorators), reversed(decorators), strict=True):
        s.at(decorator.loc)
        value = calls.call(s, function, [value], {})
    frame.vars[node.name] = value


def _assert(s: Specialiser, node: hir.Assert, frame: Frame) -> None:
    if node.error is AssertionError and not (s.checks and __debug__):
        return
    test = branches.tested(s, node.test, frame)
    s.at(node.test.loc)
    truth = operators.condition(s, test)

    def words() -> tuple[Any, ...]:
        return () if node.message is None else (s.eval(node.message, frame),)

    if isinstance(truth, bool):
        if not truth and s.tries:
            s.at(node.loc)
            raises.throw(s, Error(node.error, words(), {}))
        if not truth:
            text = "".join(f": {m if isinstance(m, str) else describe(m)}" for m in words())
            s.at(node.loc)
            what = "the assertion fails" if node.error is AssertionError else node.error.__name__
            raise s.error("DL112", f"{what}{text}")
    elif s.faults is not None and not debugging.on:  # Plain Python has judged it there.
        s.at(node.loc)
        with named_parts.part(s) as names:
            raises.check(s, truth, lambda: Error(node.error, words(), {}))
        if names:
            raise s.error("DL102", "`:=` in the words of an assertion", "assign before it")


def _raise(s: Specialiser, node: hir.Raise, frame: Frame) -> None:
    if node.error is None:
        s.at(node.loc)
        tries.again(s)
    error = None if node.error is None else s.eval(node.error, frame)
    if node.cause is not None and type(node.cause) is not hir.Name:  # A program keeps no chain.
        tries.check_cause(s, s.eval(node.cause, frame))
    s.at(node.loc)
    raises.throw(s, error)


RUN: dict[type, Callable[[Any, Any, Frame], None]] = {
    hir.Assign: _assign,
    hir.Update: _update,
    hir.Evaluate: _evaluate,
    hir.SetFlag: _set_flag,
    hir.If: branches.run_if,
    hir.While: loops.run_while,
    hir.For: loops.run_for,
    hir.Define: _define,
    hir.DefineClass: local_classes.define,
    hir.Assert: _assert,
    hir.Raise: _raise,
    hir.Try: tries.run_try,
    hir.Import: contexts.run_import,
    hir.Delete: contexts.run_delete,
    hir.Enter: contexts.enter,
    hir.Refused: lambda s, node, frame: s.refuse(node, frame),
}
