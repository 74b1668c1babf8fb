"""A bundle survives the way through a file, and a damaged one is refused with a reason."""

from __future__ import annotations

import io
import json
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import delian as dl
import numpy as np
import pytest
from delian.core.common.errors import DelianError
from delian.core.compiler.ir import DType, TensorType
from delian.core.learning import (
    Classification,
    FedAvg,
    FedDyn,
    Maml,
    MetaSgd,
    Metrics,
    Samples,
    SampleSet,
    Scaffold,
)
from delian.core.learning import bundle as bundles
from delian.core.learning.build.bundle_builder import build
from delian.core.learning.bundle import Bundle
from delian.core.learning.nn import Mlp, adam, sgd
from delian.core.learning.runtime import Runtime
from delian.core.privacy.mechanisms import ring
from hypothesis import given, settings
from hypothesis import strategies as st

ROWS = SampleSet(
    np.random.default_rng(0).integers(0, 17, (12, 4, 4)).astype(np.uint8),
    np.arange(12, dtype=np.int32) % 3,
    np.array(8),
    np.array(3),
)
KEY = dl.random.key(11)


def make(algorithm: object = None, seed: int = 1) -> Bundle:
    task = Classification("tiny", lambda key: Mlp.init(key, 16, (5,), 3), Samples(4, 1 / 16))
    return build(
        task,
        algorithm or FedAvg(local=sgd(0.1, 0.9), server=adam(0.01)),
        ROWS,
        example=TensorType(DType.F32, (2, 4, 4)),
        clip=5.0,
        clients_max=4,
        weight_max=8.0,
        seed=seed,
    )


@pytest.fixture(scope="module")
def made() -> Bundle:
    return make()


def test_a_file_gives_back_the_same_bundle(made: Bundle, tmp_path: Path) -> None:
    path = tmp_path / "tiny.bundle"
    made.save(path)
    back = bundles.load(path)
    assert back.manifest == made.manifest
    assert back.content_hash() == made.content_hash()
    assert back.to_bytes() == path.read_bytes()
    np.testing.assert_array_equal(back.weights, made.weights)
    first, second = Runtime(made, "reference"), Runtime(back, "reference")
    a = first.client_update(made.weights, ROWS, KEY)
    b = second.client_update(back.weights, ROWS, KEY)
    np.testing.assert_array_equal(a.vector, b.vector)


def test_a_bare_bundle_runs_without_weights_of_its_own(made: Bundle) -> None:
    bare = bundles.parse(made.bare().to_bytes())
    assert bare.weights.size == 0
    assert len(made.to_bytes()) - len(made.bare().to_bytes()) > made.weights.nbytes
    update = Runtime(bare, "reference").client_update(made.weights, ROWS, KEY)
    assert update.finite


def test_equal_recipes_make_equal_bundles_and_seeds_differ(made: Bundle) -> None:
    assert make().to_bytes() == made.to_bytes()
    assert make(seed=2).content_hash() != made.content_hash()


def test_the_manifest_names_every_leaf(made: Bundle) -> None:
    assert [leaf.name for leaf in made.manifest.state] == [
        "layers.0.weight",
        "layers.0.bias",
        "layers.1.weight",
        "layers.1.bias",
    ]
    assert made.manifest.dimension == 16 * 5 + 5 + 5 * 3 + 3 == made.weights.size
    assert made.manifest.model == (0, 1, 2, 3)


def test_a_state_may_be_a_single_array() -> None:
    """Where the model is one array, its leaf has no name."""

    @dataclass(frozen=True)
    class Linear(Classification):
        def loss(self, model: Any, batch: Any) -> Any:
            scores = batch.x.reshape(batch.x.shape[0], -1) @ model
            losses = dl.ops.cross_entropy(scores, batch.y)
            return np.sum(losses * batch.weight) / np.sum(batch.weight)

        def metrics(self, model: Any, batch: Any) -> Any:
            count = np.sum(batch.weight)
            return Metrics(self.loss(model, batch), count, count)

        def infer(self, model: Any, x: Any) -> Any:
            return x.reshape(x.shape[0], -1) @ model

    task = Linear("linear", lambda key: np.zeros((16, 3), np.float32), Samples(4, 1 / 16))
    made = build(
        task,
        FedAvg(),
        ROWS,
        example=TensorType(DType.F32, (2, 4, 4)),
        clip=5.0,
        clients_max=4,
        weight_max=8.0,
        seed=1,
    )
    back = bundles.parse(made.to_bytes())
    assert [leaf.name for leaf in back.manifest.state] == [""]
    assert Runtime(back, "reference").client_update(back.weights, ROWS, KEY).finite


