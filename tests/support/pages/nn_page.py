"""`docs/nn.md` from the docstrings of `delian.ops` and `delian.nn`."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from delian.core.compiler import intrinsics, ops
from delian.core.compiler.ops import (
    activations,
    alignment,
    boxes,
    convolution,
    dropout_masks,
    gathers,
    image_resize,
    losses,
    pooling,
    quantised_weights,
    rotary_positions,
    scaled_attention,
    vocabulary_losses,
)
from delian.core.learning import nn
from delian.core.learning.nn import (
    decoders,
    initialise,
    layers,
    norms,
    optim,
    recurrent,
    schedules,
    stacked_blocks,
    transformers,
    zoo,
)

#: Chapter -> the modules whose public names are in it.
_OPS: tuple[tuple[str, tuple[ModuleType, ...]], ...] = (
    ("Convolution", (convolution,)),
    ("Pooling and resizing", (pooling, image_resize)),
    ("Attention", (scaled_attention, rotary_positions)),
    ("Activations", (activations,)),
    ("Losses", (losses, vocabulary_losses, alignment)),
    ("Frozen weights", (quantised_weights,)),
    ("Rows, segments, the largest", (gathers,)),
    ("Boxes", (boxes,)),
    ("Randomness", (dropout_masks,)),
    ("Primitives of the IR", (intrinsics,)),
)
_NN: tuple[tuple[str, ModuleType, str], ...] = (
    ("Layers", layers, "nn"),
    ("Normalisation", norms, "nn"),
    ("Recurrent layers", recurrent, "nn"),
    ("Attention and transformers", transformers, "nn"),
    ("Decoders", decoders, "nn"),
    ("Many blocks", stacked_blocks, "nn"),
    ("First weights", initialise, "nn.initialise"),
    ("Optimisers", optim, "nn"),
    ("Schedules", schedules, "nn.schedules"),
    ("The zoo", zoo, "nn"),
)

_HEAD = """# Layers, losses, optimisers

Written by `python tests/house/generated.py` from the docstrings, which say
more: shapes, options, what is raised. A test keeps this page equal to them.

Everything here runs as plain Python on NumPy arrays and compiles to the same numbers, with
derivatives of any order. Images are [N, H, W, C], sequences [N, T, C], kernels
[space..., inputs, outputs].

A layer is its parameters: a frozen dataclass of arrays, made by `init` from a key, and called as a
pure function. Sizes and options are static. A model is a tree of f32 arrays that is called as
`model(x, weight)`, where `weight` marks the rows that count; `Sequential` is one.

```python
import delian as dl
import numpy as np
from delian import nn

keys = dl.random.split(dl.random.key(0), 2)
model = nn.Sequential(
    (
        nn.Conv.init(keys[0], 3, 1, 8, stride=2),
        nn.GroupNorm.init(8, 2),
        nn.Function(dl.ops.relu),
        nn.GlobalAvgPool(),
        nn.Dense.init(keys[1], 8, 10),
    )
)
optimizer = nn.chain(nn.clip_by_global_norm(1.0), nn.adamw(nn.schedules.cosine(1e-3, 100)))


@dl.compile
def train(model, state, x, y):
    def loss(model):
        return np.mean(dl.ops.cross_entropy(model(x), y, smoothing=0.1))

    value, gradient = dl.value_and_grad(loss)(model)
    step, state = optimizer.update(gradient, state, model)
    return nn.apply(model, step), state, value


x, y = np.zeros((4, 8, 8, 1), np.float32), np.arange(4)
model, state, value = train(model, optimizer.init(model), x, y)
```

In a federation an optimiser like this one is the `local` or the `server` of an algorithm.
"""


def page() -> str:
    """The page's text."""
    parts = [_HEAD, "## delian.ops\n"]
    told: set[str] = set()
    for title, modules in _OPS:
        names = [n for m in modules for n in _own(m, ops.__all__)]
        told.update(names)
        parts.append(_table(title, [_function(f"ops.{n}", getattr(ops, n)) for n in names]))
    missing = set(ops.__all__) - told
    assert not missing, f"no chapter has {missing}"
    parts.append("## delian.nn\n")
    for title, module, prefix in _NN:
        names = _own(module, nn.__all__ if prefix == "nn" else module.__all__)
        parts.append(_table(title, [_entry(f"{prefix}.{n}", getattr(module, n)) for n in names]))
        if module is norms:
            parts.append(_paragraphs(norms))
    return "\n".join(parts)


def _own(module: ModuleType, names: Sequence[str]) -> list[str]:
    """Those names that the module defines, in its order; type aliases are none."""
    found = []
    for name, value in vars(module).items():
        if name in names and getattr(value, "__module__", None) == module.__name__:
            found.append(name)
    return found


def _entry(name: str, value: Any) -> tuple[str, str]:
    if not isinstance(value, type):
        return _function(name, value)
    init = value.__dict__.get("init")
    shown = f"{name}.init" if init is not None else name
    maker = init.__func__ if init is not None else value
    return f"`{shown}{_signature(maker)}`", _first(value)


def _function(name: str, value: Any) -> tuple[str, str]:
    return f"`{name}{_signature(value)}`", _first(value)


def _signature(f: Any) -> str:
    """Names and defaults alone."""
    parts = []
    for p in inspect.signature(f).parameters.values():
        if p.kind is p.KEYWORD_ONLY and "*" not in parts:
            parts.append("*")
        star = "*" if p.kind is p.VAR_POSITIONAL else ""
        default = "" if p.default is p.empty else f"={_value(p.default)}"
        parts.append(f"{star}{p.name}{default}")
    return f"({', '.join(parts)})"


def _value(default: Any) -> str:
    if callable(default):
        return str(default.__name__)
    return f'"{default}"' if isinstance(default, str) else repr(default)


def _first(value: Any) -> str:
    """The docstring's first paragraph on one line."""
    text = inspect.getdoc(value) or ""
    return " ".join(text.split("\n\n")[0].split()).replace("|", "\\|")


def _table(title: str, rows: Sequence[tuple[str, str]]) -> str:
    lines = [f"### {title}\n", "| | |", "|---|---|"]
    lines += [f"| {name} | {text} |" for name, text in rows]
    return "\n".join(lines) + "\n"


def _paragraphs(module: ModuleType) -> str:
    """What follows the first line of a module's docstring."""
    return (inspect.getdoc(module) or "").partition("\n\n")[2] + "\n"
