"""Random models of layers: what they give, their gradients, steps of optimisers, lanes."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import delian as dl
import numpy as np
from delian.core.compiler.frontend import trace
from delian.core.compiler.ir import Array, Function, TensorType

from .cases import Case, Draw

_WORK_MAX = 40_000
_CLASSES = 5
Layers = list[Any]


def case(name: str, seed: int) -> Case:
    """The model of a seed, in one of the ways that models are used."""
    r = random.Random(seed)
    model, x = r.choice([images, images, images, tables, sequences, tokens])(r)
    y = np.zeros(len(x), np.int64)
    way = r.choice([forward, loss, gradient, step, step, steps, per_example, adapted, lanes])
    f, extra = way(r, model)
    arguments = (model, *extra, x, y)
    leaves = dl.tree.leaves(arguments)
    donated = range(len(leaves) - 2) if way in (step, steps) and r.random() < 0.7 else ()

    def build() -> Function:
        made = trace(f, *arguments).function
        return Function(name, made.body, made.param_names, made.result_names, frozenset(donated))

    draws = [(i, _around(leaf)) for i, leaf in enumerate(leaves[:-2])]
    return Case(name, build, (*draws, (len(leaves) - 1, _labels)))


def _around(leaf: Any) -> Draw:
    """Weights about as they begin; an optimiser's squares are not negative."""

    def draw(rng: np.random.Generator, type_: TensorType) -> Array:
        base = np.asarray(leaf)
        if base.dtype.kind != "f":
            return base
        noise = rng.uniform(0.5, 1.5, base.shape)
        made = np.where(base == 0, np.abs(noise - 0.4) / 8, base * noise)
        return np.asarray(made.astype(base.dtype))

    return draw


def _labels(rng: np.random.Generator, type_: TensorType) -> Array:
    return rng.integers(0, _CLASSES, type_.shape)


def _key(r: random.Random) -> Any:
    return dl.random.key(r.randrange(2**31))


# Ways of use


def mean_loss(model: Any, x: Any, y: Any) -> Any:
    return np.mean(dl.ops.cross_entropy(model(x), y))


def forward(r: random.Random, model: Any) -> tuple[Any, tuple[Any, ...]]:
    return (lambda model, x, y: model(x)), ()


def loss(r: random.Random, model: Any) -> tuple[Any, tuple[Any, ...]]:
    return mean_loss, ()


def gradient(r: random.Random, model: Any) -> tuple[Any, tuple[Any, ...]]:
    both = r.random() < 0.3  # by the data too
    return dl.value_and_grad(mean_loss, (0, 1) if both else 0), ()


def _optimizer(r: random.Random) -> Any:
    optim = dl.nn.optim
    kinds: list[Callable[[], Any]] = [
        lambda: optim.sgd(0.125),
        lambda: optim.sgd(0.1),
        lambda: optim.sgd(0.1, 0.9),
        lambda: optim.sgd(0.1, 0.9, True),
        lambda: optim.adam(0.01, epsilon=1e-3),
        lambda: optim.adamw(0.01, epsilon=1e-3),
        lambda: optim.rmsprop(0.01, epsilon=1e-2),
        lambda: optim.chain(optim.clip_by_global_norm(0.5), optim.sgd(0.1, 0.5)),
        lambda: optim.chain(optim.weight_decay(0.01), optim.adagrad(0.1, 0.1)),
    ]
    return r.choice(kinds)()


def step(r: random.Random, model: Any) -> tuple[Any, tuple[Any, ...]]:
    optimizer = _optimizer(r)

    def run(model, state, x, y):  # type: ignore[no-untyped-def]
        value, slope = dl.value_and_grad(mean_loss)(model, x, y)
        change, state = optimizer.update(slope, state, model)
        return dl.nn.optim.apply(model, change), state, value

    return run, (optimizer.init(model),)


def steps(r: random.Random, model: Any) -> tuple[Any, tuple[Any, ...]]:
    optimizer, trips = _optimizer(r), r.choice([1, 2, 3])

    def run(model, state, x, y):  # type: ignore[no-untyped-def]
        total = mean_loss(model, x, y)
        for i in range(trips):
            value, slope = dl.value_and_grad(mean_loss)(model, x, (y + i) % 5)
            change, state = optimizer.update(slope, state, model)
            model = dl.nn.optim.apply(model, change)
            total = total + value
        return model, state, total

    return run, (optimizer.init(model),)


def per_example(r: random.Random, model: Any) -> tuple[Any, tuple[Any, ...]]:
    def one(model, x, y):  # type: ignore[no-untyped-def]
        return mean_loss(model, x[None], y[None])

    def run(model, x, y):  # type: ignore[no-untyped-def]
        return dl.vmap(dl.grad(one), in_axes=(None, 0, 0))(model, x[:4], y[:4])

    return run, ()


