"""Python source to HIR.

With `syntax_patterns` it is the only file that knows `ast`, so the only one that a new version of
Python can break.

A function's source file is parsed whole (so spans need no correction), its node is found by line
and name, and it is converted once: the result is cached by the code object. A lambda is found
among its neighbours on the line by the columns of its instructions (`code.co_positions`).

What the language lacks becomes a `Refused` node: see `hir`.
"""

from __future__ import annotations

import ast
import inspect
import linecache
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from types import CodeType, FunctionType
from typing import Any

from ....common.errors import Loc, ProgramError
from ....common.line_origins import origins_of
from ....common.user_code import show_lines_of
from . import (
    escapes,
    hir,
    liveness,
    syntax_classes,
    syntax_generators,
    syntax_nonlocals,
    syntax_reductions,
    syntax_search,
    syntax_sets,
    syntax_tests,
    tail_calls,
)
from .syntax_names import mangled as _mangled
from .syntax_patterns import Pattern
from .syntax_scopes import deleted
from .syntax_source import Codes, Function, by_columns, functions_at, is_current

_BINARY: dict[type[ast.operator], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.Pow: "**",
    ast.MatMult: "@",
    ast.BitAnd: "&",
    ast.BitOr: "|",
    ast.BitXor: "^",
    ast.LShift: "<<",
    ast.RShift: ">>",
}
_UNARY: dict[type[ast.unaryop], str] = {
    ast.USub: "-",
    ast.UAdd: "+",
    ast.Invert: "~",
    ast.Not: "not",
}
_COMPARE: dict[type[ast.cmpop], str] = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Is: "is",
    ast.IsNot: "is not",
    ast.In: "in",
    ast.NotIn: "not in",
}

#: What is refused by name: node class -> (what it is called, what to do instead).
_REFUSED: dict[str, tuple[str, str]] = {
    "TryStar": ("except*", "use `except`"),
    "AsyncWith": ("async with", "open the context around the call of the compiled function"),
    "AsyncFor": ("async for", "a compiled program waits for nothing; use a plain `for`"),
    "Await": ("await", "a compiled program waits for nothing; pass the value in"),
    "Yield": ("a lambda with `yield`", "write it with `def`"),
    "YieldFrom": ("a lambda with `yield`", "write it with `def`"),
    "Return": ("what a generator returns", "give it by `yield`"),
    "AsyncFunctionDef": ("async def", "a compiled program waits for nothing; use a plain `def`"),
    "Global": ("a write to a global", "return the value and assign it outside"),
    "Nonlocal": ("a write to an outer function's name", "return the value and assign it outside"),
    "Match": ("this pattern", "match on values, tuples, dicts or classes, or use `if`"),
    "TypeAlias": ("a type alias inside a function", "move it to the top of the module"),
    "TemplateStr": ("a template string", "use an f-string"),
}

#: By file too: code objects are equal where the code is, whatever file it is from.
_FUNCTIONS: dict[tuple[str, CodeType], hir.FunctionDef] = {}
_FILES: dict[str, tuple[list[str], ast.Module, Codes]] = {}


def function_hir(function: FunctionType) -> hir.FunctionDef:
    """The HIR of a Python function; raises ProgramError DL101 when its source cannot be found."""
    code = function.__code__
    found = _FUNCTIONS.get((code.co_filename, code))
    if found is None:
        show_lines_of(function)
        found = _FUNCTIONS[code.co_filename, code] = _convert(code)
    return found


def _convert(code: CodeType) -> hir.FunctionDef:
    lines = _lines(code)
    cached = _FILES.get(code.co_filename)
    if cached is None or cached[0] != lines:
        try:
            text = "".join(lines)
            cached = _FILES[code.co_filename] = (lines, _mangled(ast.parse(text), text), {})
        except SyntaxError:
            raise _no_source(code, "its source file has changed since it was loaded") from None
    nodes = list(functions_at(cached[1], code.co_firstlineno, code.co_name))
    node = nodes[0] if len(nodes) == 1 else by_columns(code, nodes)
    if node is None or not is_current(code, cached[0], node, cached[2]):
        raise _no_source(code, "its source file has changed since it was loaded")
    node = syntax_nonlocals.boxed(node, lines)
    converter = _Converter(code.co_filename, lines)
    converter.path = code.co_qualname.removesuffix(code.co_name)
    return converter.function(node)


