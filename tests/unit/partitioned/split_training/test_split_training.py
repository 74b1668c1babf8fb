"""Split training, step by step, against the whole step and against plain NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from delian.core.compiler import random, tree
from delian.core.compiler.backends import compile_function
from delian.core.compiler.ir import DType, TensorType
from delian.core.learning import Classification, Samples
from delian.core.learning.nn import Mlp, sgd
from delian.core.placement.cut.cut import CLOUD, DEVICE, EDGE
from delian.core.placement.cut.owned_weights import cut_at, kept_below
from delian.core.placement.cut.training_step import step_of, step_parts
from delian.core.placement.cut.wire_formats import WireError
from delian.core.placement.split_training.step_sides import (
    Sent,
    Side,
    SplitError,
    Stepper,
    averaged,
)

B, INPUTS, CLASSES = 6, 5, 3
#: weight and bias of three layers: below, above, and where the labels are.
U_SHAPE = {0: DEVICE, 1: DEVICE, 2: EDGE, 3: EDGE, 4: DEVICE, 5: DEVICE}
LABELS_UP = {0: DEVICE, 1: DEVICE, 2: EDGE, 3: EDGE, 4: EDGE, 5: EDGE}
THREE_TIERS = {0: DEVICE, 1: DEVICE, 2: EDGE, 3: EDGE, 4: CLOUD, 5: CLOUD}


def small_net(key):
    return Mlp.init(key, INPUTS, (4, 8), CLASSES)


class Training:
    """A step of a small net, its cut, its first weights, and batches."""

    def __init__(self, homes, *, batch=B, momentum=0.9, wire="f32"):
        task = Classification(
            "net", lambda key: Mlp.init(key, INPUTS, (4, 8), CLASSES), Samples(B, 1.0)
        )
        model = task.init(random.key(3))
        x, y = TensorType(DType.F32, (batch, INPUTS)), TensorType(DType.I64, (batch,))
        optimizer = sgd(0.1, momentum=momentum) if momentum else sgd(0.1)
        step = step_of(task, optimizer, model, x, y, stays=homes is U_SHAPE)
        self.step = kept_below(step)
        self.parts = step_parts(self.step, cut_at(self.step, homes, wire))
        leaves = [np.asarray(a) for a in tree.leaves(model)]
        zeros = [np.zeros_like(a) for a in leaves][: self.step.states]
        self.weights = dict(enumerate([*leaves, *zeros]))
        self.below = {i: w for i, w in self.weights.items() if self.parts.homes[i] == DEVICE}
        self.above = {i: w for i, w in self.weights.items() if self.parts.homes[i] != DEVICE}

    def whole(self, backend="reference", profile="fast"):
        """The step uncut: weights by number, a batch -> new weights, loss."""
        run = compile_function(self.step.function, backend, profile)

        def step(weights, batch):
            loss, *moved = run(*(weights[i] for i in sorted(weights)), *batch)
            return dict(enumerate(moved)), float(loss)

        return step


def stepper_of(training):
    return Stepper(training.parts, "reference")


def batch(seed, rows=B):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, INPUTS)).astype(np.float32)
    return [x, rng.integers(0, CLASSES, rows), np.ones(rows, np.float32)]


def same_bits(one, other):
    return one.keys() == other.keys() and all(
        np.array_equal(one[i].view(np.uint32), other[i].view(np.uint32)) for i in one
    )


def close(one, other, by=2e-6):
    assert one.keys() == other.keys()
    for i in one:
        assert np.abs(one[i] - other[i]).max() <= by, i


@pytest.mark.parametrize(
    ("homes", "backend"),
    [(U_SHAPE, "native"), (LABELS_UP, "reference"), (THREE_TIERS, "reference")],
)
def test_one_device_trains_as_the_whole_would_bit_for_bit(homes, backend):
    training = Training(homes)
    whole = training.whole(backend, "reproducible")
    stepper = Stepper(training.parts, backend, "reproducible")
    weights, below, above = training.weights, training.below, training.above
    for seed in range(5):
        weights, loss = whole(weights, batch(seed))
        (below,), above, (told,) = stepper.step([below], above, [batch(seed)])
        assert same_bits(below | above, weights)
        assert float(told[0]) == loss


def test_raw_rows_and_labels_stay_where_they_should():
    for homes, up in ((U_SHAPE, {(B, 4), (B, 8)}), (LABELS_UP, {(B, 4), (B,)})):
        crossing = Training(homes).parts.crossing(DEVICE, up=True)
        assert {p.type.shape for p in crossing} == up
        assert (INPUTS in {s for p in crossing for s in p.type.shape}) is False


def relu(z):
    return np.maximum(z, 0.0)


def by_hand(devices, shared, batches, rate):
    """One synchronous step in plain f64 NumPy: layers below and at the labels are the devices' own,
    the one between is shared and moves by the gradient of the mean of the devices' losses.
    """
    moved, slope_w, slope_b = [], 0.0, 0.0
    w2, b2 = shared
    for (w1, b1, w3, b3), (x, y, _) in zip(devices, batches, strict=True):
        z1 = x @ w1 + b1
        h1 = relu(z1)
        z2 = h1 @ w2 + b2
        h2 = relu(z2)
        logits = h2 @ w3 + b3
        p = np.exp(logits - logits.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        d3 = (p - np.eye(CLASSES)[y]) / len(x)
        d2 = (d3 @ w3.T) * (z2 > 0)
        d1 = (d2 @ w2.T) * (z1 > 0)
        slope_w, slope_b = slope_w + h1.T @ d2, slope_b + d2.sum(axis=0)
        moved.append(
            (
                w1 - rate * x.T @ d1,
                b1 - rate * d1.sum(axis=0),
                w3 - rate * h2.T @ d3,
                b3 - rate * d3.sum(axis=0),
            )
        )
    n = len(devices)
    return moved, (w2 - rate * slope_w / n, b2 - rate * slope_b / n)


def test_a_shared_chain_moves_as_by_hand():
    training, count = Training(U_SHAPE, momentum=0.0), 3
    stepper = stepper_of(training)
    below, above = [training.below] * count, training.above
    wide = {i: w.astype(np.float64) for i, w in training.weights.items()}
    devices, shared = [tuple(wide[i] for i in (0, 1, 4, 5))] * count, (wide[2], wide[3])
    for turn in range(4):
        batches = [batch(10 * turn + d) for d in range(count)]
        below, above, _ = stepper.step(below, above, batches)
        devices, shared = by_hand(devices, shared, batches, 0.1)
    for own, wanted in zip(below, devices, strict=True):
        close(own, dict(zip((0, 1, 4, 5), wanted, strict=True)))
    close(above, dict(zip((2, 3), shared, strict=True)))


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_synchronous_step_is_one_on_all_batches_together(momentum):
    count = 4
    training = Training(LABELS_UP, momentum=momentum)
    large = Training(LABELS_UP, batch=count * B, momentum=momentum).whole()
    batches = [batch(d) for d in range(count)]
    below, above, _ = stepper_of(training).step([training.below] * count, training.above, batches)
    joined = [np.concatenate(part) for part in zip(*batches, strict=True)]
    weights, _ = large(training.weights, joined)
    close(above, {i: weights[i] for i in above})
    close(averaged(below, [1.0] * count), {i: weights[i] for i in training.below})


def test_copies_and_turns_are_what_single_steps_give():
    training = Training(U_SHAPE)
    whole, stepper = training.whole(), stepper_of(training)
    own, chain = training.below, training.above
    # One chain, two devices one after the other, each from its own beginning.
    for device in range(2):
        (after,), chain, _ = stepper.step([own], chain, [batch(device)])
    first, _ = whole(training.weights, batch(0))
    second, _ = whole({**training.below, **{i: first[i] for i in chain}}, batch(1))
    close(chain, {i: second[i] for i in chain})
    close(after, {i: second[i] for i in own})


def test_narrow_wires_cost_digits_and_save_bytes():
    moved = {}
    for wire in ("f32", "f16", "i8"):
        training = Training(U_SHAPE, wire=wire)
        stepper = stepper_of(training)
        _, moved[wire], _ = stepper.step([training.below], training.above, [batch(0)])
        size = {"f32": 4, "f16": 2, "i8": 1}[wire]
        assert stepper.traffic.nbytes == {
            (DEVICE, True): B * (4 + 8) * size,
            (DEVICE, False): B * (8 + 4) * size,
        }
        assert stepper.traffic.messages == 4
    for wire, by in (("f16", 1e-3), ("i8", 2e-2)):
        assert 0 < np.abs(moved[wire][2] - moved["f32"][2]).max() < by


def test_a_guard_sees_all_that_a_device_sends_and_nothing_else():
    training = Training(U_SHAPE)
    seen = []

    def guard(value, array):
        seen.append((value, array.shape))
        return np.zeros_like(array)

    stepper = stepper_of(training)
    (below,), above, _ = stepper.step([training.below], training.above, [batch(0)], [guard])
    assert seen == [(p.value, p.type.shape) for p in training.parts.crossing(DEVICE, up=True)]
    # Of nothing that came up the edge makes no gradient of its weights.
    assert np.array_equal(above[2], training.above[2])
    assert not np.array_equal(below[5], training.below[5])


def test_messages_out_of_turn_are_refused():
    training = Training(U_SHAPE)
    programs = stepper_of(training).programs
    device = Side(programs, DEVICE, training.below)
    edge = Side(programs, EDGE, training.above)
    numbers = [p.value for p in training.parts.inputs]
    sent = device.start(dict(zip(numbers, batch(0), strict=True)))
    assert sent is not None
    with pytest.raises(SplitError, match="waits for another"):
        device.take(sent)  # its own
    with pytest.raises(SplitError, match="is missing"):
        edge.take(Sent(sent.message, ({},)))
    with pytest.raises(SplitError, match="waits for another"):
        edge.take(Sent(sent.message, sent.tensors * 2))  # from two devices, and it serves one
    (value,) = sent.tensors[0]
    other = Side(programs, EDGE, training.above)
    short = {value: type(sent.tensors[0][value])("f32", b"12345678")}
    with pytest.raises(WireError):
        other.take(Sent(sent.message, (short,)))
    reply = edge.take(sent)
    assert reply is not None and not edge.done


def test_averages_are_weighed_and_of_one_it_is_itself():
    one, two = {0: np.float32([1.0, 2.0])}, {0: np.float32([4.0, -1.0])}
    assert averaged([one, two], [1.0, 3.0])[0].tolist() == [3.25, -0.25]
    assert averaged([one], [17.0])[0].tolist() == [1.0, 2.0]
    for chains, weights in (([], []), ([one], [0.0])):
        with pytest.raises(SplitError, match="no chain"):
            averaged(chains, weights)
