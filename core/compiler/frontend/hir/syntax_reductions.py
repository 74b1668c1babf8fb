"""Reductions of generator expressions, and list comprehensions, as loops of the running program.

`sum(item for x in values if test)` and the like have a second form, a loop with an accumulator,
which is taken where the items cannot be computed one by one while compiling, as where the running
program decides the test (`flow.reduction_loops`). The forms below are bodies of functions:
`for item in items` stands for the loops and tests of the generator expression, `item` for what it
gives; other names are hidden from the program.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator

from .syntax_search import rounds

_SUM = """
total, lost = start, 0.0
for item in items:
    total, lost = step(start, total, lost, item)
return settled(total, lost)
"""
_ANY = """
for item in items:
    if item:
        return True
return False
"""
_ALL = """
for item in items:
    if not item:
        return False
return True
"""
#: A NaN is neither less nor greater, and the first of equals stays.
_MIN = """
found = False
for item in items:
    one = item
    rank = one if key is None else key(one)
    if not found:
        best, least, found = one, rank, True
    elif rank < least:
        best, least = one, rank
if found:
    return best
if default is missing:
    raise error(words)
return default
"""
_MAX = _MIN.replace("rank < least", "rank > least")
_LIST = """
count = 0
for item in items:
    count = put(count, item)
return made(count)
"""
#: Each form, and its arguments besides the items: those by place, and those by name.
_FORMS: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "sum": (_SUM, ("start",), ("start",)),
    "any": (_ANY, (), ()),
    "all": (_ALL, (), ()),
    "min": (_MIN, (), ("key", "default")),
    "max": (_MAX, (), ("key", "default")),
    "list": (_LIST, (), ()),
}


def arguments(name: str) -> tuple[str, ...]:
    """What a reduction takes by place after the items."""
    return _FORMS[name][1]


def takes(name: str, count: int, keywords: Collection[str]) -> bool:
    """Whether there is a loop for a reduction with so many arguments after the items."""
    _, places, names = _FORMS.get(name, ("", (), ()))
    given = [*places[:count], *keywords]
    fits = count <= len(places) and all(n in names for n in given) and len(set(given)) == len(given)
    return name in _FORMS and fits


def reduced(call: ast.Call) -> tuple[str, bool] | None:
    """The name of the function that reduces a generator expression, and whether there is a loop.

    There is none where it takes no such arguments, or where there is a `:=`. None: the call is no
    reduction.
    """
    if not isinstance(call.func, ast.Name) or call.func.id not in _FORMS or not call.args:
        return None
    items, *rest = call.args
    if not isinstance(items, ast.GeneratorExp) or any(g.is_async for g in items.generators):
        return None
    fits = takes(call.func.id, len(rest), [k.arg or "" for k in call.keywords])
    fits &= not any(isinstance(n, ast.Starred) for n in rest)
    return call.func.id, fits and collects(items)


def collects(items: ast.GeneratorExp | ast.ListComp) -> bool:
    """Whether a list comprehension or generator expression has a loop."""
    return not any(isinstance(n, ast.NamedExpr | ast.Await) for n in ast.walk(items))


def loop_of(name: str, items: ast.GeneratorExp | ast.ListComp) -> ast.FunctionDef:
    """The loop of a reduction, or of a list comprehension ("list").

    It reads the first iterable as `$values`, and what the form reads by such names. A list goes
    through the others by way of `$inner`, which makes room for their items.
    """
    if name == "list":
        items = ast.copy_location(ast.ListComp(items.elt, [*_made_room(items)]), items)
    none = ast.arguments([], [], None, [], [], None, [])
    form = ast.parse(_FORMS[name][0])
    for node in ast.walk(form):
        if isinstance(node, ast.expr | ast.stmt):
            ast.copy_location(node, items)
    made = ast.FunctionDef("<genexpr>", none, _Filled(items).body(form), [])
    return ast.copy_location(made, items)


def _made_room(items: ast.GeneratorExp | ast.ListComp) -> Iterator[ast.comprehension]:
    for depth, part in enumerate(items.generators):
        source = part.iter
        if depth:
            call = ast.Call(ast.Name("$inner", ast.Load()), [ast.Constant(depth), source], [])
            source = ast.fix_missing_locations(ast.copy_location(call, source))
        yield ast.comprehension(part.target, source, part.ifs, part.is_async)


class _Filled(ast.NodeTransformer):
    """A form with the loops, tests and items of a generator expression in their places."""

    def __init__(self, items: ast.GeneratorExp | ast.ListComp) -> None:
        self.items = items

    def body(self, form: ast.Module) -> list[ast.stmt]:
        made: ast.Module = self.visit(form)
        return made.body

    def visit_For(self, node: ast.For) -> ast.stmt:
        return rounds(self.items, "$values", [self.visit(n) for n in node.body])

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id == "item":
            return self.items.elt
        return ast.copy_location(ast.Name(f"${node.id}", node.ctx), node)


__all__ = ["arguments", "collects", "loop_of", "reduced", "takes"]
