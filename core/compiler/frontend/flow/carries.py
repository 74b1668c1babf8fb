"""What a loop carries, and its fixed point: what `for` and `while` share (`loops`).

Start from the types before the loop, specialise the body, join with what it leaves, and again if
that changed anything. An array that a round changes in place is carried too; a name that is bound
to one array throughout is not (`stores`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ....common.errors import ProgramError
from ... import tree
from ...ir import DType, TensorType, Value
from .. import complexes
from ..containers import containers, list_stacks
from ..hir import hir
from ..memory import stores
from ..memory.joined_arrays import Columns, Past
from ..scope import Scope
from ..values import Choice, Tensor, Unbound, Whole, is_number
from . import joins
from .choices import Functions, Path, is_function, may_be_carried
from .joins import Slot

if TYPE_CHECKING:
    from ..specialise import Specialiser
    from ..values import Frame


class LoopMismatch(ProgramError):
    """What a loop carries changes its type or structure.

    A loop of known length may still be unrolled.
    """


_NONE = object()


class Carries:
    """What `for` and `while` share: carries and their fixed point."""

    def __init__(
        self,
        s: Specialiser,
        frame: Frame,
        node: hir.For | hir.While,
        carried: Sequence[str],
        surely: bool,
    ) -> None:
        self.s = s
        self.frame = frame
        self.node = node
        self.before = frame.vars
        #: Arrays of names that the loop binds again: without them, they may be in use no more.
        self.past: dict[str, Past] = {}
        self.names = []
        self.late = []  # Live names without a value before the loop.
        self.structures: dict[str, tree.Structure] = {}
        self.leaves: dict[str, list[Any]] = {}
        #: The arrays that the loop changes in place: it carries what they hold.
        self.changed: list[stores.Memory] = []
        self.born = stores.mark(s)[1]
        #: What the names' leaves were before the loop, and what the last round left.
        self.starting: dict[str, list[Any]] = {}
        self.ending: dict[str, list[Any]] = {}
        #: The arrays that the latter may be: alive until the next round has asked which names share
        #: them.
        self.held: list[stores.Memory] = []
        #: What a round knows of the arrays that names are bound to at its start.
        self.aliases: dict[Any, Any] = {}
        #: Late names that the body leaves without a value, and why.
        self.unset: dict[str, Unbound] = {}
        #: The containers that the loop changes, or groups of them, by the hidden name of what they
        #: hold.
        self.contents: dict[str, Any] = {}
        #: Containers whose places do not keep them: they are carried item by item, by id.
        self.deep: set[int] = set()
        #: The index of a round.
        self.index: tuple[Value, ...] = ()
        for name in carried:
            value = self.before.get(name)
            if name in self.before and type(value) is not Unbound:
                self.names.append(name)
                self.start(name)
            else:
                self.late.append(name)
        for name, past in self.past.items():  # When each of them knows what it shares.
            self.before[name] = past.plain
        self.surely = surely
        known = surely or id(node) in s.peeled
        #: The loop (`id`), where its first round may give names their first values.
        self.first_round = id(node) if known and isinstance(node, hir.For) else 0
        if surely:
            self.runs_surely()
        else:
            self.names += [n for n in self.late if n.startswith("$")]

    def start(self, name: str) -> None:
        """A name as it is before the loop."""
        content = name in self.contents
        value = complexes.known_as_pairs(self.s, self.before[name], content)
        self.before[name] = value
        leaves, self.structures[name] = self.flat(name, value, None)
        kept = name not in self.node.rebound
        self.leaves[name] = [self.leaf(v, kept) for v in leaves]
        if not kept and type(value) is Tensor and stores.is_array(value):
            self.past[name] = Past(self.s, value)
        self.starting[name] = [self.past[name]] if name in self.past else leaves

    def run_or_restore(self, rounds: Callable[[], None]) -> None:
        """Puts the loop into the program; where that fails, names are what they were before."""
        try:
            rounds()
        finally:
            self.restore()

    def restore(self) -> None:
        """Names as they were before a loop that did not come to its end."""
        made: dict[int, stores.Memory] = {}
        for name, past in self.past.items():
            self.before[name] = past.tensor(made)
        self.past.clear()
        self.held.clear()

    def flat(self, name: str, value: Any, scope: Scope | None) -> tuple[list[Any], tree.Structure]:
        """Leaves and structure; containers that their places keep are leaves."""
        return containers.flatten(self.s, value, scope, self.deep, name in self.contents)

    def called(self, name: str) -> str:
        unit = self.contents.get(name)
        if unit is None:
            return joins.called(name)
        return joins.called(containers.name_of(self.before, list_stacks.members(unit)[0]))

    def runs_surely(self) -> None:
        """A loop that runs at least once may be the first to set a name.

        What the name holds before does not matter then, and is zeros; the same goes for hidden
        names, which a flag guards.
        """
        self.surely = True
        self.names += [n for n in self.late if n not in self.names]

    def first(self, name: str, value: Any, path: Path) -> Any:
        """What a leaf is carried as that a round is the first to set."""
        if is_function(value):
            self.check_made(name, value, path)
        return joins.slot_of(self.s, value) if is_number(value) else self.leaf(value)

    def check_made(self, name: str, function: Any, path: Path) -> None:
        """A function that holds what a round computed is another one in each round."""
        if not may_be_carried(function, path):
            text = f"{self.called(name)} holds a function that a round of the loop made"
            hint = "make it after the loop, of what the loop carries"
            raise LoopMismatch("DL109", text, self.s.locs(), hint)

    def leaf(self, value: Any, kept: bool = False) -> Any:
        """What a leaf is carried as: a value of the program in a slot, anything else as it is.

        `kept`: an array stays the same one unless a round shows otherwise; if it is changed in
        place the loop carries its memory.
        """
        if type(value) is Choice:
            return Functions(value.functions)
        if kept and type(value) is Tensor and stores.is_array(value):
            return value
        return joins.slot_of(self.s, value) if type(value) in (Tensor, Whole) else value

    def enter(self) -> list[Value]:
        """Names as the body finds them, at a round's start; gives the carries' parameters."""
        params: list[Value] = []
        memories = [Value(stores.type_of(m)) for m in self.changed]
        for memory, param in zip(self.changed, memories, strict=True):
            stores.set_value(self.s, memory, param)
        known, columns = self.columns(self.born)
        self.aliases = {place: columns.known(column) for place, column in known.items()}
        variables = dict(self.before)
        copies = containers.Copies(self.s)
        for name in self.names:
            if name not in self.leaves:
                continue
            values = []
            for k, leaf in enumerate(self.leaves[name]):
                if type(leaf) in _CARRIED:
                    params.append(Value(_type_of(leaf)))
                    leaf = self.holding(leaf, params[-1], (name, k), known, columns)
                values.append(leaf)
            made = containers.rebuilt(self.s, self.structures[name], values)
            variables[name] = copies.note(made, values, self.sources(name), name in self.contents)
            if name in self.contents:
                self.put(name, made)
        for name in self.late:
            hidden = name.startswith("$") and name in self.leaves  # A flag guards its use.
            if type(variables.get(name)) is Unbound or hidden:  # That says more of why.
                continue
            variables.pop(name, None)
            if self.first_round:
                text = f"`{name}` is read before it is assigned"
                hint = "assign it before the loop"
                variables[name] = Unbound("DL103", text, hint, loop=self.first_round)
        self.frame.vars = variables
        self.s.scope.inputs = (*self.index, *params, *memories)
        return [*params, *memories]

    def sources(self, name: str) -> list[tuple[Any, Scope | None]]:
        """What a name's containers may be in Python."""
        return [(self.before[name], None)] if name in self.starting else []

    def columns(self, born: int | None = None) -> tuple[dict[Any, list[Any]], Columns]:
        """What each carried leaf may be."""
        columns = Columns(self.s, born, self.born)
        known = {
            (name, k): self.column(name, k)
            for name in self.names
            for k, leaf in enumerate(self.leaves.get(name, ()))
            if type(leaf) is Slot
        }
        for place, column in known.items():
            columns.add(place, column)
        return known, columns

    def column(self, name: str, k: int) -> list[Any]:
        """What a leaf may be at a round's start: what it was before the loop, or is after one."""
        found = (self.starting.get(name), self.ending.get(name))
        return [None if leaves is None or k >= len(leaves) else leaves[k] for leaves in found]

    def holding(
        self,
        leaf: Any,
        value: Value,
        place: tuple[str, int],
        may_be: dict[Any, list[Any]],
        columns: Columns,
    ) -> Any:
        """A carried leaf in a round, or after the loop."""
        if type(leaf) is Functions:
            return Choice(Tensor(value), leaf.functions)
        return columns.joined(place, value, leaf.kind, may_be[place])

    def last(self, leaf: Any, name: str, k: int) -> Any:
        """A carried leaf after the loop: of a loop that runs surely, what a round leaves."""
        end = self.ending[name][k] if self.surely and name in self.ending else None
        if type(leaf) is not Slot or not is_number(end):
            return leaf
        left = joins.slot_of(self.s, end)
        if left.type != leaf.type:  # The number before the loop had the wider class: unroll.
            path = list(self.structures[name].paths())[k]
            raise self.differs(name, path, leaf, end)
        return left

    def join(self, scope: Scope, params: Sequence[Value]) -> bool:
        """Joins what the names were with what the body leaves; whether that changed nothing."""
        kept = frozenset(self.names)
        path = Path(scope, self.frame, self.frame.vars, kept, tuple(params))
        settled = True
        self.s.at(self.node.loc)
        for memory in scope.changed:
            if self.s.faults is not None and any(
                memory in found for *_, found in self.s.faults.said
            ):
                text = "`print` or a logger is called in a loop that cannot be unrolled"
                hint = "return the numbers, and print them outside"
                raise LoopMismatch("DL106", text, self.s.locs(), hint)
            if memory not in self.changed:
                self.changed.append(memory)
                settled = False
        for name, unit in self.contents.items():
            with self.s.inside(scope):
                self.frame.vars[name] = list_stacks.content(self.s, unit, scope.contents)
        for name in self.names:
            end = self.frame.vars.get(name)
            if name not in self.frame.vars:
                continue
            if type(end) is Unbound and name not in self.leaves:
                self.unset[name] = end
                continue
            if type(end) is Unbound:
                raise LoopMismatch(end.code, end.message, end.locs or self.s.locs(), end.hint)
            if self.paired(name, end):
                settled = False
            end = self.frame.vars[name]
            leaves, structure = self.flat(name, end, scope)
            self.ending[name] = leaves
            if self.apart(name, leaves):
                settled = False
                continue
            if name not in self.leaves:  # A hidden name that the body is the first to set.
                self.structures[name] = structure
                self.leaves[name] = [self.first(name, v, path) for v in leaves]
                settled = False
                continue
            if not structure.is_alike(self.structures[name]):
                start = tree.unflatten(self.structures[name], self.leaves[name])
                raise self.differs(name, "", start, end)
            for k, leaf in enumerate(leaves):
                old = self.leaves[name][k]
                if (
                    old is not leaf
                    and is_function(leaf)
                    and (type(old) is Functions or is_function(old))
                ):
                    self.check_made(name, leaf, path)
                    one = old if type(old) is Functions else Functions((old,))
                    self.leaves[name][k] = one.widened(leaf)
                    settled = settled and old == self.leaves[name][k]
                    continue
                fits, joined = joins.join_leaf(self.s, old, leaf)
                if not fits or (type(old) is Slot and old.type != joined.type and not old.weak):
                    raise self.differs(name, list(structure.paths())[k], old, leaf)
                if type(old) is Slot or type(joined) is Slot:
                    settled = settled and type(old) is Slot and old == joined
                    self.leaves[name][k] = joined
        self.held = [
            memory
            for leaves in self.ending.values()
            for leaf in leaves
            if type(leaf) is Tensor and (own := stores.memory_of(self.s, leaf)) is not None
            for memory in stores.sources_of([own])
        ]
        if settled and self.found(scope):
            settled = False
        if settled and self.aliased():
            settled = False
        if settled:
            self.check_aliases()
        return settled

    def aliased(self) -> bool:
        """Whether names may be bound to other arrays than the last round knew."""
        known, columns = self.columns(self.born)
        return self.aliases != {place: columns.known(column) for place, column in known.items()}

    def apart(self, name: str, leaves: list[Any]) -> bool:
        """Whether a round leaves other containers than it found: they are carried item by item."""
        if name not in self.starting:
            return False
        more = containers.apart([self.starting[name], leaves]) - self.deep
        if more:
            self.deep |= more
            # Whatever the name is bound to from now on is a copy of them: none may change.
            found = (*self.starting[name], *leaves)
            self.s.shared.update((id(v), v) for v in found if id(v) in more)
            for known in self.starting:
                self.start(known)
        return bool(more)

    def found(self, scope: Scope) -> bool:
        """Takes up the containers that a round changed; whether there are new ones."""
        known = {id(v): n for n, u in self.contents.items() for v in list_stacks.members(u)}
        new = False
        for unit in list_stacks.units(self.s, scope.contents):
            members = list_stacks.members(unit)
            if all(id(v) in known for v in members):
                continue
            for name in {known[id(v)] for v in members if id(v) in known}:
                self.drop(name)
            name = f"$content{id(members[0])}"
            self.contents[name] = unit
            self.before[name] = list_stacks.content(self.s, unit, {})
            self.names.append(name)
            self.start(name)
            new = True
        return new

    def drop(self, name: str) -> None:
        """Forgets a container that is part of a group now."""
        self.names.remove(name)
        for known in (self.contents, self.before, self.leaves, self.structures):
            del known[name]
        self.starting.pop(name, None)
        self.ending.pop(name, None)

    def put(self, name: str, content: Any) -> None:
        """Puts what a container holds in place."""
        unit = self.contents[name]
        if type(unit) is list_stacks.Group:
            list_stacks.put(self.s, unit, content.value, self.leaves[name][0].kind)
        else:
            containers.put(self.s, unit, content)

    def paired(self, name: str, end: Any) -> bool:
        """Carries complex numbers as pairs; whether that changes what a name is carried as."""
        content = name in self.contents
        end = complexes.known_as_pairs(self.s, end, content)
        before = self.before.get(name, _NONE)
        if name in self.leaves and before is not _NONE and type(before) is not Unbound:
            self.before[name], end = complexes.alike(self.s, (before, end), content)
        self.frame.vars[name] = end
        changed = before is not _NONE and self.before[name] is not before
        if changed:
            self.start(name)
        return changed

    def check_aliases(self) -> None:
        """Refuses a name that is bound, after a round, to an array that the loop changes in place.

        The name would have to see the change in the next round.
        """
        for name, slots in self.leaves.items():
            for slot, leaf in zip(slots, self.ending.get(name, ()), strict=False):
                if type(slot) is not Slot or type(leaf) is not Tensor:
                    continue
                memory = stores.memory_of(self.s, leaf)
                found = [] if memory is None else stores.sources_of([memory])
                if any(m in self.changed for m in found):
                    raise LoopMismatch(
                        "DL111",
                        f"{self.called(name)} is bound to an array that the loop changes in place",
                        self.s.locs(),
                        "bind it to a copy: x.copy()",
                    )

    def differs(self, name: str, path: str, start: Any, end: Any) -> LoopMismatch:
        loc = joins.assigned_at(self.node.body, name)
        where = ("before the loop", f"after a round (line {loc.line})" if loc else "after a round")
        text = joins.mismatch(self.called(name), path, start, end, where)
        hint = (
            "a loop must leave the type and shape that it found; start with np.zeros(shape, dtype)"
        )
        return LoopMismatch("DL109", text, self.s.locs(), hint)

    def ends(self, scope: Scope) -> list[Value]:
        """What the body leaves in each slot."""
        # What is refused is refused before anything has changed: the loop may be unrolled then.
        for name in self.names:
            for k, leaf in enumerate(self.leaves.get(name, ())):
                self.last(leaf, name, k)
        out: list[Value] = []
        with self.s.inside(scope):
            for name in self.names:
                if name not in self.leaves:
                    continue
                leaves = self.flat(name, self.frame.vars[name], scope)[0]
                for slot, leaf in zip(self.leaves[name], leaves, strict=True):
                    if type(slot) in _CARRIED:
                        out.append(self.filled(leaf, slot))
        return out + [scope.changed[m][0] for m in self.changed]

    def filled(self, leaf: Any, slot: Any) -> Value:
        if type(slot) is Functions:
            return slot.tag(self.s, leaf)
        return joins.fill(self.s, leaf, slot)

    def starts(self) -> list[Value]:
        """What each slot holds before the loop."""
        out: list[Value] = []
        for name in self.names:
            value = self.before.get(name, _NONE)
            unset = value is _NONE or type(value) is Unbound
            known = None if unset else self.flat(name, value, None)[0]
            for k, slot in enumerate(self.leaves.get(name, ())):
                if type(slot) not in _CARRIED:
                    continue
                if known is not None:
                    out.append(self.filled(known[k], slot))
                else:
                    out.append(self.s.scope.number(0, _type_of(slot).dtype, _type_of(slot).shape))
        return out + [m.value for m in self.changed]

    def leave(self, results: Sequence[Value]) -> None:
        """Names as what follows finds them."""
        self.past.clear()
        self.frame.vars = self.before
        supply = iter(results)
        memories = results[len(results) - len(self.changed) :]
        for memory, value in zip(self.changed, memories, strict=True):
            stores.set_value(self.s, memory, value)
        may_be, columns = self.columns()
        copies = containers.Copies(self.s)
        for name in self.names:
            if name not in self.leaves:
                continue
            values = [
                self.holding(self.last(v, name, k), next(supply), (name, k), may_be, columns)
                if type(v) in _CARRIED
                else v
                for k, v in enumerate(self.leaves[name])
            ]
            made = containers.rebuilt(self.s, self.structures[name], values)
            copies.note(made, values, self.sources(name), name in self.contents)
            if name in self.contents:
                self.put(name, made)
                del self.before[name]
            else:
                self.before[name] = made
        line = self.node.loc.line
        for name in self.late:
            if name in self.leaves:
                continue
            known = self.before.get(name) if name in self.before else self.unset.get(name)
            if type(known) is Unbound and known.code != "DL103":
                self.before[name] = known
                continue
            self.before[name] = Unbound(
                "DL103",
                f"`{name}` is assigned in the loop at line {line} and nowhere before it",
                "assign it before the loop: the loop may not run even once",
                loop=self.first_round,
            )

    def unsettled(self) -> ProgramError:
        return self.s.error("DL109", "the types that the loop carries do not settle")


_CARRIED = (Slot, Functions)


def _type_of(leaf: Any) -> TensorType:
    """The type of a carry."""
    return leaf.type if type(leaf) is Slot else TensorType(DType.I64)
