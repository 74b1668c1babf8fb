"""The parts of a small program: who computes what, what crosses, and which cuts are impossible."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest
from delian.core.compiler.backends.reference import run_block
from delian.core.compiler.ir import Builder, DType, Function, ListType, TensorType
from delian.core.compiler.parse import parse_function
from delian.core.compiler.verify import verify
from delian.core.placement.cut import walk
from delian.core.placement.cut.cut import SHARED, Cut, CutError
from delian.core.placement.cut.execute import Tiers, run
from delian.core.placement.cut.program_split import Message, Part, Parts, check, split
from delian.core.placement.cut.value_graph import Graph, bound_pairs, depends, graph_of
from hypothesis import assume, given, settings
from hypothesis import strategies as st

#: w is resident, x an input; %3 and %4 are the same everywhere.
TWO_LAYERS = parse_function(
    """
fn f(%0 w: f32[3], %1 x: f32[3]) -> (y: f32[3], top: f32[]) {
  %2: f32[3] = exp(%1)
  %3: f32[] = constant() {value=f32[](2.0)}
  %4: f32[3] = broadcast(%3) {shape=[3], dims=[]}
  %5: f32[3] = mul(%0, %4)
  %6: f32[3] = mul(%2, %5)
  %7: f32[3] = add(%6, %5)
  %8: f32[3] = mul(%7, %2)
  %9: f32[] = reduce_max(%8) {axes=[0]}
  return %7, %9
}
"""
)
W, X = np.float32([1, 2, 3]), np.float32([0.5, -0.25, 1])
FREE = (SHARED,) * 3


def crossings(parts: Parts) -> list[tuple[int, int, list[int]]]:
    return [(m.sender, m.receiver, [p.value for p in m.ports]) for m in parts.messages]


def names(part: Part) -> list[str]:
    return [op.name for op in part.program.body.ops]


def whole(function: Function, *args: np.ndarray) -> list[np.ndarray]:
    return run_block(function.body, list(args))


def same(parts: Parts, function: Function, resident, inputs) -> None:
    """The parts verify, and give what the whole gives."""
    for part in parts.parts:
        verify(part.program)
        assert len(part.program.body.results) == len(part.outputs) + len(part.updates)
    args = dict(zip(parts.resident, resident, strict=True))
    args.update(zip([p.value for p in parts.inputs], inputs, strict=True))
    wanted = whole(function, *(args[i] for i in sorted(args)))
    for found, expected in zip(run(parts, resident, inputs), wanted, strict=True):
        np.testing.assert_array_equal(found, expected)


def test_what_depends_on_weights_alone_moves_nowhere():
    assert depends(TWO_LAYERS, [0]) == [True, False, False, False, True, True, True, True]
    assert depends(TWO_LAYERS, []) == [True, False, False, True, True, True, True, True]


def test_three_tiers_relay_what_the_cloud_needs_and_bring_results_back():
    parts = split(TWO_LAYERS, [0], Cut((0, *FREE, 0, 1, 2, 2)))
    device, edge, cloud = parts.parts
    assert (device.tier, edge.tier, cloud.tier) == (0, 1, 2)
    # What exp gives the cloud alone reads, and it goes through the edge.
    assert crossings(parts) == [(0, 1, [2, 6]), (1, 2, [2, 7]), (2, 1, [9]), (1, 0, [7, 9])]
    assert [p.value for p in edge.inputs] == [6] and [p.value for p in edge.outputs] == [7]
    assert names(edge) == ["constant", "broadcast", "mul", "add"] and edge.resident == (0,)
    assert names(cloud) == ["mul", "reduce_max"] and cloud.resident == ()
    assert cloud.program.param_names == ("v2", "y") and cloud.program.result_names == ("top",)
    same(parts, TWO_LAYERS, [W], [X])


def test_a_message_knows_its_turn_and_a_tier_its_steps():
    parts = split(TWO_LAYERS, [0], Cut((0, *FREE, 0, 1, 2, 2)))
    assert [(m.hop, m.up, m.turn) for m in parts.messages] == [
        *((0, True, 0), (1, True, 0), (1, False, 0), (0, False, 0))
    ]
    assert [p.value for p in parts.crossing(1, up=True)] == [2, 7]
    assert parts.crossing(1, up=True, turn=1) == ()
    kinds = [type(s) for s in parts.steps_of(1)]
    assert kinds == [Message, Part, Message, Message, Message] and parts.top == 2
    assert len(parts.of(0)) == len(parts.of(1)) == len(parts.of(2)) == 1


@pytest.mark.parametrize(
    ("labels", "tiers", "sent"),
    [
        ((0, *FREE, 0, 0, 0, 0), [0], []),
        ((1, *FREE, 1, 1, 1, 1), [1], [(0, 1, [1]), (1, 0, [7, 9])]),
        ((2, *FREE, 2, 2, 2, 2), [2], [(0, 1, [1]), (1, 2, [1]), (2, 1, [7, 9]), (1, 0, [7, 9])]),
        ((0, *FREE, 0, 0, 0, 2), [0, 2], [(0, 1, [8]), (1, 2, [8]), (2, 1, [9]), (1, 0, [9])]),
    ],
)
def test_tiers_without_work_have_no_part_and_still_pass_things_on(labels, tiers, sent):
    parts = split(TWO_LAYERS, [0], Cut(labels))
    assert [p.tier for p in parts.parts] == tiers and crossings(parts) == sent
    same(parts, TWO_LAYERS, [W], [X])


def test_a_value_that_several_parts_read_crosses_once_and_is_encoded_once():
    function = parse_function(
        """
