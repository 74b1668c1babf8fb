"""Calls and attributes: how functions are resolved, arguments bound and bodies inlined."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import inspect
import operator
import types
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np

from ...common.errors import ProgramError
from ...common.foreign_formats import TORCH_WAY, way_of
from .. import tree
from ..complex_numbers import Complex
from ..ragged import Ragged
from ..traced import Transform
from . import operators, statements
from .containers import containers, known_calls, list_methods, local_classes, program_objects
from .containers.body_functions import closure_of
from .containers.texts import text_of
from .flow import itertools_calls, tries
from .hir import hir, liveness, syntax
from .hir.syntax_nonlocals import UNSET
from .memory import shared_memory
from .values import (
    VIEWS,
    Activation,
    Choice,
    Closure,
    Error,
    Frame,
    Method,
    NotKnown,
    Once,
    Picked,
    RaggedList,
    Tensor,
    Text,
    describe,
    is_static,
)
from .vocabulary import vocabulary_table

if TYPE_CHECKING:
    from .specialise import Specialiser

#: Calls within calls; a program is inlined, so a recursion must end while it is compiled.
DEPTH_MAX = 1000

#: Methods of arrays that change them.
_CHANGING = frozenset(
    ("byteswap", "fill", "itemset", "partition", "put", "resize", "setfield", "setflags", "sort")
)
#: What `functools.cache` and `lru_cache` make of a function.
_CACHED: type = type(functools.cache(abs))
_ENDLESS = frozenset(("count", "cycle"))
_CONTAINERS = (tuple, list, dict, set, frozenset, str, bytes, int, float, bool, complex, range)


def call(s: Specialiser, f: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Calls any abstract value."""
    kind = type(f)
    if kind is Closure:
        bound = bind(s, f.function.name, f.function, f.defaults, f.keyword_defaults, args, kwargs)
        frame = Frame(bound, f.function.assigned, f.frame, f.frame.module, f.frame.cells)
        return _started(s, f.function, f.function, frame, (f, *bound.values()))
    if kind is Method:
        result = run_handler(s, f.name, f.handler, (f.owner, *args), kwargs)
        return shared_memory.settled_method(s, f.name, result, f.owner, args, kwargs)
    if kind is types.MethodType:
        special = _bound_special(s, f, args, kwargs)
        if special is not _NO:
            return special
        return call(s, f.__func__, (f.__self__, *args), kwargs)
    if kind is types.FunctionType:
        closure = closure_of(f)
        if closure is not None:
            return call(s, closure, args, kwargs)
    if kind in _DECORATORS or f is functools.cached_property:
        known = local_classes.known_call(s, f, args, kwargs)
        if known is not NotImplemented:
            return known
    if kind is Choice:
        from .flow import choices

        return choices.call(s, f, args, kwargs)
    row = vocabulary_table.find(f)
    if row is not None:
        if s.tries:
            tries.check_function(s, row.name)
        if args and type(args[0]) is Once and args[0].node is not None:
            from .flow import reduction_loops

            return reduction_loops.of_kept(s, row, f, args, kwargs)
        return row(s, f, args, kwargs)
    if kind is types.FunctionType:
        return call_function(s, f, args, kwargs)
    if kind is functools.partial:
        return call(s, f.func, (*f.args, *args), {**f.keywords, **kwargs})
    if isinstance(f, type):
        return construct(s, f, args, kwargs)
    if isinstance(f, types.BuiltinFunctionType | types.MethodWrapperType):
        return _call_builtin(s, f, args, kwargs)
    from .derivatives import gradients

    if isinstance(f, Transform):
        return gradients.call(s, f, args, kwargs)
    if isinstance(f, gradients.Pullback):
        return gradients.pull(s, f, args)
    if isinstance(f, _CACHED):
        from .flow import cached_calls

        return cached_calls.call(s, f, args, kwargs)
    if type(f).__module__.startswith(_HOUSE) and callable(
        wrapped := getattr(f, "__wrapped__", None)
    ):
        return call(s, wrapped, args, kwargs)  # Elsewhere it may be what a decorator has changed.
    method = getattr(type(f), "__call__", None)  # noqa: B004 - the class's own, to be inlined
    if isinstance(method, types.FunctionType):
        return call(s, types.MethodType(method, f), args, kwargs)
    if isinstance(f, operator.itemgetter | operator.attrgetter):
        return operators.python(s, lambda: f(*args, **kwargs), f"`{type(f).__name__}`")
    found = known_calls.by_python(s, f, args, kwargs, _name(f)) if callable(f) else _NO
    if found is not _NO:
        return found
    return _by_twin(s, f, args, kwargs)


