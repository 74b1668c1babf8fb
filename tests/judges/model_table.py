"""The models of packages, imported: the table of docs/models.md.

    python tests/judges/model_table.py PACKAGE [--only NAME] [--keep FILE] [--json]

Each model is made with random weights (seed 0), imported, and trained by one step of SGD on two
rows: loss, gradients and the step are compared with PyTorch's, all dropout off. PyTorch in f64 is
the reference. A network of random weights may amplify rounding (batch normalisation of two rows, a
value next to a kink), so the imported one may differ from it three times as much as PyTorch itself
does, in f32 or in f64 with weights that are moved by a rounding error. A model runs in a process of
its own. With --keep, results are kept by name and not computed again.
"""

from __future__ import annotations

import argparse
import copy
import json
import re
import subprocess
import sys
import time
import warnings
from importlib.util import find_spec
from pathlib import Path

import numpy as np

#: What of a loss and of a step may differ from PyTorch in f64, besides PyTorch's own error.
TOLERANCE = 1e-4
PARAMETERS_MAX = 100e6
SECONDS_MAX = 600
RATE = 0.01
#: Half a unit in the last place of f32.
ROUNDING = 6e-8
#: Runs with moved weights that measure how much a network amplifies rounding.
MOVES = 3


def torchvision_models():
    """torchvision's own operators are not part of a CPU build of torch: they are declared."""
    import torch

    folder = Path(find_spec("torchvision").origin).parent
    source = (folder / "_meta_registrations.py").read_text()
    names = set(re.findall(r'(?:register_meta|register_fake)\("(?:torchvision::)?(\w+)"', source))
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in names:
        try:
            library.define(f"{name}(Tensor x) -> Tensor")
        except RuntimeError:
            break
    import torchvision

    globals()["_kept"] = library
    return torchvision.models


def names_of(package: str) -> list[str]:
    if package == "torchvision":
        models = torchvision_models()
        return models.list_models(module=models)
    if package == "timm":
        torchvision_models()
        import timm

        smallest: dict[str, str] = {}
        for module in timm.list_modules():
            found = timm.list_models(module=module)
            if found:
                smallest[module] = min(found, key=_size_of_timm)
        return sorted(smallest.values())
    return sorted(architectures())


def _size_of_timm(name: str) -> int:
    import timm
    import torch

    with torch.device("meta"):
        try:
            return sum(p.numel() for p in timm.create_model(name, num_classes=10).parameters())
        except Exception:
            return 10**12


#: Settings of tiny configurations, by the names that models have for them.
_TINY = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "vocab_size": 99,
    "max_position_embeddings": 64,
    "image_size": 32,
    "patch_size": 8,
}


def architectures() -> dict[str, tuple[str, str]]:
    """(class, kind of inputs) by name."""
    found = {}
    for line in Path(__file__).with_name("transformers_models.txt").read_text().splitlines():
        if not line.startswith("#"):
            suffix, inputs, names = (part.strip() for part in line.split("|"))
            found |= {name: (name + suffix, inputs) for name in names.split()}
    return found


def made(package: str, name: str):
    """(the module, its example inputs by name)."""
    import torch

    generator = torch.Generator().manual_seed(1)
    if package == "transformers":
        return _transformer(name, generator)
    if package == "torchvision":
        models = torchvision_models()
        module = models.get_model(
            name,
            num_classes=10,
            **({"aux_logits": False} if name in ("googlenet", "inception_v3") else {}),
        )
        size = 224 if re.search("vit|swin|maxvit", name) else (96 if name == "inception_v3" else 64)
        size = 224 if re.search("alexnet|squeezenet|vgg", name) else size
    else:
        torchvision_models()
        import timm

        module = timm.create_model(name, num_classes=10)
        size = (
            module.default_cfg["input_size"][-1]
            if module.default_cfg.get("fixed_input_size")
            else 128
        )
    return module, {"x": torch.randn(2, 3, size, size, generator=generator)}


