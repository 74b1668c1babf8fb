"""Bundles of steps: what both sides of split training derive their parts from."""

from __future__ import annotations

import io
import json
import zipfile

import numpy as np
import pytest
from delian.core.common.errors import DelianError
from delian.core.compiler import random, tree
from delian.core.compiler.ir import DType, TensorType
from delian.core.learning import Classification, Samples
from delian.core.learning.bundle import pack, unpack
from delian.core.learning.nn import Mlp, sgd
from delian.core.placement.cut.cut import DEVICE, EDGE, CutError
from delian.core.placement.cut.owned_weights import cut_at
from delian.core.placement.split_training.step_bundle import StepBundle

HOMES = {0: DEVICE, 1: DEVICE, 2: EDGE, 3: EDGE, 4: DEVICE, 5: DEVICE}


@pytest.fixture(scope="module")
def bundle():
    task = Classification("net", lambda key: Mlp.init(key, 5, (4, 8), 3), Samples(6, 1.0))
    x, y = TensorType(DType.F32, (6, 5)), TensorType(DType.I64, (6,))
    model = task.init(random.key(3))
    return StepBundle.of(task, sgd(0.1, momentum=0.9), model, x, y, labels_stay=True)


def test_a_step_is_the_same_after_a_file(bundle, tmp_path):
    bundle.save(tmp_path / "step.dlb")
    read = StepBundle.load(tmp_path / "step.dlb")
    assert read.content_hash() == bundle.content_hash()
    assert read.to_bytes() == bundle.to_bytes()
    assert read.leaves == bundle.leaves and read.step.ceilings == bundle.step.ceilings
    cut = cut_at(bundle.step, HOMES)
    assert cut_at(read.step, HOMES) == cut
    ours, theirs = bundle.parts(cut), read.parts(cut)
    assert ours.messages == theirs.messages and ours.homes == theirs.homes


def test_the_step_that_was_read_refuses_to_send_rows_and_labels_up(bundle):
    read = StepBundle.parse(bundle.to_bytes())
    everything_above = dict.fromkeys(range(6), EDGE)
    with pytest.raises(DelianError):
        read.parts(cut_at(read.step, everything_above))
    labels = [EDGE if n >= 0 else n for n in cut_at(read.step, HOMES).labels]
    with pytest.raises(CutError):
        read.parts(type(cut_at(read.step, HOMES))(tuple(labels)))


def changed(bundle, **body):
    found = unpack(bundle.to_bytes(), "it")
    was, parts = found.body, found.parts
    kept = {k: v for k, v in was.items() if k not in ("format", "parts")}
    return pack({**kept, **body}, parts)


@pytest.mark.parametrize(
    "body",
    [
        {"kind": "other"},
        {"states": 5},
        {"states": -1},
        {"leaves": []},
        {"ties": [[0, 10**6]]},
        {"ceilings": [[0, 7]]},
        {"ceilings": [[-1, 0]]},
        {"ceilings": "high"},
        {"task": None, "leaves": [{"name": "a"}]},
    ],
)
def test_a_manifest_that_is_not_the_programs_is_refused(bundle, body):
    with pytest.raises(DelianError):
        StepBundle.parse(changed(bundle, **body))


def test_a_damaged_program_is_refused(bundle):
    found = unpack(bundle.to_bytes(), "it")
    body, parts = found.body, dict(found.parts)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("manifest.json", json.dumps(body))
        archive.writestr("programs/step.ir", parts["programs/step.ir"][:-1] + b"\0")
    with pytest.raises(DelianError, match="hash"):
        StepBundle.parse(buffer.getvalue())


def test_a_side_begins_with_its_own_leaves_and_no_others(bundle):
    parts = bundle.parts(cut_at(bundle.step, HOMES))
    leaves = [np.asarray(a) for a in tree.leaves(Mlp.init(random.key(3), 5, (4, 8), 3))]
    assert bundle.owned_by(parts, above=True) == (2, 3)
    below = {i: leaves[i] for i in (0, 1, 4, 5)}
    started = bundle.started(parts, False, below)
    assert set(below) < set(started), "and the optimiser's state"
    assert all(not started[i].any() for i in started if i >= bundle.step.leaves)
    with pytest.raises(DelianError):
        bundle.started(parts, False, {**below, 2: leaves[2]})
    with pytest.raises(DelianError):
        bundle.started(parts, True, {2: leaves[2], 3: leaves[0]})
