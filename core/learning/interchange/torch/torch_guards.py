"""For which sizes of its inputs an exported graph holds.

What a module does with sizes in Python, such as `if len(x) > 3`, torch.export decides by the
examples' sizes; it keeps the conditions under which it decides the same. Programs check them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import Any

from ....common.errors import ProgramError
from ..straight_line import StraightLine
from .torch_export import CODE, torch_module

#: What conditions on sizes are written with; others are torch's own functions.
_SIMPLE = (
    ast.Expression,
    ast.Compare,
    ast.BoolOp,
    ast.UnaryOp,
    ast.BinOp,
    ast.Constant,
    ast.Name,
    ast.Load,
    ast.Call,
    ast.operator,
    ast.unaryop,
    ast.boolop,
    ast.cmpop,
)
_FUNCTIONS = ("max", "min")
#: What results of one row may differ by: rounding, in another order of operations.
_CLOSE = 1e-3


def check_sizes(holds: bool, condition: str) -> None:
    """Raises TypeError for sizes that a graph is not exported for."""
    if not holds:
        raise TypeError(
            f"the module was exported for sizes with {condition}; other examples give another graph"
        )


def write_guards(program: Any, lines: StraightLine) -> None:
    """Adds the checks of an exported program."""
    for condition in conditions(program):
        lines.line(f"{lines.known(check_sizes)}({condition}, {condition!r})")


def conditions(program: Any) -> list[str]:
    """Conditions on `inputs[k].shape[axis]`, as Python.

    Raises ProgramError for one that cannot be written: the graph then serves the sizes of its
    examples alone.
    """
    return list(dict.fromkeys(_conditions(program)))


def serves_one_row(
    module: Any, program: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> bool:
    """Whether a graph for batches of any size gives the module's own results for one row.

    Sizes of 0 and 1 are the ones for which torch.export keeps no condition: `x.squeeze()` keeps the
    batch in the graph, and drops that of one row. So both run on the first row of the examples.

    Args:
        module: in inference.
        program: its graph in inference.
        args, kwargs: example inputs of two rows or more.
    """
    from torch.utils import _pytree as pytree

    torch = torch_module()
    given, structure = pytree.tree_flatten((args, dict(kwargs)))
    shown = iter([tensor.shape for tensor in _inputs(program)])
    rows = []
    for leaf in given:
        if isinstance(leaf, torch.Tensor):
            sizes = next(shown)
            varies = bool(sizes) and isinstance(sizes[0], torch.SymInt)
            leaf = leaf[:1].clone() if varies else leaf
        rows.append(leaf)
    own, named = pytree.tree_unflatten(rows, structure)
    try:
        with torch.no_grad():
            wanted = pytree.tree_leaves(module(*own, **named))
            found = pytree.tree_leaves(program.module(check_guards=False)(*own, **named))
    except Exception:
        return False
    return len(wanted) == len(found) and all(
        torch.is_tensor(a) == torch.is_tensor(b)
        and (
            not torch.is_tensor(a)
            or (a.shape == b.shape and torch.allclose(a, b, _CLOSE, _CLOSE, equal_nan=True))
        )
        for a, b in zip(wanted, found, strict=True)
    )


def _conditions(program: Any) -> Iterator[str]:
    names: dict[Any, str] = {}
    envs = []
    for k, tensor in enumerate(_inputs(program)):
        for axis, size in enumerate(tensor.shape):
            expression = getattr(getattr(size, "node", None), "expr", None)
            if expression is None or expression.is_number:
                continue
            envs.append(size.node.shape_env)
            place = f"inputs[{k}].shape[{axis}]"
            if expression in names:
                yield f"{place} == {names[expression]}"
            names.setdefault(expression, place)
    for guard in envs[0].guards if envs else ():
        found = _written(guard.expr.xreplace(envs[0].replacements), names)
        if found:
            yield found


def _inputs(program: Any) -> Iterator[Any]:
    torch = torch_module()
    kinds = torch.export.graph_signature.InputKind
    nodes = [node for node in program.graph.nodes if node.op == "placeholder"]
    for node, spec in zip(nodes, program.graph_signature.input_specs, strict=True):
        if spec.kind is kinds.USER_INPUT and isinstance(node.meta.get("val"), torch.Tensor):
            yield node.meta["val"]


def _written(expression: Any, names: dict[Any, str]) -> str:
    """An expression of symbols as Python; empty for one that always holds."""
    from torch.utils._sympy.printers import PythonPrinter

    if expression.is_Boolean and not expression.free_symbols:
        return ""
    if expression.free_symbols <= names.keys():
        plain = {symbol: str(symbol) for symbol in expression.free_symbols}
        tree = ast.parse(PythonPrinter().doprint(expression), mode="eval")
        if all(_simple(node, set(plain.values())) for node in ast.walk(tree)):
            places = {plain[symbol]: names[symbol] for symbol in plain}
            return ast.unparse(_Renamed(places).visit(tree))
    raise ProgramError(
        CODE,
        f"this module cannot be imported for all batch sizes: {expression}",
        (),
        "it is exported for the examples' sizes",
    )


def _simple(node: ast.AST, names: set[str]) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS
    if isinstance(node, ast.Name):
        return node.id in names or node.id in _FUNCTIONS
    return isinstance(node, _SIMPLE)


class _Renamed(ast.NodeTransformer):
    def __init__(self, places: dict[str, str]) -> None:
        self.places = places

    def visit_Name(self, node: ast.Name) -> ast.expr:
        place = self.places.get(node.id)
        return node if place is None else ast.parse(place, mode="eval").body
