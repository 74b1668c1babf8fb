"""Python's own functions on abstract values."""

from __future__ import annotations

import cmath
import dataclasses
import functools
import inspect
import types
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ...ir import DType
from ...traced import ARRAY, BOOL, FLOAT, INT
from .. import calls, operators, pynumbers, special_methods
from ..complexes.complex_python import CMATH, complex_of
from ..containers import program_objects, sorted_numbers
from ..containers.texts import text_of
from ..definitions import np_generators
from ..flow import cached_calls, host_calls, integer_fits, iteration, loops
from ..numpy import arithmetic
from ..numpy.arithmetic import tensor
from ..ragged import ragged_python
from ..values import (
    Choice,
    Closure,
    Error,
    Indexed,
    Method,
    Once,
    Picked,
    Tensor,
    TensorRange,
    Text,
    describe,
    is_number,
    is_static,
    kind_of,
)
from . import python_sums
from .vocabulary_table import Row

if TYPE_CHECKING:
    from ..specialise import Specialiser


_MISSING = object()
#: The square of a larger one has more than 64 bits.
_MODULUS_MAX = 3_037_000_499


def _len(s: Specialiser, value: Any) -> Any:
    if isinstance(value, Indexed | Picked):
        return value.length
    if type(value) is Tensor:
        if not value.shape:
            raise s.error("DL119", f"{describe(value)} has no length")
        return value.shape[0]
    if type(value) is Once:
        raise s.error("DL119", "an iterator has no length", "make a list of it first")
    if isinstance(value, TensorRange):
        iteration.items(s, value)
    method = getattr(type(value), "__len__", None)
    if isinstance(method, types.FunctionType):
        length = s.call(types.MethodType(method, value))
        if type(length) is Tensor and not length.dtype.is_float:
            return _int(s, length)
        return operators.static_index(s, length, "a length")
    return operators.python(s, lambda: len(value), "`len`")


def _range(s: Specialiser, *bounds: Any) -> Any:
    if not 1 <= len(bounds) <= 3:
        raise s.error("DL105", f"`range` takes one to three numbers, not {len(bounds)}")
    if is_static(bounds):
        return operators.python(s, lambda: range(*bounds), "`range`")
    for bound in bounds:
        loops.check_whole(s, bound)
    start, stop = (0, bounds[0]) if len(bounds) == 1 else bounds[:2]
    return TensorRange(start, stop, bounds[2] if len(bounds) == 3 else 1)


def _zip(s: Specialiser, *values: Any, strict: Any = False) -> Any:
    values = _iterators(s, *values)
    made = partial(iteration.zipped, s, list(values), bool(strict))
    sources = iteration.sources_of(*values)
    turns = None if strict else partial(iteration.zipped_in_turns, s, values)
    return Once(made, s.region, sources, iteration.computes(*values), values, turns=turns)


def _enumerate(s: Specialiser, iterable: Any, start: Any = 0) -> Any:
    (iterable,) = _iterators(s, iterable)
    first = operators.static_index(s, start, "a start")
    made = partial(iteration.enumerated, s, iterable, first)
    sources = iteration.sources_of(iterable)

    def turns() -> Iterator[Any]:
        return enumerate(iteration.live(s, iterable), first)

    return Once(made, s.region, sources, iteration.computes(iterable), (iterable,), turns=turns)


def _reversed(s: Specialiser, sequence: Any) -> Any:
    if type(sequence) is Once:
        raise s.error("DL119", "`reversed` does not take an iterator", "make a list of it first")
    made = partial(iteration.backwards, s, sequence)
    return Once(made, s.region, iteration.sources_of(sequence), sized=True)


def _iter(s: Specialiser, iterable: Any) -> Any:
    (value,) = _iterators(s, iterable)
    if type(value) is Once:
        return value
    turns = partial(iteration.live, s, value)
    return Once(lambda: value, s.region, iteration.sources_of(value), reads=(value,), turns=turns)


def _next(s: Specialiser, iterator: Any, *default: Any) -> Any:
    if len(default) > 1:
        raise s.error("DL105", f"`next` takes one or two arguments, not {1 + len(default)}")
    if type(iterator) is not Once:
        text = f"`next` takes an iterator, not {describe(iterator)}"
        raise s.error("DL119", text, "make one of it first: iter(values)")
    return iteration.advance(s, iterator, default)


def _iterators(s: Specialiser, *values: Any) -> tuple[Any, ...]:
    """Objects as their iterators; refuses now what cannot be gone through later."""
    for value in values:
        if is_number(value) and not arithmetic.shape_of(value):
            raise s.error("DL119", f"{describe(value)} cannot be iterated")
    return tuple(iteration.of_object(s, value) for value in values)


