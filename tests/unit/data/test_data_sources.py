"""Every source gives padded tables whose counts, splits and cards agree with what is in them."""

from __future__ import annotations

import numpy as np
import pytest
from delian.core.common.errors import DelianError
from delian.core.learning import data
from delian.core.learning.data.shakespeare_plays import speeches, vocabulary_of
from delian.core.learning.data.synthetic_rows import synthetic

DEAL = {
    "deal": data.Deal(partition="dirichlet", alpha=0.3, min_examples=10),
    "devices": 20,
    "query_fraction": 0.4,
    "held_out_devices": 4,
    "seed": 1,
}


@pytest.fixture(scope="module")
def digits():
    pytest.importorskip("sklearn")
    return data.digits()


def check_tables(federation):
    for device, count in zip(federation.devices, federation.card.examples, strict=True):
        assert device.support >= 1 and device.query >= 1
        assert device.examples == count <= federation.capacity
        assert not device.x[count:].any() and not device.y[count:].any()


def test_the_digits_are_those_of_scikit_learn(digits):
    from sklearn.datasets import load_digits

    theirs = load_digits()
    assert np.array_equal(digits.x, theirs.images)
    assert np.array_equal(digits.y, theirs.target)
    assert digits.x.dtype == np.uint8 and digits.y.dtype == np.int32


def test_without_scikit_learn_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(DelianError, match=r"\[sim\]"):
        data.digits()


def test_a_federation_of_digits_holds_each_image_once(digits):
    federation = data.federate(digits, **DEAL)
    check_tables(federation)
    assert sum(federation.card.examples) == len(digits.x)
    assert len(federation.held_out) == 4 and len(federation.training) == 16
    total = sum(int(d.x.sum()) for d in federation.devices)
    assert total == int(digits.x.sum())
    counts = np.array(federation.card.label_counts)
    assert np.array_equal(counts.sum(axis=0), np.bincount(digits.y))


def test_query_and_support_share_no_image(digits):
    numbered = data.Labelled("numbered", np.arange(1797.0, dtype=np.float32)[:, None], digits.y)
    for device in data.federate(numbered, **DEAL).devices:
        rows = device.x[: device.examples, 0]
        assert len(set(rows.tolist())) == device.examples


def test_the_query_fraction_is_kept_as_closely_as_whole_examples_allow(digits):
    for device in data.federate(digits, **DEAL).devices:
        assert abs(device.query - 0.4 * device.examples) <= 1


def test_labels_beyond_the_model_s_classes_are_refused_with_the_row(digits):
    with pytest.raises(DelianError, match=r"label 9 \(row 9\), and the model has 9 classes"):
        data.federate(digits, **DEAL, classes=9)


def test_a_device_with_one_sample_is_named():
    owners = np.array([0, 0, 1])
    one = data.Labelled(
        "x", np.ones((3, 2), np.float32), np.zeros(3, np.int32), owners, ("bert", "anna")
    )
    natural = DEAL | {"deal": data.Deal(partition="natural", min_examples=1), "devices": None}
    with pytest.raises(DelianError, match="device `anna` has one sample"):
        data.federate(one, **natural | {"held_out_devices": 0})


def test_tables_that_would_not_fit_memory_are_refused_before_they_are_made():
    wide = data.Labelled(
        "wide",
        np.broadcast_to(np.float32(0), (4000, 20_000)),
        np.arange(4000, dtype=np.int32) % 2,
    )
    with pytest.raises(DelianError, match="the limit is 4 GiB"):
        data.federate(wide, **DEAL | {"devices": 900, "deal": data.Deal(alpha=0.05)})


def test_synthetic_support_sets_are_those_that_other_simulators_train_on():
    federation = synthetic(devices=3, support=60, query=5)
    check_tables(federation)
    prototypes = np.random.default_rng(0).normal(0, 1, (10, 28, 28)).astype(np.float32)
    box = np.ones(5, np.float32) / 5
    for axis in (1, 2):
        prototypes = np.apply_along_axis(
            lambda row: np.convolve(row, box, "same"), axis, prototypes
        )
    prototypes = prototypes / prototypes.std()
    rng = np.random.default_rng(1002)
    labels = rng.integers(0, 10, 60)
    images = 0.5 * prototypes[labels] + 0.7 * rng.normal(0, 1, (60, 28, 28))
    assert np.array_equal(federation.devices[2].y[:60], labels)
    np.testing.assert_allclose(federation.devices[2].x[:60], images, atol=1e-5)


