"""Trees: tuples, lists, dicts, named tuples and dataclasses with arrays at the leaves.

Leaves may be anything. A program's arguments and results are such trees; the IR sees the leaves in
order, each named by its path (`params.hidden.0.weight`). A dataclass field made with
`static_field()` belongs to the structure, not to the leaves. `None` is a tree of no leaves.
"""

from __future__ import annotations

import dataclasses
import warnings
from abc import ABCMeta
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ..common.errors import DelianError

T = TypeVar("T")

_STATIC = {"delian.static": True}


def static_field(**kwargs: Any) -> Any:
    """A dataclass field that is part of the tree's structure. Its value must be hashable."""
    return dataclasses.field(metadata=_STATIC, **kwargs)


def static(**kwargs: Any) -> Any:
    """The old name of `static_field`."""
    warnings.warn(
        "`dl.static` is now `dl.static_field`; the old name will go",
        DeprecationWarning,
        stacklevel=2,
    )
    return static_field(**kwargs)


def is_static(f: dataclasses.Field[Any]) -> bool:
    """Whether a field is part of the structure (`static_field`)."""
    return bool(f.metadata.get("delian.static", False))


@dataclass(frozen=True, slots=True)
class Structure:
    """The shape of a tree."""

    kind: type | None
    """The node's class, or None at a leaf."""
    keys: tuple[Any, ...] = ()
    """Names of its children, in order."""
    children: tuple[Structure, ...] = ()
    """Structures of its children, in that order."""
    fixed: tuple[tuple[str, Any], ...] = ()
    """A dataclass's static fields, as (name, value) pairs."""
    order: tuple[Any, ...] = field(default=(), compare=False)
    """That of a dict's keys or an object's attributes: the leaves come sorted, whatever the order,
    and the node itself is put back as it was. Empty for other nodes.
    """

    @property
    def leaves(self) -> int:
        """How many leaves a tree of this structure has."""
        return 1 if self.kind is None else sum(c.leaves for c in self.children)

    def orders(self) -> Iterator[tuple[Any, ...]]:
        """The orders of the dicts in the tree, which equality does not look at."""
        if self.order:
            yield self.order
        for child in self.children:
            yield from child.orders()

    def is_alike(self, other: Structure) -> bool:
        """Whether it is the other structure, with each dict's keys in the same order."""
        return self == other and tuple(self.orders()) == tuple(other.orders())

    def paths(self, prefix: str = "") -> Iterator[str]:
        """The leaves' dotted names in order."""
        if self.kind is None:
            yield prefix
            return
        for key, child in zip(self.keys, self.children, strict=True):
            yield from child.paths(f"{prefix}.{key}" if prefix else str(key))


LEAF = Structure(None)

#: Objects of plain classes that a program makes, by id, while it is read: their attributes are
#: their children.
_opened: dict[int, Any] = {}


def open_object(node: Any) -> None:
    """Makes an object a node: its attributes are its children. `close_objects` ends that."""
    _opened[id(node)] = node


def is_open(node: Any) -> bool:
    """Whether an object's attributes are its children."""
    return id(node) in _opened


#: What a class of plain objects has from `object` alone, and what it lacks: it would run unseen.
_PLAIN = ("__new__", "__setattr__", "__delattr__", "__getattribute__")
_UNSEEN = ("__getattr__", "__del__", "tree_build")


def is_object(kind: type) -> bool:
    """Whether a class's objects are plain ones: a `__dict__`, whose items are their attributes.

    A frozen dataclass is none: it has a `__setattr__` of its own. Nor is one with slots, though a
    class derived from it has a `__dict__` too.
    """
    return (
        type(kind) in (type, ABCMeta)
        and kind.__dictoffset__ != 0
        and not any(vars(base).get("__slots__") for base in kind.__mro__)
        and all(getattr(kind, name) == getattr(object, name) for name in _PLAIN)
        and not any(hasattr(kind, name) for name in _UNSEEN)
    )


def close_objects(nodes: Iterable[Any]) -> None:
    """Makes objects leaves again."""
    for node in nodes:
        _opened.pop(id(node), None)


def children(
    node: Any,
) -> tuple[tuple[Any, ...], tuple[Any, ...], tuple[tuple[str, Any], ...]] | None:
    """A node's (keys, children, static fields); None for a leaf. Dicts are in sorted key order."""
    if node is None:
        return (), (), ()
    if isinstance(node, dict):
        keys = _sorted(node)
        return keys, tuple(node[k] for k in keys), ()
    if isinstance(node, tuple) and hasattr(node, "_fields"):
        return tuple(node._fields), tuple(node), ()
    if isinstance(node, tuple | list):
        return tuple(range(len(node))), tuple(node), ()
    if id(node) in _opened:
        return _attributes(node)
    if getattr(type(node), "tree_leaf", False):
        return None
    if dataclasses.is_dataclass(node) and not isinstance(node, type):
        fields = dataclasses.fields(node)
        moving = [f.name for f in fields if not is_static(f)]
        fixed = tuple((f.name, getattr(node, f.name)) for f in fields if is_static(f))
        return tuple(moving), tuple(getattr(node, n) for n in moving), fixed
    return None


