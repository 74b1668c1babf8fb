"""The text form reads well and is exact in both directions."""

from __future__ import annotations

import numpy as np
import pytest
from delian.core.common.errors import DelianError, Loc
from delian.core.compiler.ir import Builder, DType, Function, ListType, Op, TensorType
from delian.core.compiler.ir_codec import encode_function
from delian.core.compiler.text import ParseError, parse_function, print_block, print_function
from delian.core.compiler.transforms.vjp import vjp
from hypothesis import given, settings
from hypothesis import strategies as st

F32 = TensorType(DType.F32)


def same(a: Function, b: Function) -> bool:
    """Equal to the last bit, source spans included."""
    return encode_function(a) == encode_function(b)


def named(block):
    params = tuple(f"p{i}" for i in range(len(block.params)))
    return Function("f", block, params, tuple(f"r{i}" for i in range(len(block.results))))


def halving():
    """Halves x while it is above a limit, counting; source spans on some operations."""
    b = Builder([F32], (Loc("model.py", 3, 4, 3, 20), Loc("nn.py", 9, 0, 11, 4)))
    types = [F32, F32, TensorType(DType.I64)]
    cond = Builder(types)
    go = cond("lt", cond.params[0], cond.params[1])
    body = Builder(types, (Loc('odd "name".py', 1, 0, 1, 1),))
    half = body("mul", body.params[1], body.constant(0.5, DType.F32))
    more = body("add", body.params[2], body.constant(1))
    regions = (cond.finish([go]), body.finish([half, more]))
    limit, zero = b.constant(1.5, DType.F32), b.constant(0)
    results = b.emit("while", (limit, b.params[0], zero), {"consts": 1}, regions)
    return Function("halve", b.finish(results), ("x",), ("x", "count"), frozenset({0}))


def test_a_program_reads_like_this():
    assert print_function(halving()) == (
        "fn halve(%0 x: f32[]) -> (x: f32[], count: i64[]) donates(0) {\n"
        "  %1: f32[] = constant() {value=f32[](1.5)}\n"
        "  %2: i64[] = constant() {value=i64[](0)}\n"
        "  %3: f32[], %4: i64[] = while(%1, %0, %2) {consts=1}\n"
        "    cond(%5: f32[], %6: f32[], %7: i64[]) {\n"
        "      %8: bool[] = lt(%5, %6)\n"
        "      return %8\n"
        "    }\n"
        "    body(%9: f32[], %10: f32[], %11: i64[]) {\n"
        "      %12: f32[] = constant() {value=f32[](0.5)}\n"
        "      %13: f32[] = mul(%10, %12)\n"
        "      %14: i64[] = constant() {value=i64[](1)}\n"
        "      %15: i64[] = add(%11, %14)\n"
        "      return %13, %15\n"
        "    }\n"
        "  return %3, %4\n"
        "}\n"
    )


def test_source_spans_are_exact_when_printed():
    text = print_function(halving(), locs=True)
    assert '@ "model.py":3:5-3:21 "nn.py":9:1-11:5\n' in text
    assert same(parse_function(text), halving())


def test_a_block_prints_alone():
    b = Builder([F32])
    assert print_block(b.finish([b("neg", b.params[0])])) == (
        "block(%0: f32[]) {\n  %1: f32[] = neg(%0)\n  return %1\n}\n"
    )


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_random_programs_round_trip(random_programs, data):
    program = data.draw(random_programs.programs())
    block = program.block
    if data.draw(st.booleans()):
        block = vjp(block, program.wrt)
    fn = named(block)
    text = print_function(fn, locs=True)
    again = parse_function(text)
    assert same(again, fn)
    assert print_function(again, locs=True) == text


NASTY = [
    np.array([0.1, -0.0, 1e-45, 3.4e38, np.inf, -np.inf, np.nan], np.float32),
    np.array([0.1, -0.0, 5e-324, 1.7e308, np.inf, np.nan, 1 / 3, 1e22], np.float64),
    np.array([0x7FC00001, 0xFFC00000], np.uint32).view(np.float32),
    np.array([-(2**63), 2**63 - 1]),
    np.array([0, 2**32 - 1], np.uint32),
    np.array([True, False]),
    np.zeros((0, 3), np.float32),
    np.array(7, np.uint8),
    np.arange(100, dtype=np.float32).reshape(4, 25),
    np.arange(60).reshape(3, 20).T,
    np.ones(40, bool),
]


