"""`client_update` as three programs over windows of rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from delian.core.common.errors import DelianError
from delian.core.compiler import random
from delian.core.learning import (
    Algorithm,
    Classification,
    FedAvg,
    FedDyn,
    FedNova,
    FedPer,
    FedProx,
    FedSam,
    FedSgd,
    Maml,
    Reptile,
    Samples,
    SampleSet,
    Scaffold,
)
from delian.core.learning.aggregate import chains
from delian.core.learning.build.bundle_builder import build
from delian.core.learning.bundle import SEEN, TOTAL, WINDOW_PROGRAMS, Bundle, parse
from delian.core.learning.disclosure.explained import explained
from delian.core.learning.disclosure.keys import check_keys
from delian.core.learning.nn import Mlp, adam, sgd
from delian.core.learning.runtime import Runtime

ROWS, SUPPORT, QUERY = 40, 30, 7
KEY = random.key(5)


def rows(seed: int = 0, support: int = SUPPORT) -> SampleSet:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(ROWS, 4)).astype(np.float32)
    y = rng.integers(0, 3, ROWS).astype(np.int32)
    return SampleSet(x, y, np.array(support, np.int64), np.array(QUERY, np.int64))


def built(algorithm: Algorithm, windows: bool = True, **options: Any) -> Bundle:
    samples = Samples(8, 1.0, last_batch=options.pop("last_batch", "fill"))
    task = Classification("t", lambda key: Mlp.init(key, 4, (3,), 3), samples)
    example = np.zeros((2, 4), np.float32)
    numbers = {"clients_max": 4, "weight_max": 64.0, "seed": 1, **options}
    if "chain" not in numbers:
        numbers["clip"] = 5.0
    return build(task, algorithm, rows(), example=example, windows=windows, **numbers)


def by_windows(
    runtime: Runtime, state: Any, windows: list[SampleSet], epochs: int, kept: Any = None
) -> Any:
    carry = runtime.begin(state, kept)
    for epoch in range(epochs):
        for window, data in enumerate(windows):
            carry = runtime.chunk(state, carry, data, KEY, kept, epoch=epoch, window=window)
    return runtime.end(state, carry, KEY, kept)


@pytest.mark.parametrize("last_batch", ["fill", "weigh"])
@pytest.mark.parametrize(
    "algorithm",
    [
        FedAvg(epochs=3, local=adam(0.01)),
        FedProx(epochs=2, local=sgd(0.1, momentum=0.9)),
        FedSam(epochs=2),
        FedDyn(epochs=2),
        FedNova(epochs=3),
        FedPer(epochs=2),
        Scaffold(epochs=2),
        Maml(epochs=2),
    ],
    ids=lambda algorithm: type(algorithm).__name__,
)
def test_of_one_window_the_update_is_that_of_one_call_to_the_bit(algorithm, last_batch):
    bundle = built(algorithm, last_batch=last_batch)
    runtime, state = Runtime(bundle, "reference"), bundle.weights
    kept = runtime.client_state(state) + np.float32(0.01)
    one = runtime.client_update(state, rows(), KEY, kept)
    three = by_windows(runtime, state, [rows()], algorithm.epochs, kept)
    np.testing.assert_array_equal(three.vector, one.vector)
    np.testing.assert_array_equal(three.kept, one.kept)
    assert (three.loss, three.finite) == (one.loss, True) == (one.loss, one.finite)


def test_stages_that_remember_go_on_remembering():
    chain = chains.chain(chains.top_k(0.5), chains.clip(5.0), chains.quantise(), chains.mean())
    bundle = built(FedAvg(), chain=chain)
    runtime, state = Runtime(bundle, "reference"), bundle.weights
    assert runtime.kept_size
    one = runtime.client_update(state, rows(), KEY)
    three = by_windows(runtime, state, [rows()], 1)
    np.testing.assert_array_equal(three.vector, one.vector)
    np.testing.assert_array_equal(three.kept, one.kept)


def test_two_windows_are_two_trainings_one_after_the_other():
    """Of one batch each, whose order is of no account."""
    task = Classification("t", lambda key: Mlp.init(key, 4, (3,), 3), Samples(ROWS, 1.0))
    example = np.zeros((2, 4), np.float32)
    numbers = {"clients_max": 4, "weight_max": 64.0, "seed": 1, "clip": 100.0}
    bundle = build(task, FedAvg(), rows(), example=example, windows=True, **numbers)
    runtime, state, plan = Runtime(bundle, "reference"), bundle.weights, bundle.manifest.ring

    def moved(update: Any, share: float) -> Any:
        step = update.vector[:-1].view(np.int32) / (plan.scale * share)
        return step.astype(np.float32)

    each = [rows(0), rows(1, support=20)]
    first = runtime.client_update(state, each[0], KEY)
    middle = state + moved(first, SUPPORT / 64)
    second = runtime.client_update(middle, each[1], KEY)
    whole = by_windows(runtime, state, each, 1)
    wanted = moved(first, SUPPORT / 64) + moved(second, 20 / 64)
    np.testing.assert_allclose(moved(whole, (SUPPORT + 20) / 64), wanted, atol=2e-3)
    assert whole.loss == pytest.approx((first.loss + second.loss) / 2, rel=1e-3)


def test_a_window_without_rows_to_train_on_changes_nothing():
    bundle = built(FedAvg(epochs=2))
    runtime, state = Runtime(bundle, "reference"), bundle.weights
    alone = by_windows(runtime, state, [rows()], 2)
    carry = runtime.begin(state)
    for epoch in range(2):
        carry = runtime.chunk(state, carry, rows(), KEY, epoch=epoch, window=0)
        carry = runtime.chunk(state, carry, rows(1, support=0), KEY, epoch=epoch, window=1)
    np.testing.assert_array_equal(runtime.end(state, carry, KEY).vector, alone.vector)


def test_what_is_not_finite_is_said_at_the_end():
    bundle = built(FedAvg())
    runtime, state = Runtime(bundle, "reference"), bundle.weights
    broken = rows()._replace(x=np.full((ROWS, 4), np.nan, np.float32))
    assert not by_windows(runtime, state, [broken], 1).finite


def test_a_bundle_without_windows_is_as_it_was():
    plain, windowed = built(FedAvg(), windows=False), built(FedAvg())
    assert plain.manifest.carry == ()
    assert plain.parts().items() < windowed.parts().items()
    assert set(windowed.programs) - set(plain.programs) == set(WINDOW_PROGRAMS)
    assert b"carry" not in plain.to_bytes()


def test_the_manifest_lists_the_carry_and_a_file_keeps_it():
    bundle = built(FedAvg(local=sgd(0.1, momentum=0.9)))
    names = [leaf.name for leaf in bundle.manifest.carry]
    assert {SEEN, TOTAL} < {*names}
    assert bundle.manifest.passes == 1
    state = sum(leaf.size for leaf in bundle.manifest.state)
    assert sum(leaf.size for leaf in bundle.manifest.carry) == 2 * state + 4
    assert parse(bundle.to_bytes()).manifest == bundle.manifest


def test_the_keys_of_chunks_are_checked_like_all_others():
    bundle = built(FedAvg())
    chunk, end = bundle.programs["update_chunk"], bundle.programs["update_end"]
    assert check_keys(bundle) is bundle
    # The program of an end in the place of a chunk has other ports than the manifest says.
    with pytest.raises(DelianError, match="where its manifest has other leaves"):
        check_keys(
            Bundle(bundle.manifest, {**bundle.programs, "update_chunk": end}, bundle.weights)
        )
    with pytest.raises(DelianError, match="where its manifest has other leaves"):
        check_keys(
            Bundle(bundle.manifest, {**bundle.programs, "update_end": chunk}, bundle.weights)
        )


def test_the_carry_stays_on_the_device_and_counts_as_data():
    facts = explained(built(FedAvg()))
    chunk = facts["programs"]["update_chunk"]
    assert [out["goes"] for out in chunk["outputs"]] == ["stays on the device"]
    assert "data" in chunk["outputs"][0]["values"]
    end = {out["kind"]: out for out in facts["programs"]["update_end"]["outputs"]}
    assert end["update"]["leaves"]
    assert "carry" in end["update"]["values"]
    assert facts["sent"]["data"]


@pytest.mark.parametrize(
    ("algorithm", "why"),
    [
        (FedSgd(), "FedSgd cannot train on windows of rows: it has a client_update of its own"),
        (Reptile(), "Reptile cannot train on windows of rows: it takes 5 local steps"),
        (FedAvg(local_steps=3), "it takes 3 local steps, and no passes over all rows"),
    ],
)
def test_an_algorithm_that_cannot_is_refused_and_the_others_are_named(algorithm, why):
    with pytest.raises(DelianError) as caught:
        built(algorithm)
    assert why in caught.value.message
    assert "FedAvg, FedBabu" in caught.value.hint
    assert "Reptile" not in caught.value.hint


def test_episodes_have_no_windows():
    from delian.core.learning import Episodes, EpisodeTable

    table = EpisodeTable(np.zeros((5, 4, 2, 2), np.uint8), np.array(5, np.int64))
    task = Classification(
        "t", lambda key: Mlp.init(key, 4, (3,), 2), Episodes(2, 1, 1, per_pass=2, scale=1.0)
    )
    with pytest.raises(DelianError, match="windows are of rows"):
        build(
            task,
            Maml(),
            table,
            example=np.zeros((2, 2, 2), np.uint8),
            clients_max=4,
            weight_max=1.0,
            seed=1,
            clip=1.0,
            windows=True,
        )
