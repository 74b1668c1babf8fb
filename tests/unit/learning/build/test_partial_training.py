"""Frozen, shared and personal leaves in a bundle's programs."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import delian as dl
import numpy as np
import pytest
from delian.core import learning
from delian.core.common.errors import DelianError
from delian.core.compiler.ir import DType, TensorType
from delian.core.learning import Algorithm, Classification, Samples, SampleSet
from delian.core.learning.aggregate import chains
from delian.core.learning.build.bundle_builder import build
from delian.core.learning.build.partial_training import divided
from delian.core.learning.build.plain import PlainRuntime
from delian.core.learning.bundle import Bundle, load, parse
from delian.core.learning.leaf_roles import Roles
from delian.core.learning.runtime import Runtime

KEY = np.array([1, 2], np.uint32)
FROZEN, PERSONAL = Roles(frozen=("body.*",)), Roles(personal=("head.*",))
CHAIN = chains.chain(chains.clip(100.0), chains.quantise(), chains.mean())


@dl.module
class Net:
    body: dict[str, Any]
    head: dict[str, Any]

    def __call__(self, x: Any) -> Any:
        hidden = np.tanh(x @ self.body["w"] + self.body["b"])
        return hidden @ self.head["w"] + self.head["b"]


def first(key: Any) -> Net:
    keys = dl.random.split(key, 2)
    body = {"w": dl.random.normal(keys[0], (4, 6)), "b": np.zeros(6, np.float32)}
    head = {"w": dl.random.normal(keys[1], (6, 3)), "b": np.zeros(3, np.float32)}
    return Net(body, head)


TASK = Classification("net", first, Samples(5, 1.0))


def device(seed: int = 0) -> SampleSet:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(15, 4)).astype(np.float32)
    y = rng.integers(0, 3, 15).astype(np.int32)
    return SampleSet(x, y, np.array(10, np.int64), np.array(5, np.int64))


def made(algorithm: Algorithm, roles: Roles, windows: bool = False) -> Bundle:
    return build(
        TASK,
        algorithm,
        device(),
        example=TensorType(DType.F32, (2, 4)),
        clients_max=4,
        weight_max=10.0,
        seed=3,
        chain=CHAIN,
        windows=windows,
        roles=roles,
    )


def names(leaves: Any) -> list[str]:
    return [leaf.name for leaf in leaves]


def test_a_frozen_leaf_is_no_part_of_state_update_or_memory() -> None:
    bundle = made(learning.FedAvg(server=dl.nn.adam(0.1)), FROZEN)
    manifest = bundle.manifest
    assert names(manifest.state) == ["head.b", "head.w"]
    assert names(manifest.frozen) == ["body.b", "body.w"]
    assert manifest.dimension == 6 * 3 + 3
    assert sum(leaf.size for leaf in manifest.memory) < 3 * manifest.dimension
    # The programs that train take the frozen leaves, and have no derivative of them.
    assert len(bundle.programs["server_update"].param_types) == 4 + len(manifest.memory)


def test_training_the_head_alone_is_what_it_is_by_hand() -> None:
    bundle = made(learning.FedAvg(local=dl.nn.sgd(0.1)), FROZEN)
    runtime, data = Runtime(bundle, "reference"), device()
    update = runtime.client_update(bundle.weights, data, KEY)
    assert update.finite
    model, source, total = first(dl.random.key(3)), TASK.source, []
    order = source.order(data, dl.random.fold_in(dl.random.split(KEY, 2)[0], 0))
    for step in range(2):
        batch = source.batch(data, order, step)
        loss, slope = dl.value_and_grad(TASK.loss)(model, batch)
        head = {k: model.head[k] - np.float32(0.1) * slope.head[k] for k in model.head}
        model, total = Net(model.body, head), [*total, float(loss)]
    assert update.loss == pytest.approx(np.mean(total), rel=1e-5)
    # Twice: the second round begins with the same frozen body.
    after, _ = runtime.server_update(bundle.weights, runtime.memory(), wanted(model, bundle))
    np.testing.assert_allclose(after, flat(model), rtol=1e-5, atol=1e-6)


def flat(model: Net) -> Any:
    return np.concatenate([np.ravel(model.head["b"]), np.ravel(model.head["w"])])


def wanted(model: Net, bundle: Bundle) -> Any:
    return (flat(model) - bundle.weights).astype(np.float32)


def test_a_personal_leaf_goes_on_where_the_device_left_it() -> None:
    bundle = made(learning.FedAvg(local=dl.nn.sgd(0.1), personal_steps=0), PERSONAL)
    manifest = bundle.manifest
    assert names(manifest.state) == ["body.b", "body.w"]
    assert names(manifest.client_state) == ["personal.head.b", "personal.head.w"]
    runtime, data = Runtime(bundle, "reference"), device()
    begun = runtime.client_state(bundle.weights)
    np.testing.assert_array_equal(begun, flat(first(dl.random.key(3))))
    one = runtime.client_update(bundle.weights, data, KEY)
    two = runtime.client_update(bundle.weights, data, KEY, one.kept)
    assert not np.array_equal(one.kept, begun) and two.loss < one.loss
    # The device's own model is the shared body under its own head.
    own = runtime.personalise(bundle.weights, data, KEY, one.kept)
    np.testing.assert_array_equal(own, np.concatenate([bundle.weights, one.kept]))
    # Others judge the shared model under the head that was first drawn.
    np.testing.assert_array_equal(
        runtime.model_of(bundle.weights), np.concatenate([bundle.weights, begun])
    )


def test_a_personal_head_trains_as_in_the_whole_model() -> None:
    """One device, one round: shared and personal leaves together are FedAvg's whole model."""
    whole = Runtime(made(learning.FedAvg(), Roles()), "reference")
    split = Runtime(made(learning.FedAvg(), PERSONAL), "reference")
    a = whole.client_update(whole.bundle.weights, device(), KEY)
    b = split.client_update(split.bundle.weights, device(), KEY)
    assert a.loss == b.loss
    body = 4 * 6 + 6
    # Rounding into the ring draws other random numbers.
    assert np.max(np.abs((a.vector[:body] - b.vector[:body]).view(np.int32))) <= 1