@pytest.mark.parametrize("array", NASTY, ids=lambda a: f"{a.dtype}{list(a.shape)}")
def test_constants_round_trip_to_the_bit(array):
    b = Builder()
    fn = named(b.finish([b.constant(array)]))
    value = parse_function(print_function(fn)).body.ops[0].attrs["value"]
    assert (value.dtype, value.shape) == (array.dtype, array.shape)
    assert value.tobytes() == array.tobytes()


@given(st.lists(st.floats(width=32), max_size=16))
def test_small_f32_constants_round_trip_to_the_bit(numbers):
    array = np.array(numbers, np.float32)
    b = Builder()
    value = parse_function(print_function(named(b.finish([b.constant(array)])))).body.ops[0]
    assert value.attrs["value"].tobytes() == array.tobytes()


@given(st.text(max_size=8), st.text(max_size=8), st.text(max_size=8))
def test_any_name_round_trips(name, param, result):
    b = Builder([ListType(F32)])
    fn = Function(name, b.finish(b.params), (param,), (result,))
    again = parse_function(print_function(fn))
    assert (again.name, again.param_names, again.result_names) == (name, (param,), (result,))


HEAD = "fn f(%0: f32[3]) -> (f32[3]) {\n"


@pytest.mark.parametrize(
    ("text", "line", "column", "words"),
    [
        ("", 1, 1, "expected 'fn'"),
        (HEAD, 2, 1, "expected an operation and found 'the end of the text'"),
        (HEAD + "  %1: f32[3] = neg(%7)\n  return %1\n}", 2, 20, "%7 is not defined here"),
        (HEAD + "  %1: f32[3] = nog(%0)\n  return %1\n}", 2, 3, "no such primitive"),
        (HEAD + "  %1: f32[4] = neg(%0)\n  return %1\n}", 2, 3, "not what is written"),
        (HEAD + "  %0: f32[3] = neg(%0)\n  return %0\n}", 2, 3, "%0 is defined twice"),
        (HEAD + "  %1: f99[3] = neg(%0)\n  return %1\n}", 2, 7, "no element type 'f99'"),
        (HEAD + "  ?\n}", 2, 3, "unexpected '?'"),
        (HEAD + "  return %0\n} more", 3, 3, "expected the end of the text"),
        (HEAD + "  return\n}", 1, 30, "the function returns ()"),
        (
            HEAD + "  %1: f32[2] = constant() {value=f32[2](1.0)}\n  return %0\n}",
            2,
            34,
            "not the elements of f32[2]",
        ),
        (
            HEAD + "  %1: u8[] = constant() {value=u8[](300)}\n  return %0\n}",
            2,
            32,
            "a number within u8",
        ),
        (
            HEAD + "  %1: f32[99] = constant() {value=f32[99]<AAAA>}\n  return %0\n}",
            2,
            35,
            "takes 396 bytes, not 3",
        ),
    ],
)
def test_errors_say_where(text, line, column, words):
    with pytest.raises(ParseError) as caught:
        parse_function(text, "prog.ir")
    (loc,) = caught.value.locs
    assert (loc.file, loc.line, loc.column + 1) == ("prog.ir", line, column)
    assert words in caught.value.message


def test_deep_nesting_is_an_error_and_not_a_crash():
    for text in ("fn f(%0: " + "list<" * 10_000, HEAD + "%1: f32[] = x() {a=" + "[" * 10_000):
        with pytest.raises(ParseError, match="nest more than"):
            parse_function(text)


@given(data=st.data())
@settings(max_examples=200, deadline=None)
def test_damaged_text_gives_an_error_or_a_program(data):
    text = print_function(halving(), locs=True)
    start = data.draw(st.integers(0, len(text) - 1))
    end = data.draw(st.integers(start, min(len(text), start + 10)))
    noise = data.draw(st.text('%()[]{}<>=:,."@-+0123456789abfilst \n', max_size=6))
    try:
        fn = parse_function(text[:start] + noise + text[end:])
    except DelianError:
        return
    assert isinstance(fn.body.ops, list) and all(isinstance(op, Op) for op in fn.body.walk())
