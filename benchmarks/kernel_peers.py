"""The peers of benchmarks/kernels.py: the same training steps in torch eager and in jax.jit.

Each peer has its own way to hold parameters, so a step is made from the leaves of Delian's model,
and gives leaves back for the comparison. Torch runs contiguous NCHW or channels_last; JAX runs
[N, H, W, C], which is Delian's layout, with donated parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from delian.core.learning import nn
from kernel_models import INNER_RATE, Arrays, Workload

EPSILON = 1e-5


# Torch


class TorchStep:
    """Forward, loss, backward, torch.optim.SGD with its defaults."""

    def __init__(
        self, name: str, workload: Workload, leaves: Sequence[Any], data: Arrays, last: bool
    ) -> None:
        import torch

        self.name, self.workload = name, workload
        self.flat = dict(workload.flat)
        self.format = torch.channels_last if last else torch.contiguous_format
        self.model = workload.build()
        self.params = [self._to_torch(i, np.asarray(w)) for i, w in enumerate(leaves)]
        for p in self.params:
            p.requires_grad_()
        self.data = [self._data(a) for a in data]
        self.optimiser = torch.optim.SGD(self.params, lr=workload.rate)
        self.loss = 0.0

    def _data(self, a: Any) -> Any:
        import torch

        t = torch.tensor(a)
        if t.ndim == 4:
            return t.permute(0, 3, 1, 2).contiguous(memory_format=self.format)
        return t.long()

    def _to_torch(self, i: int, w: Any) -> Any:
        import torch

        t = torch.tensor(w)
        if i in self.workload.depthwise:
            return t.permute(2, 3, 0, 1).contiguous(memory_format=self.format)
        if t.ndim == 4:
            return t.permute(3, 2, 0, 1).contiguous(memory_format=self.format)
        if i in self.flat:
            h, w_, c = self.flat[i]
            return t.reshape(h, w_, c, -1).permute(3, 2, 0, 1).reshape(t.shape[1], -1).contiguous()
        if t.ndim == 2 and i not in self.workload.tables:
            return t.t().contiguous()
        return t

    def leaves(self) -> list[Any]:
        out = []
        for i, p in enumerate(self.params):
            t = p.detach()
            if i in self.workload.depthwise:
                t = t.permute(2, 3, 0, 1)
            elif t.ndim == 4:
                t = t.permute(2, 3, 1, 0)
            elif i in self.flat:
                h, w, c = self.flat[i]
                t = t.reshape(-1, c, h, w).permute(2, 3, 1, 0).reshape(h * w * c, -1)
            elif t.ndim == 2 and i not in self.workload.tables:
                t = t.t()
            out.append(t.numpy())
        return out

    def __call__(self) -> None:
        import torch

        for _ in range(self.workload.steps):
            self.optimiser.zero_grad()
            if self.name == "maml":
                support, labels, x, y = self.data
                inner = self._loss(self.params, support, labels)
                gradient = torch.autograd.grad(inner, self.params, create_graph=True)
                adapted = [w - INNER_RATE * g for w, g in zip(self.params, gradient, strict=True)]
                loss = self._loss(adapted, x, y)
            else:
                loss = self._loss(self.params, *self.data)
            loss.backward()
            self.optimiser.step()
        self.loss = float(loss.detach())

    def _loss(self, params: Sequence[Any], x: Any, y: Any) -> Any:
        from torch.nn import functional as fn

        logits = _TORCH[self.name](self.model, params, x)
        return fn.cross_entropy(logits.reshape(-1, logits.shape[-1]), y.reshape(-1))


def _torch_mlp(model: Any, p: Sequence[Any], x: Any) -> Any:
    from torch.nn import functional as fn

    h = x.flatten(1)
    h = fn.relu(fn.linear(h, p[0], p[1]))
    h = fn.relu(fn.linear(h, p[2], p[3]))
    return fn.linear(h, p[4], p[5])


def _torch_cnn(model: Any, p: Sequence[Any], x: Any) -> Any:
    from torch.nn import functional as fn

    for k in (0, 2):
        x = fn.max_pool2d(fn.relu(fn.conv2d(x, p[k], p[k + 1], padding=2)), 2)
    return fn.linear(fn.relu(fn.linear(x.flatten(1), p[4], p[5])), p[6], p[7])


def _torch_omniglot(model: Any, p: Sequence[Any], x: Any) -> Any:
    from torch.nn import functional as fn

    for k in range(0, 16, 4):
        x = fn.conv2d(x, p[k], p[k + 1], padding=1)
        x = fn.batch_norm(x, None, None, p[k + 2], p[k + 3], training=True, eps=EPSILON)
        x = fn.max_pool2d(fn.relu(x), 2)
    return fn.linear(x.flatten(1), p[16], p[17])


def _torch_lstm(model: Any, p: Sequence[Any], x: Any) -> Any:
    import torch
    from torch.nn import functional as fn

    width = p[2].shape[1]
    none = torch.zeros(4 * width)  # the second bias, which Delian's cell does not have
    zeros = torch.zeros(2, x.shape[0], width)
    weights = [p[1], p[2], p[3], none, p[4], p[5], p[6], none]
    out, _, _ = torch.lstm(
        fn.embedding(x, p[0]), (zeros, zeros), weights, True, 2, 0.0, True, False, True
    )
    return fn.linear(out, p[7], p[8])


def _torch_gru(model: Any, p: Sequence[Any], x: Any) -> Any:
    import torch
    from torch.nn import functional as fn

    width = p[2].shape[1]
    weights: list[Any] = []
    for k in (1, 5):
        weights += [p[k], p[k + 1], p[k + 2], fn.pad(p[k + 3], (2 * width, 0))]
    zeros = torch.zeros(2, x.shape[0], width)
    out, _ = torch.gru(fn.embedding(x, p[0]), zeros, weights, True, 1, 0.0, True, True, True)
    return fn.linear(out, p[9], p[10])


def _torch_transformer(model: Any, p: Sequence[Any], x: Any) -> Any:
    import torch
    from torch.nn import functional as fn

    leaves = iter(p)

    def take() -> tuple[Any, Any]:
        return next(leaves), next(leaves)

    def norm(h: Any, pair: tuple[Any, Any]) -> Any:
        return fn.layer_norm(h, h.shape[-1:], *pair, EPSILON)

    h = fn.embedding(x, next(leaves)) + torch.tensor(_positions(x.shape[1], p[0].shape[1]))
    heads = model.blocks[0].attention.heads
    for _ in model.blocks:
        q, k, v, o = take(), take(), take(), take()
        first, up, down, last = take(), take(), take(), take()
        n = norm(h, first)
        parts = [
            fn.linear(n, *w).reshape(*n.shape[:2], heads, -1).transpose(1, 2) for w in (q, k, v)
        ]
        mixed = fn.scaled_dot_product_attention(*parts, is_causal=True)
        h = h + fn.linear(mixed.transpose(1, 2).reshape(n.shape), *o)
        h = h + fn.linear(fn.gelu(fn.linear(norm(h, last), *up)), *down)
    final = take()
    return fn.linear(norm(h, final), *take())


def _positions(length: int, width: int) -> Any:
    return nn.sinusoids(length, width)


def _through(layer: Any, p: Iterator[Any], x: Any, one: Callable[[Any, Any, Any], Any]) -> Any:
    """x through a model whose single layers are `one`; each takes its parameters from `p`."""
    if isinstance(layer, nn.Sequential):
        for part in layer.layers:
            x = _through(part, p, x, one)
        return x
    if isinstance(layer, nn.Residual):
        body = _through(layer.body, p, x, one)
        return body + (x if layer.shortcut is None else _through(layer.shortcut, p, x, one))
    return one(layer, p, x)


def _torch_layers(model: Any, p: Sequence[Any], x: Any) -> Any:
    return _through(model, iter(p), x, _torch_layer)


def _torch_layer(layer: Any, p: Iterator[Any], x: Any) -> Any:
    from torch.nn import functional as fn

    if isinstance(layer, nn.Conv | nn.DepthwiseConv):
        w = next(p)
        groups = x.shape[1] if isinstance(layer, nn.DepthwiseConv) else 1
        return fn.conv2d(x, w, None, layer.stride, layer.kernel.shape[0] // 2, 1, groups)
    if isinstance(layer, nn.BatchNorm):
        return fn.batch_norm(x, None, None, next(p), next(p), training=True, eps=EPSILON)
    if isinstance(layer, nn.GroupNorm):
        return fn.group_norm(x, layer.groups, next(p), next(p), EPSILON)
    if isinstance(layer, nn.GlobalAvgPool):
        return x.mean((2, 3))
    if isinstance(layer, nn.Dense):
        return fn.linear(x, next(p), next(p))
    return fn.relu6(x) if layer.function.__name__ == "relu6" else fn.relu(x)


_TORCH = {
    "mlp": _torch_mlp,
    "cnn": _torch_cnn,
    "omniglot": _torch_omniglot,
    "maml": _torch_omniglot,
    "lstm": _torch_lstm,
    "gru": _torch_gru,
    "transformer": _torch_transformer,
    "resnet8": _torch_layers,
    "mobilenet": _torch_layers,
}


# JAX


class JaxStep:
    """One jitted step whose parameters are donated."""

    def __init__(self, name: str, workload: Workload, leaves: Sequence[Any], data: Arrays) -> None:
        import jax
        import jax.numpy as jnp

        self.workload, self.model = workload, workload.build()
        self.params = [jnp.array(w) for w in leaves]
        self.data = [jnp.array(a) for a in data]
        self.loss = 0.0

        def classify(params: Any, x: Any, y: Any) -> Any:
            logits = _JAX[name](self.model, params, x)
            said = jax.nn.log_softmax(logits)
            return -jnp.mean(jnp.take_along_axis(said, y[..., None], axis=-1))

        def maml(params: Any, support: Any, labels: Any, x: Any, y: Any) -> Any:
            inner = jax.grad(classify)(params, support, labels)
            adapted = [w - INNER_RATE * g for w, g in zip(params, inner, strict=True)]
            return classify(adapted, x, y)

        loss = maml if name == "maml" else classify

        def step(params: Any, data: Any) -> Any:
            value, gradient = jax.value_and_grad(loss)(params, *data)
            return [w - workload.rate * g for w, g in zip(params, gradient, strict=True)], value

        self.step = jax.jit(step, donate_argnums=0)

    def leaves(self) -> list[Any]:
        return [np.asarray(w) for w in self.params]

    def __call__(self) -> None:
        for _ in range(self.workload.steps):
            self.params, value = self.step(self.params, self.data)
        self.loss = float(value)
        self.params[0].block_until_ready()


def _conv(x: Any, w: Any, stride: int = 1, groups: int = 1) -> Any:
    from jax import lax

    pad = (w.shape[0] // 2,) * 2
    layout = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(
        x, w, (stride, stride), (pad, pad), dimension_numbers=layout, feature_group_count=groups
    )


def _pool(x: Any) -> Any:
    """The largest of 2x2; faster on a CPU than lax.reduce_window, whose gradient scatters."""
    n, h, w, c = x.shape
    x = x[:, : h // 2 * 2, : w // 2 * 2]
    return x.reshape(n, h // 2, 2, w // 2, 2, c).max((2, 4))


def _jax_norm(x: Any, axes: tuple[int, ...], scale: Any, shift: Any) -> Any:
    import jax.numpy as jnp
    from jax import lax

    mean = x.mean(axes, keepdims=True)
    variance = jnp.square(x - mean).mean(axes, keepdims=True)
    return (x - mean) * lax.rsqrt(variance + EPSILON) * scale + shift


def _jax_mlp(model: Any, p: Sequence[Any], x: Any) -> Any:
    import jax

    h = x.reshape(x.shape[0], -1)
    h = jax.nn.relu(h @ p[0] + p[1])
    h = jax.nn.relu(h @ p[2] + p[3])
    return h @ p[4] + p[5]


def _jax_cnn(model: Any, p: Sequence[Any], x: Any) -> Any:
    import jax

    for k in (0, 2):
        x = _pool(jax.nn.relu(_conv(x, p[k]) + p[k + 1]))
    return jax.nn.relu(x.reshape(x.shape[0], -1) @ p[4] + p[5]) @ p[6] + p[7]


def _jax_omniglot(model: Any, p: Sequence[Any], x: Any) -> Any:
    import jax

    for k in range(0, 16, 4):
        x = _jax_norm(_conv(x, p[k]) + p[k + 1], (0, 1, 2), p[k + 2], p[k + 3])
        x = _pool(jax.nn.relu(x))
    return x.reshape(x.shape[0], -1) @ p[16] + p[17]


def _jax_lstm(model: Any, p: Sequence[Any], x: Any) -> Any:
    import jax
    import jax.numpy as jnp
    from jax import lax

    h = p[0][x.T]
    for k in (1, 4):
        projected = h @ p[k] + p[k + 2]

        def step(state: Any, gates: Any, recurrent: Any = p[k + 1]) -> Any:
            hidden, cell = state
            i, f, g, o = jnp.split(gates + hidden @ recurrent, 4, axis=-1)
            cell = jax.nn.sigmoid(f) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
            hidden = jax.nn.sigmoid(o) * jnp.tanh(cell)
            return (hidden, cell), hidden

        zeros = jnp.zeros((x.shape[0], p[k + 1].shape[0]), jnp.float32)
        _, h = lax.scan(step, (zeros, zeros), projected)
    return jnp.transpose(h @ p[7] + p[8], (1, 0, 2))


def _jax_gru(model: Any, p: Sequence[Any], x: Any) -> Any:
    import jax
    import jax.numpy as jnp
    from jax import lax

    h = p[0][x.T]
    ways = []
    for k in (1, 5):
        projected = h @ p[k] + p[k + 2]

        def step(hidden: Any, given: Any, k: int = k) -> Any:
            gates = hidden @ p[k + 1]
            r, z, n = jnp.split(given, 3, axis=-1)
            a, b, c = jnp.split(gates, 3, axis=-1)
            update = jax.nn.sigmoid(z + b)
            candidate = jnp.tanh(n + jax.nn.sigmoid(r + a) * (c + p[k + 3]))
            hidden = (1 - update) * candidate + update * hidden
            return hidden, hidden

        zeros = jnp.zeros((x.shape[0], p[k + 1].shape[0]), jnp.float32)
        _, out = lax.scan(step, zeros, projected, reverse=k == 5)
        ways.append(out)
    return jnp.transpose(jnp.concatenate(ways, -1) @ p[9] + p[10], (1, 0, 2))


def _jax_transformer(model: Any, p: Sequence[Any], x: Any) -> Any:
    import jax

    leaves = iter(p)

    def take() -> tuple[Any, Any]:
        return next(leaves), next(leaves)

    def dense(h: Any, pair: tuple[Any, Any]) -> Any:
        return h @ pair[0] + pair[1]

    h = next(leaves)[x] + _positions(x.shape[1], p[0].shape[1])
    heads = model.blocks[0].attention.heads
    for _ in model.blocks:
        q, k, v, o = take(), take(), take(), take()
        first, up, down, last = take(), take(), take(), take()
        n = _jax_norm(h, (-1,), *first)
        parts = [dense(n, w).reshape(*n.shape[:2], heads, -1) for w in (q, k, v)]
        mixed = jax.nn.dot_product_attention(*parts, is_causal=True)
        h = h + dense(mixed.reshape(n.shape), o)
        h = h + dense(jax.nn.gelu(dense(_jax_norm(h, (-1,), *last), up), approximate=False), down)
    final = take()
    return dense(_jax_norm(h, (-1,), *final), take())


def _jax_layers(model: Any, p: Sequence[Any], x: Any) -> Any:
    return _through(model, iter(p), x, _jax_layer)


def _jax_layer(layer: Any, p: Iterator[Any], x: Any) -> Any:
    import jax

    if isinstance(layer, nn.DepthwiseConv):
        w = next(p)
        return _conv(x, w.reshape(*w.shape[:2], 1, -1), layer.stride, w.shape[2])
    if isinstance(layer, nn.Conv):
        return _conv(x, next(p), layer.stride)
    if isinstance(layer, nn.BatchNorm):
        return _jax_norm(x, (0, 1, 2), next(p), next(p))
    if isinstance(layer, nn.GroupNorm):
        scale, shift = next(p), next(p)
        parted = x.reshape(*x.shape[:-1], layer.groups, -1)
        return _jax_norm(parted, (1, 2, 4), 1.0, 0.0).reshape(x.shape) * scale + shift
    if isinstance(layer, nn.GlobalAvgPool):
        return x.mean((1, 2))
    if isinstance(layer, nn.Dense):
        return x @ next(p) + next(p)
    return jax.nn.relu6(x) if layer.function.__name__ == "relu6" else jax.nn.relu(x)


_JAX = {
    "mlp": _jax_mlp,
    "cnn": _jax_cnn,
    "omniglot": _jax_omniglot,
    "maml": _jax_omniglot,
    "lstm": _jax_lstm,
    "gru": _jax_gru,
    "transformer": _jax_transformer,
    "resnet8": _jax_layers,
    "mobilenet": _jax_layers,
}
