"""Programs travel as bytes: exactly, deterministically, and without trust."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from delian.core.common.errors import DelianError, Loc, VerifyError
from delian.core.compiler.ir import Builder, DType, Function, ListType, TensorType
from delian.core.compiler.ir_codec import (
    ProgramFormatError,
    content_hash,
    decode_function,
    encode_function,
)
from delian.core.compiler.text import parse_function, print_function
from delian.core.compiler.transforms.vjp import vjp
from delian.core.compiler.verify import Limits
from delian.core.wire import ir_pb2 as pb
from hypothesis import given, settings
from hypothesis import strategies as st

GOLDEN = Path(__file__).parents[2] / "golden"
F32 = TensorType(DType.F32, (3,))


def named(block):
    params = tuple(f"p{i}" for i in range(len(block.params)))
    return Function("f", block, params, tuple(f"r{i}" for i in range(len(block.results))))


def example():
    return parse_function((GOLDEN / "program.txt").read_text())


def message(fn):
    return pb.Program.FromString(encode_function(fn))


def reads(m, **kwargs):
    return decode_function(m.SerializeToString(deterministic=True), **kwargs)


def test_the_format_is_what_it_was():
    """A file written by the first version: today's bytes are equal to it, and it reads as the text.

    Never regenerate the file to make this pass: programs in the field have its format. When the
    format must change, raise the schema and keep reading the old one.
    """
    data = (GOLDEN / "program.bin").read_bytes()
    assert encode_function(example()) == data
    assert print_function(decode_function(data), locs=True) == (GOLDEN / "program.txt").read_text()


def test_the_content_hash_is_what_it_was():
    expected = (GOLDEN / "program.sha256").read_text().strip()
    assert content_hash(example()) == expected


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_random_programs_round_trip(random_programs, data):
    program = data.draw(random_programs.programs())
    fn = named(vjp(program.block, program.wrt))
    again = decode_function(encode_function(fn))
    assert print_function(again, locs=True) == print_function(fn, locs=True)
    assert encode_function(again) == encode_function(fn)


def test_every_kind_of_constant_and_name_round_trips():
    b = Builder([ListType(ListType(F32))])
    arrays = [(np.arange(5) % 2).astype(d.numpy) for d in DType]
    arrays += [np.array(np.nan), np.zeros((0, 2)), np.arange(6).reshape(2, 3).T]
    body = b.finish([b.params[0], *map(b.constant, arrays)])
    fn = Function("naïve name", body, ("ß",), ("",) * len(body.results), frozenset({0}))
    again = decode_function(encode_function(fn))
    assert print_function(again) == print_function(fn)
    assert (again.name, again.param_names, again.donated) == (fn.name, fn.param_names, fn.donated)


def test_moving_the_source_keeps_the_content_hash():
    here, there = (
        Builder([F32], (Loc(file, line, 0, line, 5),)) for file, line in (("a.py", 1), ("b.py", 9))
    )
    one, two = (named(b.finish([b("neg", b.params[0])])) for b in (here, there))
    assert encode_function(one) != encode_function(two)
    assert content_hash(one) == content_hash(two)
    b = Builder([F32])
    assert content_hash(named(b.finish([b("abs", b.params[0])]))) != content_hash(one)


def test_equal_spans_are_written_once():
    b = Builder([F32], (Loc("a.py", 1, 0, 1, 5), Loc("a.py", 7, 0, 7, 9)))
    x = b.params[0]
    for _ in range(10):
        x = b("neg", x)
    m = message(named(b.finish([x])))
    assert (len(m.files), len(m.spans), len(m.primitives), len(m.types)) == (1, 2, 1, 1)


# ---- versions


def old_program():
    """A program with a primitive that is no more: scale, with its factor as text."""
    b = Builder([F32], (Loc("a.py", 1, 0, 1, 5),))
    m = message(named(b.finish([b("neg", b.params[0])])))
    m.primitives[0].name, m.primitives[0].version = "scale", 3
    m.blocks[0].ops[0].attributes.add(name="factor").value.text = "2.5"
    return m


def test_an_upgrader_brings_an_old_operation_up_to_date():
    def upgrade(b, op):
        factor = b.full(op.results[0].tensor, float(op.attrs["factor"]))
        return [b("mul", op.operands[0], factor)]

    fn = reads(old_program(), upgraders={("scale", 3): upgrade})
    assert [op.name for op in fn.body.ops] == ["constant", "broadcast", "mul"]
    assert fn.body.results == fn.body.ops[-1].results
    assert all(op.locs == (Loc("a.py", 1, 0, 1, 5),) for op in fn.body.ops)


def test_an_upgrader_must_keep_the_types():
    with pytest.raises(ProgramFormatError, match="changed the types"):
        reads(old_program(), upgraders={("scale", 3): lambda b, op: []})


def test_a_newer_program_is_refused_by_name():
    with pytest.raises(ProgramFormatError, match=r"'scale' version 3.*update Delian here"):
        try:
            reads(old_program())
        except ProgramFormatError as error:
            raise ProgramFormatError(str(error).replace("\n", " ")) from error
    m = message(example())
    m.primitives[0].version += 1
    with pytest.raises(ProgramFormatError, match="this version of Delian has not"):
        reads(m)
    m.primitives[0].version = 0
    with pytest.raises(ProgramFormatError, match="there is no upgrade"):
        reads(m)
    m = message(example())
    m.schema = 2
    with pytest.raises(ProgramFormatError, match="format 2 and this version reads 1"):
        reads(m)


# ---- hostile bytes


def broken(change):
    m = message(example())
    change(m)
    return m


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda m: m.ClearField("blocks"), "no body"),
        (lambda m: m.blocks.add(), "exactly one operation"),
        (lambda m: m.blocks[-1].ops[-1].regions.append(0), "the region of two operations"),
        (lambda m: m.blocks[0].ops[0].regions.append(0), "block 0 is not defined before"),
        (lambda m: m.blocks[-1].ops[0].operands.append(99), "value 99 is not defined before"),
        (lambda m: m.blocks[-1].results.append(99), "value 99"),
        (lambda m: m.types.add(list_of=50), "type 50"),
        (lambda m: m.types.add(), "neither a tensor nor a list"),
        (lambda m: m.types.add().tensor.SetInParent(), "no element type 0"),
        (lambda m: m.donated.extend([2, 1]), "increasing"),
        (lambda m: m.donated.append(77), "donates parameter 77"),
        (lambda m: m.param_names.pop(), "parameters and has"),
        (lambda m: m.spans.add(file=9), "file 9"),
        (lambda m: m.blocks[0].ops[0].spans.append(40), "span 40"),
        (lambda m: m.blocks[0].ops[0].attributes.add(name="a"), "no value|sorted"),
        (lambda m: m.types[0].tensor.shape.extend([2**63] * 3), "sizes are from 0 to"),
        (lambda m: m.types[0].tensor.shape.extend([1] * 99), "rank"),
    ],
)
def test_malformed_programs_are_refused(change, words):
    with pytest.raises(DelianError, match=words):
        reads(broken(change))


def test_a_constant_holds_as_many_bytes_as_its_type_says():
    b = Builder()
    m = message(named(b.finish([b.constant(np.array([True, False]))])))
    array = m.blocks[0].ops[0].attributes[0].value.array
    array.data = b"\x00\x02"
    with pytest.raises(ProgramFormatError, match="a bool is 0 or 1"):
        reads(m)
    array.data = b"\x00"
    with pytest.raises(ProgramFormatError, match="takes 2 bytes, not 1"):
        reads(m)


def test_limits_come_before_the_work():
    fn = example()
    size = len(encode_function(fn))
    with pytest.raises(ProgramFormatError, match="bytes; at most"):
        decode_function(encode_function(fn), Limits(encoded_bytes_max=size - 1))
    with pytest.raises(ProgramFormatError, match="operations; at most 3"):
        decode_function(encode_function(fn), Limits(ops_max=3))
    with pytest.raises(DelianError, match="constants exceed"):
        decode_function(encode_function(fn), Limits(constant_bytes_max=3))


def test_very_deep_programs_are_refused_and_not_a_crash():
    m = pb.Program(schema=1, name="deep")
    m.primitives.add(name="if", version=1)
    m.types.add().tensor.dtype = pb.BOOL
    m.blocks.add(params=[0], results=[0])
    for i in range(50_000):
        block = m.blocks.add(params=[0], results=[1])
        block.ops.add(operands=[0, 0], results=[0], regions=[i])
    m.param_names.append("p")
    m.result_names.append("r")
    with pytest.raises(VerifyError, match="nest more than"):
        reads(m)


@given(st.binary(max_size=200))
@settings(max_examples=300)
def test_random_bytes_give_errors(data):
    with pytest.raises(DelianError):
        decode_function(data)


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_damaged_bytes_give_an_error_or_a_program(data):
    whole = bytearray(encode_function(example()))
    for _ in range(data.draw(st.integers(1, 4))):
        i = data.draw(st.integers(0, len(whole) - 1))
        kind = data.draw(st.sampled_from(["flip", "cut", "double"]))
        if kind == "flip":
            whole[i] = data.draw(st.integers(0, 255))
        elif kind == "cut":
            del whole[i : i + data.draw(st.integers(1, 8))]
        else:
            whole[i:i] = whole[i : i + data.draw(st.integers(1, 8))]
        if not whole:
            break
    try:
        fn = decode_function(bytes(whole))
    except DelianError:
        return
    assert decode_function(encode_function(fn)).name == fn.name


FIELDS = ["operands", "results", "regions", "spans"]


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_damaged_messages_give_an_error_or_a_program(data):
    """Well-formed protobuf whose numbers and attributes are wrong gets past the first parser."""
    m = message(example())
    for _ in range(data.draw(st.integers(1, 3))):
        op = data.draw(st.sampled_from([op for block in m.blocks for op in block.ops]))
        field = data.draw(st.sampled_from([*FIELDS, "attributes", "primitive", "shape"]))
        small = data.draw(st.integers(0, 12))
        if field == "primitive":
            op.primitive = small
        elif field == "shape":
            row = data.draw(st.sampled_from(list(m.types)))
            if row.WhichOneof("kind") == "tensor":
                row.tensor.shape[:] = data.draw(st.lists(st.integers(0, 5), max_size=3))
        elif field == "attributes" and op.attributes:
            datum = data.draw(st.sampled_from(list(op.attributes))).value
            datum.Clear()
            _scramble(datum, data)
        elif field in FIELDS:
            items = getattr(op, field)
            items[:] = data.draw(st.lists(st.integers(0, 12), max_size=4))
    try:
        fn = reads(m)
    except DelianError:
        return
    assert print_function(parse_function(print_function(fn))) == print_function(fn)


def _scramble(datum, data):
    kind = data.draw(st.sampled_from(["integer", "real", "truth", "text", "dtype", "integers"]))
    if kind == "integer":
        datum.integer = data.draw(st.integers(-(2**63), 2**63 - 1))
    elif kind == "real":
        datum.real = data.draw(st.floats())
    elif kind == "truth":
        datum.truth = True
    elif kind == "text":
        datum.text = "x"
    elif kind == "dtype":
        datum.dtype = data.draw(st.integers(0, 8))
    else:
        datum.integers.items.extend(data.draw(st.lists(st.integers(-3, 9), max_size=3)))
