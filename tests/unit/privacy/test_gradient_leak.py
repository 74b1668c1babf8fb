"""What a single update gives away, and what a masked one does.

The attack (Zhu, Liu and Han 2019, "Deep leakage from gradients"; Zhao, Mopuri and Bilen 2020,
"iDLG"), where it is exact: a dense layer's gradients are dW = x (dL/dy)^T and db = dL/dy, so a
column of dW divided by its entry of db is the input x of a device that trained on one example; and
of the last layer's db only the label's entry is negative. That it succeeds on a plain update, as it
leaves the device, shows that it would also be seen to succeed on a masked one.
"""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from delian.core.compiler import random
from delian.core.compiler.ir import DType, TensorType
from delian.core.learning import Classification, FedAvg, Samples, SampleSet
from delian.core.learning.build.bundle_builder import build
from delian.core.learning.nn import Mlp, sgd
from delian.core.learning.runtime import Runtime
from delian.core.privacy.secagg import masks

SIDE, CLASSES, HIDDEN, DEVICES = 8, 10, 32, 40
PIXELS = SIDE * SIDE


def images():
    """Soft blobs between 0 and 1, unlike one another."""
    rng = np.random.default_rng(3)
    y, x = np.mgrid[:SIDE, :SIDE]
    made = np.zeros((DEVICES, SIDE, SIDE))
    for image in made:
        for _ in range(4):
            at, width = rng.uniform(0, SIDE, 2), rng.uniform(0.8, 1.8)
            image += np.exp(-((y - at[0]) ** 2 + (x - at[1]) ** 2) / (2 * width**2))
    return (made / made.max((1, 2), keepdims=True)).reshape(DEVICES, PIXELS).astype(np.float32)


IMAGES = images()
LABELS = np.arange(DEVICES, dtype=np.int32) % CLASSES


@pytest.fixture(scope="module")
def runtime():
    task = Classification(
        "leak", lambda key: Mlp.init(key, PIXELS, (HIDDEN,), CLASSES), Samples(4, 1.0)
    )
    made = build(
        task,
        FedAvg(local=sgd(0.1)),
        one_example(0),
        example=TensorType(DType.F32, (2, PIXELS)),
        clip=10.0,
        clients_max=100,
        weight_max=1.0,
        seed=1,
    )
    return Runtime(made)


def one_example(device):
    x, y = np.zeros((4, PIXELS), np.float32), np.zeros(4, np.int32)
    x[0], y[0] = IMAGES[device], LABELS[device]
    return SampleSet(x, y, np.int64(1), np.int64(0))


@pytest.fixture(scope="module")
def plain(runtime):
    """What each device would upload without masks."""
    weights = runtime.bundle.weights
    return [
        runtime.client_update(weights, one_example(d), random.key(d)).vector for d in range(DEVICES)
    ]


@pytest.fixture(scope="module")
def masked(plain):
    """What each uploads with the mask that it has in common with one neighbour."""
    seen = []
    for device, vector in enumerate(plain):
        key = hashlib.sha256(b"pair mask %d" % (device // 2)).digest()
        hidden = vector.copy()
        masks.add(hidden, [(key, 1 - 2 * (device % 2))], masks.AES_CTR)
        seen.append(hidden)
    return seen


def attack(runtime, vector):
    """The image and the label that an update gives away: f32[64] between 0 and 1, and a number."""
    plan = runtime.ring
    update = (vector[:-1].view(np.int32) / plan.scale).astype(np.float32)
    first, first_bias, _, last_bias = runtime.views(update, runtime.manifest.state)
    unit = int(np.argmax(np.abs(first_bias)))
    # An update is the gradient times the negative learning rate, which cancels in the quotient.
    image = first[:, unit] / first_bias[unit]
    return np.clip(image, 0.0, 1.0), int(np.argmax(last_bias))


def psnr(guess, truth):
    return -10 * np.log10(max(float(np.mean((guess - truth) ** 2)), 1e-12))


def nearest(guess):
    """The device whose image resembles a guess most."""
    centred = IMAGES - IMAGES.mean(1, keepdims=True)
    centred /= np.linalg.norm(centred, axis=1, keepdims=True)
    return int(np.argmax(centred @ (guess - guess.mean())))


def test_the_layers_are_where_the_attack_looks_for_them(runtime):
    shapes = [leaf.shape for leaf in runtime.manifest.state]
    assert shapes == [(PIXELS, HIDDEN), (HIDDEN,), (HIDDEN, CLASSES), (CLASSES,)]


def test_a_plain_update_of_one_example_is_that_example(runtime, plain):
    for device, vector in enumerate(plain):
        image, label = attack(runtime, vector)
        assert psnr(image, IMAGES[device]) > 20.0
        assert label == LABELS[device] and nearest(image) == device


def test_the_same_attack_on_masked_updates_is_at_chance(runtime, masked):
    found = [attack(runtime, vector) for vector in masked]
    hits = sum(nearest(image) == device for device, (image, _) in enumerate(found))
    labels = sum(label == LABELS[device] for device, (_, label) in enumerate(found))
    # Binomial of 40 with 1/40 and with 1/10: beyond these lies less than a thousandth.
    assert hits <= 5 and labels <= 11
    own = np.mean([psnr(image, IMAGES[d]) for d, (image, _) in enumerate(found)])
    others = np.mean([psnr(image, IMAGES[d - 7]) for d, (image, _) in enumerate(found)])
    # No nearer to the device's image than to anybody's; and far from it.
    assert abs(own - others) < 1.0 and own < 12.0


def test_a_masked_update_is_spread_evenly_over_the_ring(masked):
    elements = np.concatenate(masked[::2])
    counts = np.bincount(elements >> 24, minlength=256)
    expected = len(elements) / 256
    statistic = float(np.sum((counts - expected) ** 2 / expected))
    assert abs(statistic - 255) < 5 * np.sqrt(2 * 255)


def test_the_masks_of_a_pair_cancel_so_that_the_sum_is_exact(plain, masked):
    for device in range(0, DEVICES, 2):
        pair = masked[device] + masked[device + 1]
        assert np.array_equal(pair, plain[device] + plain[device + 1])