def _lines(code: CodeType) -> list[str]:
    """The lines of a function's file.

    Python's own search goes through all modules; it is left to files that are not there, as those
    of an archive.
    """
    linecache.checkcache(code.co_filename)
    lines = linecache.getlines(code.co_filename)
    if lines:
        return lines
    try:
        return inspect.findsource(code)[0]
    except (OSError, TypeError):
        raise _no_source(code, "its source cannot be found") from None


def _no_source(code: CodeType, why: str) -> ProgramError:
    where = f"{code.co_filename}:{code.co_firstlineno}"
    return ProgramError(
        "DL101",
        f"cannot compile `{code.co_name}` ({where}): {why}",
        hint="define the function in a file: source typed at a prompt is not kept",
    )


class _Converter:
    """Converts one function and those nested in it."""

    def __init__(self, file: str, lines: list[str]) -> None:
        self.file = file
        self.lines = lines
        #: What comes before a name in the `__qualname__` of what has it.
        self.path = ""
        self.origins = origins_of(file)
        #: Whether all columns are those of `ast`.
        self.is_plain = not self.origins and all(map(str.isascii, lines))

    # Spans and refusals

    def loc(self, node: ast.expr | ast.stmt | ast.pattern | ast.excepthandler) -> Loc:
        if self.is_plain and node.end_lineno and node.end_col_offset:
            ends = node.end_lineno, node.end_col_offset
            return Loc(self.file, node.lineno, node.col_offset, *ends)
        end_line = node.end_lineno or node.lineno
        if node.lineno <= len(self.origins) and (origin := self.origins[node.lineno - 1]):
            return origin
        start = self.column(node.lineno, node.col_offset)
        end = self.column(end_line, node.end_col_offset or node.col_offset + 1)
        return Loc(self.file, node.lineno, start, end_line, end)

    def column(self, line: int, offset: int) -> int:
        """`ast` counts columns in UTF-8 bytes; people count characters."""
        text = self.lines[line - 1] if line <= len(self.lines) else ""
        if text.isascii():
            return offset
        return len(text.encode()[:offset].decode(errors="ignore"))

    def refuse(self, node: ast.expr | ast.stmt) -> hir.Refused:
        name = type(node).__name__
        what, hint = _REFUSED.get(
            name, (f"this syntax ({name})", "write it with simpler statements")
        )
        loc = self.loc(node)
        if (
            loc.end_line != loc.line
        ):  # Underline the head of a compound statement, not its whole body.
            text = self.lines[loc.line - 1].rstrip()
            loc = Loc(self.file, loc.line, loc.column, loc.line, len(text))
        return hir.Refused(loc, "DL102", f"{what} cannot be compiled", hint)

    # Functions

    def function(self, node: Function) -> hir.FunctionDef:
        before = self.path
        self.path += f"{getattr(node, 'name', '<lambda>')}.<locals>."
        made = self.function_here(node)
        self.path = before
        return made

    def function_here(self, node: Function) -> hir.FunctionDef:
        loc = self.loc(node)
        parameters = self.parameters(node.args)
        is_generator, unfit = syntax_generators.looked_at(node, self.lines)
        refused = None if unfit is None else self.refuse(unfit)
        if isinstance(node, ast.Lambda):
            value = self.expr(node.body)
            block: hir.Block = (hir.Escape(value.loc, "return", value),)
            return _annotated(loc, "<lambda>", parameters, escapes.lower(block, loc), refused)
        end = Loc(loc.file, loc.end_line, 0, loc.end_line, loc.end_column)
        block = self.block(node.body)
        made = _annotated(loc, node.name, parameters, escapes.lower(block, end), refused)
        if is_generator:
            return replace(made, is_generator=True)
        looped = tail_calls.as_loop(block, node.name, parameters, end)
        if looped is None or liveness.captures(block) & made.assigned:
            return made  # A function made in a round would see the next round's names.
        lowered = escapes.lower(looped, end)
        return replace(made, loop=_annotated(loc, node.name, parameters, lowered, None))

    def parameters(self, args: ast.arguments) -> hir.Parameters:
        positional = [a.arg for a in (*args.posonlyargs, *args.args)]
        pairs = zip(args.kwonlyargs, args.kw_defaults, strict=True)
        return hir.Parameters(
            tuple(positional),
            len(args.posonlyargs),
            tuple(a.arg for a in args.kwonlyargs),
            args.vararg.arg if args.vararg else None,
            args.kwarg.arg if args.kwarg else None,
            tuple(self.expr(d) for d in args.defaults),
            tuple((a.arg, self.expr(d)) for a, d in pairs if d is not None),
        )

    # Statements

    def block(self, statements: list[ast.stmt]) -> hir.Block:
        out: list[hir.Statement] = []
        for statement in statements:
            converted = self.statement(statement)
            if isinstance(converted, tuple):
                out += converted
            elif converted is not None:
                out.append(converted)
        return tuple(out)

    def statement(self, node: ast.stmt) -> hir.Statement | hir.Block | None:
        method = _STATEMENTS.get(type(node).__name__)
        return self.refuse(node) if method is None else method(self, node)

    def statement_Assign(self, node: ast.Assign) -> hir.Statement:
        targets = tuple(self.target(t) for t in node.targets)
        return hir.Assign(self.loc(node), targets, self.expr(node.value))

    def statement_AnnAssign(self, node: ast.AnnAssign) -> hir.Statement:
        loc, target = self.loc(node), self.target(node.target)
        if node.value is not None:
            return hir.Assign(loc, (target,), self.expr(node.value))
        if isinstance(target, hir.Name) and node.simple:  # It is local, and has no value yet.
            bound = hir.Assign(loc, (target,), hir.Constant(loc, None))
            return hir.If(loc, hir.Constant(loc, False), (bound,), ())
        parts = hir.Sequence(loc, tuple, liveness.computed_of(target))
        return hir.Evaluate(loc, parts)

    def statement_AugAssign(self, node: ast.AugAssign) -> hir.Statement:
        target = self.target(node.target)
        return hir.Update(self.loc(node), _BINARY[type(node.op)], target, self.expr(node.value))

    def statement_Expr(self, node: ast.Expr) -> hir.Statement | None:
        if isinstance(node.value, ast.Constant):
            return None  # A docstring, or `...`.
        return hir.Evaluate(self.loc(node), self.expr(node.value))

    def statement_Pass(self, node: ast.Pass) -> None:
        return None

    def statement_If(self, node: ast.If) -> hir.Statement:
        test = self.expr(node.test)
        paths = self.block(node.body), self.block(node.orelse)
        return syntax_tests.branch(self.loc(node), test, *paths)

    def statement_While(self, node: ast.While) -> hir.Block:
        loc, test, body = self.loc(node), self.expr(node.test), self.block(node.body)
        before, body, after = self.loop_else(node, body)
        if any(isinstance(n, ast.NamedExpr) for n in ast.walk(node.test)):
            # The body sees what the test assigns, so the test moves into the body.
            leave = syntax_tests.branch(test.loc, test, (), (hir.Escape(test.loc, "break", None),))
            test, body = hir.Constant(test.loc, True), (leave, *body)
        return (*before, hir.While(loc, test, body, None), *after)

    def statement_For(self, node: ast.For) -> hir.Block:
        target, iterable = self.target(node.target), self.iterable(node.iter)
        before, body, after = self.loop_else(node, self.block(node.body))
        return (*before, hir.For(self.loc(node), target, iterable, body, None), *after)

    def loop_else(
        self, node: ast.For | ast.While, body: hir.Block
    ) -> tuple[hir.Block, hir.Block, hir.Block]:
        """The `else` of a loop: (before it, its body, after it). A flag says whether it broke."""
        if not node.orelse:
            return (), body, ()
        loc, otherwise = self.loc(node), self.block(node.orelse)
        flag = hir.Name(loc, f"$broke{node.lineno}.{node.col_offset}")
        marked = escapes.marked(body, flag)
        if marked == body:
            return (), body, otherwise
        start = hir.Assign(loc, (flag,), hir.Constant(loc, False))
        return (start,), marked, (hir.If(loc, flag, (), otherwise),)

    def statement_Break(self, node: ast.Break) -> hir.Statement:
        return hir.Escape(self.loc(node), "break", None)

    def statement_Continue(self, node: ast.Continue) -> hir.Statement:
        return hir.Escape(self.loc(node), "continue", None)

    def statement_Return(self, node: ast.Return) -> hir.Statement:
        value = None if node.value is None else self.expr(node.value)
        return hir.Escape(self.loc(node), "return", value)

    def statement_FunctionDef(self, node: ast.FunctionDef) -> hir.Statement:
        decorators = tuple(self.expr(d) for d in node.decorator_list)
        return hir.Define(self.loc(node), node.name, self.function(node), decorators)

    def statement_ClassDef(self, node: ast.ClassDef) -> hir.Statement:
        """The body is that of a function without parameters."""
        unfit = syntax_classes.unfit(node)
        if unfit is not None:
            return hir.Refused(self.loc(node), "DL102", *unfit)
        before = self.path
        self.path += f"{node.name}."
        end, block = self.loc(node), self.block(node.body)
        self.path = before
        nothing = hir.Parameters((), 0, (), None, None, (), ())
        body = _annotated(end, node.name, nothing, escapes.lower(block, end), None, all_live=True)
        # Functions in it read names of the same name around the class.
        reads = body.reads | liveness.captures(block)
        lazy = syntax_classes.keeps_text(self.lines)
        annotations = tuple(
            (name, hir.Annotation(None if lazy else self.expr(value), ast.unparse(value)))
            for name, value in syntax_classes.annotated(node)
        )
        return hir.DefineClass(
            self.loc(node),
            node.name,
            f"{self.path}{node.name}",
            replace(body, reads=reads.union(*(map(liveness.reads_of, annotations)))),
            tuple(self.expr(d) for d in node.decorator_list),
            tuple(self.expr(b) for b in node.bases),
            tuple((str(k.arg), self.expr(k.value)) for k in node.keywords),
            annotations,
            ast.get_docstring(node, clean=False),
        )

    def statement_Assert(self, node: ast.Assert) -> hir.Statement:
        message = None if node.msg is None else self.expr(node.msg)
        return hir.Assert(self.loc(node), self.expr(node.test), message)

    def statement_Raise(self, node: ast.Raise) -> hir.Statement:
        error, cause = (None if e is None else self.expr(e) for e in (node.exc, node.cause))
        return hir.Raise(self.loc(node), error, cause)

    def statement_Try(self, node: ast.Try) -> hir.Statement:
        loc, last = self.loc(node), self.block(node.finalbody)
        if escapes.leaves(last):
            hint = "leave the function or loop after the `try`"
            return hir.Refused(loc, "DL102", "`finally` cannot return, break or continue", hint)
        handlers = tuple(self.handler(h) for h in node.handlers)
        return hir.Try(loc, self.block(node.body), handlers, self.block(node.orelse), last)

    def handler(self, node: ast.ExceptHandler) -> hir.Handler:
        kinds = None if node.type is None else self.expr(node.type)
        return hir.Handler(self.loc(node), kinds, node.name, self.block(node.body))

    def statement_Import(self, node: ast.Import) -> hir.Block:
        loc = self.loc(node)
        return tuple(
            hir.Import(loc, a.name, None, a.asname or a.name.split(".")[0], a.asname is None)
            for a in node.names
        )

    def statement_ImportFrom(self, node: ast.ImportFrom) -> hir.Block:
        loc, module = self.loc(node), "." * node.level + (node.module or "")
        return tuple(hir.Import(loc, module, a.name, a.asname or a.name) for a in node.names)

    def statement_Delete(self, node: ast.Delete) -> hir.Block:
        return tuple(hir.Delete(self.loc(t), self.target(t)) for t in deleted(node.targets))

    def statement_With(self, node: ast.With) -> hir.Block:
        """The body runs in place: a context that would change what it does is refused."""
        heads = []
        for item in node.items:
            target = None if item.optional_vars is None else self.target(item.optional_vars)
            context = self.expr(item.context_expr)
            heads.append(hir.Enter(context.loc, context, target))
        return (*heads, *self.block(node.body))

    def statement_Match(self, node: ast.Match) -> hir.Block | hir.Refused:
        """A chain of `if`s over the subject, kept under a name of its own."""
        loc = self.loc(node.subject)
        subject = hir.Name(loc, f"$match{node.lineno}.{node.col_offset}")
        rest: hir.Block = ()
        for case in reversed(node.cases):
            pattern = Pattern(self)
            if not pattern.read(case.pattern, subject):
                return self.refuse(node)
            guard = None if case.guard is None else self.expr(case.guard)
            rest = pattern.case(self.loc(case.pattern), guard, self.block(case.body), rest)
        return (hir.Assign(loc, (subject,), self.expr(node.subject)), *rest)

    def target(self, node: ast.expr) -> hir.Target:
        loc = self.loc(node)
        if isinstance(node, ast.Name):
            return hir.Name(loc, node.id)
        if isinstance(node, ast.Tuple | ast.List):
            return hir.Sequence(loc, tuple, tuple(self.target(e) for e in node.elts))
        if isinstance(node, ast.Starred):
            return hir.Starred(loc, self.target(node.value))
        if isinstance(node, ast.Subscript):
            return hir.Subscript(loc, self.expr(node.value), self.expr(node.slice))
        assert isinstance(node, ast.Attribute)
        return hir.Attribute(loc, self.expr(node.value), node.attr)

    # Expressions

    def expr(self, node: ast.expr) -> hir.Expr:
        method = _EXPRESSIONS.get(type(node).__name__)
        return self.refuse(node) if method is None else method(self, node)

    def expr_Constant(self, node: ast.Constant) -> hir.Expr:
        return hir.Constant(self.loc(node), node.value)

    def expr_Name(self, node: ast.Name) -> hir.Expr:
        return hir.Name(self.loc(node), node.id)

    def expr_Attribute(self, node: ast.Attribute) -> hir.Expr:
        return hir.Attribute(self.loc(node), self.expr(node.value), node.attr)

    def expr_Call(self, node: ast.Call) -> hir.Expr:
        if (found := syntax_search.search(node)) is not None:
            loc, arguments = self.loc(node), tuple(self.expr(a) for a in found[1])
            return hir.Call(loc, hir.Lambda(loc, self.function(found[0])), arguments, ())
        args = tuple(self.expr(a) for a in node.args)
        keywords = tuple((k.arg, self.expr(k.value)) for k in node.keywords)
        call = hir.Call(self.loc(node), self.expr(node.func), args, keywords)
        if (reduced := syntax_reductions.reduced(node)) is None:
            return call
        return self.reduction(reduced[0], call, node.args[0] if reduced[1] else None)

    def reduction(self, name: str, node: hir.Call | hir.Comprehension, items: Any) -> hir.Reduction:
        """items: None where there is no loop."""
        make = cache(lambda: self.function(syntax_reductions.loop_of(name, items)))
        return hir.Reduction(node.loc, name, node, None if items is None else make)

    def expr_BinOp(self, node: ast.BinOp) -> hir.Expr:
        left, right = self.expr(node.left), self.expr(node.right)
        return hir.Binary(self.loc(node), _BINARY[type(node.op)], left, right)

    def expr_UnaryOp(self, node: ast.UnaryOp) -> hir.Expr:
        return hir.Unary(self.loc(node), _UNARY[type(node.op)], self.expr(node.operand))

    def expr_Compare(self, node: ast.Compare) -> hir.Expr:
        operands = tuple(self.expr(e) for e in (node.left, *node.comparators))
        return hir.Compare(self.loc(node), tuple(_COMPARE[type(o)] for o in node.ops), operands)

    def expr_BoolOp(self, node: ast.BoolOp) -> hir.Expr:
        op = "and" if isinstance(node.op, ast.And) else "or"
        return hir.Boolean(self.loc(node), op, tuple(self.expr(v) for v in node.values))

    def expr_IfExp(self, node: ast.IfExp) -> hir.Expr:
        test, then, otherwise = (self.expr(e) for e in (node.test, node.body, node.orelse))
        return syntax_tests.conditional(self.loc(node), test, then, otherwise)

    def expr_Subscript(self, node: ast.Subscript) -> hir.Expr:
        return hir.Subscript(self.loc(node), self.expr(node.value), self.expr(node.slice))

    def expr_Slice(self, node: ast.Slice) -> hir.Expr:
        bounds = [None if e is None else self.expr(e) for e in (node.lower, node.upper, node.step)]
        return hir.Slice(self.loc(node), *bounds)

    def expr_Tuple(self, node: ast.Tuple) -> hir.Expr:
        return hir.Sequence(self.loc(node), tuple, tuple(self.expr(e) for e in node.elts))

    def expr_List(self, node: ast.List) -> hir.Expr:
        return hir.Sequence(self.loc(node), list, tuple(self.expr(e) for e in node.elts))

    def expr_Set(self, node: ast.Set) -> hir.Expr:
        if (folded := syntax_sets.folded(node)) is not None:
            made = hir.Constant(self.loc(node), folded)
            return hir.Call(made.loc, hir.Constant(made.loc, set), (made,), ())
        return hir.Sequence(self.loc(node), set, tuple(self.expr(e) for e in node.elts))

    def expr_Dict(self, node: ast.Dict) -> hir.Expr:
        pairs = zip(node.keys, node.values, strict=True)
        items = tuple((None if k is None else self.expr(k), self.expr(v)) for k, v in pairs)
        return hir.DictDisplay(self.loc(node), items)

    def expr_Starred(self, node: ast.Starred) -> hir.Expr:
        return hir.Starred(self.loc(node), self.expr(node.value))

    def expr_Lambda(self, node: ast.Lambda) -> hir.Expr:
        return hir.Lambda(self.loc(node), self.function(node))

    def expr_ListComp(self, node: ast.ListComp) -> hir.Expr:
        made = self.comprehension(node, list, None, node.elt)
        if not isinstance(made, hir.Comprehension) or not syntax_reductions.collects(node):
            return made
        return self.reduction("list", made, node)

    def expr_SetComp(self, node: ast.SetComp) -> hir.Expr:
        return self.comprehension(node, set, None, node.elt)

    def expr_GeneratorExp(self, node: ast.GeneratorExp) -> hir.Expr:
        made = self.comprehension(node, tuple, None, node.elt)
        if not isinstance(made, hir.Comprehension) or not syntax_reductions.collects(node):
            return made
        loop_of = syntax_reductions.loop_of
        return replace(made, loops=cache(lambda name: self.function(loop_of(name, node))))

    def expr_DictComp(self, node: ast.DictComp) -> hir.Expr:
        return self.comprehension(node, dict, node.key, node.value)

    def iterable(self, node: ast.expr) -> hir.Expr:
        """What a `for` goes through."""
        folded = syntax_sets.folded(node)
        return self.expr(node) if folded is None else hir.Constant(self.loc(node), folded)

    def comprehension(
        self, node: Any, kind: type, key: ast.expr | None, value: ast.expr
    ) -> hir.Expr:
        generators = []
        for g in node.generators:
            if g.is_async:
                what, hint = _REFUSED["AsyncFor"]
                return hir.Refused(self.loc(node), "DL102", f"{what} cannot be compiled", hint)
            conditions = tuple(self.expr(c) for c in syntax_tests.conditions(g.ifs))
            generators.append(
                hir.Generator(self.target(g.target), self.iterable(g.iter), conditions)
            )
        names = frozenset(n for g in generators for n in liveness.names_of(g.target))
        return hir.Comprehension(
            self.loc(node),
            kind,
            None if key is None else self.expr(key),
            self.expr(value),
            tuple(generators),
            names,
        )

    def expr_JoinedStr(self, node: ast.JoinedStr) -> hir.Expr:
        parts: list[str | tuple[hir.Expr, str, hir.Expr | None]] = []
        for part in node.values:
            if isinstance(part, ast.Constant):
                parts.append(str(part.value))
            elif isinstance(part, ast.FormattedValue):
                conversion = chr(part.conversion) if part.conversion >= 0 else ""
                spec = None if part.format_spec is None else self.expr(part.format_spec)
                parts.append((self.expr(part.value), conversion, spec))
        return hir.Format(self.loc(node), tuple(parts))

    def expr_NamedExpr(self, node: ast.NamedExpr) -> hir.Expr:
        return hir.Named(self.loc(node), node.target.id, self.expr(node.value))

    def expr_Yield(self, node: ast.Yield) -> hir.Expr:
        value = node.value or ast.copy_location(ast.Constant(None), node)
        return hir.Yield(self.loc(node), self.expr(value), False)

    def expr_YieldFrom(self, node: ast.YieldFrom) -> hir.Expr:
        return hir.Yield(self.loc(node), self.expr(node.value), True)


def _methods(prefix: str) -> dict[str, Callable[[_Converter, Any], Any]]:
    """The methods of one kind, by the name of the class of the nodes that they convert."""
    found = vars(_Converter).items()
    return {name.removeprefix(prefix): f for name, f in found if name.startswith(prefix)}


_STATEMENTS, _EXPRESSIONS = _methods("statement_"), _methods("expr_")


def _annotated(
    loc: Loc,
    name: str,
    parameters: hir.Parameters,
    lowered: tuple[hir.Block, list[hir.Block]],
    refused: hir.Refused | None,
    all_live: bool = False,
) -> hir.FunctionDef:
    params = {*parameters.positional, *parameters.keyword_only}
    params |= {n for n in (parameters.rest, parameters.keywords) if n is not None}
    body, assigned, reads = liveness.annotate(lowered[0], params, lowered[1], all_live)
    return hir.FunctionDef(loc, name, parameters, body, assigned, reads, refused)