def _map(s: Specialiser, function: Any, *iterables: Any) -> Any:
    iterables = _iterators(s, *iterables)

    def make() -> list[Any]:
        inner = iteration.watched(s, *iterables)
        columns = iteration.partly(s, *iterables)
        made = [s.call(function, *row) for row in zip(*columns, strict=False)]
        iteration.settled(s, inner)
        return made

    sources = iteration.sources_of(*iterables)
    return Once(make, s.region, sources, computes=True, reads=(function, *iterables))


def _filter(s: Specialiser, function: Any, iterable: Any) -> Any:
    (iterable,) = _iterators(s, iterable)

    def make() -> list[Any]:
        kept, inner = [], iteration.watched(s, iterable)
        for value in iteration.partly(s, iterable)[0]:
            test = operators.condition(s, value if function is None else s.call(function, value))
            if not isinstance(test, bool):
                raise s.needs_static(Tensor(test), "what `filter` tests")
            if test:
                kept.append(value)
        iteration.settled(s, inner)
        return kept

    sources = iteration.sources_of(iterable)
    return Once(make, s.region, sources, computes=True, reads=(function, iterable))


def _extreme(name: str) -> Callable[..., Any]:
    def run(s: Specialiser, *values: Any, key: Any = None, default: Any = _MISSING) -> Any:
        if len(values) > 1 and default is not _MISSING:
            raise s.error("DL113", f"`{name}` of several values takes no `default`: TypeError")
        items = list(values) if len(values) != 1 else iteration.items(s, values[0])
        if not items:
            if default is not _MISSING:
                return default
            raise ragged_python.of_nothing(s, name)
        if key is not None:
            ranks = [s.call(key, v) for v in items]
            if not is_static(tuple(ranks)):
                return sorted_numbers.extreme(s, name, items, ranks)
            best = (max if name == "max" else min)(range(len(items)), key=lambda k: ranks[k])
            return items[best]
        if is_static(tuple(items)):
            return operators.python(s, lambda: (max if name == "max" else min)(items), f"`{name}`")
        if all(isinstance(value, tuple | list) for value in items):
            return sorted_numbers.extreme(s, name, items, items)
        for value in items:
            if not is_number(value):
                raise s.needs_static(tuple(items), f"what `{name}` compares")
            if arithmetic.shape_of(value) != ():
                hint = f"use np.{name} or np.{name}imum for arrays"
                raise s.error("DL115", f"`{name}` compares numbers, not {describe(value)}", hint)
        return pynumbers.extreme(s, name == "max", items)

    return run


def _truths(s: Specialiser, iterable: Any, op: str) -> Any:
    result: Any = op == "and"
    for value in iteration.partly(s, iterable)[0]:
        test = operators.condition(s, value)
        if isinstance(test, bool):
            if test is (op == "or"):
                return test
            continue
        one = Tensor(test, True)
        result = one if isinstance(result, bool) else arithmetic.elementwise(s, op, result, one)
    return result


def _all(s: Specialiser, iterable: Any) -> Any:
    return _truths(s, iterable, "and")


def _any(s: Specialiser, iterable: Any) -> Any:
    return _truths(s, iterable, "or")


def _absolute(s: Specialiser, x: Any) -> Any:
    method = special_methods.find(x, "__abs__")
    if method is not None:
        return s.call(types.MethodType(method, x))
    if type(x) is not Tensor:
        return operators.python(s, lambda: abs(x), "`abs`")
    return pynumbers.absolute(s, x)


def _round(s: Specialiser, number: Any, ndigits: Any = None) -> Any:
    method = special_methods.find(number, "__round__")
    if method is not None:
        return s.call(types.MethodType(method, number), *(() if ndigits is None else (ndigits,)))
    if type(number) is Tensor and number.kind & ARRAY:
        hint = "np.round rounds an array"
        raise s.error("DL119", f"`round` does not take {describe(number)}", hint)
    if type(number) is Tensor and number.weak:
        return pynumbers.rounded(s, number, ndigits)
    if type(number) is Tensor and len(number.classes) > 1:
        raise operators.of_several_classes(s, number)
    rounded = s.call(np.round, number, 0 if ndigits is None else ndigits)
    return _int(s, rounded) if ndigits is None else rounded


def _scalar(s: Specialiser, x: Any, name: str) -> Tensor:
    value = tensor(s, _converted(s, x, name))
    if value.shape != ():
        hint = f"x.astype({name}) converts an array"
        raise s.error("DL115", f"`{name}` takes one number, not {describe(value)}", hint)
    return value


