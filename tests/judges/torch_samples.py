"""Samples of PyTorch's own tables, judged: what `from_torch` gives against what PyTorch gives.

The samples of a row are exported as one module, which costs one export and one compilation; where
that fails, each by itself.
"""

from __future__ import annotations

import collections
from dataclasses import dataclass, field

import delian as dl
import numpy as np
import torch
from delian.core.common.errors import DelianError
from delian.core.compiler import tree
from delian.core.learning.interchange.torch import torch_export, torch_graph
from torch.utils import _pytree

#: torch.testing's own for f32, with the slack that its module tests give to sums of many terms.
RTOL, ATOL, SLACK = 1.3e-6, 1e-5, 10.0


@dataclass(frozen=True)
class Slot:
    """Stands for the n-th tensor among the arguments."""

    n: int


@dataclass
class Verdicts:
    """How the samples of one row did."""

    count: collections.Counter = field(default_factory=collections.Counter)
    first: dict[str, str] = field(default_factory=dict)
    reasons: collections.Counter = field(default_factory=collections.Counter)

    def add(self, kind: str, text: str = "") -> None:
        self.count[kind] += 1
        if text:
            self.first.setdefault(kind, text[:400])
            if kind in ("refused", "fault"):
                self.reasons[text.splitlines()[0][:110]] += 1


def close(got: np.ndarray, want: np.ndarray) -> bool:
    if got.shape != want.shape:
        return False
    scale = 1.0
    if want.dtype.kind == "f" and want.size:
        finite = np.abs(want[np.isfinite(want)])
        scale = min(max(1.0, float(finite.max(initial=0))), 1e3)
    return bool(
        np.allclose(got, want, rtol=SLACK * RTOL, atol=SLACK * ATOL * scale, equal_nan=True)
    )


