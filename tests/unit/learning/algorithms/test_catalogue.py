"""Each algorithm of the catalogue: some rounds on two devices equal the paper's pseudo-code, as
written out in NumPy; and what is known in closed form holds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import delian as dl
import numpy as np
import pytest
from delian.core.learning import (
    Anil,
    Apfl,
    Batch,
    Classification,
    Ditto,
    FedAvg,
    FedBabu,
    FedDyn,
    FedNova,
    FedPer,
    FedRep,
    FedSgd,
    Ifca,
    Maml,
    PerFedAvg,
    PFedMe,
    ProtoNet,
    Samples,
    SampleSet,
    Scaffold,
    evaluate,
)
from delian.core.learning.nn import Mlp, adagrad, sgd
from delian.core.learning.sampling import LastBatch
from support.exact_rounds import Federated, key_of

FEATURES, OUTPUTS = 3, 2
ROWS = (6, 3)


@dataclass(frozen=True)
class Regression(Classification):
    """1/2 |x w + b - y|^2, the mean over the rows that count; the model is (w, b)."""

    def loss(self, model: Any, batch: Batch) -> Any:
        w, b = model
        error = batch.x @ w + b - batch.y
        each = 0.5 * np.sum(error * error, axis=1) * batch.weight
        return np.sum(each) / np.maximum(np.sum(batch.weight), 1.0)


def first_model(key: Any) -> Any:
    rng = np.random.default_rng(11)
    return rng.normal(size=(FEATURES, OUTPUTS)).astype(np.float32), np.zeros(OUTPUTS, np.float32)


def task(batch_size: int = max(ROWS), last_batch: LastBatch = "full") -> Regression:
    return Regression("regression", first_model, Samples(batch_size, 1.0, last_batch=last_batch))


def devices() -> list[SampleSet]:
    """Two devices of different sizes whose best models differ."""
    made = []
    for number, rows in enumerate(ROWS):
        rng = np.random.default_rng(number)
        x = rng.normal(size=(max(ROWS), FEATURES)).astype(np.float32)
        y = (x @ rng.normal(size=(FEATURES, OUTPUTS)) + number).astype(np.float32)
        made.append(SampleSet(x, y, np.array(rows), np.array(0)))
    return made


def slope(model: Any, x: Any, y: Any) -> Any:
    """The gradient of the mean loss over these rows, by hand, in float64."""
    w, b = model
    error = x @ w + b - y
    return np.array([x.T @ error / len(x), error.mean(axis=0)], object)


def full(data: SampleSet) -> Callable[[Any], Any]:
    """The gradient over all of a device's rows."""
    rows = int(data.support)
    x, y = data.x[:rows].astype(np.float64), data.y[:rows].astype(np.float64)
    return lambda model: slope(model, x, y)


def vector(model: Any) -> Any:
    """A model by hand: an array of its two leaves, so that models add and scale."""
    w, b = model
    return np.array([np.asarray(w, np.float64), np.asarray(b, np.float64)], object)


ETA, ROUNDS, PASSES = 0.1, 3, 2
DATA = devices()
SLOPES = [full(d) for d in DATA]
SHARES = np.array(ROWS) / sum(ROWS)


def close(found: Any, wanted: Any, tolerance: float = 2e-5) -> None:
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(np.asarray(a, np.float64), b, rtol=tolerance, atol=tolerance)


def descend(theta: Any, slope: Any, steps: int = PASSES, eta: float = ETA) -> Any:
    for _ in range(steps):
        theta = theta - eta * slope(theta)
    return theta


def run(algorithm: Any, batch_size: int = max(ROWS)) -> Federated:
    federated = Federated(algorithm, task(batch_size), DATA)
    for number in range(ROUNDS):
        federated.round(number)
    return federated


def start() -> Any:
    return vector(task().init(None))


def test_fedsgd_is_one_step_on_the_mean_gradient() -> None:
    x = start()
    for _ in range(ROUNDS):
        x = x - 0.5 * (SHARES[0] * SLOPES[0](x) + SHARES[1] * SLOPES[1](x))
    close(run(FedSgd(server=sgd(0.5)), batch_size=2).state, x)