def _converted(s: Specialiser, x: Any, name: str) -> Any:
    """An object as the number that its `__int__` or `__float__` makes of it."""
    method = special_methods.find(x, f"__{name}__")
    if method is None:
        return x
    made = s.call(types.MethodType(method, x))
    fits = INT if name == "int" else FLOAT
    if not is_number(made) or kind_of(made) != fits:
        text = f"`__{name}__` of `{type(x).__name__}` gives {describe(made)}"
        raise s.error("DL113", text, f"let it give {name}(x)")
    return made


def _int(s: Specialiser, x: Any = 0) -> Any:
    value = _scalar(s, x, "int")
    if value.dtype.is_float or value.dtype is DType.U64:
        integer_fits.ask_whole(s, value, int)
    return Tensor(arithmetic.convert(s, value.value, DType.I64), True)


def _float(s: Specialiser, x: Any = 0.0) -> Any:
    value = _scalar(s, x, "float")
    return Tensor(arithmetic.convert(s, value.value, DType.F64), True)


def _bool(s: Specialiser, x: Any = False) -> Any:
    test = operators.condition(s, x)
    return test if isinstance(test, bool) else Tensor(test, True)


def _pow(s: Specialiser, base: Any, exp: Any, mod: Any = None) -> Any:
    if mod is None:
        return operators.binary(s, "**", base, exp)
    for value in (exp, mod):
        if not is_static(value):
            raise s.needs_static(value, "the exponent and the modulus of `pow`")
    if is_static(base):
        return operators.python(s, lambda: pow(base, exp, mod), "`pow`")
    if kind_of(base) & ~(BOOL | INT) or not isinstance(exp, int) or not isinstance(mod, int):
        raise s.error("DL119", "`pow` with a modulus takes ints of Python's")
    if not 0 <= exp < 1 << 64 or abs(mod) > _MODULUS_MAX:
        raise s.needs_static(base, "the base of `pow` with such an exponent or modulus")
    made = operators.python(s, lambda: pow(0, 0, mod), "`pow`")
    base = operators.binary(s, "%", base, mod)
    for bit in f"{exp:b}":
        made = operators.binary(s, "%", operators.binary(s, "*", made, made), mod)
        if bit == "1":
            made = operators.binary(s, "%", operators.binary(s, "*", made, base), mod)
    return made


def _divmod(s: Specialiser, x: Any, y: Any) -> Any:
    pynumbers.check(s, "divmod", x, y)
    return operators.binary(s, "//", x, y), operators.binary(s, "%", x, y)


def _tuple(s: Specialiser, iterable: Any = ()) -> Any:
    return tuple(iteration.items(s, iterable))


def _list(s: Specialiser, iterable: Any = ()) -> Any:
    return s.own(list(iteration.items(s, iterable)))


def _dict(s: Specialiser, source: Any = (), **more: Any) -> Any:
    if isinstance(source, dict):
        return s.own({**source, **more})
    if special_methods.find(source, "keys"):
        keys = iteration.items(s, s.call(calls.attribute(s, source, "keys")))
        source = [(key, s.subscript(source, key)) for key in keys]
    pairs = [tuple(iteration.items(s, p)) for p in iteration.items(s, source)]
    for key, *_ in pairs:
        s.hashable(key, "a dict's key")
    return s.own(operators.python(s, lambda: {**dict(pairs), **more}, "`dict`"))


def _sorted(s: Specialiser, iterable: Any, *, key: Any = None, reverse: Any = False) -> Any:
    values = iteration.items(s, iterable)
    return s.own(sorted_numbers.ordered(s, values, key, reverse, "sorted"))


def _class_of(value: Any) -> Any:
    """The class of a value other than a number of the running program."""
    if type(value) in (Closure, Method, Choice):
        return types.FunctionType
    if type(value) is Error:
        return value.cls
    found = {Picked: list, Text: str, TensorRange: range}.get(type(value))
    return found or getattr(type(value), np_generators.STANDS_FOR, type(value))


#: Of an iterator it is not kept which of them it is.
_ITERATORS: tuple[type, ...] = (
    zip,
    map,
    filter,
    enumerate,
    reversed,
    types.GeneratorType,
    type(iter([])),
)


def _of_an_iterator(s: Specialiser) -> Exception:
    text = "only Python knows the class of this iterator"
    return s.error("DL119", text, "ask before it is made, or make a list of it")