fn f(%0 x: f32[4]) -> (y: f32[4], z: f32[4]) {
  %1: f32[4] = exp(%0)
  %2: f32[4] = neg(%1)
  %3: f32[4] = add(%1, %1)
  %4: f32[4] = mul(%1, %3)
  return %2, %4
}
"""
    )
    parts = split(function, [], Cut((0, 1, 2, 2), {1: "i8"}))
    assert crossings(parts) == [(0, 1, [1]), (1, 2, [1]), (2, 1, [4]), (1, 0, [2, 4])]
    assert [p.wire for p in parts.crossing(1, up=True)] == ["i8"]
    x = np.float32([0.1, -1.3, 0.7, 0])
    negated, product = run(parts, [], [x])
    # Both saw the same rounded numbers: re-encoding at the edge would not.
    np.testing.assert_array_equal(product, negated * (negated + negated))
    assert 0 < np.abs(-negated - np.exp(x)).max() < 0.51 * np.exp(0.7) / 254


def test_results_that_nothing_computes_are_the_device_s_own():
    function = parse_function(
        """
fn f(%0 w: f32[], %1 x: f32[]) -> (a: f32[], b: f32[], c: f32[], d: f32[]) {
  %2: f32[] = neg(%0)
  %3: f32[] = neg(%1)
  return %1, %0, %2, %3
}
"""
    )
    parts = split(function, [0], Cut((SHARED, 1)))
    assert [(p.tier, p.program.result_names) for p in parts.parts] == [(0, ("w", "c")), (1, ("d",))]
    same(parts, function, [np.array(2, np.float32)], [np.array(3, np.float32)])


def test_parts_keep_spans():
    function = parse_function(
        'fn f(%0 x: f32[]) -> (y: f32[]) {\n  %1: f32[] = exp(%0) @ "model.py":3:4-3:9\n'
        "  return %1\n}\n"
    )
    (part,) = split(function, [], Cut((1,))).parts
    assert part.program.body.ops[0].locs == function.body.ops[0].locs != ()


# Work that comes back down


def test_work_that_comes_back_down_is_asked_for():
    labels = (0, *FREE, 0, 1, 0, 1)
    with pytest.raises(CutError, match="work comes back down"):
        split(TWO_LAYERS, [0], Cut(labels))
    parts = split(TWO_LAYERS, [0], Cut(labels), returns=True)
    assert [(p.tier, p.phase) for p in parts.parts] == [(0, 0), (1, 0), (0, 1), (1, 1)]
    # exp stays on the device, between its two parts.
    assert crossings(parts) == [(0, 1, [6]), (1, 0, [7]), (0, 1, [8]), (1, 0, [9])]
    assert [m.turn for m in parts.messages] == [0, 0, 1, 1]
    assert [p.value for p in parts.of(0)[0].outputs] == [2, 6]
    same(parts, TWO_LAYERS, [W], [X])


def test_requests_nest_where_an_edge_asks_the_cloud_twice():
    b = Builder([TensorType(DType.F32)])
    v = b.params[0]
    labels = (0, 1, 2, 1, 2, 1, 0)
    for _ in labels:
        v = b("tanh", v)
    function = Function("f", b.finish([v]), ("x",), ("y",))
    parts = split(function, [], Cut(labels), returns=True)
    assert [p.tier for p in parts.parts] == list(labels)
    assert [(m.hop, m.up, m.turn) for m in parts.messages] == [
        *((0, True, 0), (1, True, 0), (1, False, 0), (1, True, 1), (1, False, 1), (0, False, 0))
    ]
    same(parts, function, [], [np.array(0.5, np.float32)])


def test_there_are_so_many_parts_and_no_more():
    b = Builder([TensorType(DType.F32)])
    v = b.params[0]
    for _ in range(walk.PARTS_MAX + 1):
        v = b("tanh", v)
    function = Function("f", b.finish([v]), ("x",), ("y",))
    labels = tuple(i % 2 for i in range(walk.PARTS_MAX + 1))
    with pytest.raises(CutError, match="more than 64 parts"):
        check(function, [], Cut(labels), returns=True)
    check(function, [], Cut((*labels[:-1], labels[-2])), returns=True)


def test_what_a_tier_owns_stays_with_it_and_its_new_value_too():
    labels = (0, SHARED, SHARED, 1, 1, 1, 1, 1)
    parts = split(TWO_LAYERS, [], Cut(labels), updates={0: 0})
    device, edge = parts.parts
    assert parts.resident == (0,) and parts.homes == {0: 1} and device.resident == ()
    assert edge.resident == (0,) and edge.updates == (0,)
    assert edge.program.result_names == ("top", "y")
    assert crossings(parts) == [(0, 1, [2]), (1, 0, [9])]
    same(parts, TWO_LAYERS, [W], [X])


def test_what_reads_only_what_a_tier_owns_waits_until_its_result_is_read():
    function = parse_function(
        """