def _attributes(
    node: Any,
) -> tuple[tuple[Any, ...], tuple[Any, ...], tuple[tuple[str, Any], ...]]:
    held = vars(node)
    fields = dataclasses.fields(node) if dataclasses.is_dataclass(node) else ()
    fixed = tuple((f.name, held[f.name]) for f in fields if is_static(f) and f.name in held)
    names = tuple(sorted(held.keys() - {name for name, _ in fixed}))
    return names, tuple(held[n] for n in names), fixed


def _sorted(keys: Any) -> tuple[Any, ...]:
    """Keys of one class in their order; others by their class and their text."""
    try:
        return tuple(sorted(keys))
    except TypeError:
        return tuple(sorted(keys, key=lambda k: (type(k).__name__, repr(k))))


def flatten(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> tuple[list[Any], Structure]:
    """The leaves in order, and their structure. `is_leaf` makes a node a leaf."""
    leaves: list[Any] = []
    return leaves, _visit(tree, is_leaf, leaves)


def _visit(node: Any, is_leaf: Callable[[Any], bool] | None, leaves: list[Any]) -> Structure:
    # A function of the module: a nested one that calls itself would keep the leaves alive.
    parts = None if is_leaf is not None and is_leaf(node) else children(node)
    if parts is None:
        leaves.append(node)
        return LEAF
    keys, nodes, fixed = parts
    held = node if isinstance(node, dict) else vars(node) if id(node) in _opened else ()
    below = tuple([_visit(n, is_leaf, leaves) for n in nodes])
    return Structure(type(node), keys, below, fixed, tuple(held))


def leaves(tree: Any) -> list[Any]:
    """The leaves in order."""
    return flatten(tree)[0]


def build(structure: Structure, nodes: Iterable[Any]) -> Any:
    """One node from its already built children."""
    kind = structure.kind
    if kind is type(None):
        return None
    values = list(nodes)
    if kind is dict:
        given = dict(zip(structure.keys, values, strict=True))
        return {k: given[k] for k in structure.order} if structure.order else given
    if kind is list:
        return values
    if kind is tuple:
        return tuple(values)
    assert kind is not None
    if issubclass(kind, tuple):
        return kind(*values)
    if (make := getattr(kind, "tree_build", None)) is not None:
        return make(values, *(value for _, value in structure.fixed))
    for plain in (dict, list):
        if issubclass(kind, plain):
            raise DelianError(
                f"a tree cannot hold a `{kind.__name__}`", f"pass {plain.__name__}(x) of it"
            )
    # Not through __init__: a tree is also rebuilt with abstract leaves, which a constructor would
    # refuse.
    made = object.__new__(kind)
    given = {**dict(zip(structure.keys, values, strict=True)), **dict(structure.fixed)}
    for name in structure.order or given:
        object.__setattr__(made, name, given[name])
    return made


def unflatten(structure: Structure, leaves: Iterable[Any]) -> Any:
    """The tree again. Raises ValueError when the number of leaves does not fit."""
    supply = iter(leaves)
    tree = _rebuilt(structure, supply, structure)
    if next(supply, _END) is not _END:
        raise ValueError(f"too many leaves for a tree of {structure.leaves}")
    return tree


def _rebuilt(node: Structure, supply: Iterator[Any], whole: Structure) -> Any:
    if node.kind is None:
        try:
            return next(supply)
        except StopIteration:
            raise ValueError(f"too few leaves for a tree of {whole.leaves}") from None
    return build(node, [_rebuilt(c, supply, whole) for c in node.children])


_END = object()


def map(f: Callable[..., Any], tree: T, *others: Any) -> T:
    """`f` of the leaves in the same place. Raises ValueError when the structures differ."""
    leaves, structure = flatten(tree)
    columns = [leaves]
    for other in others:
        more, its = flatten(other)
        if its != structure:
            raise ValueError(f"trees differ in structure: {structure} and {its}")
        columns.append(more)
    return unflatten(structure, [f(*row) for row in zip(*columns, strict=True)])  # type: ignore[no-any-return]


def within(tree: Any, *kinds: type) -> Any:
    """A tree like this one with True at the leaves inside nodes of these classes, else False.

    It names the leaves that stay personal (FedBN), or that the decay of weights leaves out. Public
    as `nn.within`.
    """
    nodes, structure = flatten(tree, lambda node: isinstance(node, kinds))
    return unflatten(structure, [_marked(node, isinstance(node, kinds)) for node in nodes])


def _marked(node: Any, mark: bool) -> Any:
    return map(lambda leaf: mark, node)
