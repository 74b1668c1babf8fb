"""Lists, dicts, sets and objects of a program that change in branches and loops.

A container is one Python object under all its names, in all containers that hold it and in all
frames that see it, so a region changes it where it stands:

    rows = [a, b]            a list that the program made
    also = rows              the same object
    if c: rows[0] = x        the region notes what the list held; when it is left, that is put back
                             and the list's new content is a result of the region
    also[0]                  the joined content was put into the same object

- `Region.saved` is what the containers that were made outside a region held at its start. The
  construct that built the region (`branches`, `carries`) joins the contents of its paths as it
  joins names, and puts the joined content in place.
- A container that is the same object on every path stays that object. Where paths meet with
  different ones, a name gets a new container (`Copies`): Python's would be one of the old ones.
  Neither the new one nor those old ones may change afterwards.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from ... import tree
from ...complex_numbers import Complex
from ...traced import ARRAY
from ..values import Tensor

if TYPE_CHECKING:
    from ..scope import Scope
    from ..specialise import Specialiser

#: A list, dict or set, or an object that the program made (`program_objects`).
Container: TypeAlias = Any

#: What regions changed: by id, a container and its content at the region's end.
Contents = dict[int, tuple[Container, Container]]


def is_container(value: Any) -> bool:
    """Whether it is a list, a dict, or an object whose attributes may be assigned."""
    kind: Any = type(value)
    return kind in (list, dict) or tree.is_open(value) or is_mutable_dataclass(kind)


def is_mutable_dataclass(kind: type) -> bool:
    """Whether it is a dataclass whose objects may be changed."""
    return dataclasses.is_dataclass(kind) and tree.is_object(kind)


def check_hashable(s: Specialiser, value: Any, what: str) -> None:
    """Refuses a value that Python has no hash of; `what` names the operation."""
    for item in value if isinstance(value, tuple) else ():
        check_hashable(s, item, what)
    one: Any = value.re if type(value) is Complex else value
    array = isinstance(one, Tensor) and one.kind & ARRAY
    if array or (not isinstance(one, Tensor) and type(one).__hash__ is None):
        kind = "numpy.ndarray" if array else type(one).__name__
        raise s.error("DL113", f"{what} fails: TypeError: unhashable type: '{kind}'")


def is_frozen(kind: type) -> bool:
    """Whether it is a frozen dataclass."""
    parameters = getattr(kind, "__dataclass_params__", None)
    return parameters is not None and bool(parameters.frozen)


def copied(owner: Container) -> Any:
    """What a container holds: a list, dict or set; a dict of an object's attributes.

    A program cannot see in which order attributes were set, and so paths may differ in it.
    """
    return dict(sorted(vars(owner).items())) if tree.is_open(owner) else owner.copy()


class Region:
    """A region that is being built.

    Attributes:
        changes: whether it may change containers that were made outside of it.
        saved: of those that it changed, the content at its start, by id.
    """

    __slots__ = ("changes", "saved")

    def __init__(self, changes: bool = True) -> None:
        self.changes = changes
        self.saved: Contents = {}

    def undo(self) -> Contents:
        """Puts back what the containers held; gives what they held last."""
        changed = {}
        for key, (owner, before) in self.saved.items():
            changed[key] = owner, copied(owner)
            fill(owner, before)
        self.saved = {}
        return changed

    def state(self) -> Contents:
        """The present content of what it changed."""
        return {key: (owner, copied(owner)) for key, (owner, _) in self.saved.items()}


class Log:
    """What containers held, to undo what an attempt changed that failed.

    Attributes:
        count: how often one was to be changed.
        entries: a container and its content, for each that was changed after a mark, and made
            before it.
        noted: the containers, by id, that were made or changed since the last mark.
        versions: by id, another number after each change.
    """

    __slots__ = ("count", "entries", "noted", "versions")

    def __init__(self) -> None:
        self.count = 0
        self.entries: list[tuple[Container, Container]] = []
        self.noted: set[int] = set()
        self.versions: dict[int, int] = {}

    def note(self, owner: Container) -> None:
        """Before a change."""
        self.versions[id(owner)] = self.count
        if id(owner) not in self.noted:
            self.noted.add(id(owner))
            self.entries.append((owner, copied(owner)))

    def mark(self) -> int:
        """Where an attempt begins."""
        self.noted.clear()
        return len(self.entries)

    def undo(self, mark: int) -> None:
        """Puts back what containers held at a mark."""
        for owner, before in reversed(self.entries[mark:]):
            fill(owner, before)
        del self.entries[mark:]
        self.noted.clear()


def may_change(s: Specialiser, owner: Any) -> None:
    """Refuses a change of a container that may not change; notes what it held."""
    check_errors(s, owner)
    _note(s, owner)


def check_errors(s: Specialiser, owner: Any) -> None:
    """Refuses a change after what may have raised an error that a handler takes."""
    if s.faults is not None and s.faults.pending():
        kind = type(owner).__name__
        text = f"a {kind} changes in a statement of a `try` that may raise an error before"
        raise s.error("DL102", text, "compute the value in a statement before")


def _note(s: Specialiser, owner: Any) -> None:
    s.container_log.count += 1
    made = s.owned.get(id(owner))
    kind = type(owner).__name__
    copy = "change it before" if tree.is_open(owner) else f"copy it first: x = {kind}(x)"
    if made is None:
        raise s.error(
            "DL111",
            f"this {kind} came from outside the function and cannot be changed",
            f"copy it first: x = {kind}(x)",
        )
    if id(owner) in s.shared:
        raise s.error(
            "DL111",
            f"this {kind} may be one of several, and only the running program knows which of them"
            " its name was bound to",
            copy,
        )
    s.container_log.note(owner)
    if made[1] is s.region or id(owner) in s.region.saved:
        return
    if not s.region.changes:
        raise s.error(
            "DL111",
            f"this {kind} was made outside a derivative, a vmap, the test of a loop or a function"
            " of its own, and cannot be changed within",
            "return the new items, and change it outside",
        )
    s.region.saved[id(owner)] = owner, copied(owner)


def put(s: Specialiser, owner: Container, content: Any) -> None:
    """Puts a joined content in place: a change of the region around."""
    _note(s, owner)
    fill(owner, content)


def fill(owner: Any, content: Any) -> None:
    """Puts a content (`copied`) into a container or an object."""
    if isinstance(owner, list):
        owner[:] = content
    else:
        held = vars(owner) if tree.is_open(owner) else owner
        content = content.copy()
        held.clear()
        held.update(content)


def same(a: Contents, b: Contents) -> bool:
    """Whether two states hold the same objects."""
    return a.keys() == b.keys() and all(alike(a[k][1], b[k][1]) for k in a)


def alike(a: Any, b: Any) -> bool:
    """Whether two contents (`copied`) are the same objects."""
    if isinstance(a, set):
        return bool(a == b)
    if isinstance(a, dict):
        same = list(a) == list(b)
        return same and all(x is y for x, y in zip(a.values(), b.values(), strict=True))
    return len(a) == len(b) and all(x is y for x, y in zip(a, b, strict=True))


def name_of(names: Mapping[str, Any], owner: Container) -> str:
    """What a message calls a container: a name that is bound to it, or its kind."""
    found = next((n for n, v in names.items() if v is owner and n.isidentifier()), "")
    return found or type(owner).__name__


# Trees whose containers may be kept as they are


def is_from_before(s: Specialiser, value: Any, scope: Scope | None) -> bool:
    """Whether it is a container that was made before the region of a scope (None: any is)."""
    if not is_container(value):
        return False
    return scope is None or s.owned.get(id(value), _OUTSIDE)[1] is not scope.region


_OUTSIDE: tuple[Any, Any] = (None, None)


def flatten(
    s: Specialiser, value: Any, scope: Scope | None, deep: Iterable[int], content: bool = False
) -> tuple[list[Any], tree.Structure]:
    """Leaves and structure; containers made before a region are leaves, but for `deep` ones.

    `content`: `value` is itself the content of such a container.
    """

    def kept(node: Any) -> bool:
        if content and node is value:
            return False
        return is_from_before(s, node, scope) and id(node) not in deep

    return tree.flatten(value, kept)


def apart(paths: Sequence[Sequence[Any]]) -> set[int]:
    """The containers among the leaves of paths that are not in the same place on each."""
    found: set[int] = set()
    if len({len(leaves) for leaves in paths}) > 1:
        return {id(v) for leaves in paths for v in leaves if is_container(v)}
    for column in zip(*paths, strict=True):
        if any(leaf is not column[0] for leaf in column):
            found.update(id(leaf) for leaf in column if is_container(leaf))
    return found


def walk(value: Any, stop: frozenset[int] = frozenset()) -> Iterator[Any]:
    """The lists, dicts and objects of a tree, but for those of `stop` and what is in them."""
    if id(value) in stop:
        return
    if isinstance(value, list | dict) or is_container(value):
        yield value
    parts = tree.children(value)
    for child in parts[1] if parts is not None else ():
        if isinstance(child, list | dict | tuple) or tree.children(child) is not None:
            yield from walk(child, stop)


def rebuilt(s: Specialiser, structure: tree.Structure, leaves: Sequence[Any]) -> Any:
    """The tree again, with new containers, but for those among the leaves.

    The new ones belong to the present region.
    """
    made = tree.unflatten(structure, leaves)
    own(s, made, structure)
    return made


def own(s: Specialiser, made: Any, structure: tree.Structure) -> None:
    """Gives the containers of a tree that was rebuilt to the present region."""
    kind = structure.kind
    if kind is None:
        return
    if kind in (list, dict):
        s.own(made)
    elif tree.is_object(kind):
        tree.open_object(made)
        s.own(made)
    parts = tree.children(made)
    for child, part in zip(parts[1] if parts else (), structure.children, strict=True):
        own(s, child, part)


class Copies:
    """The new containers of one place where paths meet: which of them may change afterwards.

    One that stands for a container from before, or for one that stands in two places, would have
    to share its changes with others: it may not change, nor may those.
    """

    def __init__(self, s: Specialiser) -> None:
        self.s = s
        self.made: dict[int, list[Any]] = {}

    def note(
        self,
        made: Any,
        leaves: Sequence[Any],
        sources: Iterable[tuple[Any, Scope | None]],
        content: bool = False,
    ) -> Any:
        """Takes down that `made` stands for each of the sources, a path's value each.

        `content`: they are what one container holds, and itself is no copy.
        """
        stop = frozenset(id(v) for v in leaves if is_container(v))
        new = list(walk(made, stop))
        for value, scope in sources:
            pairs = list(zip(walk(value, stop), new, strict=False))
            for old, one in pairs[content:]:
                before = self.made.setdefault(id(old), [])
                others = [v for v in before if v is not one]
                if others or is_from_before(self.s, old, scope):
                    for shared in (old, one, *others):
                        self.s.shared[id(shared)] = shared
                before.append(one)
        return made