fn f(%0 m: f32[], %1 x: f32[]) -> (y: f32[], new: f32[]) {
  %2: f32[] = neg(%0)
  %3: f32[] = exp(%1)
  %4: f32[] = tanh(%3)
  %5: f32[] = mul(%4, %2)
  %6: f32[] = neg(%5)
  return %4, %6
}
"""
    )
    parts = split(function, [], Cut((0, 0, 1, 0, 0)), returns=True, updates={1: 0})
    assert [(p.tier, names(p)) for p in parts.parts] == [
        *((0, ["exp"]), (1, ["tanh"]), (0, ["neg", "mul", "neg"]))
    ]
    same(parts, function, [np.array(2, np.float32)], [np.array(3, np.float32)])
    # The edge is not visited for it before there is something to do.
    parts = split(function, [], Cut((1, 0, 2, 1, 1)), returns=True, updates={1: 0})
    assert [p.tier for p in parts.parts] == [0, 2, 1]
    same(parts, function, [np.array(2, np.float32)], [np.array(3, np.float32)])


# What is impossible


LISTS = parse_function(
    """
fn f(%0 x: f32[2]) -> (y: f32[2]) {
  %1: list<f32[2]> = list_empty() {type=list<f32[2]>}
  %2: f32[2] = exp(%0)
  %3: list<f32[2]> = list_push(%1, %2)
  %4: f32[2] = neg(%2)
  %5: list<f32[2]>, %6: f32[2] = list_pop(%3)
  %7: f32[2] = add(%6, %4)
  return %7
}
"""
)


def test_lists_stay_within_a_part():
    graph = graph_of(LISTS, [])
    assert bound_pairs(graph) == [(2, 4)]
    with pytest.raises(CutError, match="stays within a part"):
        check(LISTS, [], Cut((SHARED, 0, 0, 0, 1, 1)))
    check(LISTS, [], Cut((SHARED, 0, 1, 0, 1, 1)))
    # On one tier, and still not in one part.
    with pytest.raises(CutError, match="stays within a part"):
        late = parse_function(
            """
