"""Chains of stages: each order either works and gives what the tiers' own functions give, or is
refused by the names of two stages.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from delian.core.common.errors import DelianError
from delian.core.compiler import random
from delian.core.learning.aggregate import chains, robust, stage_order
from delian.core.learning.aggregate.chains import Chain, Round, read
from delian.core.learning.aggregate.stage_order import ChainError
from delian.core.learning.nn import adam
from delian.core.privacy.mechanisms import noise_mechanism, post_processing, ring
from delian.core.privacy.mechanisms.adaptive_clip import AdaptiveClip
from delian.core.privacy.mechanisms.ring import RingError
from delian.core.protocol.random_streams import device_key
from delian.core.wire.operator_pb2 import AggregationRule
from hypothesis import given, settings
from hypothesis import strategies as st

D, DEVICES, KEY = 12, 9, b"roundkey"
MODEL = np.linspace(-1, 1, D, dtype=np.float32)
COHORTS = ((0, 3, 6), (1, 4, 7), (2, 5, 8))
#: What orders are made of; `mean` and the others of its kind are drawn apart.
STAGES = (
    *(chains.clip(1.0), chains.quantise(20), chains.rotate(), chains.random_k(0.5)),
    *(chains.moving_clip(0.5), chains.noise(20.0, 1e-5), chains.top_k(0.3)),
    *(chains.mask(), chains.mask(cohorts=3), chains.server("momentum", 0.5)),
)
IN_ORDER = ["top_k", "clip", "rotate", "quantise", "moving_clip", "random_k", "noise", "mask"]
AGGREGATES = (chains.mean(), chains.fedbuff(), chains.trimmed_mean(0.34), chains.median())


def updates(seed=0, size=0.8):
    rng = np.random.default_rng(seed)
    drawn = rng.normal(size=(DEVICES, D)) * size / np.sqrt(D)
    return {d: drawn[d].astype(np.float32) * (1 + d % 3) for d in range(DEVICES)}


def weights(chain):
    noised = chain.get("noise") is not None
    return {} if noised else {d: (d + 1) / DEVICES for d in range(DEVICES)}


def noise_keys():
    return {d: bytes([d + 1]) * 32 for d in range(DEVICES)}


def a_round(chain, seed=0):
    cohorts = COHORTS if chain.get("mask") is not None and chain.get("mask").cohorts == 3 else ()
    return Round(MODEL, KEY, updates(seed), weights(chain), noise_keys(), cohorts)


def plan_of(chain, rounds=3):
    return chain.ring(D, DEVICES, chain.promise(rounds, DEVICES))


def by_the_tiers(chain, plan, seed=0):
    """The same round by the functions that devices, edges and the coordinator call."""
    names = [stage.group for stage in chain.stages]
    if "moving_clip" in names:
        clip = AdaptiveClip.of(plan, chain.get("moving_clip").quantile, 0.2)
        plan = ring.replace(plan, within=clip.clip)
    vectors = {}
    for device, update in updates(seed).items():
        own = np.array(device_key(KEY, device), np.uint32)
        weight = np.float32(weights(chain).get(device, 1.0))
        vector = ring.encode(update, weight, random.split(own, 2)[1], plan.base)
        vector = post_processing.finished(vector, plan, KEY, own)
        if plan.noise:
            noise_mechanism.guard(vector, plan)
            if not plan.central:
                noise_mechanism.add(vector, plan, noise_keys()[device])
        vectors[device] = vector
    cohorts = a_round(chain).cohorts if "mask" in names else ()
    if "rule" in names:
        rule = AggregationRule.Value(chain.get("rule").rule.upper())
        hostile = chain.get("rule").hostile
        if not cohorts:
            return robust.combine(list(vectors.values()), plan, rule, hostile)[0]
        sums = [np.sum([vectors[d] for d in c], axis=0, dtype=np.uint32) for c in cohorts]
        return robust.combine(sums, plan, rule, hostile, [len(c) for c in cohorts])[0]
    total = np.sum(list(vectors.values()), axis=0, dtype=np.uint32)
    if plan.central:
        noise_mechanism.add(total, plan, noise_keys()[0])
    return ring.decode(total, plan, KEY)[0]


def tried(stages):
    try:
        return Chain(tuple(stages)), None
    except ChainError as refusal:
        return None, refusal


@st.composite
def lists_of_stages(draw):
    """As they come, or with what every chain needs and in the order that works."""
    some = draw(st.lists(st.sampled_from(STAGES), max_size=5, unique_by=lambda s: s.group))
    if draw(st.booleans()):
        return draw(
            st.permutations([*some, *draw(st.lists(st.sampled_from(AGGREGATES), max_size=2))])
        )
    central = draw(st.booleans())
    if draw(st.booleans()):
        some = [s for s in some if s.group not in ("top_k", "mask")] + [chains.mask()]
    some = [s for s in some if s.group not in ("clip", "quantise")]
    places = {name: i for i, name in enumerate(IN_ORDER)} | ({"noise": 8} if central else {})
    stages = [*some, *STAGES[:2], draw(st.sampled_from(AGGREGATES[:2] if central else AGGREGATES))]
    return sorted(stages, key=lambda s: places.get(s.group, 9 + (s.group == "server")))


@settings(max_examples=120, deadline=None)
@given(lists_of_stages())
def test_any_order_is_refused_with_a_reason_or_gives_what_the_tiers_give(stages):
    if not stages:
        return
    chain, refusal = tried(stages)
    if chain is None:
        words, _, why = refusal.message.partition(": ")
        first, how, second = words.split(" ")
        assert how in ("before", "with", "without", "and") and len(why) > 20
        assert first in [stage.name for stage in stages]
        assert second in chains.MAKERS and (how == "without" or second in words)
        return
    if chain.get("top_k") is not None:
        return  # it has a test of its own: the tiers know nothing of it
    plan = plan_of(chain)
    made, after = chain.apply(plan, a_round(chain), chain.init(plan))
    mean = by_the_tiers(chain, plan)
    if chain.get("server") is None:
        np.testing.assert_array_equal(made, mean)
    else:
        np.testing.assert_allclose(made, MODEL + 0.5 * mean, rtol=1e-6, atol=1e-7)
        assert len(after) == len(stages)


def test_of_all_orders_only_the_noise_s_place_is_a_choice():
    """Six stages have 720 orders, and two of them work: noise by the devices, or behind the mask
    by the coordinator.
    """
    stages = [s for s in STAGES if s.name in ("clip", "quantise", "random_k", "noise")]
    found = []
    for each in itertools.permutations([*stages, chains.mask(), chains.mean()]):
        chain, _ = tried(each)
        found += [" ".join(stage.name for stage in chain.stages)] if chain else []
    assert sorted(found) == [
        "clip quantise random_k mask noise mean",
        "clip quantise random_k noise mask mean",
    ]


@pytest.mark.parametrize(
    ("text", "first", "second", "says"),
    [
        ("noise(8) | clip(1) | quantise | mask | mean", "noise", "clip", "no bounded sensitivity"),
        ("clip(1) | quantise | mask | random_k(0.1) | mean", "mask", "random_k", "destroyed"),
        ("clip(1) | quantise | mask | median", "rule", "mask", "only sums"),
        ("clip(1) | quantise | server | mean", "server", "mean", "comes last"),
        ("clip(1) | clip(2) | quantise | mean", "clip", "clip", "the shorter of the two"),
        ("clip(1) | mask | mean", "mask", "quantise", "f32 is no ring"),
        ("top_k(0.1) | clip(1) | quantise | mask | mean", "top_k", "mask", "other coordinates"),
        ("clip(1) | top_k(0.1) | quantise | mean", "clip", "top_k", "remembered"),
        ("quantise | clip(1) | mean", "quantise", "clip", "real numbers"),
        ("clip(1) | quantise | noise(8) | mean", "noise", "mask", "masked sums"),
        ("clip(1) | quantise", "clip", "mean", "nothing makes one update of many"),
    ],
)
def test_a_refusal_names_the_two_stages_and_says_why(text, first, second, says):
    with pytest.raises(ChainError, match=says) as caught:
        read(text)
    assert (caught.value.first, caught.value.second) == (first, second)
    assert caught.value.hint


def test_every_row_of_the_table_refuses_something():
    """A row that no stages run into would be a rule that nobody keeps."""
    known = {s.group: s for s in (*STAGES, *AGGREGATES)}
    known["mask"] = chains.mask()
    other = {"mask": chains.mask(cohorts=2, helpers=1)}
    for row in stage_order.REFUSALS:
        for first in row.first:
            for second in row.second:
                pair = [{**known, **(other if row.only else {})}[g] for g in (first, second)]
                given = pair[:1] if row.how == "without" else pair
                row_alone = [r for r in stage_order.REFUSALS if r is row]
                with pytest.raises(ChainError) as caught:
                    stage_order.check_rows(row_alone, given)
                assert caught.value.first == first


def test_the_documentation_shows_the_table():
    page = Path(__file__).parents[4] / "docs" / "algorithms.md"
    assert stage_order.markdown() in page.read_text(), "paste what `stage_order.markdown()` gives"


@pytest.mark.parametrize(
    "text",
    [
        "clip(norm=1) | quantise | mean",
        "clip(norm=0.5) | rotate | quantise(bits=16) | moving_clip(quantile=0.6) |"
        " random_k(share=0.1) | noise(epsilon=8, delta=1e-05) | mask(least=5) | mean |"
        " server(optimizer=adam, learning_rate=0.01)",
        "clip(norm=2) | quantise | mask(cohorts=3) | trimmed_mean(hostile=0.3)",
        "top_k(share=0.05) | clip(norm=1) | quantise(bits=8) | mean |"
        " server(learning_rate=0.5, decay_rounds=20)",
        "clip(norm=1) | quantise | mask(helpers=2) | fedbuff(staleness_max=4)",
    ],
)
def test_a_chain_prints_what_it_is_read_from(text):
    assert str(read(text)) == text
    assert read(text.replace("norm=", "")) == read(text)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is no stage"),
        ("clip(1) | frobnicate | mean", "`frobnicate` is no stage"),
        ("clip | quantise | mean", "lacks a number"),
        ("clip(1 | mean", "a bracket lacks its other half"),
        ("clip(1) | quantize(8) | mean", "did you mean `quantise`"),
        ("clip(1) | quantise(8) | maks | mean", "did you mean `mask`"),
        ("clip(1, 2) | mean", "no number for `2`"),
        ("clip(norm=1, norm=2) | mean", "no number for"),
        ("clip(x) | mean", "`x` is no number"),
        ("clip(0) | mean", "the norm is 0"),
        ("random_k(2) | mean", "the share is 2"),
        ("quantise(40) | mean", "a ring of 40 bits"),
        ("server(lion) | mean", "no optimiser `lion`"),
        ("server(adam, 0.1, -1) | mean", "decay_rounds is -1"),
        ("server(adam, 0.1, 1.5) | mean", "`1.5` is no number"),
        ("krum(0.7)", "hostile is 0.7"),
        ("mask(dropout=1)", "dropout is 1"),
        ("x" * 3000, "3000 characters"),
        (" | ".join(["rotate"] * 17), "17 stages"),
    ],
)
def test_what_is_no_chain_is_told_in_words(text, says):
    with pytest.raises(DelianError, match=says.replace("(", r"\(")):
        read(text)


def test_noise_hides_the_largest_change_that_one_device_can_make():
    """Sensitivity: with a device's update or zeros in its place, the sums before noise differ by at
    most what the accountant was told, whatever the update; one that does not keep to it is refused.
    """
    chain = read("clip(1) | rotate | quantise | random_k(0.5) | noise(4, 1e-5) | mask | mean")
    plan = plan_of(chain)
    most = noise_mechanism.sensitivity(plan)[0]
    rng = np.random.default_rng(1)
    lengths = []
    for scale in (1e-3, 1.0, 1e6):
        update = (rng.normal(size=D) * scale).astype(np.float32)
        value = ring.encode(update, np.float32(1), random.key(3), plan.base)
        vector = post_processing.chosen(value, plan, KEY)
        zeros = post_processing.chosen(
            ring.encode(0 * update, np.float32(1), random.key(3), plan.base), plan, KEY
        )
        gap = (vector - zeros)[:-1].view(np.int32).astype(np.float64)
        lengths.append(float(np.linalg.norm(gap)))
        assert int(vector[-1]) == int(zeros[-1]), "a weight would tell of the data"
    assert max(lengths) <= most and max(lengths) > 0.4 * most
    stage = chain.get("noise")
    turn = chains.Turn(plan, noise=bytes(32))
    unclipped = np.full(plan.length, 2**20, np.uint32)
    unclipped[-1] = int(plan.weight_scale)
    with pytest.raises(RingError, match="does not clip"):
        stage.apply(unclipped, (), turn)


def test_noise_of_the_devices_is_as_large_as_was_planned():
    chain = read("clip(1) | quantise | noise(4, 1e-5) | mask | mean")
    plan = plan_of(chain)
    zero = {d: np.zeros(D, np.float32) for d in range(DEVICES)}
    drawn = []
    for seed in range(40):
        keys = {d: bytes([seed, d]) * 16 for d in range(DEVICES)}
        made, _ = chain.apply(plan, Round(MODEL, KEY, zero, {}, keys), chain.init(plan))
        drawn.append(made)
    assert np.std(drawn) == pytest.approx(plan.noise / np.sqrt(DEVICES), rel=0.15)


def test_top_k_says_the_largest_and_remembers_the_rest():
    """Stich et al. 2018, algorithm 1, by hand: what was not said is added to the next update, and
    nothing is lost.
    """
    chain = read("top_k(0.25) | clip(10) | quantise(32) | mean")
    plan = plan_of(chain)
    state = chain.init(plan)
    memory, said = np.zeros(D, np.float64), np.zeros(D, np.float64)
    for number in range(4):
        update = updates(seed=number)[4]
        made, state = chain.apply(plan, Round(MODEL, KEY, {4: update}), state)
        wanted = memory + update
        largest = np.argsort(-np.abs(wanted))[:3]
        expected = np.zeros(D)
        expected[largest] = wanted[largest]
        np.testing.assert_allclose(made, expected, atol=1e-6)
        memory, said = wanted - expected, said + made
    total = sum(updates(seed=n)[4] for n in range(4))
    np.testing.assert_allclose(said + state[0][4], total, atol=1e-5)


def test_of_equal_coordinates_top_k_says_the_first():
    stage, plan = chains.top_k(0.25), ring.RingPlan(10.0, 1, D)
    even = chains.Update((np.ones(D, np.float32),))
    sent, memory = stage.apply(even, stage.init(plan), chains.Turn(plan))
    assert sent.parts[0].tolist() == [1.0] * 3 + [0.0] * 9
    assert memory.tolist() == [0.0] * 3 + [1.0] * 9


def test_a_chain_is_a_pair_that_does_not_change_what_it_is_given():
    chain = read("clip(1) | quantise | moving_clip(0.1, 0.5) | mean | server(adam, 0.1)")
    plan = plan_of(chain)
    first = chain.init(plan)
    one, after = chain.apply(plan, a_round(chain), first)
    two, _ = chain.apply(plan, a_round(chain), first)
    np.testing.assert_array_equal(one, two)
    moved = [state[2].clip for state in (first, after)]
    assert moved[0] == plan.clip / ring.LENGTHENED and moved[1] != moved[0]
    mean, _ = Chain(chain.stages[:-1]).apply(plan, a_round(chain), first[:-1])
    optimizer = adam(0.1)
    step, _ = optimizer.update(-mean, optimizer.init(MODEL), MODEL)
    np.testing.assert_array_equal(one, MODEL + step)


def test_the_server_s_rate_falls_to_zero_along_half_a_cosine():
    stage = chains.server("sgd", 0.5, decay_rounds=4)
    plan = ring.RingPlan(10.0, 1, D)
    state, rates = stage.init(plan), []
    for _ in range(6):
        turn = chains.Turn(plan, model=MODEL)
        model, state = stage.apply(np.ones(D, np.float32), state, turn)
        rates.append((model - MODEL).mean())
    half = 0.5**0.5
    falling = [1.0, 0.5 + 0.5 * half, 0.5, 0.5 - 0.5 * half, 0.0, 0.0]
    np.testing.assert_allclose(rates, np.multiply(0.5, falling), atol=1e-6)


def test_older_updates_count_less_and_the_oldest_not_at_all():
    chain = read("clip(10) | quantise | fedbuff(staleness_max=3)")
    plan = plan_of(chain)
    two = {d: np.full(D, 1.0 + d, np.float32) for d in range(3)}
    given = Round(MODEL, KEY, two, {}, {}, (), {1: 3, 2: 4})
    made, _ = chain.apply(plan, given, chain.init(plan))
    # 1 / sqrt(1 + 3) is a half; the third is older than that.
    np.testing.assert_allclose(made, (1.0 + 0.5 * 2.0) / 2, atol=1e-5)


def test_a_chain_as_a_table_says_where_each_stage_runs():
    rows = read("clip(1) | quantise | mask | noise(8) | mean | server").rows()
    assert [row[0].partition("(")[0] for row in rows] == [
        *("clip", "quantise", "mask", "noise", "mean", "server")
    ]
    assert rows[3][1:] == ("cloud", "sums", "sums") and rows[4][2] == "sums"
    assert read("clip(1) | quantise | mean").rows()[2][2] == "elements"
