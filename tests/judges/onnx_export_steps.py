"""Programs for `onnx_export.py`: the zoo's models, layers, optimisers' steps, steps of MAML."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import delian as dl
import numpy as np
from delian import nn

KEY = dl.random.key(1)
RNG = np.random.default_rng(3)
ROWS = 4


def images(*shape: int) -> Any:
    return RNG.normal(size=(ROWS, *shape)).astype(np.float32)


def tokens(length: int, symbols: int = 9) -> Any:
    return RNG.integers(0, symbols, (ROWS, length))


def models() -> dict[str, tuple[Any, Any, tuple[int, ...]]]:
    """A model of each kind in the zoo, its input, and the shape of its labels."""
    zoo, one = nn.zoo, (ROWS,)
    return {
        "mlp": (zoo.Mlp.init(KEY, 12, (16, 8), 3), images(12), one),
        "normalised mlp": (zoo.NormalisedMlp.init(KEY, 12, (16,), 3), images(12), one),
        "fedavg cnn": (zoo.FedAvgCnn.init(KEY, 8, 8, 1, 3, hidden=16), images(8, 8, 1), one),
        "omniglot": (zoo.OmniglotNet.init(KEY, 1, 8, 3), images(28, 28, 1), one),
        "omniglot strided": (
            zoo.OmniglotNet.init(KEY, 1, 8, 3, strided=True),
            images(28, 28, 1),
            one,
        ),
        "lenet": (nn.lenet(KEY, (12, 12, 1), 3), images(12, 12, 1), one),
        "resnet": (nn.resnet(KEY, (8, 8, 1), 3, depth=8), images(8, 8, 1), one),
        "resnet of batches": (
            nn.resnet(KEY, (8, 8, 3), 3, depth=8, norm="batch"),
            images(8, 8, 3),
            one,
        ),
        "mobilenet": (nn.mobilenet_v2(KEY, (32, 32, 3), 3), images(32, 32, 3), one),
        "char lstm": (zoo.CharLstm.init(KEY, 9, 4, 8, 2), tokens(7), (ROWS, 7)),
        "char model": (nn.char_model(KEY, 9, nn.GruCell, 4, 8, 1), tokens(7), (ROWS, 7)),
        "tagger lstm": (nn.tagger(KEY, 9, 3, nn.LstmCell, 4, 6), tokens(5), (ROWS, 5)),
        "tagger gru": (nn.tagger(KEY, 9, 3, nn.GruCell, 4, 6), tokens(5), (ROWS, 5)),
        "transformer": (nn.transformer(KEY, 9, None, 8, 2, 2), tokens(6), (ROWS, 6)),
        "causal transformer": (
            nn.transformer(KEY, 9, None, 8, 2, 1, causal=True),
            tokens(6),
            (ROWS, 6),
        ),
    }


def layers() -> dict[str, tuple[Any, Any]]:
    """A layer of each kind, and its input."""
    pixels, lines = images(7, 9, 4), images(6, 8)
    return {
        "dense": (nn.Dense.init(KEY, 8, 5), lines),
        "conv": (nn.Conv.init(KEY, 3, 4, 6), pixels),
        "conv strided": (nn.Conv.init(KEY, 5, 4, 6, stride=2, padding="VALID"), pixels),
        "conv dilated": (nn.Conv.init(KEY, 3, 4, 6, dilation=2), pixels),
        "conv in groups": (nn.Conv.init(KEY, 3, 4, 6, groups=2), pixels),
        "conv of lines": (nn.Conv.init(KEY, 3, 8, 6, rank=1), lines),
        "conv transposed": (nn.ConvTranspose.init(KEY, 3, 4, 6, stride=2), pixels),
        "depthwise": (nn.DepthwiseConv.init(KEY, 3, 4, 2, stride=2), pixels),
        "max pool": (nn.MaxPool(3, 2, "SAME"), pixels),
        "average pool": (nn.AvgPool(2), pixels),
        "batch norm": (nn.BatchNorm.init(4), pixels),
        "layer norm": (nn.LayerNorm.init(8), lines),
        "rms norm": (nn.RmsNorm.init(8), lines),
        "group norm": (nn.GroupNorm.init(4, 2), pixels),
        "instance norm": (nn.InstanceNorm.init(4), pixels),
        "lstm": (nn.Recurrent.init(nn.LstmCell, KEY, 8, 5), lines),
        "gru, both ways": (nn.Recurrent.init(nn.GruCell, KEY, 8, 5, True), lines),
        "rnn": (nn.Recurrent.init(nn.RnnCell, KEY, 8, 5), lines),
        "block": (nn.TransformerBlock.init(KEY, 8, 2), lines),
    }


def optimizers() -> dict[str, Any]:
    optim = nn.optim
    return {
        "sgd": optim.sgd(0.1),
        "momentum": optim.sgd(0.1, 0.9, True),
        "adam": optim.adam(0.01, epsilon=1e-3),
        "adamw": optim.adamw(0.01, epsilon=1e-3),
        "rmsprop": optim.rmsprop(0.01, epsilon=1e-2),
        "adagrad": optim.adagrad(0.1, 0.1),
        "yogi": optim.yogi(0.01),
        "lamb": optim.lamb(0.01),
        "clipped": optim.chain(optim.clip_by_global_norm(0.5), optim.sgd(0.1, 0.5)),
    }


def mean_loss(model: Any, x: Any, y: Any) -> Any:
    logits = model(x, np.ones(x.shape[0], np.float32))
    return np.mean(dl.ops.cross_entropy(logits, y))


def training_step(optimizer: Any) -> Callable[..., Any]:
    def step(model, state, x, y):  # type: ignore[no-untyped-def]
        value, slope = dl.value_and_grad(mean_loss)(model, x, y)
        change, state = optimizer.update(slope, state, model)
        return nn.apply(model, change), state, value

    return step


def maml_step(model, x, y, steps: int = 1):  # type: ignore[no-untyped-def]
    """A step of SGD through steps of SGD (Finn et al. 2017, algorithm 2)."""

    def after(model):  # type: ignore[no-untyped-def]
        adapted = model
        for _ in range(steps):
            slope = dl.grad(mean_loss)(adapted, x, y)
            adapted = dl.tree.map(lambda p, g: p - 0.1 * g, adapted, slope)
        return mean_loss(adapted, x, y)

    value, slope = dl.value_and_grad(after)(model)
    return dl.tree.map(lambda p, g: p - 0.01 * g, model, slope), value


def dropped(key, x):  # type: ignore[no-untyped-def]
    keep = dl.random.bernoulli(key, 0.8, x.shape)
    return np.where(keep, x / 0.8, 0.0) + 0.01 * dl.random.normal(key, x.shape)


def programs() -> Iterator[tuple[str, Callable[..., Any], tuple[Any, ...]]]:
    """(name, function, arguments)."""
    made = models()
    labels = {name: RNG.integers(0, 3, shape) for name, (_, _, shape) in made.items()}
    weight = np.ones(ROWS, np.float32)
    for name, (model, x, _) in made.items():
        yield f"{name}: inference", lambda m, x, w: m(x, w), (model, x, weight)
    for name, (layer, x) in layers().items():
        yield f"layer {name}", lambda m, x: m(x), (layer, x)
        yield f"layer {name}: slope", dl.grad(lambda m, x: np.sum(m(x) ** 2), (0, 1)), (layer, x)
    for name, (model, x, _) in made.items():
        for kind in ("sgd", "adam"):
            optimizer = optimizers()[kind]
            args = (model, optimizer.init(model), x, labels[name])
            yield f"{name}: step of {kind}", training_step(optimizer), args
        if name != "mobilenet":
            yield f"{name}: step of maml", maml_step, (model, x, labels[name])
    model, x, _ = made["mlp"]
    for kind, optimizer in optimizers().items():
        args = (model, optimizer.init(model), x, labels["mlp"])
        yield f"mlp: step of {kind}", training_step(optimizer), args
    yield "mlp: two steps of maml", lambda m, x, y: maml_step(m, x, y, 2), (model, x, labels["mlp"])
    yield "dropout and noise", dropped, (dl.random.key(7), images(5))
    half = dl.tree.map(lambda p: p.astype(np.float16), model)
    yield "mlp in f16", lambda m, x: m(x, np.ones(ROWS, np.float16)), (half, x.astype(np.float16))