fn f(%0 x: f32[2]) -> (y: f32[2]) {
  %1: list<f32[2]> = list_empty() {type=list<f32[2]>}
  %2: list<f32[2]> = list_push(%1, %0)
  %3: f32[2] = exp(%0)
  %4: list<f32[2]> = list_push(%2, %3)
  %5: list<f32[2]>, %6: f32[2] = list_pop(%4)
  return %6
}
"""
        )
        check(late, [], Cut((SHARED, 0, 1, 0, 0)), returns=True)


def test_a_program_that_takes_or_gives_a_list_is_not_cut():
    kind = ListType(TensorType(DType.F32))
    b = Builder([kind])
    takes = Function("f", b.finish([b.emit("list_pop", b.params)[1]]), ("x",), ("y",))
    with pytest.raises(CutError, match="takes a list"):
        check(takes, [], Cut((0,)))
    b = Builder([TensorType(DType.F32)])
    made = b("list_push", b("list_empty", type=kind), b.params[0])
    gives = Function("f", b.finish([made]), ("x",), ("y",))
    with pytest.raises(CutError, match="stays within a part"):
        check(gives, [], Cut((SHARED, 0)))


def test_what_is_owned_is_read_and_renewed_on_one_tier():
    owned = graph_of(TWO_LAYERS, [], owned=[0])
    assert bound_pairs(owned) == []  # only one operation reads it
    assert bound_pairs(graph_of(TWO_LAYERS, [], owned=[1])) == []
    twice = parse_function(
        """
