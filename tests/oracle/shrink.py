"""The smallest program that still differs: delta debugging over statements and expressions.

A smaller text is kept when the oracle gives it the same mark, and the same first words: what
differs, of the result, the arguments or the module.
"""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Callable, Iterator
from typing import Any

from .endless import Endless, limited
from .judge import DIFFERS, LONG, Verdict, judge

#: Texts that are tried, at most.
_TRIES_MAX = 1500
#: Of processor time, for one of them.
_SECONDS_MAX = 3


def shrunk(text: str, backend: str = "reference", tries: int = _TRIES_MAX) -> str:
    """The program without what its difference does not need; itself where it has none."""
    found = judge(text, backend)
    if found.mark != DIFFERS:
        return text
    wanted = _essence(found)

    def differs(candidate: str) -> bool:
        try:
            with limited(_SECONDS_MAX):
                return _essence(judge(candidate, backend)) == wanted
        except (Exception, Endless):  # A text that is no program any more, or does not end.
            return False

    best, left = text, tries
    smaller = True
    while smaller and left > 0:
        smaller = False
        for candidate in _candidates(best):
            left -= 1
            if left <= 0:
                break
            if len(candidate) < len(best) and differs(candidate):
                best, smaller = candidate, True
                break
    return best


def _essence(found: Verdict) -> tuple[str, str, str]:
    words = re.sub(r"^call \d+: ", "", found.words).split("\n")[0]
    words = re.sub(r"\d+", "#", words)
    return found.mark, found.code, words if not found.code else words[-60:]


def _candidates(text: str) -> Iterator[str]:
    """Smaller texts: the largest cuts first."""
    tree = ast.parse(text)
    count = sum(1 for _ in _edits(tree))
    for k in range(count):
        changed = copy.deepcopy(tree)
        for number, edit in enumerate(_edits(changed)):
            if number == k:
                edit()
                break
        yield ast.unparse(ast.fix_missing_locations(changed)) + "\n"


def _edits(tree: ast.Module) -> Iterator[Callable[[], Any]]:
    nodes = [n for n in ast.walk(tree) if n is not tree]
    for node in (tree, *nodes):
        for field in ("body", "orelse", "finalbody"):
            block = getattr(node, field, None)
            if isinstance(block, list) and block and isinstance(block[0], ast.stmt):
                yield from _of_block(node, field, block)
    for node in nodes:
        yield from _of_items(node)
    for node in nodes:
        for field, value in ast.iter_fields(node):
            if isinstance(value, ast.expr):
                yield from _of_expression(node, field, value)
            elif isinstance(value, list):
                for k, item in enumerate(value):
                    if isinstance(item, ast.expr):
                        yield from _of_expression(value, k, item)


def _of_block(node: ast.AST, field: str, block: list[ast.stmt]) -> Iterator[Callable[[], Any]]:
    """A block without half of it, without one statement, or with what is inside of one."""
    size = len(block)
    if size > 3:
        for part in (slice(0, size // 2), slice(size // 2, size)):
            yield lambda part=part: block.__delitem__(part)
    for k in reversed(range(size)):
        stay = size == 1 and field == "body" and not isinstance(node, ast.Module)
        if not stay:
            yield lambda k=k: block.__delitem__(k)
        elif not isinstance(block[k], ast.Pass):
            yield lambda k=k: block.__setitem__(k, ast.Pass())
        inner = getattr(block[k], "body", None)
        is_block = isinstance(block[k], ast.If | ast.For | ast.While | ast.Try | ast.With)
        if is_block and isinstance(inner, list):
            yield lambda k=k, inner=inner: block.__setitem__(slice(k, k + 1), inner)
            other = block[k].orelse if isinstance(block[k], ast.If) else []
            if other:
                yield lambda k=k, other=other: block.__setitem__(slice(k, k + 1), other)
        if isinstance(block[k], ast.Match):
            for case in block[k].cases:
                yield lambda k=k, case=case: block.__setitem__(slice(k, k + 1), case.body)


def _of_items(node: ast.AST) -> Iterator[Callable[[], Any]]:
    """A tuple, list, call or dict without one of its parts."""
    if isinstance(node, ast.Tuple | ast.List | ast.Set) and len(node.elts) > 0:
        for k in range(len(node.elts)):
            yield lambda k=k: node.elts.__delitem__(k)
    if isinstance(node, ast.Dict):
        for k in range(len(node.keys)):
            yield lambda k=k: (node.keys.__delitem__(k), node.values.__delitem__(k))
    if isinstance(node, ast.Call):
        for k in range(len(node.args)):
            yield lambda k=k: node.args.__delitem__(k)
        for k in range(len(node.keywords)):
            yield lambda k=k: node.keywords.__delitem__(k)
    if isinstance(node, ast.Match):
        for k in range(len(node.cases) - 1 if len(node.cases) > 1 else 0):
            yield lambda k=k: node.cases.__delitem__(k)
    if isinstance(node, ast.FunctionDef) and node.name == "f":
        for k in range(len(node.args.args)):
            yield lambda k=k: node.args.args.__delitem__(k)


def _of_expression(owner: Any, place: Any, value: ast.expr) -> Iterator[Callable[[], Any]]:
    """An expression replaced by a part of itself, or a plain number."""

    def put(new: ast.expr) -> None:
        if isinstance(owner, list):
            owner[place] = new
        else:
            setattr(owner, place, new)

    if isinstance(getattr(value, "ctx", None), ast.Store | ast.Del):
        return
    for part in ast.iter_child_nodes(value):
        if isinstance(part, ast.expr) and not isinstance(part, ast.Constant):
            yield lambda part=part: put(part)
    if not isinstance(value, ast.Constant | ast.Name | ast.Attribute):
        yield lambda: put(ast.Constant(1))
        yield lambda: put(ast.Constant(0.5))


#: What makes its program as a long one is (`judge.LONG`).
_AS_LONG = """\
    from delian.core.compiler.frontend.flow import iteration, unroll_limits

    unroll_limits.FIRST_MAX, iteration.LOOP_MIN = 3, 2
"""
#: What a program's file does when it is run.
_FOOT = """
if __name__ == "__main__":
    import delian as dl

    for arguments in CALLS:
        theirs, mine = arguments(), arguments()
        for name, function, given in (
            ("Python", f, theirs),
            ("compiled", dl.compile(f, backend="{backend}"), mine),
        ):
            try:
                print(name, repr(function(*given)), "arguments:", given)
            except Exception as e:
                print(name, "raises", type(e).__name__, e)
"""


def as_file(text: str, backend: str = "reference") -> str:
    """A program as a file that runs and shows what both give."""
    foot = _FOOT.format(backend="reference" if backend == LONG else backend)
    if backend == LONG:
        foot = foot.replace("    for arguments", _AS_LONG + "    for arguments", 1)
    return f"{text.rstrip()}\n{foot}"
