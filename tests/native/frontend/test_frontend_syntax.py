"""Every class of Python's syntax tree is either supported or refused cleanly, whatever Python this
is.
"""

from __future__ import annotations

import ast
import importlib.util
import sys

import numpy as np
import pytest
from delian.core.common.errors import ProgramError
from delian.core.compiler.frontend import trace
from delian.core.compiler.frontend.hir import syntax
from delian.core.compiler.frontend.hir.hir import FunctionDef, Refused

X = np.array([1.0, 2.0, 3.0], np.float32)

#: A body that shows each statement and expression class. `x` is f32[3].
SHOWN = {
    "Assign": "y = x\nreturn y",
    "AugAssign": "y = x + 1\ny += 1\nreturn y",
    "AnnAssign": "y: int = 2\nz: int\nreturn x * y",
    "Expr": "'text'\n...\nx + 1\nreturn x",
    "Pass": "pass\nreturn x",
    "If": "if len(x) == 3:\n    return x\nelse:\n    return x * 2",
    "IfExp": "return x if len(x) else -x",
    "While": "while x[0] < 3:\n    x = x * 2\nreturn x",
    "For": "for i in range(3):\n    x = x + i\nreturn x",
    "Break": "for i in range(3):\n    if i == 1:\n        break\n    x = x * 2\nreturn x",
    "Continue": "for i in range(3):\n    if i == 1:\n        continue\n    x = x * 2\nreturn x",
    "Return": "return x",
    "FunctionDef": "def g(a, /, b=1, *c, d=2, **e):\n    return a * b * d\nreturn g(x)",
    "Lambda": "return (lambda v, k=2: v * k)(x)",
    "Assert": "assert len(x) == 3, 'three'\nreturn x",
    "Raise": "if len(x) == 2:\n    raise ValueError('no')\nreturn x",
    "BoolOp": "return x if len(x) and not (False or None) else -x",
    "And": "return x[0] > 0 and x[1] > 0",
    "Or": "return x[0] > 0 or x[1] > 0",
    "NamedExpr": "return (y := x) + y",
    "BinOp": "return x + x - x * x / x // x % x ** 2",
    "MatMult": "return x @ x",
    "LShift": "return x.astype(np.int32) << 1 >> 1 & 3 | 4 ^ 1",
    "UnaryOp": "return -x + +x + ~x.astype(np.int32)",
    "Not": "return not x[0] > 1",
    "Compare": "return 0 < x[0] <= 5 != 2 == 2 >= 1 > 0",
    "In": "return x * (1 in (1, 2)) * (3 not in [1]) * (x is not None)",
    "Call": "return np.sum(*(x,), **{'axis': 0}, keepdims=True)",
    "Attribute": "return x.T",
    "Subscript": "return x[0], x[-1], x[1:], x[::2], x[..., None]",
    "Slice": "return x[0:2:1]",
    "Starred": "a, *b = x\nreturn a, b, [*b]",
    "Name": "return x",
    "Constant": "return x * 1 * 1.0 * True",
    "Tuple": "return (x, x)",
    "List": "[a, b, c] = x\nreturn [a, b, c]",
    "Set": "return x * len({1, 2, 2})",
    "Dict": "return {**{'a': x}, 'b': x}",
    "ListComp": "return [x * i for i in range(3) if i]",
    "SetComp": "return x * len({i % 2 for i in range(5)})",
    "DictComp": "return {str(i): x for i in range(2)}",
    "GeneratorExp": "return sum(x * i for i in range(3))",
    "JoinedStr": "return x * len(f'{len(x)}{len(x)!r}{1.5:.{2}f}')",
    "Match": "match len(x), x:\n    case (2, _) | (5, _):\n        return x\n"
    "    case (3, y) if y[0] > 0:\n        return -y\nreturn x",
    "FormattedValue": "return x * len(f'{x.shape}')",
    "Delete": "y = x\ndel x\nreturn y",
    "Yield": "def g():\n    yield x\nreturn list(g())",
    "YieldFrom": "def g():\n    yield from (x, x)\nreturn list(g())",
    "ClassDef": "class A:\n    def f(self):\n        return x\nreturn A().f()",
    "Nonlocal": "def g():\n    nonlocal x\n    x = x + 1\ng()\nreturn x",
    "Import": "import math\nreturn x * math.pi",
    "ImportFrom": "from math import pi\nreturn x * pi",
    "Try": "try:\n    return x\nexcept ValueError as e:\n    return -x\nfinally:\n    pass",
    "With": "with np.errstate(all='ignore'):\n    return 1 / x",
}
REFUSED = {
    "TryStar": "try:\n    return x\nexcept* ValueError:\n    x = x",
    "With": "with open('x') as f:\n    return x",
    "AsyncWith": "async with x:\n    return x",
    "AsyncFor": "async for i in x:\n    return x",
    "AsyncFunctionDef": "async def g():\n    return x\nreturn g()",
    "Await": "return await x",
    "Global": "global np\nreturn x",
    "TypeAlias": "type A = int\nreturn x",
    "TemplateStr": "return t'{x}'",
}
#: Parts of the classes above that have no form of their own, and what is no part of a function.
PARTS = {
    *("Module", "Interactive", "Expression", "FunctionType", "Load", "Store", "Del", "Add", "Sub"),
    *("Mult", "Div", "FloorDiv", "Mod", "Pow", "BitAnd", "BitOr", "BitXor", "RShift", "Invert"),
    *("UAdd", "USub", "Eq", "NotEq", "Lt", "LtE", "Gt", "GtE", "Is", "IsNot", "NotIn"),
    *("arguments", "arg", "keyword", "alias", "withitem", "comprehension", "ExceptHandler"),
    *("TypeIgnore", "match_case", "MatchAs", "MatchClass", "MatchMapping", "MatchOr"),
    *("MatchSequence", "MatchSingleton", "MatchStar", "MatchValue", "Interpolation"),
    *("TypeVar", "ParamSpec", "TypeVarTuple"),
    # Abstract bases, and what Python keeps for old programs.
    *("AST", "boolop", "cmpop", "excepthandler", "expr", "expr_context", "mod", "operator", "stmt"),
    *("unaryop", "type_ignore", "pattern", "type_param", "Num", "Str", "Bytes", "NameConstant"),
    *("Ellipsis", "Index", "ExtSlice", "slice", "Suite", "Param", "AugLoad", "AugStore"),
}


