"""Training steps of ten models of torchvision, timm and transformers, imported, beside torch's.

    python benchmarks/packages.py [--model resnet18] [--seconds 10] [--json]

Each is made with random weights, imported by `dl.from_torch`, and trained by steps of SGD with
cross-entropy on one batch, from the same weights. Peers are torch eager and torch.compile
(inductor), contiguous and, for images, channels_last too. All engines take turns in one process
with one thread, one timed step each. Quoted are the least and the median; ratios are of the least
(min/min). Dropout is off, and after three steps the losses must agree to 1e-3: in f32, or in f64
where batch norm of few rows multiplies the rounding of f32. --json ends in `targets`. A model whose
package is not installed is left out, and named.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import os
import platform
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "judges"))

#: The geometric mean of how many times faster than the best of torch an imported model is.
FASTER_MIN = 1.5
COMPILE_S_MAX = 60
TOLERANCE = 1e-3
#: Steps after which losses are compared.
COMPARED = 3
RATE = 0.01
CLASSES = 10
#: (package, rows, side of images or length of texts) by name.
MODELS = {
    "resnet18": ("torchvision", 8, 64),
    "mobilenet_v3_small": ("torchvision", 8, 64),
    "efficientnet_b0": ("torchvision", 4, 64),
    "densenet121": ("torchvision", 4, 64),
    "squeezenet1_1": ("torchvision", 8, 64),
    "convnext_atto": ("timm", 4, 64),
    "vit_tiny_patch16_224": ("timm", 4, 224),
    "Bert": ("transformers", 8, 64),
    "GPT2": ("transformers", 8, 64),
    "Llama": ("transformers", 8, 64),
}
_SMALL_TEXT = {
    "hidden_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "intermediate_size": 512,
    "vocab_size": 1000,
    "max_position_embeddings": 128,
}


def made(name: str) -> tuple[Any, dict[str, Any]]:
    """(the module, its inputs by name)."""
    import torch
    from model_table import architectures, still, torchvision_models

    package, rows, size = MODELS[name]
    torch.manual_seed(0)
    models = torchvision_models()
    if package == "torchvision":
        module = models.get_model(name, num_classes=CLASSES)
    elif package == "timm":
        import timm

        module = timm.create_model(name, num_classes=CLASSES)
    else:
        import transformers

        kind = getattr(transformers, architectures()[name][0])
        config = kind.config_class()
        known = config.to_dict().keys() | config.attribute_map.keys()
        config = kind.config_class(**{k: v for k, v in _SMALL_TEXT.items() if k in known})
        config.use_cache, config.pad_token_id = False, 0
        module = kind(config)
    still(module)
    if package == "transformers":
        return module, {"input_ids": torch.randint(3, 990, (rows, size))}
    return module, {"x": torch.randn(rows, 3, size, size)}


class TorchStep:
    """Forward, loss, backward and a step of torch.optim.SGD."""

    def __init__(
        self,
        module: Any,
        inputs: dict[str, Any],
        labels: Any,
        last: bool,
        compiled: bool,
        rate: float = RATE,
    ):
        import torch

        shape = torch.channels_last if last else torch.contiguous_format
        self.module = copy.deepcopy(module).train().to(memory_format=shape)
        self.inputs = {
            k: v.contiguous(memory_format=shape) if v.ndim == 4 else v for k, v in inputs.items()
        }
        self.labels = labels
        self.optimiser = torch.optim.SGD(
            [p for p in self.module.parameters() if p.requires_grad], lr=rate
        )
        self.forward = torch.compile(self._loss) if compiled else self._loss
        self.loss = 0.0

    def _loss(self) -> Any:
        import torch
        from model_table import first_float

        args = (self.inputs["x"],) if "x" in self.inputs else ()
        logits = first_float(self.module(*args, **({} if args else self.inputs)))
        return torch.nn.functional.cross_entropy(
            logits.reshape(-1, logits.shape[-1]), self.labels.reshape(-1)
        )

    def __call__(self) -> None:
        self.optimiser.zero_grad()
        loss = self.forward()
        loss.backward()
        self.optimiser.step()
        self.loss = float(loss.detach())


class ImportedStep:
    """The same, compiled whole by Delian."""

    def __init__(self, module: Any, inputs: dict[str, Any], labels: Any):
        import delian as dl
        import numpy as np
        from model_table import imported, picked

        def loss(model: Any, arrays: Any, labels: Any) -> Any:
            outputs, statistics = model.in_training(arrays)
            return np.mean(dl.ops.cross_entropy(picked(outputs), labels)), statistics

        @dl.compile(threads=1, donate=(0,))
        def step(model: Any, arrays: Any, labels: Any) -> Any:
            found = dl.value_and_grad(loss, has_aux=True)(model, arrays, labels)
            (value, statistics), slope = found
            after = dl.tree.map(lambda p, g: p - np.float32(RATE) * g, model, slope)
            return after.with_statistics(statistics), value

        self.step = step
        self.model = imported(module, inputs)
        self.arrays = tuple(v.numpy() for v in inputs.values())
        self.labels = labels.numpy()
        self.loss = 0.0

    def __call__(self) -> None:
        self.model, value = self.step(self.model, self.arrays, self.labels)
        self.loss = float(value)


def gap_in_double(module: Any, inputs: dict[str, Any], labels: Any) -> float:
    """The relative difference of the losses, where all numbers are f64."""
    import delian as dl
    import numpy as np

    wide = {k: v.double() if v.is_floating_point() else v for k, v in inputs.items()}
    theirs = TorchStep(copy.deepcopy(module).double(), wide, labels, False, False)
    ours = ImportedStep(module, inputs, labels)
    ours.model = dl.tree.map(lambda p: np.asarray(p, np.float64), ours.model)
    ours.arrays = tuple(v.numpy() for v in wide.values())
    for _ in range(COMPARED):
        theirs()
        ours()
    return gap(ours.loss, theirs.loss)


def gap(loss: float, want: float) -> float:
    return abs(loss - want) / max(abs(want), 1e-2)


def first_steps(runs: Mapping[str, Callable[[], None]]) -> dict[str, float]:
    """Seconds of each engine's first step; then all take the steps after which losses compare."""
    first = {}
    for engine, run in runs.items():
        start = time.perf_counter()
        run()
        first[engine] = time.perf_counter() - start
    for run in runs.values():
        for _ in range(COMPARED - 1):
            run()
    return first


