"""Steps of fine-tuning: a small transformer with adapters on query and value, whole and in parts.

Its blocks have one width, and a mean over the tokens makes what follows small. So it has three
places to cut at: behind the embedding, behind the mean, and nowhere.

Tests reach this module through the fixture `adapted_steps` (conftest.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import delian as dl
import numpy as np
from delian.core.compiler.api import value_and_grad
from delian.core.compiler.backends import compile_function
from delian.core.compiler.ir import DType, TensorType
from delian.core.learning import Classification, Samples
from delian.core.learning.nn import optim
from delian.core.learning.sampling import Batch
from delian.core.placement.cut.profile import NodeProfile, Sample
from delian.core.placement.split_training.step_bundle import StepBundle

SYMBOLS, CLASSES, ROWS, TOKENS, WIDTH, WIDE = 20, 5, 2, 24, 16, 512
#: Bytes a second. Over the slowest all is best on the device. With embedding and first block there,
#: over the middle one the cut is best behind the mean, over the fast one behind the first block.
SLOW, MIDDLE, FAST = 1e3, 3.2e5, 3e6

_NODE = NodeProfile(
    *("any", "", "2026-01-01", 1),
    samples={
        "loop": (Sample((1000.0, 10.0, 4.0), 4e-5),),
        "product": (Sample((8.0, 10.0, 10.0, 1.0), 1.6e-5),),
    },
    element_s={},
    bandwidth=1e9,
    memory=None,
    call_s=0.0,
    argument_s=0.0,
    encode_s={"f32": 0.0},
)
#: An edge that is eight times as fast as the device.
PROFILES = (_NODE, _NODE.scaled(1 / 8))


def limited(device: int | None) -> tuple[NodeProfile, NodeProfile]:
    """The nodes, the device with so many bytes."""
    return replace(PROFILES[0], memory=device), PROFILES[1]


@dl.module
class TokenClassifier:
    """Words, blocks, the mean over the tokens, a wide layer, a head."""

    embedding: dl.nn.Embedding
    blocks: tuple[dl.nn.TransformerBlock, ...]
    wide: dl.nn.Dense
    head: dl.nn.Dense

    def __call__(self, tokens: Any) -> Any:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(dl.ops.gelu(self.wide(np.mean(x, axis=1))))


def classifier(depth: int = 2, saved: tuple[str, ...] = ()) -> Any:
    """With adapters of rank 2 on query, value and the wide layer, which are not at zero."""
    keys = dl.random.split(dl.random.key(1), depth + 3)
    blocks = tuple(dl.nn.TransformerBlock.init(key, WIDTH, 2) for key in keys[3:])
    base = TokenClassifier(
        dl.nn.Embedding.init(keys[0], SYMBOLS, WIDTH),
        blocks,
        dl.nn.Dense.init(keys[1], WIDTH, WIDE),
        dl.nn.Dense.init(keys[2], WIDE, CLASSES),
    )
    model = dl.lora(base, 2, ("query", "value", "wide"), 4, modules_to_save=saved)
    parts, draw = dl.adapters.split(model), np.random.default_rng(7)
    trained = {
        name: (value + 0.2 * draw.standard_normal(value.shape)).astype(np.float32)
        for name, value in parts.trained.items()
    }
    return parts.join(trained, parts.frozen)


def task_of(model: Any) -> Classification:
    return Classification("texts", lambda key: model, Samples(ROWS, 1.0))


def bundle_of(model: Any, **more: Any) -> StepBundle:
    """The step of a model on rows of tokens with a label each."""
    tokens, labels = TensorType(DType.I32, (ROWS, TOKENS)), TensorType(DType.I32, (ROWS,))
    optimizer = more.pop("optimizer", optim.sgd(0.1, 0.9))
    return StepBundle.of(task_of(model), optimizer, model, tokens, labels, **more)


def batches(count: int, seed: int = 0) -> list[list[np.ndarray]]:
    """x, y and the rows' weights, so often."""
    rng = np.random.default_rng(seed)
    return [
        [
            rng.integers(0, SYMBOLS, (ROWS, TOKENS)).astype(np.int32),
            rng.integers(0, CLASSES, ROWS).astype(np.int32),
            np.ones(ROWS, np.float32),
        ]
        for _ in range(count)
    ]