PLAY = "\n\n".join(
    f"{role}:\n{line}" for role in ("First Lord", "Fool") for line in ("Good morrow. " * 9,) * 4
)


def test_a_role_is_a_device_and_y_is_x_one_character_on(tmp_path):
    path = tmp_path / "play.txt"
    path.write_text(PLAY)
    federation = data.shakespeare(path, steps=16, min_characters=100)
    assert federation.names == ("First Lord", "Fool")
    check_tables(federation)
    device, words = federation.devices[0], speeches(PLAY)["First Lord"]
    letters = np.array(federation.card.label_names)
    rows = device.examples
    assert "".join(letters[device.x[:rows].ravel()]) == words[: 16 * rows]
    assert "".join(letters[device.y[:rows].ravel()]) == words[1 : 16 * rows + 1]


def test_a_role_that_never_trains_may_adapt_to_another_share_of_its_windows(tmp_path):
    path = tmp_path / "play.txt"
    path.write_text(PLAY)
    federation = data.shakespeare(
        path,
        steps=16,
        min_characters=100,
        held_out_devices=1,
        query_fraction=0.1,
        held_out_query_fraction=0.8,
    )
    (newcomer,) = federation.held_out
    for i, device in enumerate(federation.devices):
        share = device.query / device.examples
        assert abs(share - (0.8 if i == newcomer else 0.1)) < 0.5 / device.examples + 1e-9


def test_a_large_vocabulary_keeps_the_frequent_and_one_place_for_the_rest():
    words = "".join(chr(0x4E00 + i) for i in range(400)) + "abc" * 10
    vocabulary = vocabulary_of({"x": words})
    assert len(vocabulary) == 256 and set("abc") < set(vocabulary)


def test_a_file_that_is_no_play_says_how_a_play_looks(tmp_path):
    path = tmp_path / "list.txt"
    path.write_text("one\ntwo\n")
    with pytest.raises(DelianError, match="0 roles") as caught:
        data.shakespeare(path)
    assert "`Role:`" in caught.value.hint


def test_real_shakespeare_has_141_roles_of_a_thousand_characters(shared_data):
    federation = data.shakespeare(shared_data / "tinyshakespeare.txt", held_out_devices=10)
    assert len(federation.devices) == 141 and federation.classes == 65
    check_tables(federation)


def test_omniglot_s_devices_are_alphabets_by_groups_of_drawers(shared_data):
    federation = data.omniglot(shared_data / "omniglot_small.npz")
    assert len(federation.devices) == 8 * 5
    assert {federation.names[i].split(",")[0] for i in federation.held_out} == {
        "Sanskrit",
        "Tagalog",
    }
    for device in federation.devices:
        assert device.x.shape == (47, 4, 28, 28) and device.drawers == 4
        assert device.x[: device.chars].any(axis=(2, 3)).all()
        assert not device.x[device.chars :].any()


def test_an_omniglot_group_larger_than_the_drawers_is_refused(shared_data):
    with pytest.raises(DelianError, match="20 drawers, fewer than a group of 21"):
        data.omniglot(shared_data / "omniglot_small.npz", drawers=21)


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ((5, 4, 6), ""),
        ((5, 3, 6), "1 device has fewer than 4 examples and was left out"),
        ((3, 1, 6), "2 devices have fewer than 4 examples and were left out"),
    ],
)
def test_devices_with_too_few_examples_are_counted(sizes, said) -> None:
    owners = np.repeat(np.arange(3), sizes)
    x, y = np.zeros((len(owners), 2), np.float32), np.zeros(len(owners), np.int32)
    rows = data.Labelled("three", x, y, owners, ("a", "b", "c"))
    natural = DEAL | {"deal": data.Deal(partition="natural", min_examples=4), "devices": None}
    made = data.federate(rows, **natural | {"held_out_devices": 0})
    assert made.card.to_json()["left_out_text"] == said
    assert len(made.devices) + made.card.left_out == 3
