"""Time of one training step (forward, loss, backward, SGD) on one thread, from hand-built IR.

    python benchmarks/steps.py [--json] [--model mlp] [--batch 10] [--torch]

Models: the MLP 784-200-200-10 and the FedAvg CNN (conv 5x5x32, pool, conv 5x5x64, pool, dense 512,
dense 10, padding SAME) of McMahan et al. 2017. Quotes the least and the median of many steps; with
--torch, torch eager on the same data, steps of the two taking turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from delian.core.backends import compile_function
from delian.core.ir import Block, Builder, DType, Function, TensorType, Value, count_ops
from delian.core.passes.simplify import simplify
from delian.core.transforms.vjp import vjp

RATE = 0.1
SAME = ((2, 2), (2, 2))
MODELS: dict[str, list[tuple[int, ...]]] = {
    "mlp": [(784, 200), (200,), (200, 200), (200,), (200, 10), (10,)],
    "cnn": [
        *((5, 5, 1, 32), (32,), (5, 5, 32, 64), (64,)),
        *((3136, 512), (512,), (512, 10), (10,)),
    ],
}


def f32(*shape: int) -> TensorType:
    return TensorType(DType.F32, shape)


def add_bias(b: Builder, x: Value, bias: Value) -> Value:
    axis = x.tensor.rank - 1
    return b("add", x, b("broadcast", bias, shape=x.shape, dims=(axis,)))


def relu(b: Builder, x: Value) -> Value:
    return b("max", x, b.full(x.tensor, 0))


def dense(b: Builder, x: Value, w: Value, bias: Value) -> Value:
    y = b("dot", x, w, contract_a=(1,), contract_b=(0,), batch_a=(), batch_b=())
    return add_bias(b, y, bias)


def pool(b: Builder, x: Value) -> Value:
    n, h, w, c = x.shape
    windows = b("reshape", x, shape=(n, h // 2, 2, w // 2, 2, c))
    return b("reduce_max", windows, axes=(2, 4))


def cross_entropy(b: Builder, logits: Value, labels: Value) -> Value:
    """The mean over the batch, labels i32."""
    n, classes = logits.shape

    def across(v: Value) -> Value:
        return b("broadcast", v, shape=(n, classes), dims=(0,))

    top = b("stop_gradient", b("reduce_max", logits, axes=(1,)))
    shifted = b("sub", logits, across(top))
    total = b("log", b("reduce_sum", b("exp", shifted), axes=(1,)))
    column = b("reshape", labels, shape=(n, 1))
    chosen = b("reshape", b("take_along", shifted, column, axis=1), shape=(n,))
    losses = b("sub", total, chosen)
    mean = b("mul", b("reduce_sum", losses, axes=(0,)), b.constant(1 / n, DType.F32))
    return mean


def loss_block(model: str, batch: int) -> Block:
    """(parameters..., x, labels) -> loss."""
    shapes = MODELS[model]
    x_type = f32(batch, 784) if model == "mlp" else f32(batch, 28, 28, 1)
    b = Builder([*(f32(*s) for s in shapes), x_type, TensorType(DType.I32, (batch,))])
    *params, x, labels = b.params
    if model == "cnn":
        for k in range(2):
            y = b("conv", x, params[2 * k], strides=(1, 1), padding=SAME)
            x = pool(b, relu(b, add_bias(b, y, params[2 * k + 1])))
        x = b("reshape", x, shape=(batch, 3136))
        params = params[4:]
    for k in range(0, len(params) - 2, 2):
        x = relu(b, dense(b, x, params[k], params[k + 1]))
    logits = dense(b, x, params[-2], params[-1])
    return b.finish([cross_entropy(b, logits, labels)])


def step_function(model: str, batch: int, steps: int) -> Function:
    """`steps` steps of SGD on one batch, as one program: a loop that carries the parameters."""
    loss = loss_block(model, batch)
    count = len(MODELS[model])
    gradient = vjp(loss, range(count))
    types = [p.type for p in loss.params]
    body = Builder([TensorType(DType.I64), *types[count:], f32(), *types[:count], f32()])
    _, x, labels, one, *carried = body.params
    params = carried[:-1]
    value, *grads = body.inline(gradient, [*params, x, labels, one])
    updated = [
        body("sub", p, body("mul", g, body.full(p.tensor, RATE)))
        for p, g in zip(params, grads, strict=True)
    ]
    outer = Builder(types)
    *starts, x, labels = outer.params
    lo, hi = outer.constant(0, DType.I64), outer.constant(steps, DType.I64)
    one, zero = outer.constant(1, DType.F32), outer.constant(0, DType.F32)
    operands = [lo, hi, x, labels, one, *starts, zero]
    region = simplify(body.finish([*updated, value]))
    results = outer.emit("for", operands, {"consts": 3}, [region])
    names = tuple(f"p{i}" for i in range(count))
    block = simplify(outer.finish(results))
    return Function(f"{model}_step", block, (*names, "x", "labels"), (*names, "loss"))


def arguments(model: str, batch: int) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    params = [
        (rng.standard_normal(s) * (2 / np.prod(s[:-1])) ** 0.5 * (len(s) > 1)).astype(np.float32)
        for s in MODELS[model]
    ]
    shape = (batch, 784) if model == "mlp" else (batch, 28, 28, 1)
    x = rng.random(shape, dtype=np.float32)
    return [*params, x, rng.integers(0, 10, batch).astype(np.int32)]


def torch_step(model: str, args: Sequence[Any]) -> Callable[[], float]:
    """Torch eager, NCHW, one thread; gives a function that takes one step and returns the loss."""
    import torch
    from torch.nn import functional as fn

    torch.set_num_threads(1)
    params = [torch.tensor(a) for a in args[:-2]]
    if model == "cnn":
        for k in (0, 2):
            params[k] = params[k].permute(3, 2, 0, 1).contiguous()
        rows = params[4].reshape(7, 7, 64, 512).permute(2, 0, 1, 3)
        params[4] = rows.reshape(3136, 512).contiguous()
    params = [p.requires_grad_() for p in params]
    x, y = torch.tensor(args[-2]), torch.tensor(args[-1]).long()
    if model == "cnn":
        x = x.permute(0, 3, 1, 2).contiguous()
    optimiser = torch.optim.SGD(params, lr=RATE)

    def step() -> float:
        optimiser.zero_grad()
        h, rest = x, params
        if model == "cnn":
            for k in (0, 2):
                h = fn.conv2d(h, params[k], params[k + 1], padding=2)
                h = fn.max_pool2d(torch.relu(h), 2)
            h, rest = h.flatten(1), params[4:]
        for k in range(0, len(rest) - 2, 2):
            h = torch.relu(h @ rest[k] + rest[k + 1])
        loss = fn.cross_entropy(h @ rest[-2] + rest[-1], y)
        loss.backward()
        optimiser.step()
        return float(loss.detach())

    return step


def measure(model: str, batch: int, against_torch: bool) -> dict[str, Any]:
    """Milliseconds a step. The start and end of the loop are in them, spread over its steps."""
    steps = 20 if model == "mlp" else 2
    began = time.perf_counter()
    function = step_function(model, batch, steps)
    built = time.perf_counter()
    program = compile_function(function)
    compiled = time.perf_counter()
    args = arguments(model, batch)
    times: list[float] = []
    other: list[float] = []
    eager = torch_step(model, args) if against_torch else None
    out = [np.empty(t.shape, t.dtype.numpy) for t in map(_tensor, function.result_types)]
    rounds = 60 if model == "mlp" else 20
    for _ in range(rounds):
        start = time.perf_counter()
        program(*args, out=out)
        times.append((time.perf_counter() - start) / steps * 1e3)
        if eager is not None:
            start = time.perf_counter()
            for _ in range(steps):
                eager()
            other.append((time.perf_counter() - start) / steps * 1e3)
    report = getattr(program, "report", None)
    result = {
        "model": model,
        "batch": batch,
        "ms_min": min(times),
        "ms_median": statistics.median(times),
        "loss": float(out[-1]),
        "trace_s": built - began,
        "compile_s": compiled - built,
        "ops": count_ops(function.body),
        "arena_bytes": report.arena_bytes if report else 0,
        "tensor_bytes": report.tensor_bytes if report else 0,
        "library_bytes": report.library.stat().st_size if report else 0,
    }
    if eager is not None:
        result |= {"torch_ms_min": min(other), "torch_ms_median": statistics.median(other)}
    return result


def _tensor(type_: Any) -> TensorType:
    assert isinstance(type_, TensorType)
    return type_


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    parser.add_argument("--model", choices=list(MODELS), action="append")
    parser.add_argument("--batch", type=int, default=10)
    parser.add_argument("--torch", action="store_true", help="torch eager beside it")
    options = parser.parse_args()
    models = options.model or list(MODELS)
    rows = [measure(m, options.batch, options.torch) for m in models]
    if options.json:
        print(json.dumps({"steps": rows}, indent=2))
        return
    for row in rows:
        print(
            "  ".join(
                f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()
            )
        )


if __name__ == "__main__":
    main()