ALGORITHMS: list[Algorithm] = [
    learning.FedAvg(server=dl.nn.adam(0.1)),
    learning.FedProx(),
    learning.FedSgd(),
    learning.Scaffold(),
    learning.FedDyn(),
    learning.FedNova(),
    learning.Ditto(),
    learning.Reptile(),
    learning.Fomaml(),
    learning.PFedMe(),
]


@pytest.mark.parametrize("roles", [FROZEN, PERSONAL, Roles(("body.b",), ("head.b",))], ids=str)
@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda a: type(a).__name__)
def test_algorithms_train_in_part(algorithm: Algorithm, roles: Roles) -> None:
    bundle = made(algorithm, roles)
    again = parse(bundle.to_bytes())
    runtime = Runtime(again, "reference")
    update = runtime.client_update(bundle.weights, device(), KEY)
    own = runtime.personalise(bundle.weights, device(), KEY, update.kept)
    score = runtime.evaluate(own, device(), KEY)
    assert update.finite and score.count == 5 and np.isfinite(score.loss)
    shared = {name.rpartition("body.")[2] for name in names(again.manifest.state)}
    assert not shared & set(names(again.manifest.frozen))


@pytest.mark.parametrize("kind", [learning.FedPer, learning.FedRep, learning.FedBabu])
def test_heads_are_not_uploaded(kind: Any) -> None:
    bundle = made(kind(), Roles())
    assert names(bundle.manifest.state) == ["body.b", "body.w"]
    assert bundle.manifest.dimension == 4 * 6 + 6


def test_windows_make_the_same_update() -> None:
    bundle = made(learning.FedAvg(), Roles(("body.b",), ("head.b",)), windows=True)
    runtime, data = Runtime(bundle, "reference"), device()
    whole = runtime.client_update(bundle.weights, data, KEY)
    carry = runtime.begin(bundle.weights)
    carry = runtime.chunk(bundle.weights, carry, data, KEY, epoch=0, window=0)
    update = runtime.end(bundle.weights, carry, KEY)
    np.testing.assert_array_equal(update.vector, whole.vector)
    np.testing.assert_array_equal(update.kept, whole.kept)


def test_debugging_runs_the_same_programs() -> None:
    roles, algorithm = Roles(("body.b",), ("head.b",)), learning.FedAvg()
    bundle = made(algorithm, roles)
    plain = PlainRuntime(bundle, TASK, algorithm, device(), CHAIN, roles)
    compiled = Runtime(bundle, "reference")
    a, b = (r.client_update(bundle.weights, device(), KEY) for r in (plain, compiled))
    assert a.loss == pytest.approx(b.loss, rel=1e-5)
    np.testing.assert_allclose(a.kept, b.kept, rtol=1e-4, atol=1e-6)


def test_a_bare_bundle_needs_its_frozen_leaves() -> None:
    bundle = made(learning.FedAvg(), FROZEN)
    bare = parse(bundle.bare().to_bytes())
    assert bare.frozen == () and bare.manifest.frozen_parts == bundle.manifest.frozen_parts
    with pytest.raises(DelianError, match="0 frozen leaves, where the bundle has 2"):
        Runtime(bare, "reference")
    with pytest.raises(DelianError, match="of other types"):
        Runtime(bare, "reference", frozen=[np.zeros(6, np.float64), *bundle.frozen[1:]])
    given = Runtime(bare, "reference", frozen=bundle.frozen)
    found = given.client_update(bundle.weights, device(), KEY)
    wanted = Runtime(bundle, "reference").client_update(bundle.weights, device(), KEY)
    np.testing.assert_array_equal(found.vector, wanted.vector)


