"""`functools.cache` and `lru_cache`: a call with arguments that were there before is none.

Where all arguments are known, a program gives the result of the first call too. Others are inlined
again, which is the same where the function changes nothing, nothing that it reads has changed since
an earlier call, and its result is not changed: a cache gives the same list or array each time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from ... import tree
from .. import calls
from ..containers import containers
from ..memory import stores
from ..values import Method, Tensor, describe, is_static
from .watches import Watch

if TYPE_CHECKING:
    from ..specialise import Specialiser


class Cached:
    """A function with a cache, in one program.

    Attributes:
        function: what is called.
        results: of calls whose arguments are known, with where they were made.
        given: the arguments of all calls.
        objects: those that are objects: what they hold is read.
        watch: what the calls read, as it was at the last one.
        moved: what of that changed between two calls.
        open: some call had arguments that only the running program knows.
        typed: 1 and 1.0 are two keys.
    """

    __slots__ = (*("function", "given", "moved", "objects", "open", "results", "typed", "watch"),)

    def __init__(self, function: Any, typed: bool) -> None:
        self.function = function
        self.typed = typed
        self.results: dict[Any, tuple[Any, Any, Any]] = {}
        self.given: list[tuple[Any, ...]] = []
        self.objects: list[Any] = []
        self.watch: Watch | None = None
        self.moved = ""
        self.open = False


#: The caches of functions from outside, by program.
_CACHES: WeakKeyDictionary[Any, dict[int, Cached]] = WeakKeyDictionary()


def cached(function: Any, typed: bool = False) -> Method:
    """A function that a program puts a cache around."""
    made = Cached(function, typed)

    def run(s: Specialiser, owner: Any, *args: Any, **kwargs: Any) -> Any:
        return _call(s, made, args, kwargs)

    return Method("cached function", function, run)


def call(s: Specialiser, wrapper: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Calls what `functools.cache` made outside the program."""
    caches = _CACHES.setdefault(s, {})
    typed = wrapper.cache_parameters()["typed"]
    made = caches.setdefault(id(wrapper), Cached(wrapper.__wrapped__, typed))
    return _call(s, made, args, kwargs)


def _call(s: Specialiser, made: Cached, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    given = (*args, *kwargs.values())
    for value in given:
        containers.check_hashable(s, value, "a cached function")
    known = is_static(given)
    key = (tuple(args), tuple(kwargs.items()), tuple(map(_class, given))) if known else None
    if key is not None and key in made.results:
        result, region, scope = made.results[key]
        if region is s.region and scope is s.scope:
            return result
    for earlier in () if made.typed else made.given:
        _check_classes(s, earlier, given)
    made.moved = made.moved or (made.watch.change() if made.watch is not None else "")
    made.open = made.open or not known
    if made.moved and (made.open or key in made.results):
        text = f"{made.moved}, which a cached function reads, changes between its calls"
        raise _refused(s, text)
    made.objects += [v for v in given if tree.is_open(v)]
    watch, at, said = Watch(s, (made.function, *made.objects)), stores.mark(s), _said(s)
    result = calls.call(s, made.function, args, kwargs)
    if _said(s) != said:
        raise _refused(s, "a cached function prints")
    if what := watch.change():
        raise _refused(s, f"a cached function changes {what}")
    if stores.changed_since(s, at):
        raise _refused(s, "a cached function changes an array in place")
    made.given.append(given)
    made.watch = watch
    _freeze(s, result)
    if key is not None:
        made.results[key] = result, s.region, s.scope
    return result


def _said(s: Specialiser) -> int:
    """How many calls of `print` and of loggers there are."""
    return 0 if s.faults is None else len(s.faults.said)


def _check_classes(s: Specialiser, earlier: tuple[Any, ...], given: tuple[Any, ...]) -> None:
    """1, 1.0 and True are one key of a cache, which gives the first result for all of them."""
    if len(earlier) != len(given) or list(map(_class, earlier)) == list(map(_class, given)):
        return
    if not is_static((earlier, given)) or earlier == given:
        text = "a cached function is called with equal numbers of several classes"
        raise _refused(s, text)


def _class(value: Any) -> Any:
    return tuple(value.classes) if type(value) is Tensor else (type(value),)


def _refused(s: Specialiser, text: str) -> Exception:
    return s.error("DL111", text, "leave the cache out: a program computes a known call once")


def _freeze(s: Specialiser, value: Any) -> None:
    """The result of a cached function does not change from here on."""
    if type(value) is Tensor:
        memory = stores.memory_of(s, value)
        if memory is not None:
            text = f"this array ({describe(value)}) is the result of a cached function, which"
            memory.fixed = f"{text} Python gives again as it was changed"
    elif isinstance(value, dict | list | set | tuple):
        s.owned.pop(id(value), None)
        for item in value.values() if isinstance(value, dict) else value:
            _freeze(s, item)
    elif tree.is_open(value):
        s.owned.pop(id(value), None)
        for item in vars(value).values():
            _freeze(s, item)


__all__ = ["Cached", "cached", "call"]
