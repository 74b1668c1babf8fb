"""Keras models on PyTorch: outputs, gradients and statistics are Keras's."""

import os
from pathlib import Path

import delian as dl
import numpy as np
import pytest
from delian.core.common.errors import DelianError

torch = pytest.importorskip("torch")
os.environ.setdefault("KERAS_BACKEND", "torch")
keras = pytest.importorskip("keras")
if keras.backend.backend() != "torch":
    pytest.skip("Keras runs on another back end", allow_module_level=True)
layers = keras.layers


def _images(dropout=0.0):
    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [
            keras.Input((8, 8, 2)),
            layers.Conv2D(4, 3, padding="same", activation="relu"),
            layers.BatchNormalization(momentum=0.9),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dropout(dropout),
            layers.Dense(5),
        ]
    )


def _sequences():
    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [keras.Input((7,)), layers.Embedding(9, 6), layers.LSTM(8), layers.Dense(3)]
    )


def _batch(kind, rows=4):
    draws = torch.Generator().manual_seed(rows)
    if kind is _sequences:
        return torch.randint(0, 9, (rows, 7), generator=draws)
    return torch.randn(rows, 8, 8, 2, generator=draws)


@pytest.mark.parametrize("kind", [_images, _sequences])
def test_outputs_and_gradients_are_kerass(kind):
    source = kind()
    model = dl.from_torch(source, (_batch(kind, 2),))
    assert [*model.graphs.order] == [v.path for v in source.trainable_variables]
    x = _batch(kind)
    want = source(x, training=False)
    (want * want).sum().backward()
    run = dl.compile(lambda model, x: model(x))
    np.testing.assert_allclose(run(model, x.numpy()), want.detach().numpy(), rtol=1e-4, atol=1e-5)
    slope = dl.compile(dl.grad(lambda model, x: np.sum(model(x) ** 2)))(model, x.numpy())
    for variable in source.trainable_variables:
        got = slope.parameters[variable.path]
        np.testing.assert_allclose(got, variable.value.grad.numpy(), rtol=1e-3, atol=1e-5)


def test_statistics_move_as_kerass_and_rows_without_weight_do_not_count():
    source = _images()
    model = dl.from_torch(source, (_batch(_images, 2),))
    moving = [v for v in source.non_trainable_variables if "moving" in v.path]
    assert [*model.statistics] == sorted(v.path for v in moving)
    x = _batch(_images)
    for _ in range(2):
        want = source(x, training=True).detach().numpy()
        got, statistics = model.in_training((x.numpy(),))
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
        for variable in moving:
            value = variable.value.detach().numpy()
            np.testing.assert_allclose(statistics[variable.path], value, rtol=1e-4, atol=1e-6)
        padded = np.concatenate([x.numpy(), x.numpy()[:2] * 3])
        weight = np.array([1, 1, 1, 1, 0, 0], np.float32)
        again, same = model.in_training((padded,), weight)
        np.testing.assert_allclose(again[:4], got, rtol=1e-5, atol=1e-6)
        for name, value in same.items():
            np.testing.assert_allclose(value, statistics[name], rtol=1e-5, atol=1e-6)
        model = model.with_statistics(statistics)


def test_dropout_draws_in_training_alone():
    model = dl.from_torch(_images(0.5), (_batch(_images, 2),))
    x = _batch(_images).numpy()
    first, _ = model.in_training((x,), None, dl.random.key(1))
    second, _ = model.in_training((x,), None, dl.random.key(2))
    assert np.any(first != second)
    np.testing.assert_array_equal(model(x), model(x))


class Small(keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden, self.head = layers.Dense(8, activation="tanh"), layers.Dense(3)

    def call(self, x):
        return self.head(self.hidden(x))  # no `training`: Keras's own loop passes none either


def test_a_model_is_built_and_its_weights_go_both_ways(tmp_path: Path):
    source = Small()
    model = dl.from_torch(source, (torch.ones(2, 4),))
    model.save(tmp_path / "small.safetensors")
    arrays, _ = dl.read_safetensors(tmp_path / "small.safetensors")
    other = Small()
    other(torch.ones(2, 4))
    for mine, its in zip(other.trainable_variables, source.trainable_variables, strict=True):
        mine.assign(arrays[its.path])
    x = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
    want = other(torch.from_numpy(x)).detach().numpy()
    np.testing.assert_allclose(model(x), want, rtol=1e-5, atol=1e-6)


def test_a_federation_trains_a_keras_model(tmp_path: Path):
    from delian.simulations.runs.simulate import simulate
    from delian.simulations.scenario import scenario_file

    (tmp_path / "net.py").write_text(
        'import os\n\nos.environ.setdefault("KERAS_BACKEND", "torch")\n'
        "import keras\n\n\n"
        "class Net(keras.Sequential):\n"
        "    def __init__(self):\n"
        "        super().__init__([\n"
        "            keras.layers.Conv2D(8, 3, activation='relu'),\n"
        "            keras.layers.BatchNormalization(),\n"
        "            keras.layers.Flatten(),\n"
        "            keras.layers.Dense(10),\n"
        "        ])\n"
    )
    keys = ["model.name=torch", f"model.file={tmp_path / 'net.py'}", "model.images=channels_last"]
    short = ["algorithm.name=fedavg", "rounds=4", "evaluation.every=4"]
    scenario = scenario_file.override(scenario_file.load("digits"), [*keys, *short])
    first, again = (simulate(scenario, threads=1) for _ in range(2))
    assert first.rounds[-1].personalised_accuracy > 0.8
    assert first.trace_hash == again.trace_hash


def test_what_cannot_be_built_is_refused():
    with pytest.raises(DelianError, match="Small cannot be built"):
        dl.from_torch(Small(), (torch.ones(()),))