_NO = known_calls.NO
#: What a decorator of a class or a method may be (`property.setter`).
_DECORATORS = (types.FunctionType, types.BuiltinFunctionType)
#: The package itself: its classes are not changed while it runs.
_HOUSE = f"{__name__.partition('.')[0]}."


def _bound_special(s: Specialiser, f: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Methods that Python generated for a named tuple: they only move values about."""
    owner = f.__self__
    named = isinstance(owner, tuple) or (isinstance(owner, type) and issubclass(owner, tuple))
    if named and f.__name__ in ("_replace", "_asdict", "_make"):
        return operators.python(s, lambda: f(*args, **kwargs), f"`{f.__name__}`")
    return _NO


def call_function(
    s: Specialiser, f: types.FunctionType, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """Calls a Python function, whether it has a row or not: its body is inlined."""
    if known_calls.is_numpy(f) or is_static((tuple(args), dict(kwargs))):
        found = known_calls.by_python(s, f, args, kwargs, _name(f))
        if found is not _NO:
            return found
        if known_calls.is_numpy(f):
            return _by_twin(s, f, args, kwargs)
    function = _hir(s, f)
    s.entry = s.entry or function.loc
    name = f.__name__ if "<" in f.__qualname__ else f.__qualname__
    keyword_defaults = f.__kwdefaults__ or {}
    bound = bind(s, name, function, f.__defaults__ or (), keyword_defaults, args, kwargs)
    if not str(f.__module__).startswith(_HOUSE):
        for held in ("__defaults__", "__kwdefaults__"):
            if (defaults := getattr(f, held)) is not None:
                s.read(f, held, defaults)
    cells = dict(zip(f.__code__.co_freevars, f.__closure__ or (), strict=True))
    frame = Frame(bound, function.assigned, None, f.__globals__, cells)
    return _started(s, f.__code__, function, frame, tuple(bound.values()))


def _hir(s: Specialiser, f: types.FunctionType) -> hir.FunctionDef:
    try:
        return syntax.function_hir(f)
    except ProgramError as e:
        raise s.error(e.code, e.message, e.hint) from None


def _started(
    s: Specialiser, key: object, function: hir.FunctionDef, frame: Frame, reads: tuple[Any, ...]
) -> Any:
    """What a call gives; of a generator, an iterator. reads: what the function is given."""
    if not function.is_generator or function.refused is not None:
        return _run(s, key, function, frame)
    from .flow import generators

    return generators.generator(s, lambda: _run(s, key, function, frame), frame, reads)


def _run(s: Specialiser, key: object, function: hir.FunctionDef, frame: Frame) -> Any:
    """Inlines a body; its operations carry the call's span before their own."""
    if function.refused is not None:
        _enter(s)
        s.refuse(function.refused, frame)
    if len(s.calls) >= DEPTH_MAX:
        again = " (it calls itself)" if any(c.key is key for c in s.calls) else ""
        raise s.error(
            "DL110",
            f"calls are nested {DEPTH_MAX} deep in `{function.name}`{again}",
            "a recursion must end on a value known when the program is compiled, or end in the call"
            " of itself; else use a loop",
        )
    chain, loc = s.chain, s.loc
    _enter(s)
    _body(s, key, function, frame)
    s.chain = chain
    if loc is not None:
        s.at(loc)
    return s.lookup(frame, hir.RESULT)


class _TailCall(Exception):
    """A function calls itself where only the running program knows whether: its loop is wanted."""

    def __init__(self, first: Activation) -> None:
        super().__init__()
        self.first = first


def _body(s: Specialiser, key: object, function: hir.FunctionDef, frame: Frame) -> None:
    """Runs a body, inlined or as a loop.

    It is a loop where the function calls itself under a condition that only the running program
    knows.
    """
    mine = Activation(key, s.region, frame)
    first = mine
    for before in reversed(s.calls):
        if not before.is_of(mine):
            break
        first = before
    again = first is not mine and s.region is not first.region
    if again and function.loop is not None and not first.settled:
        raise _TailCall(first)
    if function.loop is None or first is not mine:
        _inline(s, mine, function.body)
        return
    state, names = s.state(), dict(frame.vars)
    try:
        _inline(s, mine, function.body)
        return
    except _TailCall as e:
        if e.first is not mine:
            raise
    mine.settled = True
    s.restore(state)
    frame.vars = dict(names)
    try:
        _inline(s, mine, function.loop.body)
    except ProgramError as e:
        s.restore(state)
        frame.vars = names
        try:  # As a known recursion after all, whose arguments may change their types.
            _inline(s, mine, function.body)
        except ProgramError:
            raise e from None


def _inline(s: Specialiser, activation: Activation, body: hir.Block) -> None:
    s.calls.append(activation)
    statements.run(s, body, activation.frame)
    s.calls.pop()


def _enter(s: Specialiser) -> None:
    if s.loc is not None:
        s.chain = (*s.chain, s.loc)


def bind(
    s: Specialiser,
    name: str,
    function: hir.FunctionDef,
    defaults: Sequence[Any],
    keyword_defaults: Mapping[str, Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> dict[str, Any]:
    """Arguments to parameters, as Python binds them."""
    p = function.parameters
    positional = p.positional
    out: dict[str, Any] = dict(zip(positional, args, strict=False))
    if len(args) > len(positional) and p.rest is None:
        count = f"{len(positional)} argument{'s' if len(positional) != 1 else ''}"
        raise s.error("DL105", f"`{name}` takes {count}, not {len(args)}", _parameters(function))
    if p.rest is not None:
        out[p.rest] = tuple(args[len(positional) :])
    extra: dict[str, Any] = {}
    for key, value in kwargs.items():
        known = key in positional[p.positional_only :] or key in p.keyword_only
        if known and key in out:
            raise s.error("DL105", f"`{name}` is given `{key}` twice")
        if known:
            out[key] = value
        elif p.keywords is None:
            near = difflib.get_close_matches(key, [*positional, *p.keyword_only], 1)
            hint = f"did you mean `{near[0]}`?" if near else _parameters(function)
            raise s.error("DL105", f"`{name}` has no parameter `{key}`", hint)
        else:
            extra[key] = value
    first = len(positional) - len(defaults)
    missing = []
    for k, parameter in enumerate(positional):
        if parameter not in out:
            if k >= first:
                out[parameter] = defaults[k - first]
            else:
                missing.append(parameter)
    for parameter in p.keyword_only:
        if parameter not in out:
            if parameter in keyword_defaults:
                out[parameter] = keyword_defaults[parameter]
            else:
                missing.append(parameter)
    if missing:
        lacks = ", ".join(f"`{m}`" for m in missing)
        raise s.error("DL105", f"`{name}` is called without {lacks}", _parameters(function))
    if p.keywords is not None:
        out[p.keywords] = s.own(extra)
    return out


def _parameters(function: hir.FunctionDef) -> str:
    names = [*function.parameters.positional, *function.parameters.keyword_only]
    said = f"its parameters are {', '.join(names)}" if names else "it has no parameters"
    place = function.loc
    return said if place.is_own() else f"{said} ({place.file}:{place.line})"


def run_handler(
    s: Specialiser,
    name: str,
    handler: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Any:
    """Calls a vocabulary function; arguments that it has not become an error of the user's."""
    try:
        return handler(s, *args, **kwargs)
    except NotKnown:
        raise operators.not_known(s, f"`{name}`") from None
    except TypeError as e:
        try:
            inspect.signature(handler).bind(s, *args, **kwargs)
        except TypeError as misfit:
            usual = str(misfit), f"the compiler knows {name}{_signature(handler)}"
            message, hint = vocabulary_table.refused_keyword(kwargs) or usual
            raise s.error("DL105", f"`{name}`: {message}", hint) from None
        raise e


def _signature(handler: Callable[..., Any]) -> str:
    signature = inspect.signature(handler)
    parameters = [
        p.replace(annotation=inspect.Parameter.empty)
        for p in list(signature.parameters.values())[1:]
    ]
    return str(signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty))


def construct(s: Specialiser, cls: type, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """A call of a class: plain ones, dataclasses, named tuples, enumerations and exceptions."""
    what = f"`{cls.__name__}`"
    if dataclasses.is_dataclass(cls):
        return program_objects.construct_dataclass(s, cls, args, kwargs)
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return operators.python(s, lambda: cls(*args, **kwargs), what)
    if issubclass(cls, Transform) or (cls is super and len(args) == 2):
        return operators.python(s, lambda: cls(*args, **kwargs), what)
    if issubclass(cls, BaseException):
        if not is_static((tuple(args), dict(kwargs))):
            return Error(cls, args, kwargs)
        return operators.python(s, lambda: cls(*args, **kwargs), what)
    if cls.__module__ == "itertools" and cls.__name__ not in _ENDLESS:
        return itertools_calls.iterator(s, cls, args, kwargs)
    if cls is Decimal and (running := [v for v in args if not is_static(v)]):
        raise s.needs_static(running[0], "the value of a `Decimal`")
    if is_static((tuple(args), dict(kwargs))) and (
        issubclass(cls, Enum | Decimal) or cls.__module__ in ("builtins", "numpy", "operator")
    ):
        made = operators.python(s, lambda: cls(*args, **kwargs), what)
        return s.own(made) if isinstance(made, list | dict | set) else made
    if tree.is_object(cls):
        return program_objects.construct(s, cls, args, kwargs)
    if foreign := way_of(cls):
        raise s.error("DL106", f"{what} is {foreign[0]}", foreign[1])
    raise s.error(
        "DL106",
        f"the compiler cannot make a {what}",
        "make it a plain class or a dataclass, without __slots__ and __new__, and with Python's own"
        " access to attributes; or make the object outside the function",
    )


def _call_builtin(s: Specialiser, f: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    owner = getattr(f, "__self__", None)
    if isinstance(owner, _CONTAINERS) and not isinstance(owner, types.ModuleType):
        if isinstance(owner, list | dict | set) and f.__name__ in liveness.MUTATORS:
            containers.may_change(s, owner)
        if isinstance(owner, list | tuple) and f.__name__ in list_methods.METHODS:
            return list_methods.METHODS[f.__name__](s, owner, *args, **kwargs)
        if isinstance(owner, str) and f.__name__ == "join" and len(args) == 1:
            if type(args[0]) is Text:
                raise operators.text_needed(s, "`join`")
            from .flow import iteration

            args = (iteration.items(s, args[0]),)
        if isinstance(owner, str) and not is_static((tuple(args), dict(kwargs))):
            if f.__name__ not in ("format", "join"):
                raise operators.text_needed(s, f"`{f.__name__}`")
            shown = f"{owner}({', '.join(map(describe, (*args, *kwargs.values())))})"
            return text_of(s, shown, lambda a, k: f(*a, **k), tuple(args), dict(kwargs))
        if f.__name__ in liveness.MUTATORS:
            result = operators.python(s, lambda: f(*args, **kwargs), f"`{f.__name__}`")
        else:
            result = known_calls.call(s, f, args, kwargs, f"`{f.__name__}`")
        return s.own(result) if isinstance(result, list | dict | set) else result
    if isinstance(owner, np.ndarray) and f.__name__ in _CHANGING:
        text = f"`{f.__name__}` would change {describe(owner)}, which is known while compiling"
        raise s.error("DL111", text, "copy it first: x = x.copy()")
    if isinstance(owner, np.ndarray | np.generic) and not is_static((tuple(args), dict(kwargs))):
        from .complexes import of_program

        return call(s, attribute(s, of_program(s, owner), f.__name__), args, kwargs)
    if isinstance(owner, type):  # `dict.fromkeys`; `datetime.now` gives another value each time.
        known = owner.__module__ in ("builtins", "numpy")
    else:
        known = isinstance(owner, (*VIEWS, np.ndarray, np.generic, np.dtype, Decimal))
    if known and is_static((tuple(args), dict(kwargs))):
        made = known_calls.call(s, f, args, kwargs, f"`{_name(f)}`")
        return s.own(made) if isinstance(made, list | dict | set) else made
    found = _NO if known else known_calls.by_python(s, f, args, kwargs, _name(f))
    if found is _NO:
        raise unknown(s, f)
    return found


#: Modules of NumPy's whose functions are called by their names.
_NAMED = ("numpy.linalg", "numpy.fft", "numpy.ma")


def _name(f: Any) -> str:
    name = getattr(f, "__qualname__", None) or getattr(f, "__name__", None) or type(f).__name__
    module = getattr(f, "__module__", None) or ""
    if module.startswith("numpy.random"):
        return f"np.random.{name.split('.')[-1]}"
    if isinstance(f, np.ufunc) and getattr(np, name, None) is not f:
        return name  # Others' ufuncs do not say where they are from.
    if isinstance(f, np.ufunc) or known_calls.is_numpy(f):
        return f"np.{name}" if module not in _NAMED else f"{module.replace('numpy', 'np')}.{name}"
    module = module.split(".")[0]
    return name if module in ("builtins", "", "__main__") else f"{module}.{name}"


def _by_twin(s: Specialiser, f: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    if (twin := known_calls.twin(f)) is None:
        raise unknown(s, f)
    return call(s, twin, args, kwargs)


def unknown(s: Specialiser, f: Any) -> Exception:
    """The error for a function that has no row and no source."""
    if not callable(f):
        return s.error("DL106", f"{describe(f)} is not a function")
    name = _name(f)
    hint = TORCH_WAY if name.startswith("torch.") else vocabulary_table.hint(f)
    return s.error("DL106", f"the compiler does not know `{name}`", hint)


# Attributes


def attribute(s: Specialiser, value: Any, name: str) -> Any:
    """`value.name`; properties run as functions, and what is found outside is noted."""
    kind = type(value)
    if name == "__class__":
        return s.call(type, value)
    if kind is Tensor or kind is Picked:
        return vocabulary_table.tensor_attribute(s, value, name)
    if kind is Complex or kind is Ragged:
        return operators.attribute_of_pair(s, value, name)
    if kind is RaggedList:
        raise s.static_needed(f"`{name}` of {describe(value)}", operators.OF_ITEMS)
    if name in _OF_CHAIN and (kind is Error or isinstance(value, BaseException)):
        hint = "keep what you need of the other error under a name"
        raise s.error("DL104", f"a program does not know `{name}` of an error", hint)
    if kind.__module__ not in ("builtins", "numpy", "types"):
        found = in_class(kind, name)
        own = getattr(value, "__dict__", None)
        if tree.is_open(value):
            if name == "__dict__":
                text = "a change of `__dict__` would go unseen"
                raise s.error("DL111", text, "name the attributes, or use getattr and setattr")
            if name in vars(value) and not isinstance(found, property):
                return vars(value)[name]
        elif found is not None and not (kind.__module__.startswith(_HOUSE) or kind in s.classes):
            s.outside.setdefault((id(kind), name), (kind, name, found))
            if isinstance(own, dict) and name not in own:
                s.outside.setdefault((id(own), name), (own, name, None))
        if isinstance(own, dict) and name in own and not isinstance(found, property):
            found = None  # The object's own comes before a method of its class.
        if isinstance(found, types.FunctionType):
            return types.MethodType(found, value)
        if isinstance(found, property) and isinstance(found.fget, types.FunctionType):
            return call(s, found.fget, (value,), {})
        if isinstance(found, functools.cached_property):
            made = call(s, found.func, (value,), {})
            if tree.is_open(value):
                program_objects.store(s, value, name, made)
            return made
        getter = in_class(type(found), "__get__")  # A descriptor's.
        home = type(found).__module__
        fixed = home in _FIXED or home.startswith(_HOUSE)
        if isinstance(getter, types.FunctionType) and not fixed:
            return call(s, getter, (found, value, kind), {})
    try:
        found = getattr(value, name)
    except AttributeError:
        known = [k for k in dir(value) if not k.startswith("_")]
        near = difflib.get_close_matches(name, known, 1)
        hint = f"did you mean `{near[0]}`?" if near else ""
        if isinstance(value, types.ModuleType):
            raise s.error("DL104", f"`{value.__name__}` has no `{name}`", hint) from None
        raise s.error("DL104", f"{describe(value)} has no attribute `{name}`", hint) from None
    if isinstance(value, types.ModuleType):
        s.read(value.__dict__, name, found)
    else:
        _note(s, value, name, found)
    return found


#: How errors hang together, which only Python knows.
_OF_CHAIN = ("__cause__", "__context__", "__suppress_context__", "__traceback__")
#: What classes of these modules hold cannot be set to something else.
_FIXED = frozenset(("builtins", "numpy", "functools", "operator"))


def _note(s: Specialiser, value: Any, name: str, found: Any) -> None:
    """Notes an attribute that was read of an object from outside, where it may be set again."""
    holder = value if isinstance(value, type) else type(value)
    if holder in s.classes:
        return
    if holder.__module__ in _FIXED and not isinstance(value, types.FunctionType):
        return
    if not isinstance(value, type) and containers.is_frozen(holder):
        s.look(found)
        return
    held = inspect.getattr_static(value, name, _NO)
    if (held is found or isinstance(held, types.MemberDescriptorType)) and is_static(found):
        s.read(value, name, found)


def in_class(kind: type, name: str) -> Any:
    """What a class or its bases hold under a name, as it lies there; None: nothing."""
    for base in kind.__mro__:
        if name in base.__dict__:
            return base.__dict__[name]
    return None


def item(s: Specialiser, value: Any, index: Any) -> Any:
    """`value[index]` of something that is no tensor, by a known index or by a method of its own."""
    if type(value) is Once:
        text = "an iterator cannot be indexed"
        raise s.error("DL119", text, "make a list of it first: list(iterator)")
    method = in_class(type(value), "__getitem__")
    if isinstance(method, types.FunctionType) and type(value).__module__ != "builtins":
        return call(s, method, (value, index), {})
    missing = in_class(type(value), "__missing__")
    if missing is not None and index not in value:
        if isinstance(missing, types.FunctionType):
            return call(s, missing, (value, index), {})
        if getattr(value, "default_factory", None) is not None:
            containers.may_change(s, value)
            value[index] = call(s, value.default_factory, (), {})
    try:
        found = value[index]
    except IndexError as e:
        message = f"index {index} is out of range for {describe(value)}"
        one = not hasattr(value, "__len__") or (isinstance(value, np.ndarray) and not value.ndim)
        hint = "it is one number" if one else f"it has {len(value)} items"
        raise s.error("DL114", message, hint) from e
    except KeyError as e:
        near = difflib.get_close_matches(str(index), [str(k) for k in value], 1)
        hint = f"did you mean {near[0]!r}?" if near else ""
        raise s.error("DL114", f"{describe(value)} has no key {index!r}", hint) from e
    except (TypeError, ValueError) as e:
        raise s.error("DL113", f"an index into {describe(value)} fails: {e}") from None
    if found is UNSET:
        hint = "assign it before a function that reads it is called"
        raise s.error("DL103", "a name that `nonlocal` shares is read before it is assigned", hint)
    return s.own(found) if isinstance(value, list) and isinstance(index, slice) else found