def _transformer(name: str, generator):
    import torch

    torchvision_models()  # transformers imports it
    import transformers

    kind, inputs = architectures()[name]
    kind = getattr(transformers, kind)
    kind_of_config = kind.config_class
    config = kind_of_config()
    known = {**config.to_dict(), **dict.fromkeys(config.attribute_map)}
    config = kind_of_config(**{k: v for k, v in _TINY.items() if k in known})
    for key in ("use_cache", "output_attentions", "output_hidden_states"):
        setattr(config, key, False)
    config.pad_token_id = 0
    module = kind(config)
    symbols = torch.randint(3, 90, (2, 16), generator=generator)
    if inputs == "images":
        size = getattr(config, "image_size", 64)
        size = size if isinstance(size, int) else size[0]
        return module, {"pixel_values": torch.randn(2, 3, size, size, generator=generator)}
    if inputs == "sound":
        return module, {"input_values": torch.randn(2, 1600, generator=generator)}
    if inputs == "pairs":
        return module, {"input_ids": symbols, "decoder_input_ids": symbols[:, :8].clone()}
    return module, {"input_ids": symbols}


def still(module) -> None:
    """Nothing random: dropout and stochastic depth with probability zero."""
    for part in module.modules():
        for key, value in list(vars(part).items()):
            if isinstance(value, float) and re.search(r"drop|^p$|layerdrop|masking_prob", key):
                setattr(part, key, 0.0)
    config = getattr(module, "config", None)
    for key, value in list(vars(config).items()) if config is not None else ():
        if isinstance(value, float) and re.search(r"drop|mask_\w+_prob", key):
            setattr(config, key, 0.0)


def first_float(outputs):
    import torch
    from torch.utils import _pytree

    if hasattr(outputs, "logits"):
        return outputs.logits
    leaves = _pytree.tree_leaves(outputs)
    return next(t for t in leaves if isinstance(t, torch.Tensor) and t.is_floating_point())


def torch_step(module, inputs, double: bool, moved: int = 0):
    """(the loss, what one step adds to each parameter, the seconds of a step).

    moved: the seed of a relative change of all weights by a rounding error; 0: none.
    """
    import torch

    module = copy.deepcopy(module).train()
    if double:
        module = module.double()
        inputs = {k: v.double() if v.is_floating_point() else v for k, v in inputs.items()}
    generator = torch.Generator().manual_seed(moved)
    with torch.no_grad():
        for value in module.parameters() if moved else ():
            value.mul_(1 + ROUNDING * torch.randn(value.shape, generator=generator))
    named = {n: p for n, p in module.named_parameters() if p.requires_grad}
    seconds = []
    for _ in range(1 if double else 3):
        start = time.perf_counter()
        args = (inputs["x"],) if "x" in inputs else ()
        out = first_float(module(*args, **({} if args else inputs)))
        loss = (out * out).mean()
        slopes = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
        seconds.append(time.perf_counter() - start)
        if len(seconds) == 1:
            steps = {
                n: np.zeros(p.shape) if g is None else -RATE * g.detach().double().numpy()
                for (n, p), g in zip(named.items(), slopes, strict=True)
            }
            first = float(loss.detach())
    return first, steps, min(seconds)


