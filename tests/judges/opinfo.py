"""Judges NumPy's vocabulary by torch's own samples: torch.testing's OpInfo database.

    python tests/judges/opinfo.py [NAME...] [--markdown]

Needs torch and expecttest. For each of torch's operators that is a call of NumPy's functions
(`opinfo_calls`), every sample in f64 is compiled and run by the reference back end; its values, and
its gradient against torch's for the same cotangents, must agree to 1e-9. Prints what fails, and
counts; with --markdown the table of docs/vocabulary.md. The database is a private part of torch:
its samples, and so the counts, differ by version.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import delian as dl
import numpy as np
import torch
from delian.core.common.errors import ProgramError
from delian.core.compiler import tree
from opinfo_calls import CALLS
from torch.testing._internal.common_methods_invocations import op_db

TOLERANCE = 1e-9


@dataclass
class Verdict:
    """How the samples of one operator did. `failures` are (sample, reason)."""

    name: str
    values: int = 0
    gradients: int = 0
    samples: int = 0
    differentiable: int = 0
    failures: list[tuple[str, str]] = field(default_factory=list)


@dataclass(frozen=True)
class Slot:
    """Stands for the n-th tensor among the arguments."""

    n: int


def taken_apart(value: Any, tensors: list[Any]) -> Any:
    """The argument with slots for its tensors, which are added to the list."""
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return Slot(len(tensors) - 1)
    if isinstance(value, tuple | list):
        return type(value)(taken_apart(v, tensors) for v in value)
    if isinstance(value, dict):
        return {k: taken_apart(v, tensors) for k, v in value.items()}
    if isinstance(value, torch.Size):
        return tuple(value)
    return value


def put_together(value: Any, arrays: Any) -> Any:
    if isinstance(value, Slot):
        return arrays[value.n]
    if isinstance(value, tuple):
        return tuple([put_together(v, arrays) for v in value])
    if isinstance(value, list):
        return [put_together(v, arrays) for v in value]
    if isinstance(value, dict):
        return {k: put_together(v, arrays) for k, v in value.items()}
    return value


def program(call: Callable[..., Any], args: Any, kwargs: Any) -> Callable[..., Any]:
    def run(arrays: Any) -> Any:
        return call(*put_together(args, arrays), **put_together(kwargs, arrays))

    return run


def flat(result: Any) -> list[Any]:
    """Torch's results as a list of tensors; of values and indices, the values."""
    if isinstance(result, torch.Tensor):
        return [result]
    if type(result).__name__ in ("sort", "topk", "kthvalue", "cummax", "cummin", "max", "min"):
        return [result[0]]
    if isinstance(result, tuple | list):
        return [t for r in result for t in flat(r)]
    return [torch.as_tensor(result)]


def alike(got: Any, want: Any) -> bool:
    got, want = np.asarray(got), np.asarray(want)
    if got.shape != want.shape:
        return False
    scale = np.max(np.abs(want[np.isfinite(want)]), initial=1.0) if want.size else 1.0
    return bool(np.allclose(got, want, rtol=TOLERANCE, atol=TOLERANCE * scale, equal_nan=True))


def judge_sample(op: Any, call: Any, sample: Any, verdict: Verdict, described: str) -> None:
    tensors: list[Any] = []
    args = taken_apart((sample.input, *sample.args), tensors)
    kwargs = taken_apart(dict(sample.kwargs), tensors)
    run = program(call, args, kwargs)
    arrays = tuple(t.detach().numpy() for t in tensors)
    wanted = flat(op(sample.input, *sample.args, **sample.kwargs))
    verdict.samples += 1
    got = [np.asarray(v) for v in tree.leaves(dl.compile(run, backend="reference")(arrays))]
    if len(got) != len(wanted) or not all(
        alike(g, w.detach().resolve_conj().numpy()) for g, w in zip(got, wanted, strict=True)
    ):
        verdict.failures.append((described, "values differ"))
        return
    verdict.values += 1
    moving = [k for k, t in enumerate(tensors) if t.requires_grad]
    outputs = [w for w in wanted if w.requires_grad]
    if not moving or not outputs:
        return
    verdict.differentiable += 1
    rng = np.random.default_rng(0)
    weights = [rng.normal(size=w.shape) for w in wanted]
    torch_grads = torch.autograd.grad(
        outputs,
        [tensors[k] for k in moving],
        [torch.as_tensor(u) for w, u in zip(wanted, weights, strict=True) if w.requires_grad],
        allow_unused=True,
    )
    smooth = tuple(k for k, w in enumerate(wanted) if w.requires_grad)

    def loss(moved: Any, still: Any, weights: Any) -> Any:
        whole = list(still)
        for k, value in zip(moving, moved, strict=True):
            whole[k] = value
        leaves = tree.leaves(run(whole))
        return sum(np.sum(leaves[k] * weights[k]) for k in smooth)

    moved = tuple(arrays[k] for k in moving)
    grads = dl.compile(dl.grad(loss), backend="reference")(moved, arrays, tuple(weights))
    for g, t in zip(grads, torch_grads, strict=True):
        if not alike(g, np.zeros(np.shape(g)) if t is None else t.numpy(force=True)):
            verdict.failures.append((described, "gradients differ"))
            return
    verdict.gradients += 1


def judge(op: Any, name: str) -> Verdict:
    verdict = Verdict(name)
    dtype = torch.float64 if torch.float64 in op.dtypes else torch.int64
    grad = op.supports_autograd and dtype is torch.float64
    for sample in op.sample_inputs("cpu", dtype, requires_grad=grad):
        shapes = [tuple(t.shape) for t in _tensors((sample.input, sample.args))]
        rest = [a for a in sample.args if not isinstance(a, torch.Tensor | list)]
        described = f"{name}{shapes} {rest or ''} {sample.kwargs or ''}".strip()
        try:
            judge_sample(op, CALLS[name], sample, verdict, described)
        except ProgramError as e:
            verdict.failures.append((described, f"refused: {e.message}"))
    return verdict


def _tensors(value: Any) -> list[Any]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for v in value for t in _tensors(v)] if isinstance(value, tuple | list) else []


def markdown(verdicts: list[Verdict]) -> str:
    total = Counter[str]()
    for v in verdicts:
        total.update(
            samples=v.samples,
            values=v.values,
            gradients=v.gradients,
            differentiable=v.differentiable,
            whole=not v.failures,
        )
    lines = [
        f"torch {torch.__version__.split('+')[0]}: {len(verdicts)} operators,"
        f" {total['samples']} samples in f64. Values agree for {total['values']}, gradients for"
        f" {total['gradients']} of {total['differentiable']}; {total['whole']} operators pass"
        " whole. What does not:",
        "",
        "| operator | samples | fail | why (the first) |",
        "|---|---|---|---|",
    ]
    for v in verdicts:
        if v.failures:
            why = v.failures[0][1].replace("|", "/").split("\n")[0]
            lines.append(f"| {v.name} | {v.samples} | {len(v.failures)} | {why} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--markdown", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    verdicts = []
    for op in op_db:
        name = f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name
        if name not in CALLS or (options.names and name not in options.names):
            continue
        verdict = judge(op, name)
        verdicts.append(verdict)
        if not options.markdown:
            print(name, verdict.samples, verdict.values, verdict.gradients, flush=True)
            for sample, why in verdict.failures[:3]:
                print(f"    {sample}: {why}")
    print(markdown(verdicts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
