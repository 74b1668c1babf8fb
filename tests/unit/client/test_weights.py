"""Weights in the forms that frameworks have them in, as arrays by name, and back."""

from __future__ import annotations

import numpy as np
import pytest
from delian.client import weights
from delian.client.bags import Bag, bag_weights
from delian.client.weights import WeightsError

LEAVES = [("bias", (3,)), ("weight", (2, 3))]
FLAT = np.arange(9, dtype=np.float32)


def test_a_flat_vector_is_split_and_joined_by_the_run_s_names():
    found = weights.split(FLAT, LEAVES)
    assert found["weight"].tolist() == [[3, 4, 5], [6, 7, 8]]
    flat = np.zeros_like(FLAT)
    weights.join(found, LEAVES, flat)
    assert flat.tobytes() == FLAT.tobytes()
    with pytest.raises(WeightsError, match="9 weights came, and the model has 3"):
        weights.split(FLAT, LEAVES[:1])


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"bias": np.zeros(3)}, "lack weight"),
        ({"bias": np.zeros(3), "weight": np.zeros((3, 2))}, r"`weight` are \[3, 2\]"),
        ({"bias": np.zeros(3), "weight": np.zeros((2, 3)), "more": np.zeros(1)}, "have more"),
        ({"bias": ["a"], "weight": np.zeros((2, 3))}, "`bias` are <U1"),
        (object(), "weights are object"),
        ([np.zeros(3)], "lack bias, weight"),
    ],
)
def test_weights_of_another_model_are_refused_by_name(given, why):
    with pytest.raises(WeightsError, match=why):
        weights.arrays_of(given, LEAVES)


def test_whole_numbers_stay_at_the_site():
    given = {"bias": np.zeros(3), "weight": np.zeros((2, 3)), "batches": np.array(5)}
    assert [*weights.arrays_of(given, LEAVES)] == ["bias", "weight"]
    others = weights.others_of({"batches": ["int64", [], [0]]})
    assert weights.own_others(given, others)["batches"] == 5


def test_lists_keep_their_order_beyond_ten():
    names = weights.names_of_list(12)
    assert names == sorted(names)


def test_a_torch_module_takes_and_gives_its_weights():
    torch = pytest.importorskip("torch")
    net = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    found = weights.named(net)
    assert found["0.weight"].shape == (2, 3) and found["1.num_batches_tracked"].dtype == np.int64
    floats = {n: a + 1 for n, a in found.items() if a.dtype.kind == "f"}
    weights.load_into(net, floats, {"1.num_batches_tracked": np.array(4)})
    assert int(net[1].num_batches_tracked) == 4
    np.testing.assert_allclose(net[0].weight.detach().numpy(), floats["0.weight"])
    with pytest.raises(weights.WeightsError, match=r"the module has no 2\.weight"):
        weights.load_into(net, {"2.weight": np.zeros(2)}, {})
    half = weights.array("w", torch.ones(2, dtype=torch.bfloat16, requires_grad=True))
    assert half.dtype == np.float32


def test_an_estimator_takes_and_gives_its_fitted_arrays():
    linear = pytest.importorskip("sklearn.linear_model")
    neural = pytest.importorskip("sklearn.neural_network")
    x = np.random.default_rng(0).normal(size=(20, 3))
    model = linear.LogisticRegression().fit(x, x[:, 0] > 0)
    found = weights.named(model)
    assert {n: a.shape for n, a in found.items()} == {"coef_": (1, 3), "intercept_": (1,)}
    weights.load_into(model, {n: a * 0 for n, a in found.items()}, {})
    assert not model.coef_.any()
    layers = neural.MLPRegressor(hidden_layer_sizes=(4,), max_iter=1).fit(x, x[:, 0])
    both = weights.named(layers)
    assert [*both] == ["coefs_.0", "coefs_.1", "intercepts_.0", "intercepts_.1"]
    weights.load_into(layers, {n: a * 0 for n, a in both.items()}, {})
    assert not any(each.any() for each in layers.coefs_)
    with pytest.raises(WeightsError, match="fit it first"):
        weights.named(linear.LogisticRegression())


class OneTask:
    """What a bag needs of a task."""

    def __init__(self, bag, client, round):
        self.weights, self.client, self.round = {"bag": bag}, client, round


def test_a_bag_gives_back_the_bytes_of_all_clients_whoever_dropped_out():
    (bag,) = bag_weights(rounds=2, clients=3, size=300).values()
    rng = np.random.default_rng(1)
    put = {}
    for round in (1, 2):
        reports = [0, 1, 2] if round == 1 else [0, 2]
        total = np.zeros_like(bag)
        for client in reports:
            put[round, client] = rng.bytes(int(rng.integers(1, 300)))
            sent = Bag(OneTask(bag, client, round)).put(put[round, client])["bag"]
            total += sent - bag
        noise = rng.uniform(-1e-3, 1e-3, bag.shape)
        bag = (bag + total / len(reports) + noise).astype(np.float32)
    assert [*Bag(OneTask(bag, 0, 2))] == list(put.values())


def test_a_bag_has_no_room_for_more_than_it_was_begun_with():
    (bag,) = bag_weights(rounds=1, clients=2, size=10).values()
    with pytest.raises(Exception, match="11 bytes, and the bag has room for 10"):
        Bag(OneTask(bag, 0, 1)).put(bytes(11))
    with pytest.raises(Exception, match="round 2 of client 0"):
        Bag(OneTask(bag, 0, 2)).put(b"")