def judged(package: str, name: str) -> dict:
    import delian as dl
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    module, inputs = made(package, name)
    count = sum(p.numel() for p in module.parameters())
    found = {"parameters": count}
    if count > PARAMETERS_MAX:
        return {**found, "verdict": "too large"}
    still(module)
    want, wanted_step, _ = torch_step(module, inputs, True)
    single, single_step, seconds = torch_step(module, inputs, False)
    moves = [torch_step(module, inputs, True, seed) for seed in range(1, MOVES + 1)]
    start = time.perf_counter()
    args, kwargs = ((inputs["x"],), {}) if "x" in inputs else ((), inputs)
    model = dl.from_torch(module, args, kwargs)
    found["import_s"] = round(time.perf_counter() - start, 1)
    arrays = tuple(v.numpy() for v in inputs.values())

    def loss(model, arrays):
        outputs, statistics = model.in_training(arrays)
        if isinstance(outputs, dict):
            outputs = outputs["logits"]
        while isinstance(outputs, tuple):
            outputs = outputs[0]
        return np.mean(outputs * outputs), statistics

    @dl.compile(threads=1)
    def step(model, arrays):
        (value, statistics), slope = dl.value_and_grad(loss, has_aux=True)(model, arrays)
        after = dl.tree.map(lambda p, g: p - np.float32(RATE) * g, model, slope)
        return after.with_statistics(statistics), slope, value

    start = time.perf_counter()
    _, slope, value = step(model, arrays)
    found["compile_s"] = round(time.perf_counter() - start, 1)
    times = []
    for _ in range(3):
        start = time.perf_counter()
        step(model, arrays)
        times.append(time.perf_counter() - start)
    found |= {"step_s": round(min(times), 4), "torch_s": round(seconds, 4)}
    slopes = slope.state_dict()
    ours = {n: -RATE * np.asarray(slopes[n], np.float64) for n in wanted_step}
    size = max(_norm(wanted_step), 1e-12)
    error = _norm({n: ours[n] - wanted_step[n] for n in ours}) / size
    others = [single_step, *(steps for _, steps, _ in moves)]
    own = max(_norm({n: steps[n] - wanted_step[n] for n in ours}) / size for steps in others)
    gap, own_gap = (
        abs(float(value) - want) / max(abs(want), 1e-12),
        abs(single - want) / max(abs(want), 1e-12),
    )
    found |= {
        "loss_error": gap,
        "torch_loss_error": own_gap,
        "step_error": error,
        "torch_step_error": own,
    }
    good = gap <= TOLERANCE + 3 * own_gap and error <= TOLERANCE + 3 * own
    return {**found, "verdict": "equal" if good else "wrong"}


def _norm(steps) -> float:
    return float(np.sqrt(sum(float((v * v).sum()) for v in steps.values())))


def in_a_process(package: str, name: str) -> dict:
    command = [sys.executable, __file__, package, "--one", name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX)
    except subprocess.TimeoutExpired:
        return {"verdict": "fault", "reason": f"more than {SECONDS_MAX} s"}
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if lines:
        return json.loads(lines[-1])
    return {
        "verdict": "fault",
        "reason": (done.stderr.strip().splitlines() or ["nothing"])[-1][:300],
    }


def one(package: str, name: str) -> dict:
    from delian.core.common.errors import DelianError

    try:
        return judged(package, name)
    except DelianError as fault:
        return {"verdict": "refused", "reason": str(fault)[:600]}
    except Exception as fault:
        return {"verdict": "fault", "reason": f"{type(fault).__name__}: {fault}"[:600]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("package", choices=["torchvision", "timm", "transformers"])
    parser.add_argument("--only", default="")
    parser.add_argument("--one", default="", help=argparse.SUPPRESS)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.one:
        print(json.dumps(one(options.package, options.one)))
        return 0
    kept = json.loads(options.keep.read_text()) if options.keep and options.keep.is_file() else {}
    for name in names_of(options.package):
        if options.only not in name or name in kept:
            continue
        kept[name] = in_a_process(options.package, name)
        if options.keep:
            options.keep.write_text(json.dumps(kept, indent=1))
        if not options.json:
            print(name, json.dumps(kept[name])[:300], flush=True)
    verdicts = [row["verdict"] for row in kept.values()]
    counts = {v: verdicts.count(v) for v in sorted(set(verdicts))}
    if options.json:
        print(json.dumps({"counts": counts, "models": kept}, indent=1))
    else:
        print(counts)
    return 1 if counts.get("wrong") else 0


if __name__ == "__main__":
    sys.exit(main())
