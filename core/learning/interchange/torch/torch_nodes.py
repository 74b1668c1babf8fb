"""The nodes of one graph of PyTorch, written into a function (`straight_line`)."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import TYPE_CHECKING, Any

import numpy as np

from ....common.errors import Loc, ProgramError
from ....compiler.ir import Array
from ..channel_axes import channels_first, channels_last
from ..straight_line import Ref, StraightLine
from .aten_elementwise import cast
from .aten_images import VISION_ROWS
from .aten_norms import OWN_ROWS
from .aten_row import OWN_SPACE, Row
from .aten_table import row_of
from .batch_rows import repeated, rows_each
from .torch_control import CONTROLS, drawn
from .torch_export import CODE, origin_of, torch_module
from .torch_layouts import Plan, last_axis, planned, rank_of, weight_place
from .torch_sizes import SIZES

if TYPE_CHECKING:
    import torch
    from torch.fx import Node

#: Arguments that say where and how a tensor lies; they do not change numbers.
_PLACEMENT = ("layout", "device", "pin_memory", "memory_format", "generator")
#: Operators that check or annotate, and give nothing that is read.
_CHECKS = ("_assert_async", "_assert_scalar", "_assert_tensor_metadata", "sym_constrain_range")
_ABSENT = object()
_KINDS = {"same": "DEFAULT", "float": "INT_TO_FLOAT", "bool": "ALWAYS_BOOL", "long": "BOOL_TO_LONG"}
#: Graphs in graphs: Python's own limit on recursion is not far beyond.
_DEPTH_MAX = 32


@dataclass(frozen=True)
class Held:
    """A tensor of the module, which becomes a constant of the program where it is read."""

    tensor: Any


class NodeWriter:
    """Writes the nodes of a graph. The function has parameters `weight` and `draw` (`Row.extras`).

    Attributes:
        lines: the function.
        values: of nodes, as `StraightLine` takes them, or `Held`.
        stored: values whose channels are last.
        weights, axes: weights in their stored axes, and these.
        batch: the symbol of the batch's size, if it has one.
        needed: the nodes that are written.
        draws: how many of the calls draw random numbers.
        unweighted: an operator that counts rows without weight; empty if there is none.
    """

    def __init__(self, root: torch.fx.GraphModule, lines: StraightLine, depth: int = 0) -> None:
        self.torch = torch_module()
        self.root = root
        self.lines = lines
        self.depth = depth
        self.values: dict[Any, Any] = {}
        self.stored: dict[Any, Ref] = {}
        self.weights: dict[Any, Ref] = {}
        self.axes: dict[Any, tuple[int, ...]] = {}
        self.batch: Any = None
        self.needed: set[Node] = set()
        self.draws = 0
        self.unweighted = ""

    def write(self, results: Sequence[Any]) -> None:
        """Adds the nodes that these results depend on."""
        self.needed = needed = self._reached(results)
        for node in self.root.graph.nodes:
            if node.op == "call_function" and node in needed:
                self.call(node)
            elif node.op == "get_attr" and node in needed:
                self.values[node] = self.constant(node)

    def _reached(self, results: Sequence[Any]) -> set[Node]:
        found: set[Node] = set()
        waiting = [node for node in results if isinstance(node, self.torch.fx.Node)]
        while waiting:
            node = waiting.pop()
            if node not in found:
                found.add(node)
                waiting += node.all_input_nodes
        return found

    def inner(self, root: torch.fx.GraphModule, name: str) -> tuple[FunctionType, bool]:
        """A function `inner(*inputs, weight, draw)` of an inner graph, and whether it draws."""
        if self.depth == _DEPTH_MAX:
            raise self.refusal(None, f"control flow is more than {_DEPTH_MAX} deep", "flatten it")
        given = [node for node in root.graph.nodes if node.op == "placeholder"]
        names = [f"v{k}" for k in range(len(given))]
        writer = NodeWriter(root, StraightLine(name, [*names, "weight", "draw"]), self.depth + 1)
        writer.batch = self.batch
        writer.values = {node: Ref(each) for node, each in zip(given, names, strict=True)}
        (results,) = next(node for node in root.graph.nodes if node.op == "output").args
        single = not isinstance(results, list | tuple)
        results = (results,) if single else results
        writer.write(results)
        self.unweighted = self.unweighted or writer.unweighted
        return writer.lines.function(writer.value(tuple(results))), writer.draws > 0

    def next_key(self, node: Node) -> Ref:
        """A random key for a call of its own."""
        self.draws += 1
        return self.lines.call(drawn, Ref("draw"), self.draws, origin=origin_of(node))

    def origin(self, node: Node) -> Loc | None:
        """The user's line of a node."""
        return origin_of(node)

    # Values

    def value(self, given: Any) -> Any:
        """An argument of a node, as `StraightLine` takes it."""
        torch = self.torch
        if isinstance(given, torch.fx.Node):
            found = self.values.get(given, _ABSENT)
            if found is _ABSENT:
                found = self.values[given] = self.in_torch_axes(given)
            elif isinstance(found, Held):
                found = self.values[given] = self.array(found.tensor, given)
            return found
        if isinstance(given, list | tuple):
            return tuple(self.value(each) for each in given)
        if isinstance(given, torch.dtype):
            return self.dtype(given, None).type
        if isinstance(given, complex):
            raise self.refusal(None, "complex numbers", "compute their parts")
        return given

    def in_torch_axes(self, node: Node) -> Ref:
        """A value that is stored in other axes, in PyTorch's."""
        if node in self.weights:
            inverse = tuple(int(k) for k in np.argsort(self.axes[node]))
            return self.lines.call(np.transpose, self.weights[node], inverse)
        shape = node.meta["val"].shape
        if all(not self.symbolic(n) and n == 1 for n in shape[2:]):
            x = self.stored[node]
            sizes = (Ref(f"{x.name}.shape[0]"), Ref(f"{x.name}.shape[-1]"), *[1] * (len(shape) - 2))
            return self.lines.call(np.reshape, x, sizes)
        return self.lines.call(channels_first, self.stored[node])

    def channels_last(self, node: Node) -> Ref:
        """A value with its channels last."""
        if node not in self.stored:
            self.stored[node] = self.lines.call(channels_last, self.value(node))
        return self.stored[node]

    def constant(self, node: Node) -> Any:
        found: Any = self.root
        for part in str(node.target).split("."):
            found = getattr(found, part)
        if isinstance(found, self.torch.Tensor):
            return self.array(found, node)
        return found

    def array(self, tensor: Any, node: Node | None) -> Any:
        self.dtype(tensor.dtype, node)
        return as_array(self.torch, tensor)

    def dtype(self, found: Any, node: Node | None) -> np.dtype[Any]:
        """NumPy's type of a torch type. Raises ProgramError for one that the IR has not."""
        from ....compiler.ir import DType

        name = str(found).removeprefix("torch.")
        try:
            made = DType.BF16.numpy if name == "bfloat16" else np.dtype(name)
            DType.of(made)
        except (KeyError, TypeError):
            raise self.refusal(
                node, f"tensors of {name}", "the element types are in docs/language.md"
            ) from None
        return made

    def symbolic(self, value: Any) -> bool:
        return isinstance(value, self.torch.SymInt) and not value.node.expr.is_number

    # Operators

    def call(self, node: Node) -> None:
        """Writes a node: it gets a value, or is stored with its channels last."""
        made = self.written_call(node)
        if node not in self.stored:
            self.values[node] = made

    def written_call(self, node: Node) -> Any:
        from torch._ops import HigherOrderOperator, OpOverload

        target = node.target
        if isinstance(target, HigherOrderOperator):
            control = CONTROLS.get(target.name())
            if control is None:
                raise self.refusal(
                    node,
                    f"the higher-order operator {target.name()} cannot be imported",
                    f"write it with others: {', '.join(CONTROLS)} are imported",
                )
            self.check_parts(node)
            self.check_branches(node)
            return control(self, node)
        if not isinstance(target, OpOverload):
            return self.plain(node)
        space, name, overload = str(target).split(".")
        if name in _CHECKS:
            return None
        if name == "sym_size":
            return self.size(node.args[0], node.args[1])
        row = row_of(name, overload) if space == "aten" else VISION_ROWS.get(f"{space}::{name}")
        if space == OWN_SPACE:
            row = OWN_ROWS[name]
        if row is None:
            raise self.refusal(
                node,
                f"the operator {space}::{name}.{overload} cannot be imported",
                "the operators are in docs/models.md; write this part with others",
            )
        return self.row_call(node, row, name)

    def size(self, x: Any, axis: Any) -> Ref:
        """The size of a tensor along an axis, in whatever layout it is at hand."""
        if x not in self.values and x in self.stored:
            return Ref(f"{self.stored[x].name}.shape[{last_axis(axis, rank_of(x))}]")
        return Ref(f"{self.lines.text(self.value(x))}.shape[{axis}]")

    def row_call(self, node: Node, row: Row, name: str) -> Any:
        self.check_parts(node)
        if name == "as_strided":
            self.check_storage(node)
        if name == "permute" and self.turned(node):
            return self.values.get(node)
        whole = row.whole is not None and self.unread(node, row) is not None
        plan = None if whole else planned(node, row, self.stored)
        place = weight_place(node)
        weights = None if place is None else self.stored_weights(node.args[place])
        args = [
            weights if weights is not None and k == place else self.argument(each, plan)
            for k, each in enumerate(node.args)
        ]
        keywords = {k: self.value(v) for k, v in node.kwargs.items() if k not in _PLACEMENT}
        keywords |= row.fixed
        origin = origin_of(node)
        if row.promotion != "none":
            args = self.promoted(node, row, args)
        if "weight" in row.extras:
            keywords |= self.weight_of(node)
        if "counted" in row.extras:
            keywords["counted"] = _is_counted(node.args[2].meta["val"])
        if "draw" in row.extras and _is_random(row, args, keywords):
            keywords["draw"] = self.next_key(node)
        if plan is not None:
            keywords |= plan.keywords
            for place, value in plan.args.items():
                args[place:] = [value, *args[place + 1 :]]
        if weights is not None:
            keywords["stored"] = True
        function = row.whole if whole and row.whole is not None else row.function
        made = self.lines.call(function, *args, origin=origin, name=node.name, **keywords)
        if row.results:
            self.check_results(node, row)
        elif row.promotion in ("same", "float", "long"):
            made = self.as_type(made, node, origin)
        if plan is not None and plan.stored:
            self.stored[node] = made
        return made

    def stored_weights(self, given: Any) -> Any:
        """An operator's weight, or list of weights, as stored; None where one is not."""
        if isinstance(given, self.torch.fx.Node):
            return self.weights.get(given)
        if any(rank_of(node) > 1 and node not in self.weights for node in given):
            return None
        return tuple(self.weights[n] if n in self.weights else self.value(n) for n in given)

    def argument(self, given: Any, plan: Plan | None) -> Any:
        """An argument of a node, in the layout of its plan."""
        if plan is None:
            return self.value(given)
        if isinstance(given, self.torch.fx.Node):
            return self.channels_last(given) if given in plan.nodes else self.value(given)
        if isinstance(given, list | tuple):
            return tuple(self.argument(each, plan) for each in given)
        return self.value(given)

    def turned(self, node: Node) -> bool:
        """Whether a permutation only says what is stored last already, or asks for it."""
        x, dims = node.args[0], tuple(d % rank_of(node) for d in node.args[1])
        rank = len(dims)
        if rank < 3:
            return False
        if x in self.stored and dims == (0, *range(2, rank), 1):
            self.values[node] = self.stored[x]
            return True
        if x not in self.stored and dims == (0, rank - 1, *range(1, rank - 1)):
            self.stored[node] = self.value(x)
            return True
        return False

    def promoted(self, node: Node, row: Row, args: list[Any]) -> list[Any]:
        """The operands in the type that ATen computes in (torch's own rule)."""
        from torch import _prims_common as common

        kind = common.ELEMENTWISE_TYPE_PROMOTION_KIND[_KINDS[row.promotion]]
        given = node.args[: row.operands]
        metas = [a.meta["val"] if isinstance(a, self.torch.fx.Node) else a for a in given]
        present = [m for m in metas if m is not None]
        if any(isinstance(m, complex) for m in present):
            raise self.refusal(node, "complex numbers", "compute their parts")
        if row.function.__name__ == "div" and node.kwargs.get("rounding_mode"):
            kind = common.ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT
        compute, result = common.elementwise_dtypes(*present, type_promotion_kind=kind)
        wanted = compute if row.promotion == "bool" else result
        made = list(args)
        for k, meta in enumerate(metas):
            if isinstance(meta, self.torch.Tensor) and meta.dtype is not wanted:
                origin = origin_of(node)
                target = self.dtype(wanted, node).type
                made[k] = self.lines.call(cast, args[k], target, origin=origin)
            elif isinstance(meta, bool) and wanted is not self.torch.bool:
                made[k] = int(meta)
            if isinstance(meta, int) and wanted.is_floating_point and not isinstance(meta, bool):
                made[k] = float(meta) if not isinstance(made[k], Ref) else made[k]
        return made

    def as_type(self, made: Ref, node: Node, origin: Any) -> Ref:
        """The result in ATen's type, where NumPy's functions of the operands give another."""
        value = node.meta["val"]
        if not isinstance(value, self.torch.Tensor) or value.dtype.is_floating_point:
            return made
        return self.lines.call(cast, made, self.dtype(value.dtype, node).type, origin=origin)

    def unread(self, node: Node, row: Row) -> Node | None:
        """The reading of a result beyond those that the row's function gives."""
        for user in node.users:
            is_item = getattr(user.target, "__name__", "") == "getitem"
            if is_item and user.args[1] >= row.results and user in self.needed:
                return user
        return None

    def check_results(self, node: Node, row: Row) -> None:
        user = None if row.whole else self.unread(node, row)
        if user is not None:
            raise self.refusal(
                user,
                f"result {user.args[1]} of {node.target} is read, and is not imported",
                "compute it another way",
            )

    def check_storage(self, node: Node) -> None:
        """Raises ProgramError where strides are of a tensor that is a view of a larger one."""
        given = node.args[0]
        assert isinstance(given, self.torch.fx.Node)
        x = given.meta["val"]
        if (
            given.op == "placeholder"
            or not x.is_contiguous()
            or x.untyped_storage().nbytes() != x.numel() * x.itemsize
        ):
            raise self.refusal(node, "as_strided of a view", "index with slices")

    def check_parts(self, node: Node) -> None:
        """Raises ProgramError for a result of complex numbers."""
        value = node.meta.get("val")
        for each in value if isinstance(value, list | tuple) else (value,):
            if isinstance(each, self.torch.Tensor) and each.is_complex():
                raise self.refusal(node, "complex numbers", "compute their parts")

    def check_branches(self, node: Node) -> None:
        """Raises ProgramError for a branch or loop with a result of several shapes."""
        value = node.meta.get("val")
        for each in value if isinstance(value, list | tuple) else (value,):
            if isinstance(each, self.torch.Tensor) and _is_counted(each):
                raise self.refusal(
                    node,
                    f"{node.target} has a shape that the data decide",
                    "pad to a fixed size and mask",
                )

    def weight_of(self, node: Node) -> dict[str, Any]:
        """The weights of rows, for an operator that leaves out those without."""
        each = rows_each(node.args[0], self.batch)
        if each is None:
            self.unweighted = str(node.target).partition(".")[2]
        if not each:
            return {}
        weight = Ref("weight")
        return {"weight": weight if each == 1 else self.lines.call(repeated, weight, each)}

    def plain(self, node: Node) -> Any:
        """Python's own functions on sizes, and items of tuples."""
        name = getattr(node.target, "__name__", str(node.target))
        if name == "getitem" and node.args[0] in self.stored:
            x, place = self.stored[node.args[0]], node.args[1]
            if rank_of(node) >= 3:
                self.stored[node] = x[place]
            return x[place]
        args = [self.value(each) for each in node.args]
        if name == "getitem":
            return args[0][args[1]]
        found = SIZES.get(name)
        if found is None:
            if not node.users:
                return None
            raise self.refusal(node, f"{name} cannot be imported", "write this part with others")
        return self.lines.call(found, *args, origin=origin_of(node), name=node.name)

    def refusal(self, node: Node | None, what: str, hint: str) -> ProgramError:
        loc = origin_of(node) if isinstance(node, self.torch.fx.Node) else None
        return ProgramError(
            CODE, f"this module cannot be imported: {what}", [loc] if loc else [], hint
        )


def as_array(torch: Any, tensor: Any) -> Array:
    """A tensor's numbers, in its own type; bf16 needs the package ml_dtypes."""
    from ....compiler.ir import DType

    tensor = tensor.detach().cpu().contiguous()
    if tensor.dtype is torch.bfloat16:
        return tensor.view(torch.uint16).numpy().view(DType.BF16.numpy)  # type: ignore[no-any-return]
    return tensor.numpy()  # type: ignore[no-any-return]


def _is_random(row: Row, args: Sequence[Any], keywords: Mapping[str, Any]) -> bool:
    """Whether a call draws random numbers: its chance is not 0, and it is one of training."""
    given = inspect.signature(row.function).bind(*args, **keywords)
    given.apply_defaults()
    found = given.arguments
    chance = next((found[name] for name in ("dropout", "dropout_p", "p") if name in found), 1.0)
    return chance != 0 and found.get("train", True) is not False


def _is_counted(x: Any) -> bool:
    """Whether the data decide how long a tensor is."""
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

    return bool(free_unbacked_symbols(x.shape))