def test_meta_sgd_uploads_rates_and_serves_the_model() -> None:
    made = make(MetaSgd())
    assert made.manifest.dimension == 2 * 103
    assert made.manifest.model == (0, 1, 2, 3)
    assert Runtime(made, "reference").model_of(made.weights).size == 103


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(dl.DelianError, match=r"nowhere\.bundle: cannot be read"):
        bundles.load(tmp_path / "nowhere.bundle")


def test_a_truncated_file_is_refused(made: Bundle) -> None:
    data = made.to_bytes()
    for length in (0, 1, 100, len(data) // 2, len(data) - 1):
        with pytest.raises(dl.DelianError, match="damaged"):
            bundles.parse(data[:length])


def test_a_changed_weight_is_refused(made: Bundle) -> None:
    data = bytearray(made.to_bytes())
    at = data.index(np.ascontiguousarray(made.weights, "<f4").tobytes()[:16])
    data[at] ^= 1
    with pytest.raises(dl.DelianError):
        bundles.parse(bytes(data))


def test_a_part_that_the_manifest_does_not_vouch_for_is_refused(made: Bundle) -> None:
    parts = dict(made.parts())
    parts["weights.f32"] = b"\0" * len(parts["weights.f32"])
    with zipfile.ZipFile(io.BytesIO(made.to_bytes())) as archive:
        manifest = archive.read("manifest.json")
    with pytest.raises(dl.DelianError, match=r"weights\.f32 is not what the manifest's hash says"):
        bundles.parse(_zip({"manifest.json": manifest, **parts}))


def test_another_format_is_refused(made: Bundle) -> None:
    with zipfile.ZipFile(io.BytesIO(made.to_bytes())) as archive:
        body = json.loads(archive.read("manifest.json"))
    body["format"] = 99
    with pytest.raises(dl.DelianError, match="not of bundle format 1"):
        bundles.parse(_zip({"manifest.json": json.dumps(body).encode(), **made.parts()}))


@pytest.mark.parametrize("method", [8, 12, 14, 99], ids=["deflate", "bzip2", "lzma", "none"])
def test_parts_that_are_said_to_be_compressed_and_are_not_are_refused(
    made: Bundle, method: int
) -> None:
    data, entry = bytearray(made.to_bytes()), b"PK\x01\x02"  # in the directory at the end
    at = data.index(entry)
    while at >= 0:
        data[at + 10] = method
        at = data.find(entry, at + 4)
    with pytest.raises(dl.DelianError, match="a damaged one"):
        bundles.parse(bytes(data))


@settings(max_examples=60, deadline=None)
@given(at=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_no_damage_passes_unseen(made: Bundle, at: float, bit: int) -> None:
    """Any flipped bit is refused, or changes nothing that is read (a zip's dates and such)."""
    data = bytearray(made.to_bytes())
    data[int(at * len(data))] ^= 1 << bit
    try:
        back = bundles.parse(bytes(data))
    except dl.DelianError:
        return
    assert back.content_hash() == made.content_hash()


def _zip(parts: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def test_an_update_is_decoded_to_what_the_device_learnt() -> None:
    """One device's ring vector, read back, is its clipped update to within the rounding step."""
    runtime = Runtime(make(FedAvg(epochs=2)), "native")
    update = runtime.client_update(runtime.bundle.weights, ROWS, KEY)
    assert update.finite and np.isfinite(update.loss)
    mean, weight = ring.decode(update.vector, runtime.ring)
    assert weight == pytest.approx(1.0)
    assert 0 < np.linalg.norm(mean) <= 5.0
    after, _ = runtime.server_update(runtime.bundle.weights, runtime.memory(), mean)
    np.testing.assert_allclose(after, runtime.bundle.weights + mean, rtol=1e-6)
    judged = runtime.evaluate(after, ROWS, KEY)
    assert judged.count == 3


def test_native_and_reference_agree_on_every_program() -> None:
    made = make(Maml(epochs=2, inner_steps=2))
    native, reference = Runtime(made, "native"), Runtime(made, "reference")
    state = made.weights
    a, b = (r.client_update(state, ROWS, KEY) for r in (native, reference))
    assert a.loss == pytest.approx(b.loss, rel=1e-5)
    one, two = (ring.decode(u.vector, native.ring)[0] for u in (a, b))
    np.testing.assert_allclose(one, two, atol=1e-5)
    own, other = (r.personalise(state, ROWS, KEY) for r in (native, reference))
    np.testing.assert_allclose(own, other, atol=1e-5)
    assert native.evaluate(own, ROWS, KEY).loss == pytest.approx(
        reference.evaluate(own, ROWS, KEY).loss, rel=1e-4
    )
    x = np.ones((2, 4, 4), np.float32)
    np.testing.assert_allclose(native.infer(own, x), reference.infer(own, x), atol=1e-5)


def test_inference_takes_rows_as_they_are_in_the_data(made: Bundle) -> None:
    """What is judged and what is inferred are scaled alike: their losses are equal."""
    runtime = Runtime(made, "reference")
    state = made.weights
    for _ in range(30):
        update = runtime.client_update(state, ROWS, KEY)
        state = runtime.server_update(
            state, runtime.memory(), ring.decode(update.vector, runtime.ring)[0]
        )[0]
    query = slice(8, 11)
    x, y = ROWS.x[query].astype(np.float32), ROWS.y[query]
    padded = np.concatenate([x, x[:1]])
    logits = np.concatenate([runtime.infer(state, padded[i : i + 2]) for i in (0, 2)])[:3]
    shifted = logits - logits.max(axis=1, keepdims=True)
    losses = np.log(np.exp(shifted).sum(axis=1)) - shifted[np.arange(3), y]
    assert runtime.evaluate(state, ROWS, KEY).loss == pytest.approx(losses.sum(), rel=1e-5)


def test_a_diverged_update_is_marked() -> None:
    runtime = Runtime(make(FedAvg(local=sgd(1e30))), "native")
    assert not runtime.client_update(runtime.bundle.weights, ROWS, KEY).finite


def test_weights_of_another_bundle_are_refused(made: Bundle) -> None:
    with pytest.raises(dl.DelianError, match=r"f32\[103\] is needed"):
        Runtime(made, "reference").client_update(np.zeros(7, np.float32), ROWS, KEY)


@pytest.mark.parametrize("changes", [{"clip": 10**400}, {"clients_max": float("inf")}])
def test_a_number_beyond_all_bounds_is_refused(made: Bundle, changes: dict[str, Any]) -> None:
    body = {**made._body(), **changes}
    with pytest.raises(dl.DelianError, match="the manifest is incomplete"):
        bundles.parse(bundles.pack(body, made.parts()))


@pytest.mark.parametrize("weight", [0.5, 1.0, 20.0])
def test_scaffold_moves_its_control_by_the_share_that_reported(weight: float) -> None:
    """Line 17: c <- c + |S|/N mean; of more than the fleet a buffered run may count some twice."""
    runtime = Runtime(make(Scaffold(fleet=10, share=0.9)), "reference")
    half = len(runtime.bundle.weights) // 2
    mean = np.ones(2 * half, np.float32)
    after, _ = runtime.server_update(runtime.bundle.weights, runtime.memory(), mean, weight=weight)
    moved = after - runtime.bundle.weights
    np.testing.assert_allclose(moved[:half], 1.0, rtol=1e-6)
    np.testing.assert_allclose(moved[half:], min(weight * 8 / 10, 1.0), rtol=1e-6)


@pytest.mark.parametrize("weight", [1.0, 5.0])
def test_feddyn_moves_its_memory_by_the_share_that_reported(weight: float) -> None:
    """h <- h - alpha |P|/m mean."""
    runtime = Runtime(make(FedDyn(fleet=100, alpha=0.5)), "reference")
    mean = np.ones_like(runtime.bundle.weights)
    _, memory = runtime.server_update(runtime.bundle.weights, runtime.memory(), mean, weight=weight)
    for leaf in memory:
        np.testing.assert_allclose(leaf, -0.5 * weight * 8 / 100, rtol=1e-6)


def test_an_update_that_needs_the_sum_of_weights_says_so() -> None:
    runtime = Runtime(make(Scaffold(fleet=10)), "reference")
    mean = np.zeros_like(runtime.bundle.weights)
    with pytest.raises(DelianError, match="needs the sum of weights"):
        runtime.server_update(runtime.bundle.weights, runtime.memory(), mean)