def test_a_bare_bundle_has_no_first_personal_leaves() -> None:
    bundle = made(learning.FedAvg(), PERSONAL)
    assert bundle.model_of(bundle.weights).size == 4 * 6 + 6 + 6 * 3 + 3
    with pytest.raises(DelianError, match="lacks its frozen leaves"):
        bundle.bare().model_of(bundle.weights)


def test_other_frozen_leaves_are_another_bundle() -> None:
    bundle = made(learning.FedAvg(), FROZEN)
    changed = replace(bundle, frozen=(bundle.frozen[0] + 1, *bundle.frozen[1:]))
    with pytest.raises(DelianError, match="not what the manifest's hash says"):
        parse(changed.to_bytes())


def test_a_large_file_is_mapped_and_read_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle, file = made(learning.FedAvg(), FROZEN), tmp_path / "net.bundle"
    bundle.save(file)
    assert file.read_bytes() == bundle.to_bytes()
    monkeypatch.setattr("delian.core.learning.bundle._READ_MAX", 0)
    again = load(file)
    assert again.content_hash() == bundle.content_hash()
    for ours, theirs in zip(again.frozen, bundle.frozen, strict=True):
        np.testing.assert_array_equal(ours, theirs)
        assert ours.ctypes.data % 64 == 0 and not ours.flags.writeable


@pytest.mark.parametrize("limit", [0, 1 << 24])
def test_a_damaged_frozen_part_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    file = tmp_path / "net.bundle"
    made(learning.FedAvg(), FROZEN).save(file)
    whole = bytearray(file.read_bytes())
    # The name is in the manifest, then in front of the content, then in the table at the end.
    entry = whole.index(b"frozen/0.bin", whole.index(b"frozen/0.bin") + 1)
    whole[entry + 100] ^= 1
    file.write_bytes(whole)
    monkeypatch.setattr("delian.core.learning.bundle._READ_MAX", limit)
    with pytest.raises(DelianError, match="frozen/0\\.bin is not what the manifest's hash says"):
        load(file)
    file.write_bytes(bytes(whole[:-400]))
    with pytest.raises(DelianError, match=r"net\.bundle: not a bundle, or a damaged one"):
        load(file)


def test_frozen_leaves_keep_their_dtype() -> None:
    @dl.module
    class Rounded:
        codes: Any
        head: Any

        def __call__(self, x: Any) -> Any:
            return x @ self.codes.astype(np.float32) @ self.head

    rng = np.random.default_rng(0)
    codes = rng.integers(-9, 9, (4, 6)).astype(np.int8)
    model = Rounded(codes, rng.normal(size=(6, 3)).astype(np.float32))
    task = Classification("rounded", lambda key: model, Samples(5, 1.0))
    division = divided(task, learning.FedAvg(), Roles(frozen=("codes",)), 0)
    assert [leaf.dtype for leaf in division.frozen] == ["i8"]
    bundle = build(
        task,
        learning.FedAvg(),
        device(),
        example=None,
        clients_max=4,
        weight_max=10.0,
        seed=3,
        clip=1.0,
        roles=Roles(frozen=("codes",)),
    )
    update = Runtime(bundle, "native").client_update(bundle.weights, device(), KEY)
    assert update.finite and np.any(update.vector)


#: Rows of 4 numbers: 8 MiB.
TABLE_ROWS = 2**19


@dl.module
class Table:
    rows: Any
    head: Any

    def __call__(self, x: Any) -> Any:
        return (x + self.rows[0]) @ self.head


def test_a_build_holds_few_copies_of_frozen_leaves() -> None:
    """Tracing copies the arrays that it can reach, and there are seven programs."""

    def init(key: Any) -> Table:
        rows = np.ones((TABLE_ROWS, 4), np.float32)
        return Table(rows, dl.random.normal(key, (4, 3)))

    tracemalloc.start()
    try:
        found = build(
            Classification("table", init, Samples(5, 1.0)),
            learning.FedAvg(),
            device(),
            example=TensorType(DType.F32, (2, 4)),
            clients_max=4,
            weight_max=10.0,
            seed=3,
            chain=CHAIN,
            roles=Roles(frozen=("rows",)),
        )
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    (leaf,) = found.frozen
    assert leaf.nbytes == 16 * TABLE_ROWS and peak < 4.5 * leaf.nbytes
