"""What a user reads when a function cannot be compiled: about fifty messages, kept in
`messages.txt`.

Run with DELIAN_GOLDEN=1 in the environment to write the file anew, and read the difference before
committing it.
"""

from __future__ import annotations

import functools
import math
import os
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from delian.core.compiler import ops, random, tree
from delian.core.compiler.api import grad, jvp, module, value_and_grad, vjp
from delian.core.compiler.frontend import codes
from delian.core.compiler.frontend.codes import CODES
from delian.core.compiler.frontend.vocabulary import vocabulary_table

GOLDEN = Path(__file__).with_name("messages.txt")
F = np.float32
X = np.zeros((3, 4), F)
V = np.zeros(4, F)
N = np.int32(3)
LIST = [1, 2]


@module
class Dense:
    weight: object
    bias: object

    def __call__(self, x):
        return x @ self.weight + self.bias


class Pair(NamedTuple):
    a: object
    b: object


class Slotted:
    __slots__ = ("x",)

    def __init__(self, x):
        self.x = x


def layer(x, w):
    return np.tanh(x @ w)


def matmul_shapes(x, v, n):
    h = layer(x, v.reshape(2, 2))
    return h


def call_chain(x, v, n):
    model = Dense(x, v)
    return grad(lambda m: np.sum(model(m)))(x)


def broadcast(x, v, n):
    return x + v[:3]


def reshape(x, v, n):
    return x.reshape(5, -1)


def unknown_numpy_function(x, v, n):
    return np.i0(x)


def near_numpy_function(x, v, n):
    return np.frexp(x)


def misspelt_attribute(x, v, n):
    return np.tanhh(x)


def misspelt_method(x, v, n):
    return x.summ(axis=0)


def misspelt_field(x, v, n):
    return Dense(x, v).wieght


def misspelt_name(x, v, n):
    vecotr = v * 2  # noqa: F841
    return vector + 1  # noqa: F821


def misspelt_keyword(x, v, n):
    return layer(x, weight=v)


def missing_argument(x, v, n):
    return layer(x)


def too_many_arguments(x, v, n):
    return layer(x, v, n)


def unknown_option(x, v, n):
    return np.mean(x, where=x > 0)


def branch_types(x, v, n):
    if n > 2:
        y = x
    else:
        y = v
    return y


def branch_dtypes(x, v, n):
    return v if n > 2 else v.astype(np.int32)


def branch_structures(x, v, n):
    if n > 2:
        return Pair(v, v)
    return v


def branch_leaf(x, v, n):
    if n > 2:
        y = Pair(v, x)
    else:
        y = Pair(v, v)
    return y


def one_path_only(x, v, n):
    if n > 2:
        y = v
    return y


def before_assignment(x, v, n):
    z = y + 1  # noqa: F821
    y = z
    return y


def loop_shape(x, v, n):
    for _ in range(n):
        v = np.concatenate([v, v])
    return v


def loop_dtype(x, v, n):
    total = np.zeros(4, np.int32)
    for _ in range(n):
        total = total + v
    return total


def loop_local(x, v, n):
    for i in range(n):
        last = v * i
    return last


def loop_list(x, v, n):
    rows = []
    for i in range(n):
        rows.append(v * i)
    return rows


def static_shape(x, v, n):
    return np.zeros(n)


def static_range(x, v, n):
    return np.arange(n)


def static_index(x, v, n):
    return (x, v)[n]


def static_comprehension(x, v, n):
    return [v * i for i in range(n)]


def boolean_mask(x, v, n):
    return np.fft.fft(v[v > 0])


def slice_bounds(x, v, n):
    return v[n : n + 2]


def out_of_range(x, v, n):
    return x[0, 7]


def float_index(x, v, n):
    return v[v[0]]


def missing_key(x, v, n):
    return {"weight": x, "bias": v}["weigth"]


def array_condition(x, v, n):
    if v > 0:
        return v
    return -v


def store_into_array(x, v, n):
    v[0] = 1
    return v


def set_attribute(x, v, n):
    model = Dense(x, v)
    model.bias = v * 2
    return model(x)


def change_captured_list(x, v, n):
    LIST.append(3)
    return v


def change_list_that_is_another_on_one_path(x, v, n):
    rows = [v]
    also = rows if n > 2 else [v * 2]
    rows[0] = v * 3
    return also