def whole_steps(
    bundle: StepBundle, model: Any, given: Sequence[Sequence[np.ndarray]]
) -> tuple[list[float], dict[int, np.ndarray]]:
    """Losses and trained leaves by the step's own program, which is not cut."""
    own, frozen = bundle.divided(model)
    step = bundle.step
    run = compile_function(step.function, "reference", "reproducible")
    types = step.function.param_types[step.leaves : step.leaves + step.states]
    held = [*own.values(), *(np.zeros(t.shape, np.float32) for t in types)]
    losses = []
    for batch in given:
        loss, *held = run(*held, *(frozen[x.name] for x in bundle.frozen), *batch)
        losses.append(float(loss))
    return losses, dict(enumerate(held[: step.leaves]))


def plain_steps(
    model: Any, given: Sequence[Sequence[np.ndarray]], optimizer: optim.Optimizer
) -> Iterator[tuple[float, dict[str, np.ndarray]]]:
    """Loss and adapters after each step, as plain functions of NumPy arrays; no program."""
    parts, task = dl.adapters.split(model), task_of(model)
    trained = parts.trained
    state = optimizer.init(trained)
    for batch in given:

        def loss(trained: Any, batch: Any = batch) -> Any:
            return task.loss(parts.join(trained, parts.frozen), Batch(*batch))

        value, gradient = value_and_grad(loss)(trained)
        change, state = optimizer.update(gradient, state, trained)
        trained = optim.apply(trained, change)
        yield float(value), trained


def torch_steps(
    model: Any, given: Sequence[Sequence[np.ndarray]], rate: float, momentum: float
) -> tuple[list[float], dict[str, np.ndarray]]:
    """Losses, and adapters by name after the last step, as PyTorch has them."""
    import torch
    from torch.nn import functional as F

    parts = dl.adapters.split(model)
    trained = {n: torch.tensor(a, requires_grad=True) for n, a in parts.trained.items()}
    held = {n: torch.tensor(np.asarray(a)) for n, a in parts.frozen.items()} | trained

    def dense(x: Any, name: str) -> Any:
        base = held.get(f"{name}.weight.base")
        if base is None:
            return x @ held[f"{name}.weight"] + held[f"{name}.bias"]
        a, b = held[f"{name}.weight.a"], held[f"{name}.weight.b"]
        return x @ base + 2.0 * (x @ a) @ b + held[f"{name}.bias"]  # alpha 4, rank 2

    def norm(x: Any, name: str) -> Any:
        return F.layer_norm(x, (WIDTH,), held[f"{name}.scale"], held[f"{name}.shift"])

    def block(x: Any, name: str) -> Any:
        inner = norm(x, f"{name}.norm")
        q, k, v = (
            dense(inner, f"{name}.attention.{part}").reshape(ROWS, TOKENS, 2, -1).transpose(1, 2)
            for part in ("query", "key", "value")
        )
        seen = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape)
        x = x + dense(seen, f"{name}.attention.output")
        inner = F.gelu(dense(norm(x, f"{name}.last_norm"), f"{name}.up"))
        return x + dense(inner, f"{name}.down")

    optimizer, losses = torch.optim.SGD(trained.values(), rate, momentum), []
    for tokens, labels, _ in given:
        x = held["embedding.table"][torch.tensor(tokens).long()]
        for k in range(len(model.blocks)):
            x = block(x, f"blocks.{k}")
        logits = dense(F.gelu(dense(x.mean(1), "wide")), "head")
        loss = F.cross_entropy(logits, torch.tensor(labels).long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses, {n: a.detach().numpy() for n, a in trained.items()}