fn f(%0 w: f32[], %1 x: f32[]) -> (y: f32[], new: f32[]) {
  %2: f32[] = mul(%0, %1)
  %3: f32[] = add(%0, %2)
  %4: f32[] = neg(%3)
  return %2, %4
}
"""
    )
    assert bound_pairs(graph_of(twice, [], owned=[0])) == [(0, 1)]
    with pytest.raises(CutError, match="`w` stays on one tier"):
        check(twice, [], Cut((0, 1, 1)), updates={1: 0})
    with pytest.raises(CutError, match="the new value of `w`"):
        check(twice, [], Cut((0, 0, 1)), updates={1: 0})
    check(twice, [], Cut((1, 1, 1)), updates={1: 0})


@pytest.mark.parametrize(
    ("cut", "message"),
    [
        (Cut((0,) * 7), "another program"),
        (Cut((0, 0, *FREE[1:], 0, 0, 0, 0)), "constant, has a tier"),
        (Cut((SHARED, *FREE, 0, 0, 0, 0)), "exp, has no tier"),
        (Cut((0, *FREE, 1, 0, 0, 0)), "work comes back down"),
        (Cut((0, *FREE, 1, 1, 1, 1), {99: "i8"}), "it is not there"),
    ],
)
def test_a_cut_that_does_not_fit_is_refused_in_words(cut, message):
    for use in (check, split):
        with pytest.raises(CutError, match=message):
            use(TWO_LAYERS, [0], cut)


def test_integers_travel_as_they_are():
    function = parse_function(
        "fn f(%0 x: i32[2]) -> (y: i32[2]) {\n  %1: i32[2] = neg(%0)\n  return %1\n}\n"
    )
    with pytest.raises(CutError, match=r"cannot travel as i8: it is i32\[2\]"):
        check(function, [], Cut((1,), {0: "i8"}))


def test_a_value_is_seen_no_higher_than_it_may_be():
    cut = Cut((1, *FREE, 1, 1, 2, 2))
    check(TWO_LAYERS, [0], cut, ceilings={1: 1, 9: 2})
    with pytest.raises(CutError, match="value 1 would be seen by tier 1"):
        check(TWO_LAYERS, [0], cut, ceilings={1: 0})
    with pytest.raises(CutError, match="value 7 would be seen by tier 2"):
        split(TWO_LAYERS, [0], cut, ceilings={7: 1})
    with pytest.raises(CutError, match="value 9 would be seen by tier 2"):  # where it is made
        check(TWO_LAYERS, [0], cut, ceilings={9: 0})


def test_parameters_that_are_not_there_are_a_fault_of_the_caller():
    cut = Cut((0, *FREE, 0, 0, 0, 0))
    with pytest.raises(ValueError, match="2 parameters"):
        split(TWO_LAYERS, [2], cut)
    with pytest.raises(ValueError, match="both resident and owned"):
        split(TWO_LAYERS, [0], cut, owned=[0])
    with pytest.raises(ValueError, match="2 results"):
        split(TWO_LAYERS, [], cut, updates={5: 0})


def test_the_runner_counts_its_arguments():
    tiers = Tiers(split(TWO_LAYERS, [0], Cut((0, *FREE, 0, 0, 0, 0))), "reference")
    with pytest.raises(Exception, match="takes 1 resident arrays and 1 inputs"):
        tiers([W], [])


# Any program, any labels


def random_cut(data, graph: Graph, returns: bool) -> Cut:
    """Labels that go up along every edge (with `returns` any), and keep together what must be."""
    labels = [data.draw(st.integers(0, 2)) if m else SHARED for m in graph.moves]
    changed = True
    while changed:
        before = list(labels)
        for a, b in bound_pairs(graph):
            labels[a] = labels[b] = max(labels[a], labels[b])
        for value, readers in enumerate(graph.consumers):
            made = graph.producer[value]
            for n in readers if made >= 0 and graph.moves[made] and not returns else ():
                labels[n] = max(labels[n], labels[made])
        changed = labels != before
    return Cut(tuple(labels))


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_program_cut_anywhere_gives_what_it_gives_whole(random_programs: ModuleType, data):
    program = data.draw(random_programs.programs())
    count = len(program.block.params)
    kinds = data.draw(st.lists(st.sampled_from("rio"), min_size=count, max_size=count))
    resident = [i for i in range(count) if kinds[i] == "r"]
    results = program.block.results
    owned = [i for i in range(count) if kinds[i] == "o" and program.block.params[i] not in results]
    names = tuple(f"p{i}" for i in range(count))
    function = Function("f", program.block, names, tuple(f"r{i}" for i in range(len(results))))
    returns = data.draw(st.booleans())
    cut = random_cut(data, graph_of(function, resident, owned), returns)
    try:
        parts = split(function, resident, cut, returns=returns, owned=owned)
    except CutError as error:
        assert returns and ("within a part" in error.message or "64 parts" in error.message)
        assume(False)
    if not returns:
        assert len({p.tier for p in parts.parts}) == len(parts.parts)
    args = [np.asarray(a) for a in program.args]
    inputs = [args[p.value] for p in parts.inputs]
    assert parts.resident == tuple(sorted((*resident, *owned)))
    same(parts, function, [args[i] for i in parts.resident], inputs)