@pytest.fixture
def function(tmp_path):
    """Makes a function of `x` with a given body, in a file of its own."""

    def make(body: str, asynchronous: bool = False):
        head = "async def f(x):" if asynchronous else "def f(x):"
        lines = ["import numpy as np", head, *(f"    {line}" for line in body.splitlines())]
        path = tmp_path / f"shown_{len(list(tmp_path.iterdir()))}.py"
        path.write_text("\n".join(lines) + "\n")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module.f

    return make


def exists(name: str) -> bool:
    """TryStar came with 3.11, type aliases with 3.12, template strings with 3.14."""
    return hasattr(ast, name)


@pytest.mark.parametrize("name", SHOWN)
def test_supported(name, function):
    assert trace(function(SHOWN[name]), X).function.body.results


@pytest.mark.parametrize("name", [n for n in REFUSED if exists(n)])
def test_refused(name, function):
    with pytest.raises(ProgramError) as caught:
        trace(function(REFUSED[name], name in ("AsyncWith", "AsyncFor", "Await")), X)
    assert caught.value.code == "DL102"
    assert caught.value.hint
    assert "^" in str(caught.value)


def test_every_class_of_ast_is_accounted_for():
    public = {n: c for n, c in vars(ast).items() if not n.startswith("_")}
    classes = {n for n, c in public.items() if isinstance(c, type) and issubclass(c, ast.AST)}
    assert classes - PARTS == {n for n in (*SHOWN, *REFUSED) if exists(n)}


def test_only_syntax_touches_ast():
    from pathlib import Path

    package = Path(syntax.__file__).parent
    for path in package.glob("*.py"):
        tree = ast.parse(path.read_text())
        imports = {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
        assert ("ast" in imports) == path.name.startswith("syntax"), path.name


def test_what_is_refused_in_a_branch_not_taken_is_no_error(function):
    body = "if len(x) == 2:\n    with open('x') as f:\n        return f\nreturn x"
    assert trace(function(body), X)


def test_hir_is_made_once_a_function(function):
    f = function("return x")
    assert syntax.function_hir(f) is syntax.function_hir(f)
    assert isinstance(syntax.function_hir(f), FunctionDef)
    assert not isinstance(syntax.function_hir(f).body[0], Refused)


def test_columns_count_characters_not_bytes(function):
    with pytest.raises(ProgramError) as caught:
        trace(function("é = 'ü'; return x @ x[:2]"), X)
    loc = caught.value.locs[0]
    assert loc.excerpt().splitlines()[1].index("^") == loc.excerpt().splitlines()[0].index("x @")


def test_decorated_functions_and_lambdas_in_calls_are_found(function):
    body = (
        "import_ = [lambda v: v + 1, lambda v: v * 2, lambda v: (lambda w: w - v)(v)]\n"
        "for g in import_:\n    x = g(x)\nreturn x"
    )
    assert trace(function(body), X)


def test_a_changed_file_is_noticed(function):
    f = function("return x * 2")
    with open(f.__code__.co_filename, "w") as file:  # noqa: PTH123
        file.write("# nothing is left here\n\n\n")
    import linecache

    linecache.checkcache()
    with pytest.raises(ProgramError, match="DL101"):
        trace(f, X)


def test_this_python_is_one_that_is_supported():
    assert sys.version_info >= (3, 11)


EDITS = {
    "a number": ("return x * 2", "return x * 3"),
    "an operator": ("return x * 2", "return x + 2"),
    "a branch": ("return x * 2", "return x * 2 if x.size > 9 else x"),
    "a function within": ("g = lambda v: v * 2; return g(x)", "g = lambda v: v * 4; return g(x)"),
}


@pytest.mark.parametrize("edit", EDITS)
def test_a_function_that_was_edited_since_it_was_loaded_is_refused(edit, tmp_path):
    before, after = EDITS[edit]
    file, names = tmp_path / "edited.py", {}
    file.write_text(f"def f(x):\n    {before}\n")
    exec(compile(file.read_text(), str(file), "exec"), names)
    file.write_text(f"def f(x):\n    {after}\n")
    with pytest.raises(ProgramError, match="has changed since it was loaded"):
        trace(names["f"], X)
    file.write_text(f"def f(x):\n    {before}\n\n\ndef more(x):\n    return x\n")
    assert trace(names["f"], X)


def test_code_with_inherited_annotations_and_asserts_is_found(tmp_path):
    file, names = tmp_path / "annotated.py", {}
    text = "def f(x: int) -> int:\n    def g(v: int) -> int:\n        return v\n    return g(x)\n"
    text += "def h(x):\n    assert x.size\n    return x\n"
    file.write_text(text)
    exec(compile(text, str(file), "exec"), names)  # It inherits this file's annotations.
    assert trace(names["f"], X)
    assert trace(names["h"], X)