def test_scaffold() -> None:
    """Algorithm 1 with option II."""
    x = start()
    c, own = 0 * x, [0 * x, 0 * x]
    for _ in range(ROUNDS):
        moved, corrected = [], []
        for i in range(2):
            y = descend(x, lambda y, i=i, c=c: SLOPES[i](y) - own[i] + c)
            plus = own[i] - c + (x - y) / (PASSES * ETA)
            moved.append(y - x)
            corrected.append(plus - own[i])
            own[i] = plus
        x = x + 0.7 * (moved[0] + moved[1]) / 2
        c = c + (corrected[0] + corrected[1]) / 2
    federated = run(
        Scaffold(epochs=PASSES, local=sgd(ETA), server=sgd(0.7), local_learning_rate=ETA)
    )
    close(federated.state.model, x)
    close([a / ETA for a in federated.state.control], c)
    close(federated.personal(1), descend(x, SLOPES[1], 5))
    for i in range(2):
        close([a / ETA for a in federated.kept[i]], own[i])


def test_scaffold_with_every_device_finds_the_joint_minimum() -> None:
    """Federated averaging of many local steps does not (the paper's figure 1)."""
    joint = start()
    for _ in range(4000):
        joint = joint - 0.1 * (SLOPES[0](joint) + SLOPES[1](joint)) / 2
    algorithm = Scaffold(epochs=10, local=sgd(0.1), local_learning_rate=0.1)
    with_control = Federated(algorithm, task(), DATA)
    for number in range(120):
        with_control.round(number)
    close(with_control.state.model, joint, 2e-3)


