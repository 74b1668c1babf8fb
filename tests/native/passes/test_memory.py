"""What shares memory with what, and that nothing alive is overwritten."""

from __future__ import annotations

from delian.core.compiler.ir import Block, Builder, DType, TensorType, Value
from delian.core.compiler.passes.schedule.fuse import schedule
from delian.core.compiler.passes.schedule.memory_plan import MemoryPlan, Place, plan

F32, I64 = DType.F32, DType.I64
ROW = TensorType(F32, (1024,))
BYTES = ROW.nbytes


def planned(block: Block) -> MemoryPlan:
    numbers: dict[Value, int] = {}
    return plan(
        schedule(block),
        constant=lambda v: Place("constant", numbers.setdefault(v, len(numbers))),
        scratch=lambda call, planned: 0,
    )


def reversed_of(b: Builder, x: Value) -> Value:
    """A value that cannot be computed in place: each element reads another's place."""
    return b("add", x, b("reverse", x, axes=(0,)))


def test_a_chain_takes_turns_in_two_buffers() -> None:
    b = Builder([ROW])
    x = b.params[0]
    for _ in range(8):
        x = reversed_of(b, x)
    result = planned(b.finish([b("neg", reversed_of(b, x))]))
    assert result.arena_bytes <= 2 * BYTES
    assert result.tensor_bytes >= 8 * BYTES


def test_a_result_is_computed_in_its_buffer() -> None:
    b = Builder([ROW])
    y = b("neg", b.params[0])
    result = planned(b.finish([y, y]))
    assert result.places[y] == Place("result", 0)
    assert [j for j, _ in result.results] == [1], "the second buffer is filled by a copy"
    assert result.arena_bytes == 0


def test_parameters_are_never_written() -> None:
    b = Builder([ROW, ROW])
    result = planned(b.finish([b("add", b.params[0], b.params[1]), b.params[1]]))
    written = {place for value, place in result.places.items() if value not in b.params}
    assert all(place.kind != "param" for place in written)
    assert [j for j, _ in result.results] == [1]


def loop(body: Block, *starts: Value, b: Builder, consts: int = 0) -> tuple[Value, ...]:
    lo, hi = b.constant(0, I64), b.constant(9, I64)
    return b.emit("for", [lo, hi, *starts], {"consts": consts}, [body])


def test_a_carry_is_updated_in_place() -> None:
    """w - gradient: the new weights lie where the old ones did, and in the result's buffer."""
    inner = Builder([TensorType(I64), ROW, ROW])
    _, x, w = inner.params
    gradient = reversed_of(inner, inner("mul", x, w))
    body = inner.finish([inner("sub", w, gradient)])
    b = Builder([ROW, ROW])
    (w,) = loop(body, *b.params, b=b, consts=1)
    result = planned(b.finish([w]))
    assert result.places[w] == Place("result", 0)
    assert not any(result.after.values()), "no copy at the end of a round"
    assert len(next(iter(result.before.values()))) == 1, "one copy, of the parameter, at the start"


def test_a_carry_that_is_still_read_is_copied_at_the_end_of_a_round() -> None:
    inner = Builder([TensorType(I64), ROW, ROW])
    _, x, y = inner.params
    body = inner.finish([inner("add", x, y), inner("sub", x, y)])
    b = Builder([ROW, ROW])
    result = planned(b.finish(loop(body, *b.params, b=b)))
    assert sum(map(len, result.after.values())) <= 1, "both are written by one loop, in place"


def test_carries_that_swap_take_one_more_buffer() -> None:
    inner = Builder([TensorType(I64), ROW, ROW])
    body = inner.finish([inner.params[2], inner.params[1]])
    b = Builder([ROW, ROW])
    result = planned(b.finish(loop(body, *b.params, b=b)))
    moves = [m for moves in result.after.values() for m in moves]
    assert len(moves) == 1
    assert result.arena_bytes == BYTES


def test_nested_loops_share_one_slot() -> None:
    innermost = Builder([TensorType(I64), ROW])
    deep = innermost.finish([innermost("mul", innermost.params[1], innermost.params[1])])
    inner = Builder([TensorType(I64), ROW])
    body = inner.finish(loop(deep, inner.params[1], b=inner))
    b = Builder([ROW])
    start = b("neg", b.params[0])
    (out,) = loop(body, start, b=b)
    result = planned(b.finish([out]))
    assert result.places[out] == result.places[start] == Place("result", 0)
    assert not any(result.before.values()) and not any(result.after.values())


def test_what_a_loop_reads_from_outside_outlives_it() -> None:
    inner = Builder([TensorType(I64), ROW, ROW])
    _, c, x = inner.params
    first = reversed_of(inner, inner("add", c, x))
    body = inner.finish([reversed_of(inner, first)])
    b = Builder([ROW])
    c = reversed_of(b, b.params[0])
    start = b("neg", b.params[0])
    (out,) = loop(body, c, start, b=b, consts=1)
    result = planned(b.finish([out]))
    shared = [v for v, place in result.places.items() if place == result.places[c]]
    assert all(v is c or v is inner.params[1] for v in shared)


def test_tensors_in_the_arena_are_aligned() -> None:
    odd = TensorType(F32, (3,))
    b = Builder([odd])
    x = reversed_of(b, b.params[0])
    y = reversed_of(b, x)
    result = planned(b.finish([b("add", reversed_of(b, y), x)]))
    offsets = [p.index for p in result.places.values() if p.kind == "arena"]
    assert offsets and all(o % 64 == 0 for o in offsets)
