"""Python's own functions on abstract values."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ..ir import DType
from . import arithmetic, calls, iteration, operators
from .arithmetic import tensor
from .values import Closure, Indexed, Method, Tensor, TensorRange, describe, is_static
from .vocabulary import Row

if TYPE_CHECKING:
    from .specialise import Specialiser


_MISSING = object()


def _len(s: Specialiser, value: Any) -> int:
    if isinstance(value, Indexed):
        return value.length
    if type(value) is Tensor:
        if not value.shape:
            raise s.error("DL119", f"{describe(value)} has no length")
        return value.shape[0]
    if isinstance(value, TensorRange):
        iteration.items(s, value)
    method = getattr(type(value), "__len__", None)
    if isinstance(method, types.FunctionType):
        return s.call(types.MethodType(method, value))  # type: ignore[no-any-return]
    return operators.python(s, lambda: len(value), "`len`")  # type: ignore[no-any-return]


def _range(s: Specialiser, *bounds: Any) -> Any:
    if not 1 <= len(bounds) <= 3:
        raise s.error("DL105", f"`range` takes one to three numbers, not {len(bounds)}")
    if is_static(bounds):
        return operators.python(s, lambda: range(*bounds), "`range`")
    start, stop = (0, bounds[0]) if len(bounds) == 1 else bounds[:2]
    return TensorRange(start, stop, bounds[2] if len(bounds) == 3 else 1)


def _zip(s: Specialiser, *values: Any, strict: Any = False) -> Any:
    return iteration.zipped(s, list(values), bool(strict))


def _enumerate(s: Specialiser, iterable: Any, start: Any = 0) -> Any:
    return iteration.enumerated(s, iterable, operators.static_int(s, start, "a start"))


def _reversed(s: Specialiser, sequence: Any) -> Any:
    return iteration.backwards(s, sequence)


def _map(s: Specialiser, function: Any, *iterables: Any) -> Any:
    columns = [iteration.items(s, i) for i in iterables]
    return s.own([s.call(function, *row) for row in zip(*columns, strict=False)])


def _filter(s: Specialiser, function: Any, iterable: Any) -> Any:
    kept = []
    for value in iteration.items(s, iterable):
        test = operators.condition(s, value if function is None else s.call(function, value))
        if not isinstance(test, bool):
            raise s.needs_static(Tensor(test), "what `filter` tests")
        if test:
            kept.append(value)
    return s.own(kept)


def _extreme(name: str) -> Callable[..., Any]:
    elementwise = arithmetic.maximum if name == "max" else arithmetic.minimum

    def run(s: Specialiser, *values: Any, key: Any = None, default: Any = _MISSING) -> Any:
        items = list(values) if len(values) != 1 else iteration.items(s, values[0])
        if not items:
            if default is not _MISSING:
                return default
            raise s.error("DL113", f"`{name}` of nothing")
        if key is not None:
            ranks = [s.call(key, v) for v in items]
            if not is_static(tuple(ranks)):
                raise s.needs_static(tuple(ranks), f"the keys of `{name}`")
            best = (max if name == "max" else min)(range(len(items)), key=lambda k: ranks[k])
            return items[best]
        if is_static(tuple(items)):
            return operators.python(s, lambda: (max if name == "max" else min)(items), f"`{name}`")
        result = items[0]
        for value in items[1:]:
            result = elementwise(s, result, value)
        if arithmetic.shape_of(result) != ():
            hint = f"use np.{name} or np.{name}imum for arrays"
            raise s.error("DL115", f"`{name}` compares numbers, not {describe(result)}", hint)
        return result

    return run


def _sum(s: Specialiser, iterable: Any, start: Any = 0) -> Any:
    total = start
    for value in iteration.items(s, iterable):
        total = operators.binary(s, "+", total, value)
    return total


def _truths(s: Specialiser, iterable: Any, op: str) -> Any:
    result: Any = op == "and"
    for value in iteration.items(s, iterable):
        test = operators.condition(s, value)
        if isinstance(test, bool):
            if test is (op == "or"):
                return test
            continue
        one = Tensor(test)
        result = one if isinstance(result, bool) else arithmetic.elementwise(s, op, result, one)
    return result


def _all(s: Specialiser, iterable: Any) -> Any:
    return _truths(s, iterable, "and")


def _any(s: Specialiser, iterable: Any) -> Any:
    return _truths(s, iterable, "or")


def _absolute(s: Specialiser, x: Any) -> Any:
    return (
        s.call(np.absolute, x)
        if type(x) is Tensor
        else operators.python(s, lambda: abs(x), "`abs`")
    )


def _round(s: Specialiser, number: Any, ndigits: Any = None) -> Any:
    rounded = s.call(np.round, number, 0 if ndigits is None else ndigits)
    return _int(s, rounded) if ndigits is None else rounded


def _scalar(s: Specialiser, x: Any, name: str) -> Tensor:
    value = tensor(s, x)
    if value.shape != ():
        hint = f"x.astype({name}) converts an array"
        raise s.error("DL115", f"`{name}` takes one number, not {describe(value)}", hint)
    return value


def _int(s: Specialiser, x: Any = 0) -> Any:
    value = _scalar(s, x, "int")
    return Tensor(arithmetic.convert(s, value.value, DType.I64), True)


def _float(s: Specialiser, x: Any = 0.0) -> Any:
    value = _scalar(s, x, "float")
    return Tensor(arithmetic.convert(s, value.value, DType.F64), True)


def _bool(s: Specialiser, x: Any = False) -> Any:
    test = operators.condition(s, x)
    return test if isinstance(test, bool) else Tensor(test)


def _pow(s: Specialiser, base: Any, exp: Any) -> Any:
    return operators.binary(s, "**", base, exp)


def _divmod(s: Specialiser, x: Any, y: Any) -> Any:
    return operators.binary(s, "//", x, y), operators.binary(s, "%", x, y)


def _tuple(s: Specialiser, iterable: Any = ()) -> Any:
    return tuple(iteration.items(s, iterable))


def _list(s: Specialiser, iterable: Any = ()) -> Any:
    return s.own(list(iteration.items(s, iterable)))


def _set(s: Specialiser, iterable: Any = ()) -> Any:
    values = iteration.items(s, iterable)
    return s.own(operators.python(s, lambda: set(values), "`set`"))


def _frozenset(s: Specialiser, iterable: Any = ()) -> Any:
    return frozenset(_set(s, iterable))


def _dict(s: Specialiser, source: Any = (), **more: Any) -> Any:
    if isinstance(source, dict):
        return s.own({**source, **more})
    pairs = [tuple(iteration.items(s, p)) for p in iteration.items(s, source)]
    return s.own(operators.python(s, lambda: {**dict(pairs), **more}, "`dict`"))


def _sorted(s: Specialiser, iterable: Any, *, key: Any = None, reverse: Any = False) -> Any:
    values = iteration.items(s, iterable)
    ranks = values if key is None else [s.call(key, v) for v in values]
    try:
        order = sorted(range(len(values)), key=lambda k: ranks[k], reverse=bool(reverse))
    except (
        TypeError
    ) as e:  # Tensors have no order; pairs whose first items are known and differ do.
        if is_static(tuple(ranks)):
            raise s.error("DL113", f"`sorted` fails: {e}") from None
        hint = "np.sort sorts an array"
        raise s.needs_static(tuple(ranks), "what `sorted` compares", hint) from None
    return s.own([values[k] for k in order])


def _isinstance(s: Specialiser, value: Any, classes: Any) -> bool:
    if type(value) is Tensor:
        return operators.python(  # type: ignore[no-any-return]
            s, lambda: issubclass(np.ndarray, classes), "`isinstance`"
        )
    if type(value) in (Closure, Method):
        return operators.python(  # type: ignore[no-any-return]
            s, lambda: issubclass(types.FunctionType, classes), "`isinstance`"
        )
    return operators.python(s, lambda: isinstance(value, classes), "`isinstance`")  # type: ignore[no-any-return]


def _type(s: Specialiser, value: Any) -> Any:
    if type(value) is Tensor:
        return np.ndarray
    return types.FunctionType if type(value) in (Closure, Method) else type(value)


def _getattr(s: Specialiser, value: Any, name: Any, default: Any = _MISSING) -> Any:
    if not isinstance(name, str):
        raise s.error("DL119", f"an attribute's name is a string, not {describe(name)}")
    if default is not _MISSING and not _hasattr(s, value, name):
        return default
    return calls.attribute(s, value, name)


def _hasattr(s: Specialiser, value: Any, name: Any) -> bool:
    if not isinstance(name, str):
        raise s.error("DL119", f"an attribute's name is a string, not {describe(name)}")
    if type(value) is Tensor:
        from .vocabulary import METHODS, PROPERTIES

        return name in METHODS or name in PROPERTIES
    return inspect.getattr_static(value, name, _MISSING) is not _MISSING


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
    return operators.python(s, lambda: dataclasses.replace(obj, **changes), "`replace`")


def _slice(s: Specialiser, *bounds: Any) -> slice:
    return operators.python(s, lambda: slice(*bounds), "`slice`")  # type: ignore[no-any-return]


def _str(s: Specialiser, value: Any = "") -> str:
    return str(value) if is_static(value) else describe(value)


def _identity(s: Specialiser, value: Any) -> Any:
    return value


def _wraps(s: Specialiser, wrapped: Any, *args: Any, **kwargs: Any) -> Any:
    """`functools.wraps(f)` only copies names and documentation."""
    return Method("wraps", None, lambda s, owner, value: value)


def _cache(s: Specialiser, function: Any = None, *args: Any, **kwargs: Any) -> Any:
    """`functools.cache` and `lru_cache`: a call is inlined anyway, and the program is pure."""
    return function if callable(function) else _wraps(s, None)


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
        Row(function, f"operator.{function.__name__}", handler(symbol), False)
        for table, handler in groups
        for symbol, function in table.items()
    ]


def rows() -> list[Row]:
    always: tuple[tuple[Any, str, Callable[..., Any]], ...] = (
        (len, "len", _len),
        (range, "range", _range),
        (zip, "zip", _zip),
        (enumerate, "enumerate", _enumerate),
        (reversed, "reversed", _reversed),
        (map, "map", _map),
        (filter, "filter", _filter),
        (max, "max", _extreme("max")),
        (min, "min", _extreme("min")),
        (sum, "sum", _sum),
        (all, "all", _all),
        (any, "any", _any),
        (tuple, "tuple", _tuple),
        (list, "list", _list),
        (set, "set", _set),
        (frozenset, "frozenset", _frozenset),
        (dict, "dict", _dict),
        (sorted, "sorted", _sorted),
        (isinstance, "isinstance", _isinstance),
        (type, "type", _type),
        (getattr, "getattr", _getattr),
        (hasattr, "hasattr", _hasattr),
        (callable, "callable", _callable),
        (slice, "slice", _slice),
        (functools.reduce, "functools.reduce", _reduce),
        (functools.partial, "functools.partial", _partial),
        (functools.wraps, "functools.wraps", _wraps),
        (functools.cache, "functools.cache", _cache),
        (functools.lru_cache, "functools.lru_cache", _cache),
        (dataclasses.replace, "dataclasses.replace", _replace),
        (bool, "bool", _bool),
        (str, "str", _str),
        (repr, "repr", _str),
    )
    fold: tuple[tuple[Any, str, Callable[..., Any]], ...] = (
        (int, "int", _int),
        (float, "float", _float),
        (abs, "abs", _absolute),
        (round, "round", _round),
        (pow, "pow", _pow),
        (divmod, "divmod", _divmod),
    )
    known = [Row(f, n, h, False) for f, n, h in always] + [Row(f, n, h, True) for f, n, h in fold]
    return known + _operator_rows()