def adapted(r: random.Random, model: Any) -> tuple[Any, tuple[Any, ...]]:
    """The gradient through a step of SGD, as of MAML."""

    def after(model, x, y):  # type: ignore[no-untyped-def]
        slope = dl.grad(mean_loss)(model, x, y)
        moved = dl.tree.map(lambda p, g: p - 0.125 * g, model, slope)
        return mean_loss(moved, x, (y + 1) % 5)

    return dl.value_and_grad(after), ()


def lanes(r: random.Random, model: Any) -> tuple[Any, tuple[Any, ...]]:
    """Several models at once, each with a step of its own."""
    count = r.choice([2, 3])

    def one(scale, model, x, y):  # type: ignore[no-untyped-def]
        slope = dl.grad(mean_loss)(model, x, y)
        moved = dl.tree.map(lambda p, g: p - scale * g, model, slope)
        return mean_loss(moved, x, y), moved

    def run(model, x, y):  # type: ignore[no-untyped-def]
        dtype = dl.tree.leaves(model)[0].dtype
        scales = np.arange(count).astype(dtype) * 0.125
        return dl.vmap(one, in_axes=(0, None, None, None))(scales, model, x, y)

    return run, ()


# Models


def _act(r: random.Random) -> Any:
    ops = dl.ops
    kinds = [ops.relu, ops.relu, ops.relu6, ops.gelu, ops.silu, ops.leaky_relu, ops.elu, np.tanh]
    return dl.nn.Function(r.choice([*kinds, ops.softplus, ops.hardswish, ops.sigmoid]))


def _head(r: random.Random, x: Any) -> Layers:
    """From what is left to classes."""
    made: Layers = []
    if x.ndim > 2:
        made.append(dl.nn.GlobalAvgPool() if r.random() < 0.5 else dl.nn.Flatten())
        x = made[-1](x)
    while r.random() < 0.3:
        made += [dl.nn.Dense.init(_key(r), x.shape[1], r.choice([7, 16, 33, 64])), _act(r)]
        x = made[-2](x)
    return [*made, dl.nn.Dense.init(_key(r), x.shape[1], _CLASSES)]


def images(r: random.Random) -> tuple[Any, Array]:
    nn = dl.nn
    n, c = r.choice([1, 2, 3, 4, 5, 8, 10, 17]), r.choice([1, 3, 3, 8, 16])
    h, w = r.choice([5, 6, 7, 8, 9, 12, 14]), r.choice([5, 6, 7, 8, 9, 12, 14])
    while n * h * w * c > 6_000 and n > 1:
        n //= 2
    x = start = np.zeros((n, h, w, c), np.float32)
    layers: Layers = []
    for _ in range(r.randint(1, 4)):
        for layer in _block(r, x):
            try:
                made = layer(x)
            except ValueError:  # a window that does not fit
                break
            if not made.size or made.size > _WORK_MAX:
                break
            layers.append(layer)
            x = made
    return nn.Sequential((*layers, *_head(r, x))), start


def _block(r: random.Random, x: Any) -> Layers:
    """A convolution and what follows it."""
    nn, c = dl.nn, x.shape[-1]
    o = r.choice([4, 8, 12, 16, 16, 16, 32, 32, 33, 48])
    size = r.choice([1, 1, 3, 3, 3, 3, 5, 5, 7])
    how: dict[str, Any] = {"stride": r.choice([1, 1, 1, 2]), "biased": r.random() < 0.7}
    kind = r.choice(["conv"] * 6 + ["depthwise", "groups", "transposed", "residual", "dilated"])
    if kind == "residual":
        inside = [nn.Conv.init(_key(r), 3, c, c), _norm(r, c), _act(r)]
        body = nn.Sequential((*inside, nn.Conv.init(_key(r), r.choice([1, 3]), c, c)))
        across = nn.Conv.init(_key(r), 1, c, c) if r.random() < 0.3 else None
        return [nn.Residual(body, across), _act(r)]
    if kind == "depthwise":
        first = nn.DepthwiseConv.init(_key(r), r.choice([3, 5]), c, r.choice([1, 1, 2]), **how)
        o = first(x[:1]).shape[-1]
    elif kind == "groups" and c % 2 == 0:
        o = o // 2 * 2
        first = nn.Conv.init(_key(r), 3, c, o, groups=2, **how)
    elif kind == "transposed":
        first = nn.ConvTranspose.init(_key(r), r.choice([2, 3]), c, o, stride=r.choice([1, 2]))
    elif kind == "dilated":
        first = nn.Conv.init(_key(r), 3, c, o, dilation=2, **how)
    else:
        small = min(x.shape[1:3]) >= size and r.random() < 0.3
        first = nn.Conv.init(_key(r), size, c, o, padding="VALID" if small else "SAME", **how)
    more: Layers = []
    if r.random() < 0.5:
        more.append(_norm(r, o))
    if r.random() < 0.85:
        more.append(_act(r))
    if r.random() < 0.5:
        more.append(_pool(r))
    if r.random() < 0.2:
        more.reverse()
    return [first, *more]