def test_fednova_weighs_how_far_a_step_went() -> None:
    """Equation 6; batches of two rows make three steps a pass here and two there."""
    federated = Federated(FedNova(epochs=PASSES, local=sgd(ETA)), task(2), DATA)
    x, source = start(), federated.task.source
    for number in range(ROUNDS):
        each, taus = [], []
        for d, data in enumerate(DATA):
            y = x
            for epoch in range(PASSES):
                key = dl.random.fold_in(key_of(number, d), epoch)
                rows = np.asarray(source.order(data, key))[: ROWS[d]]
                for at in range(0, ROWS[d], 2):
                    batch = rows[at : at + 2]
                    y = y - ETA * slope(y, data.x[batch], data.y[batch])
            taus.append(PASSES * -(-ROWS[d] // 2))
            each.append((y - x) / taus[-1])
        effective = SHARES[0] * taus[0] + SHARES[1] * taus[1]
        x = x + effective * (SHARES[0] * each[0] + SHARES[1] * each[1])
        federated.round(number)
    assert taus == [6, 4]
    close(federated.state.model, x)


@pytest.mark.parametrize("kind", [FedAvg, FedNova, Scaffold])
def test_a_partial_last_batch_makes_a_part_of_a_step(kind: Any) -> None:
    """Three rows in batches of two: a step and a half. How far a device went a step (FedNova), or
    what its control variate is (SCAFFOLD), is counted by that.
    """
    own = {"local_learning_rate": ETA} if kind is Scaffold else {}
    federated = Federated(kind(local=sgd(ETA), **own), task(2, "weigh"), [DATA[1], DATA[1]])
    (first, _), data = federated.round(0), DATA[1]
    key = dl.random.fold_in(key_of(0, 0), 0)
    picked = np.asarray(federated.task.source.order(data, key))[:3]
    x = y = start()
    for part, batch in ((1.0, picked[:2]), (0.5, picked[2:])):
        y = y - part * ETA * slope(y, data.x[batch], data.y[batch])
    if kind is FedAvg:
        close(first.update, y - x)
    elif kind is FedNova:
        close(first.update.model, (y - x) / 1.5)
    else:
        close(first.update.control, (x - y) / 1.5)


def test_feddyn() -> None:
    """Algorithm 1, its argmin by some steps."""
    alpha, x = 0.3, start()
    h, own = 0 * x, [0 * x, 0 * x]
    for _ in range(ROUNDS):
        ends = []
        for k in range(2):
            end = descend(x, lambda t, k=k, x=x: SLOPES[k](t) - own[k] + alpha * (t - x))
            own[k] = own[k] - alpha * (end - x)
            ends.append(end)
        h = h - alpha * ((ends[0] - x) + (ends[1] - x)) / 2
        x = (ends[0] + ends[1]) / 2 - h / alpha
    federated = run(FedDyn(epochs=PASSES, local=sgd(ETA), alpha=alpha))
    close(federated.state, x)
    close(federated.kept[0], own[0])


def test_ditto() -> None:
    """Algorithm 1: w does not feel v, and v follows w."""
    x = start()
    own = [x, x]
    for _ in range(ROUNDS):
        ends = [descend(x, SLOPES[i]) for i in range(2)]
        own = [descend(own[i], lambda v, i=i, x=x: SLOPES[i](v) + 0.4 * (v - x)) for i in range(2)]
        x = SHARES[0] * ends[0] + SHARES[1] * ends[1]
    algorithm = Ditto(epochs=PASSES, local=sgd(ETA), attraction=0.4, personal_steps=1)
    federated = run(algorithm)
    close(federated.state, x)
    close(federated.kept[1], own[1])
    after = own[1] - 0.1 * (SLOPES[1](own[1]) + 0.4 * (own[1] - x))
    close(federated.personal(1), after)


def test_pfedme() -> None:
    """Algorithm 1: K steps on the Moreau envelope, and a server that goes only a part of the
    way.
    """
    penalty, rate, k, beta = 2.0, 0.05, 4, 0.6
    x = start()

    def nearby(i: int, theta: Any, w: Any) -> Any:
        return descend(theta, lambda t: SLOPES[i](t) + penalty * (t - w), k, rate)

    for _ in range(ROUNDS):
        ends = []
        for i in range(2):
            w = x
            for _ in range(PASSES):
                w = w - ETA * penalty * (w - nearby(i, w, w))
            ends.append(w)
        x = (1 - beta) * x + beta * (SHARES[0] * ends[0] + SHARES[1] * ends[1])
    algorithm = PFedMe(
        epochs=PASSES,
        local=sgd(ETA),
        server=sgd(beta),
        inner_steps=k,
        inner_learning_rate=rate,
        penalty=penalty,
        personal_steps=2,
    )
    federated = run(algorithm)
    close(federated.state, x)
    theta = nearby(0, x, x)
    centre = x - ETA * penalty * (x - theta)
    close(federated.personal(0), nearby(0, theta, centre))


def test_apfl() -> None:
    """Algorithm 1 with equation 9."""
    x = start()
    own, alphas = [x, x], [0.4, 0.4]
    for _ in range(ROUNDS):
        ends = []
        for i in range(2):
            mixed = alphas[i] * own[i] + (1 - alphas[i]) * x
            product = sum(np.sum(p) for p in (own[i] - x) * SLOPES[i](mixed))
            alphas[i] = float(np.clip(alphas[i] - 0.05 * product, 0, 1))
            w, v, a = x, own[i], alphas[i]
            for _ in range(PASSES):
                mixed = a * v + (1 - a) * w
                w, v = w - ETA * SLOPES[i](w), v - ETA * a * SLOPES[i](mixed)
            ends.append(w)
            own[i] = v
        x = SHARES[0] * ends[0] + SHARES[1] * ends[1]
    algorithm = Apfl(
        epochs=PASSES, local=sgd(ETA), share=0.4, share_learning_rate=0.05, personal_steps=0
    )
    federated = run(algorithm)
    close(federated.state, x)
    for i in range(2):
        close(federated.kept[i].own, own[i])
        assert federated.kept[i].share == pytest.approx(alphas[i], abs=1e-5)
        close(federated.personal(i), alphas[i] * own[i] + (1 - alphas[i]) * x)
    assert alphas[0] != pytest.approx(0.4, abs=1e-3)


def masked(slope: Any, body: float, head: float) -> Any:
    """The gradient with body or head fixed; the bias is the head."""
    return lambda theta: slope(theta) * np.array([body, head], object)


@pytest.mark.parametrize("algorithm", ["FedPer", "FedRep"])
def test_bodies_are_shared_and_heads_are_not(algorithm: str) -> None:
    x = start()
    heads = [x[1], x[1]]
    for _ in range(ROUNDS):
        bodies = []
        for i in range(2):
            model = np.array([x[0], heads[i]], object)
            if algorithm == "FedRep":
                model = descend(model, masked(SLOPES[i], 0.0, 1.0), 3)
                model = descend(model, masked(SLOPES[i], 1.0, 0.0))
            else:
                model = descend(model, SLOPES[i])
            bodies.append(model[0])
            heads[i] = model[1]
        x = np.array([SHARES[0] * bodies[0] + SHARES[1] * bodies[1], x[1]], object)
    kind = FedRep if algorithm == "FedRep" else FedPer
    more: dict[str, int] = {"head_epochs": 3} if algorithm == "FedRep" else {}
    federated = run(kind(epochs=PASSES, local=sgd(ETA), head_leaves=1, personal_steps=2, **more))
    close(federated.state, [x[0]])
    close(federated.kept[0][0], [heads[0]])
    own = descend(np.array([x[0], heads[1]], object), masked(SLOPES[1], 0.0, 1.0), 2)
    close(federated.personal(1).values, own)


@pytest.mark.parametrize("kind", [FedPer, FedRep, FedBabu])
def test_a_head_is_in_no_upload(kind: Any) -> None:
    federated = Federated(kind(local=sgd(ETA), head_leaves=1), task(), DATA)
    for result in federated.round(0):
        (body,) = result.update
        assert body.shape == (FEATURES, OUTPUTS) and np.any(body)


def test_fedbabu_leaves_the_head_as_it_was() -> None:
    x = start()
    for _ in range(ROUNDS):
        ends = [descend(x, masked(SLOPES[i], 1.0, 0.0)) for i in range(2)]
        x = SHARES[0] * ends[0] + SHARES[1] * ends[1]
    federated = run(FedBabu(epochs=PASSES, local=sgd(ETA), head_leaves=1, personal_steps=2))
    close(federated.state, [x[0]])
    close(federated.personal(0).values, descend(x, SLOPES[0], 2, 0.1))


def test_ifca_sends_each_device_to_the_model_that_fits_it() -> None:
    """Two devices, two models: from the first round on each has its own, as if it trained alone."""
    algorithm = Ifca(epochs=PASSES, local=sgd(ETA), clusters=2, personal_steps=0)
    federated = Federated(algorithm, task(), DATA)
    best = [descend(start(), SLOPES[i], 200) for i in range(2)]
    near = [tuple(np.float32(leaf + 0.3) for leaf in model) for model in best]
    federated.state = federated.state._replace(models=tuple(near))
    results = [federated.round(number) for number in range(2)]
    for d in range(2):
        assert np.argmax(results[-1][d].update.chosen) == d
        alone = descend(vector(near[d]), SLOPES[d], 2 * PASSES)
        close(federated.state.models[d], alone)
        close(federated.personal(d), alone)


def test_a_model_that_nobody_chose_stays() -> None:
    federated = Federated(Ifca(local=sgd(ETA)), task(), DATA)
    far = tuple(np.float32(leaf + 50) for leaf in start())
    federated.state = federated.state._replace(models=(federated.state.models[0], far))
    federated.round(0)
    close(federated.state.models[1], far, 0.0)


def test_the_hessian_free_gradient_is_exact_where_the_loss_is_quadratic() -> None:
    settings: dict[str, Any] = {"inner_learning_rate": 0.2, "local": sgd(ETA), "inner_steps": 1}
    exact, free, first = (
        Federated(kind, task(), DATA).round(0)[0].update
        for kind in (
            Maml(**settings),
            PerFedAvg(delta=0.05, **settings),
            Maml(first_order=True, **settings),
        )
    )
    close(free, vector(exact), 2e-4)
    assert np.max(np.abs(first[0] - exact[0])) > 1e-3


def test_anil_adapts_the_head_and_learns_the_rest_through_it() -> None:
    """The outer gradient by hand: d/db through b' = b - a grad_b has the factor (1 - a) here."""
    rate = 0.2
    federated = Federated(
        Anil(inner_learning_rate=rate, local=sgd(ETA), head_leaves=1, personal_steps=2),
        task(),
        DATA,
    )
    data, x = DATA[0], start()
    order = federated.task.source.order(data, dl.random.fold_in(np.array([0, 0], np.uint32), 0))
    support, query = federated.task.source.episode(data, order, 0)
    rows = [(b.x[b.weight > 0].astype(float), b.y[b.weight > 0]) for b in (support, query)]
    adapted = np.array([x[0], x[1] - rate * slope(x, *rows[0])[1]], object)
    outer = slope(adapted, *rows[1])
    through = np.outer(rows[0][0].mean(axis=0), outer[1]) * -rate
    wanted = np.array([outer[0] + through, (1 - rate) * outer[1]], object)
    close(federated.round(0)[0].update, -ETA * wanted)
    close(Federated(federated.algorithm, task(), DATA).personal(0)[:1], x[:1])


@pytest.mark.parametrize("scale", [1.0, 1000.0])
def test_a_prototype_head_gives_the_nearest_class(scale: float) -> None:
    """Also where squared features are above a million."""
    rng = np.random.default_rng(4)
    x = scale * rng.normal(size=(8, 5)).astype(np.float32)
    y = np.array([0, 1, 2, 0, 1, 2, 0, 1], np.int32)
    data = SampleSet(x, y, np.array(8), np.array(0))
    few = Classification("few", lambda key: Mlp.init(key, 5, (6,), 4), Samples(8, 1.0))
    algorithm = ProtoNet(personal_steps=1)
    model = few.init(dl.random.key(3))
    own = algorithm.personalise(few, model, data, dl.random.key(0))
    hidden = np.maximum(x @ model.layers[0].weight + model.layers[0].bias, 0)
    centres = np.stack([hidden[y == k].mean(axis=0) for k in range(3)])
    distances = ((hidden[:, None] - centres) ** 2).sum(axis=-1)
    logits = np.asarray(own(x, np.ones(8, np.float32)))
    assert np.array_equal(np.argmax(logits, axis=1), np.argmin(distances, axis=1))
    if scale == 1.0:
        wanted = np.exp(-distances) / np.exp(-distances).sum(axis=1, keepdims=True)
        found = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        np.testing.assert_allclose(found[:, :3], wanted, rtol=1e-4, atol=1e-6)
        assert np.all(found[:, 3] < 1e-6)


def test_federated_averaging_of_one_full_step_is_fedsgd() -> None:
    averaged = run(FedAvg(local=sgd(0.5)))
    close(averaged.state, vector(run(FedSgd(server=sgd(0.5))).state))


def test_local_steps_go_round_and_round() -> None:
    """Five full batches a round, whatever a pass would be."""
    x = start()
    ends = [descend(x, SLOPES[i], 5) for i in range(2)]
    federated = Federated(FedAvg(local=sgd(ETA), local_steps=5), task(), DATA)
    federated.round(0)
    close(federated.state, SHARES[0] * ends[0] + SHARES[1] * ends[1])


def test_fedadagrad() -> None:
    """Reddi et al. 2021, algorithm 2, without momentum:
    v <- v + d^2; x <- x + eta d / (sqrt(v) + tau).
    """
    rate, tau = 0.3, 1e-3
    x, v = start(), 0 * start()
    for _ in range(ROUNDS):
        ends = [descend(x, SLOPES[i], 1) for i in range(2)]
        d = SHARES[0] * ends[0] + SHARES[1] * ends[1] - x
        v = v + d * d
        x = x + rate * d / (np.array([np.sqrt(p) for p in v], object) + tau)
    close(run(FedAvg(local=sgd(ETA), server=adagrad(rate, epsilon=tau))).state, x, 1e-4)


@pytest.mark.parametrize("kind", [FedPer, FedRep, Ditto])
def test_with_no_personal_step_a_device_has_the_model_that_it_keeps(kind: Any) -> None:
    """As these papers judge it."""
    federated = run(kind(epochs=PASSES, local=sgd(ETA), personal_steps=0, **HEAD.get(kind, {})))
    kept, state = federated.kept[1], federated.state
    wanted = [state[0], *kept[0]] if kind in HEAD else kept
    for ours, theirs in zip(dl.tree.leaves(federated.personal(1)), wanted, strict=True):
        np.testing.assert_array_equal(ours, theirs)


HEAD: dict[Any, dict[str, int]] = {FedPer: {"head_leaves": 1}, FedRep: {"head_leaves": 1}}


def test_judged_rows_of_a_class_without_prototype_weigh_nothing() -> None:
    """The support half has classes 0 and 1, the query half a row of class 2 among others."""
    rng = np.random.default_rng(4)
    x = rng.normal(size=(8, 5)).astype(np.float32)
    y = np.array([0, 1, 0, 1, 0, 2, 1, 3], np.int32)
    in_order = np.arange(8)
    few = Classification("few", lambda key: Mlp.init(key, 5, (6,), 4), Samples(4, 1.0))
    model = few.init(dl.random.key(3))

    def step(rows: Any) -> Any:
        return ProtoNet().gradient(few, model, model, rows, in_order, 0)

    loss, slope = step(SampleSet(x, y, np.array(8), np.array(0)))
    # The same episode without these two rows: four to adapt on and two to judge by.
    known = [0, 1, 2, 3, 4, 6]
    source = Samples(4, 1.0, adapt_share=0.67)
    without = replace(few, source=source)
    data = SampleSet(x[known], y[known], np.array(6), np.array(0))
    wanted, expected = ProtoNet().gradient(without, model, model, data, np.arange(6), 0)
    assert 0 < float(wanted) < 100
    np.testing.assert_allclose(loss, wanted, rtol=1e-5)
    for ours, theirs in zip(dl.tree.leaves(slope), dl.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)


def test_the_loss_of_an_evaluation_leaves_out_rows_of_a_class_without_prototype() -> None:
    """The support set has classes 0 and 1, the query set also a row of class 2 and one of 3."""
    rng = np.random.default_rng(4)
    x = rng.normal(size=(8, 5)).astype(np.float32)
    y = np.array([0, 1, 0, 1, 0, 2, 1, 3], np.int32)
    key = dl.random.key(0)
    few = Classification("few", lambda key: Mlp.init(key, 5, (6,), 4), Samples(4, 1.0))
    algorithm = ProtoNet(personal_steps=1)
    whole = SampleSet(x, y, np.array(4), np.array(4))
    shared = few.init(dl.random.key(3))
    model = algorithm.personalise(few, shared, whole, key)
    found = evaluate(few, model, whole, key, algorithm=algorithm)
    known = [0, 1, 2, 3, 4, 6]
    data = SampleSet(x[known], y[known], np.array(4), np.array(2))
    wanted = evaluate(few, model, data, key)
    assert 0 < float(wanted.loss) < 100 and float(evaluate(few, model, whole, key).loss) > 1e3
    np.testing.assert_allclose(found.loss / found.count, wanted.loss / wanted.count, rtol=1e-5)
    # In the accuracy they are errors, as for any other algorithm.
    assert float(found.count) == 4 and float(found.correct) == float(wanted.correct)
    # The global model has a head for all classes.
    found = evaluate(few, shared, whole, key, algorithm=algorithm)
    np.testing.assert_allclose(found.loss, evaluate(few, shared, whole, key).loss, rtol=1e-5)