def _isinstance(s: Specialiser, value: Any, classes: Any) -> bool:
    kinds = value.classes if type(value) is Tensor else _ITERATORS
    if type(value) in (Tensor, Once):
        answers = {
            bool(operators.python(s, partial(issubclass, c, classes), "`isinstance`"))
            for c in kinds
        }
        if len(answers) == 1:
            return answers.pop()
        raise _of_an_iterator(s) if type(value) is Once else operators.of_several_classes(s, value)
    if type(value) in (Error, Text, Picked, Closure, Method, TensorRange):
        kind = _class_of(value)
        return operators.python(s, lambda: issubclass(kind, classes), "`isinstance`")  # type: ignore[no-any-return]
    if hasattr(type(value), np_generators.STANDS_FOR) and not s.defining:
        return bool(
            operators.python(s, partial(issubclass, _class_of(value), classes), "`isinstance`")
        )
    return operators.python(s, lambda: isinstance(value, classes), "`isinstance`")  # type: ignore[no-any-return]


def _type(s: Specialiser, value: Any) -> Any:
    if type(value) is Once:
        raise _of_an_iterator(s)
    if type(value) is not Tensor:
        return _class_of(value)
    if len(value.classes) > 1:
        raise operators.of_several_classes(s, value)
    return value.classes[0]


def _getattr(s: Specialiser, value: Any, name: Any, default: Any = _MISSING) -> Any:
    if not isinstance(name, str):
        raise s.error("DL119", f"an attribute's name is a string, not {describe(name)}")
    if default is not _MISSING and not _hasattr(s, value, name):
        return default
    return calls.attribute(s, value, name)


def _setattr(s: Specialiser, value: Any, name: Any, new: Any) -> None:
    if not isinstance(name, str):
        raise s.error("DL119", f"an attribute's name is a string, not {describe(name)}")
    program_objects.store(s, value, name, new)


def _hasattr(s: Specialiser, value: Any, name: Any) -> bool:
    if not isinstance(name, str):
        raise s.error("DL119", f"an attribute's name is a string, not {describe(name)}")
    if type(value) is Tensor:
        answers = {hasattr(c, name) for c in value.classes}
        if len(answers) > 1:
            raise operators.of_several_classes(s, value)
        return answers.pop()
    if type(value) is Text:
        return hasattr(str, name)
    found = inspect.getattr_static(value, name, _MISSING) is not _MISSING
    if not found:
        s.outside[(id(value), name)] = (value, name, None)
    return found


def _callable(s: Specialiser, value: Any) -> bool:
    return callable(value)


def _reduce(s: Specialiser, function: Any, sequence: Any, initial: Any = _MISSING) -> Any:
    values = iteration.items(s, sequence)
    if initial is not _MISSING:
        values.insert(0, initial)
    if not values:
        raise s.error("DL113", "`reduce` of nothing", "give it an initial value to start from")
    result = values[0]
    for value in values[1:]:
        result = s.call(function, result, value)
    return result


def _partial(s: Specialiser, function: Any, *args: Any, **kwargs: Any) -> Any:
    if not callable(function):
        raise s.error("DL106", f"{describe(function)} is not a function")
    return functools.partial(function, *args, **kwargs)


def _replace(s: Specialiser, obj: Any, **changes: Any) -> Any:
    for f in _fields(s, obj):
        if not f.init and f.name in changes:
            raise s.error("DL113", f"`replace` cannot set `{f.name}`: it has init=False")
        if f.init and f.name not in changes:
            changes[f.name] = calls.attribute(s, obj, f.name)
    return s.call(type(obj), **changes)


def _fields(s: Specialiser, obj: Any) -> Any:
    return operators.python(s, lambda: dataclasses.fields(obj), "`fields`")


def _astuple(s: Specialiser, obj: Any) -> Any:
    return tuple(getattr(obj, f.name) for f in _flat_fields(s, obj))


def _asdict(s: Specialiser, obj: Any) -> Any:
    return s.own({f.name: getattr(obj, f.name) for f in _flat_fields(s, obj)})


def _flat_fields(s: Specialiser, obj: Any) -> Any:
    """The fields of a dataclass whose values are numbers: Python copies what they hold."""
    fields = _fields(s, obj)
    for f in fields:
        value = getattr(obj, f.name)
        if not (is_number(value) or isinstance(value, str | None)) or arithmetic.shape_of(value):
            text = f"Python copies what the field `{f.name}` holds, {describe(value)}"
            raise s.error("DL119", text, "take the fields: getattr(x, f.name) for f in fields(x)")
    return fields