def tensors(value) -> list[torch.Tensor]:
    return [leaf for leaf in _pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def taken_apart(value, found):
    """The arguments with slots for tensors, which are added to the list."""
    if isinstance(value, torch.Tensor):
        place = next((k for k, each in enumerate(found) if each is value), len(found))
        if place == len(found):
            found.append(value)
        return Slot(place)
    if isinstance(value, tuple | list):
        return type(value)(taken_apart(v, found) for v in value)
    if isinstance(value, dict):
        return {k: taken_apart(v, found) for k, v in value.items()}
    return value


def put_together(value, given):
    if isinstance(value, Slot):
        return given[value.n]
    if isinstance(value, tuple | list):
        return type(value)(put_together(v, given) for v in value)
    if isinstance(value, dict):
        return {k: put_together(v, given) for k, v in value.items()}
    return value


def slots(value) -> set[int]:
    if isinstance(value, Slot):
        return {value.n}
    if isinstance(value, dict):
        value = list(value.values())
    return set().union(*map(slots, value)) if isinstance(value, tuple | list) and value else set()


class Calls(torch.nn.Module):
    """Several calls, of functions or modules; gives the tensors of each result."""

    def __init__(self, calls) -> None:
        super().__init__()
        self.calls = calls
        self.parts = torch.nn.ModuleList(c for c, _, _ in calls if isinstance(c, torch.nn.Module))

    def forward(self, *given):
        return tuple(
            tuple(tensors(call(*put_together(args, given), **put_together(kwargs, given))))
            for call, args, kwargs in self.calls
        )


def _judged(module: Calls, given, training: bool, backend: str) -> list[str]:
    """A verdict for each call: "" or what is wrong. Raises DelianError for a refusal."""
    program = torch_export.exported(module, tuple(given), {}, training, False)
    names = torch_graph.changed_buffers(program)
    graph = torch_graph.written(program, "calls", names)
    if graph.draws:
        raise DelianError("it draws random numbers")
    arrays = [t.detach().numpy() for t in given]
    statistics = {n: np.array(program.state_dict[n].detach().numpy()) for n in names}
    trained = {n: p for n, p in program.state_dict.items() if p.requires_grad}
    parameters = {n: p.detach().numpy() for n, p in trained.items()}
    module.train(training)
    torch.manual_seed(0)
    want = module(*given)

    def outputs(parameters, arrays):
        return graph.function(parameters, statistics, arrays, None, None)[0]

    got = dl.compile(outputs, backend=backend)(parameters, arrays)
    verdicts = [_difference(g, w) for g, w in zip(got, want, strict=True)]
    free = [k for k, t in enumerate(given) if t.requires_grad]
    flat = [t for each in want for t in each]
    floats = [k for k, t in enumerate(flat) if t.is_floating_point() and t.requires_grad]
    leaves = [*trained.values(), *(given[k] for k in free)]
    if not leaves or not floats:
        return verdicts
    rng = np.random.default_rng(0)
    factors = [rng.standard_normal(flat[k].shape).astype(np.float32) for k in floats]
    total = sum((flat[k] * torch.from_numpy(f)).sum() for k, f in zip(floats, factors, strict=True))
    slopes = torch.autograd.grad(total, leaves, allow_unused=True)

    def loss(parameters, moving):
        filled = list(arrays)
        for k, x in zip(free, moving, strict=True):
            filled[k] = x
        found = tree.leaves(outputs(parameters, filled))
        value = np.float32(0)
        for k, f in zip(floats, factors, strict=True):
            value = value + np.sum(found[k] * f)
        return value

    gradient = dl.compile(dl.grad(loss, argnums=(0, 1)), backend=backend)
    by_name, by_place = gradient(parameters, [arrays[k] for k in free])
    found = [*(by_name[n] for n in trained), *by_place]
    whose = [*trained, *free]
    for place, g, w in zip(whose, found, slopes, strict=True):
        w = np.zeros(g.shape, g.dtype) if w is None else w.numpy(force=True)
        if not close(g, w):
            text = f"gradient of {place}: {g.reshape(-1)[:4]} for {w.reshape(-1)[:4]}"
            for n, (_, args, kwargs) in enumerate(module.calls):
                if place in slots((args, kwargs)) or isinstance(place, str):
                    verdicts[n] = verdicts[n] or text
    return verdicts


def _difference(got, want) -> str:
    for a, t in zip(got, want, strict=True):
        a, b = np.asarray(a), t.detach().numpy()
        if a.dtype != b.dtype or a.shape != b.shape:
            return f"{a.dtype}{list(a.shape)} and not {b.dtype}{list(b.shape)}"
        if not close(a, b):
            return f"output {a.reshape(-1)[:4]} for {b.reshape(-1)[:4]}"
    return ""


def judge(calls, training: bool, backend: str, verdicts: Verdicts, counts=lambda m, g: True):
    """Adds the verdicts on samples, (callable, args, kwargs) each.

    counts: of a sample that fails, whether it counts at all.
    """
    given: list[torch.Tensor] = []
    apart = [(c, taken_apart(tuple(a), given), taken_apart(dict(k), given)) for c, a, k in calls]
    module = Calls(apart)
    try:
        found = _judged(module, given, training, backend)
    except Exception as fault:
        if len(calls) > 1:
            for call in calls:
                judge([call], training, backend, verdicts, counts)
        elif not counts(module, given):
            verdicts.add("does not count")
        elif isinstance(fault, DelianError):
            verdicts.add("refused", str(fault))
        else:
            verdicts.add("fault", f"{type(fault).__name__}: {fault}")
        return
    if len(calls) > 1 and any(found):
        for call in calls:  # which of them
            judge([call], training, backend, verdicts, counts)
        return
    for text, (call, args, kwargs) in zip(found, calls, strict=True):
        if text:
            shapes = [list(t.shape) for t in tensors((args, kwargs))]
            plain = [a for a in (*args, *kwargs.items()) if not isinstance(a, torch.Tensor)]
            name = getattr(call, "name", type(call).__name__)
            verdicts.add("wrong", f"{name} {shapes} {plain} training={training}: {text}")
        else:
            verdicts.add("passed")