def in_turns(runs: Mapping[str, Callable[[], None]], seconds: float) -> dict[str, Any]:
    """Steps of all engines in turns: how many, and the least and the median of the times."""
    from kernels import take_turns

    wall, _ = take_turns(dict(runs), seconds)
    return {
        "rounds": min(map(len, wall.values())),
        "ms_min": {engine: min(times) * 1e3 for engine, times in wall.items()},
        "ms_median": {engine: statistics.median(t) * 1e3 for engine, t in wall.items()},
    }


def measure(name: str, seconds: float) -> dict[str, Any]:
    import torch
    from kernels import say
    from model_table import first_float

    say(f"{name}: importing and compiling")
    module, inputs = made(name)
    args = (inputs["x"],) if "x" in inputs else ()
    with torch.no_grad():
        shape = first_float(copy.deepcopy(module)(*args, **({} if args else inputs))).shape
    labels = torch.randint(0, shape[-1], tuple(shape[:-1]))
    images = "x" in inputs
    runs: dict[str, Any] = {
        "imported": ImportedStep(module, inputs, labels),
        "torch eager": TorchStep(module, inputs, labels, False, False),
        "torch.compile": TorchStep(module, inputs, labels, False, True),
    }
    if images:
        runs["eager channels_last"] = TorchStep(module, inputs, labels, True, False)
        runs["torch.compile channels_last"] = TorchStep(module, inputs, labels, True, True)
    first = first_steps(runs)
    error = max(gap(run.loss, runs["torch eager"].loss) for run in runs.values())
    double = {}
    if error > TOLERANCE:
        say(f"{name}: losses differ by {error:.1e} in f32; comparing in f64")
        double = {"error_in_double": gap_in_double(module, inputs, labels)}
    say(f"{name}: measuring")
    times = in_turns(runs, seconds)
    least = times["ms_min"]
    return {
        "model": name,
        "parameters": sum(p.numel() for p in module.parameters()),
        "rows": MODELS[name][1],
        "size": MODELS[name][2],
        "error": error,
        **double,
        "first_step_s": first,
        **times,
        "faster_than_torch": min(v for e, v in least.items() if e != "imported")
        / least["imported"],
    }


def targets(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    out = []
    for row in rows:
        error = row.get("error_in_double", row["error"])
        close = {"goal": TOLERANCE, "measured": error, "met": error <= TOLERANCE}
        out.append({"name": f"{row['model']}: difference of losses", **close})
        first = row["first_step_s"]["imported"]
        quick = {"goal": COMPILE_S_MAX, "measured": first, "met": first <= COMPILE_S_MAX}
        out.append({"name": f"{row['model']}: seconds of the first step", **quick})
    if rows:
        mean = math.exp(statistics.fmean(math.log(row["faster_than_torch"]) for row in rows))
        faster = {"goal": FASTER_MIN, "measured": mean, "met": mean >= FASTER_MIN}
        out.append({"name": "best of torch / imported, geometric mean", **faster})
    return out


def _line(row: dict[str, Any]) -> str:
    times = "  ".join(f"{engine} {ms:.2f} ms" for engine, ms in row["ms_min"].items())
    first = row["first_step_s"]
    double = f" (in f64 {row['error_in_double']:.1e})" if "error_in_double" in row else ""
    return (
        f"{row['model']} {row['rows']} x {row['size']}:"
        f" {row['faster_than_torch']:.2f} times the best of torch; {times};"
        f" first step {first['imported']:.1f} s, torch.compile's {first['torch.compile']:.1f} s;"
        f" differs {row['error']:.1e}{double}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", choices=MODELS, action="append")
    parser.add_argument("--seconds", type=float, default=10.0, help="of measuring a model")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    from kernels import confine, say

    confine(1)
    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    before = os.getloadavg()[0]
    rows = []
    for name in options.model or MODELS:
        if find_spec(MODELS[name][0]) is None:
            say(f"{name} is left out: {MODELS[name][0]} is not installed")
            continue
        rows.append(measure(name, options.seconds))
        say(_line(rows[-1]))  # torch.compile takes minutes: what is done is said at once
    report = {
        "machine": platform.processor() or platform.machine(),
        "load": before,
        "torch": torch.__version__,
        "rows": rows,
        "targets": targets(rows),
    }
    if options.json:
        print(json.dumps(report, indent=1))
        return 0
    for row in rows:
        print(_line(row))
    if rows:
        print(f"load {before:.2f}; {report['targets'][-1]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