def try_statement(x, v, n):
    try:
        y = math.hypot(v[0], 2.0)
    except OverflowError:
        y = 0.0
    return y


def with_statement(x, v, n):
    with open("file") as f:  # noqa: PTH123
        return f


def yield_statement(x, v, n):
    yield v


def global_statement(x, v, n):
    global LIST
    LIST = v
    return v


def match_pattern(x, v, n):
    match {"a": v}:
        case {"a": y, **rest}:
            return y, rest
    return x


def import_statement(x, v, n):
    from math import tau_squared

    return v * tau_squared


def failing_assertion(x, v, n):
    assert x.shape[0] == v.shape[0], f"rows {x.shape} for {v.shape}"
    return v


def raised_on_values(x, v, n):
    if v[0] > 0:
        raise ValueError(f"{v[0]} is positive")
    return v


def raised(x, v, n):
    if x.ndim != 3:
        raise ValueError(f"expected images, not {list(x.shape)}")
    return v


def python_error(x, v, n):
    return v * (1 // (x.ndim - 2))


def never_ends(x, v, n):
    while True:
        v = v + 1
    return v


def recursion(x, v, n):
    return v + recursion(x, v, n - 1) if n > 0 else v


def tail_recursion_that_grows(x, v, n):
    if n == 0:
        return v
    return tail_recursion_that_grows(x, np.concatenate([v, v]), n - 1)


def function_or_array(x, v, n):
    if n > 2:
        f = np.tanh
    else:
        f = v
    return f


def functions_that_disagree(x, v, n):
    functions = (np.sum, np.tanh)
    return functions[n](v)


def function_made_in_a_loop(x, v, n):
    f = np.tanh
    for _ in range(n):
        f = lambda y, f=f: f(y) + v  # noqa: E731
    return f(v)


def result_that_is_a_function(x, v, n):
    return np.tanh if n > 2 else np.sin


def range_of_floats(x, v, n):
    for _ in range(v[0]):
        x = x + 1
    return x


def range_without_step(x, v, n):
    for _ in range(0, 5, 0):
        x = x + 1
    return x


def sorted_tensors(x, v, n):
    return sorted([v, v + 1])


def tensor_as_key(x, v, n):
    return {n: v}


def membership(x, v, n):
    return v in [1, 2, 3]


def maximum_of_arrays(x, v, n):
    return max(v, v + 1)


def reduce_of_nothing(x, v, n):
    return functools.reduce(np.add, [])


def zip_of_lengths(x, v, n):
    return [a * b for a, b in zip(x, v, strict=True)]


def missing_field(x, v, n):
    return Dense(weight=x)


def iterating_a_number(x, v, n):
    return [y * 2 for y in n]


def filtering(x, v, n):
    return list(filter(lambda y: y > 0, v))


def cotangent_shape(x, v, n):
    _, back = vjp(np.tanh, v)
    return back(x)


def tangents_alone(x, v, n):
    return jvp(np.tanh, v, v)


def late_type(x, v, n):
    total = 0
    while total < 10:
        total = total + v
    return total


def unrolling(x, v, n):
    names = tuple(range(2000))
    for i in range(2000):
        v = v * names[i]
    return v


def print_statement(x, v, n):
    print(v)
    return v


def numpy_random(x, v, n):
    return v + np.random.normal(size=4)


def class_with_slots(x, v, n):
    return Slotted(v).x


def string_operand(x, v, n):
    return v + "1"


def tree_operand(x, v, n):
    return Dense(x, v) * 2


def tree_structures(x, v, n):
    return tree.map(np.add, {"a": v}, {"b": v})


def float_bits(x, v, n):
    return v & 1


def bool_subtract(x, v, n):
    return (v > 0) - (v < 0)


def integer_range(x, v, n):
    return v.astype(np.uint8) * 300


def unknown_dtype(x, v, n):
    return v.astype(np.longdouble)


def result_type(x, v, n):
    return {"ok": v, "text": "done"}


def not_scalar_loss(x, v, n):
    return grad(lambda v: v * 2)(v)


def integer_gradient(x, v, n):
    return value_and_grad(lambda p: np.sum(p["v"]))({"v": v, "n": n})


def bad_key(x, v, n):
    return random.uniform(v, (2,))


def conv_channels(x, v, n):
    return ops.conv2d(x.reshape(1, 3, 4, 1), np.zeros((3, 3, 2, 8), F))


def unpacking(x, v, n):
    a, b = x
    return a + b


def iterating_a_function(x, v, n):
    return [v for _ in layer]


def partial_arguments(x, v, n):
    return functools.partial(layer, w=v.reshape(2, 2))(x)


PROGRAMS = [
    f
    for f in list(globals().values())
    if getattr(f, "__module__", "") == __name__ and getattr(f, "__code__", None)
    if f.__code__.co_varnames[:3] == ("x", "v", "n")
]


def test_messages_are_as_kept(refusal):
    texts = []
    for f in PROGRAMS:
        # Lines of this file move; the messages should not: they are kept without numbers.
        text = re.sub(r"(\.py):\d+", r"\1:..", refusal(f, X, V, N))
        text = re.sub(r"(?m)^ *\d+ \| ", "      | ", text)
        text = re.sub(r"(?m)^ +\| ( *\^+)$", r"      | \1", text)
        texts.append(f"== {f.__name__}\n{re.sub(r'line [0-9]+', 'line ..', text)}\n")
    got = "\n".join(texts)
    if os.environ.get("DELIAN_GOLDEN"):
        GOLDEN.write_text(got)
    assert got == GOLDEN.read_text()


@pytest.mark.parametrize("f", PROGRAMS, ids=lambda f: f.__name__)
def test_every_message_has_a_code_a_place_and_an_underline(f, refusal):
    text = refusal(f, X, V, N)
    assert text.split(":")[0] in CODES
    assert "test_frontend_errors.py:" in text
    assert "^" in text


def test_the_chain_of_calls_runs_outwards(refusal):
    lines = refusal(matmul_shapes, X, V, N).splitlines()
    assert "at test_frontend_errors.py" in lines[1]
    assert "x @ w" in lines[2]
    assert "called from" in lines[4]
    assert "layer(x, v.reshape(2, 2))" in lines[5]


def test_source_that_is_not_there_is_said_so(refusal):
    scope: dict[str, object] = {}
    code = compile("def f(x):\n    return x\n", "<prompt>", "exec")
    # A function whose source is in no file, as at an interactive prompt.
    function = type(layer)(next(c for c in code.co_consts if hasattr(c, "co_code")), scope)
    text = refusal(function, X)
    assert text.startswith("DL101")
    assert "define the function in a file" in text


def test_every_code_is_explained_and_used():
    package = Path(codes.__file__).parent
    importers = package.parents[1] / "learning" / "interchange"
    files = [*package.rglob("*.py"), *importers.rglob("*.py")]
    source = "\n".join(p.read_text() for p in files)
    used = set(re.findall(r'"(DL\d+)"', source.replace((package / "codes.py").read_text(), "")))
    assert used == set(CODES)


def test_the_page_explains_every_code_and_shows_messages_as_they_are():
    page = GOLDEN.parents[3].joinpath("docs", "errors.md").read_text()
    heads = dict(re.findall(r"(?m)^## (DL\d+): (.*)$", page))
    assert heads == dict(CODES)
    kept = GOLDEN.read_text()
    for shown in re.findall(r"(?s)```text\n(.*?)```", page):
        assert shown in kept


def odd_arguments(x):
    i = x.astype(np.int32)
    return [
        *((x, "a"), (x, 9), (x, (0, 1)), (x, i), ("a",), (None,), ([x, x[0]],), ({"a": x},)),
        *((x[0, 0], x), (), (x, [1.5]), (layer,), (x, 1, 2, 3, 4, 5, 6), (2**70,), (x, np.int32)),
    ]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("of", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, 8))])
def test_bad_arguments_are_never_a_fault_of_the_compiler(of):
    from delian.core.common.errors import ProgramError
    from delian.core.compiler.frontend import trace

    for number, row in enumerate(vocabulary_table._table().values()):
        for k in range((number + of) % 8, 15, 8):

            def f(x, function=row.function, k=k):
                return function(*odd_arguments(x)[k])

            try:
                trace(f, X)
            except ProgramError as e:
                assert e.code != "DL121", (row.name, k, e.message)


def test_a_call_that_does_not_fit_the_function_itself_shows_the_function(refusal):
    text = refusal(layer, X)
    assert "`layer` is called without `w`" in text
    assert "def layer(x, w):" in text