def _norm(r: random.Random, c: int) -> Any:
    nn = dl.nn
    kinds: list[Callable[[], Any]] = [
        lambda: nn.BatchNorm.init(c),
        lambda: nn.BatchNorm.init(c),
        lambda: nn.GroupNorm.init(c, r.choice([g for g in (1, 2, 4, 8) if c % g == 0]), 0.01),
        lambda: nn.InstanceNorm.init(c, 0.01),
        lambda: nn.LayerNorm.init(c, 0.01),
        lambda: nn.RmsNorm.init(c, 0.01),
    ]
    return r.choice(kinds)()


def _pool(r: random.Random) -> Any:
    nn = dl.nn
    kinds = [
        nn.MaxPool(2),
        nn.MaxPool(2),
        nn.AvgPool(2),
        nn.MaxPool(3, 2),
        nn.MaxPool(3, 2, "SAME"),
    ]
    return r.choice([*kinds, nn.AvgPool(3, 2, "SAME"), nn.AvgPool(3, 1, "SAME"), nn.MaxPool(2, 1)])


def tables(r: random.Random) -> tuple[Any, Array]:
    n, d = r.choice([1, 2, 3, 7, 10, 16, 31, 32, 33]), r.choice([1, 3, 8, 20, 33, 64])
    x = start = np.zeros((n, d), np.float32)
    layers: Layers = []
    for _ in range(r.randint(0, 3)):
        layers.append(dl.nn.Dense.init(_key(r), x.shape[1], r.choice([1, 6, 16, 33, 64, 100])))
        x = layers[-1](x)
        if r.random() < 0.3:
            kinds = [dl.nn.BatchNorm, dl.nn.LayerNorm, dl.nn.RmsNorm]
            layers.append(r.choice(kinds).init(x.shape[1]))
        layers.append(_act(r))
    return dl.nn.Sequential((*layers, *_head(r, x))), start


@dl.module
class Looking:
    """Attention over the positions of a sequence, with heads and perhaps a mask."""

    inner: Any
    heads: int = dl.static_field(default=1)
    causal: bool = dl.static_field(default=False)
    masked: int = dl.static_field(default=0)

    def __call__(self, x):  # type: ignore[no-untyped-def]
        n, t, d = x.shape
        parts = self.inner(x).reshape(n, t, 3, self.heads, d // self.heads)
        q, k, v = (np.transpose(parts[:, :, i], (0, 2, 1, 3)) for i in (0, 1, 2))
        mask = None
        if self.masked == 1:
            mask = np.arange(t)[None, :] < np.arange(t)[:, None] + 2
        if self.masked == 2:
            mask = (np.arange(t) % 3 != 1)[None, None, None, :]
        seen = dl.ops.attention(q, k, v, mask, self.causal)
        return x + np.transpose(seen, (0, 2, 1, 3)).reshape(n, t, d)


def sequences(r: random.Random) -> tuple[Any, Array]:
    n, t, d = r.choice([1, 2, 3, 5]), r.choice([1, 2, 5, 8, 17, 33]), r.choice([4, 8, 12, 32])
    start = np.zeros((n, t, d), np.float32)
    return dl.nn.Sequential(tuple(_along(r, start))), start


def tokens(r: random.Random) -> tuple[Any, Array]:
    n, t, d = r.choice([1, 2, 4]), r.choice([3, 6, 10, 20]), r.choice([4, 8, 16])
    start = np.zeros((n, t), np.int64)
    table = dl.nn.Embedding.init(_key(r), 7, d)
    return dl.nn.Sequential((table, *_along(r, table(start)))), start


def _along(r: random.Random, x: Any) -> Layers:
    """Layers along sequences, and what comes after them."""
    nn = dl.nn
    made: Layers = []
    for _ in range(r.randint(1, 2)):
        d = x.shape[2]
        kind = r.choice(["attention", "attention", "recurrent", "recurrent", "conv", "dense"])
        if kind == "attention":
            heads = r.choice([h for h in (1, 2, 4) if d % h == 0])
            inner = nn.Dense.init(_key(r), d, 3 * d)
            layer = Looking(inner, heads, r.random() < 0.5, r.choice([0, 0, 1, 2]))
        elif kind == "recurrent":
            cell = r.choice([nn.LstmCell, nn.GruCell, nn.RnnCell])
            both = r.random() < 0.3
            layer = nn.Recurrent.init(cell, _key(r), d, r.choice([4, 8, 16, 17]), both)
        elif kind == "conv":
            layer = nn.Conv.init(_key(r), 3, d, r.choice([8, 16]), rank=1)
        else:
            layer = nn.Dense.init(_key(r), d, 16)
        made.append(layer)
        x = layer(x)
        if r.random() < 0.4:
            made.append(nn.LayerNorm.init(x.shape[2], 0.01) if r.random() < 0.5 else _act(r))
    return [*made, *_head(r, x)]