def _slice(s: Specialiser, *bounds: Any) -> slice:
    return operators.python(s, lambda: slice(*bounds), "`slice`")  # type: ignore[no-any-return]


def _text(write: Callable[[Any], str]) -> Callable[..., Any]:
    def run(s: Specialiser, value: Any = "") -> Any:
        if is_static(value):
            return operators.python(s, lambda: write(value), f"`{write.__name__}`")
        return (
            value
            if type(value) is Text and write is str
            else text_of(s, describe(value), write, value)
        )

    return run


def _identity(s: Specialiser, value: Any) -> Any:
    return value


def _wraps(s: Specialiser, wrapped: Any, *args: Any, **kwargs: Any) -> Any:
    """`functools.wraps(f)` only copies names and documentation."""
    return Method("wraps", None, lambda s, owner, value: value)


def _cache(s: Specialiser, maxsize: Any = None, typed: Any = False) -> Any:
    """`functools.cache`, and `lru_cache`: what it drops is computed again."""
    if callable(maxsize):
        return cached_calls.cached(maxsize, typed)
    return Method("lru_cache", None, lambda s, owner, f: cached_calls.cached(f, typed))


def _operator(symbol: str) -> Callable[..., Any]:
    def run(s: Specialiser, a: Any, b: Any) -> Any:
        return operators.binary(s, symbol, a, b)

    return run


def _comparison(symbol: str) -> Callable[..., Any]:
    def run(s: Specialiser, a: Any, b: Any) -> Any:
        return operators.compare(s, symbol, a, b)

    return run


def _unary(symbol: str) -> Callable[..., Any]:
    def run(s: Specialiser, a: Any) -> Any:
        return operators.unary(s, symbol, a)

    return run


def _operator_rows() -> list[Row]:
    """The module `operator`."""
    groups = (
        (operators.BINARY, _operator),
        (operators.COMPARE, _comparison),
        (operators.UNARY, _unary),
    )
    return [
        Row(function, f"operator.{function.__name__}", handler(symbol), False, None)
        for table, handler in groups
        for symbol, function in table.items()
    ]


def rows() -> list[Row]:
    """A row for each built-in and function of Python's modules that the compiler knows."""
    always: tuple[tuple[Any, str, Callable[..., Any]], ...] = (
        (len, "len", _len),
        (range, "range", _range),
        (iter, "iter", _iter),
        (next, "next", _next),
        (zip, "zip", _zip),
        (enumerate, "enumerate", _enumerate),
        (reversed, "reversed", _reversed),
        (map, "map", _map),
        (filter, "filter", _filter),
        (max, "max", _extreme("max")),
        (min, "min", _extreme("min")),
        (sum, "sum", python_sums.of_items),
        (all, "all", _all),
        (any, "any", _any),
        (tuple, "tuple", _tuple),
        (list, "list", _list),
        (set, "set", iteration.collected(set)),
        (frozenset, "frozenset", iteration.collected(frozenset)),
        (dict, "dict", _dict),
        (sorted, "sorted", _sorted),
        (isinstance, "isinstance", _isinstance),
        (type, "type", _type),
        (getattr, "getattr", _getattr),
        (hasattr, "hasattr", _hasattr),
        (setattr, "setattr", _setattr),
        (callable, "callable", _callable),
        (slice, "slice", _slice),
        (functools.reduce, "functools.reduce", _reduce),
        (functools.partial, "functools.partial", _partial),
        (functools.wraps, "functools.wraps", _wraps),
        (functools.cache, "functools.cache", _cache),
        (functools.lru_cache, "functools.lru_cache", _cache),
        (dataclasses.replace, "dataclasses.replace", _replace),
        (dataclasses.fields, "dataclasses.fields", _fields),
        (dataclasses.asdict, "dataclasses.asdict", _asdict),
        (dataclasses.astuple, "dataclasses.astuple", _astuple),
        (bool, "bool", _bool),
        (str, "str", _text(str)),
        (repr, "repr", _text(repr)),
        *host_calls.FUNCTIONS,
    )
    fold: tuple[tuple[Any, str, Callable[..., Any]], ...] = (
        (int, "int", _int),
        (float, "float", _float),
        (abs, "abs", _absolute),
        (complex, "complex", complex_of),
        (round, "round", _round),
        (pow, "pow", _pow),
        (divmod, "divmod", _divmod),
    )
    known = [Row(f, n, h, False, None) for f, n, h in always] + [
        Row(f, n, h, True, None) for f, n, h in fold
    ]
    known += [Row(getattr(cmath, n), f"cmath.{n}", h, True, None) for n, h in CMATH.items()]
    return known + _operator_rows()
