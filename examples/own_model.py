"""A model of your own: a residual network, in the language of NumPy.

    delian simulate --scenario examples/own_model.toml

`init` is called once, on the coordinator; the model is a tree of f32 arrays. Whatever can be
written with NumPy's functions, `delian.ops` and `delian.nn` compiles, loops and branches too, and
the same functions run as plain Python: `init(dl.random.key(1), (8, 8, 1), 10)` at a prompt gives a
model that you can call.
"""

from __future__ import annotations

import delian as dl
import numpy as np


@dl.module
class Residual:
    """x + relu(conv(x)), so that a block can be left out without harm."""

    conv: dl.nn.Conv

    def __call__(self, x: dl.Tensor) -> dl.Tensor:
        return x + dl.ops.relu(self.conv(x))


@dl.module
class Model:
    """A first convolution, a few residual blocks, 2x2 pooling, a linear head."""

    stem: dl.nn.Conv
    blocks: tuple[Residual, ...]
    head: dl.nn.Dense

    def __call__(self, x: dl.Tensor, weight: dl.Tensor) -> dl.Tensor:
        """Images f32[N, H, W, C] -> logits f32[N, classes]; `weight` f32[N] marks the rows that
        count.
        """
        x = dl.ops.relu(self.stem(x))
        for block in self.blocks:
            x = block(x)
        x = dl.ops.max_pool(x, 2)
        return self.head(np.reshape(x, (x.shape[0], -1)))


def init(key: dl.Tensor, shape: tuple[int, ...], classes: int) -> Model:
    """The first model, for images of this shape (height, width, channels)."""
    height, width, channels = shape
    filters, depth = 16, 3
    keys = dl.random.split(key, depth + 2)
    blocks = tuple(Residual(dl.nn.Conv.init(keys[i], 3, filters, filters)) for i in range(depth))
    return Model(
        stem=dl.nn.Conv.init(keys[depth], 3, channels, filters),
        blocks=blocks,
        head=dl.nn.Dense.init(keys[depth + 1], (height // 2) * (width // 2) * filters, classes),
    )
