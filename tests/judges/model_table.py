"""The models of packages, imported: the table of docs/models.md.

    python tests/judges/model_table.py PACKAGE [--only NAME] [--keep FILE] [--json]

Each model is made with random weights (seed 0). Parameters that begin as constants (heads of zero,
scales of layers) are moved, or parts of the model would do nothing; running statistics are those of
the inputs. Then it is imported, and trained by one step of SGD on two rows: loss, gradients and the
step are compared with PyTorch's, all dropout off. PyTorch in f64 is the reference; 1e-4 may differ,
and three times what PyTorch itself differs in f32, or in f64 with weights that are moved by a
rounding error. Where a value lies next to a kink (a ReLU's zero), rounding decides about one slope:
PyTorch's own step in f32 differs from f64 by up to some percent in a random ResNet-50. A model that
differs by more than 1e-4 is therefore judged twice: in f32, by the best of three inputs; and by a
step in f64, which must agree to 1e-4 (most do to 1e-11: what differs more has constants in f32).

Then the model is exported to ONNX, and onnxruntime's logits in inference are compared with
PyTorch's. A model runs in a process of its own. With --keep, results are kept by name and not
computed again.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import re
import subprocess
import sys
import time
import warnings
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

#: What of a loss and of a step may differ from PyTorch in f64, besides PyTorch's own error.
TOLERANCE = 1e-4
PARAMETERS_MAX = 100e6
SECONDS_MAX = 600
RATE = 0.01
#: Half a unit in the last place of f32.
ROUNDING = 6e-8
#: Runs with moved weights that measure how much a network amplifies rounding.
MOVES = 2
#: Steps of each that are timed.
STEPS = 3
#: What parameters that are constants are moved by, and the least share of a model's weights that a
#: gradient makes up: less is no evidence.
MOVED = 0.1
ALIVE = 1e-6
#: Inputs that a model is tried with.
INPUTS_MAX = 3
#: What of the logits may differ in onnxruntime, beside three times PyTorch's own error.
TOLERANCE_OF_LOGITS = 1e-5


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
    "image_size": 64,
    "patch_size": 8,
    "rotary_dim": 4,
    "attention_head_size": 8,
}


#: Where a tiny configuration needs other settings.
_OWN = {
    "Canine": {"max_position_embeddings": 512},
    "Helium": {"head_dim": 8},
    "Hiera": {"image_size": [224, 224], "patch_size": [7, 7]},
    "Levit": {"num_attention_heads": [4, 8, 12], "image_size": 224, "patch_size": 16},
    "Lilt": {"hidden_size": 48},
    "Mamba2": {"num_heads": 8, "head_dim": 8, "n_groups": 1, "state_size": 16},
    "Ministral": {"head_dim": 8},
    "MobileViTV2": {"patch_size": 2},
    "PLBart": {"encoder_attention_heads": 4, "decoder_attention_heads": 4},
    "Pvt": {"num_attention_heads": [1, 2, 5, 8], "image_size": 224, "patch_size": 4},
    "PvtV2": {"num_attention_heads": [1, 2, 5, 8]},
    "Segformer": {"num_attention_heads": [1, 2, 5, 8]},
    "SqueezeBert": {"embedding_size": 32},
    "Swin": {"image_size": 224, "patch_size": 4},
    "T5": {"num_layers": 2},
    "MT5": {"num_layers": 2},
    "XLNet": {"d_head": 8},
}


def architectures() -> dict[str, tuple[str, str]]:
    """(class, kind of inputs) by name."""
    found = {}
    for line in Path(__file__).with_name("transformers_models.txt").read_text().splitlines():
        if not line.startswith("#"):
            suffix, inputs, names = (part.strip() for part in line.split("|"))
            found |= {name: (name + suffix, inputs) for name in names.split()}
    return found


def made(package: str, name: str, seed: int = 1):
    """(the module, its inputs by name, drawn under the seed)."""
    import torch

    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(seed)
    if package == "transformers":
        return _transformer(name, generator)
    if package == "torchvision":
        models = torchvision_models()
        module = models.get_model(
            name,
            num_classes=10,
            **({"aux_logits": False} if name in ("googlenet", "inception_v3") else {}),
        )
        # Some need so many pixels, and some need them to keep more than one for their last layers.
        large = re.search("vit|swin|maxvit|alexnet|squeezenet|vgg|inception", name)
        size = 224 if large else 64
    else:
        torchvision_models()
        import timm

        module = timm.create_model(name, num_classes=10)
        size = 128
        if module.default_cfg.get("fixed_input_size"):
            size = module.default_cfg["input_size"][-1]
        elif name.startswith("halonet"):
            size = 256  # blocks of 8 at a stride of 32
    return module, {"x": torch.randn(2, 3, size, size, generator=generator)}


def _transformer(name: str, generator):
    import torch

    torchvision_models()  # transformers imports it
    import transformers

    kind, inputs = architectures()[name]
    kind = getattr(transformers, kind)
    kind_of_config = kind.config_class
    config = kind_of_config()
    config = kind_of_config(**(_tiny(config.to_dict(), config.attribute_map) | _OWN.get(name, {})))
    for key in ("use_cache", "output_attentions", "output_hidden_states"):
        setattr(config, key, False)
    config.pad_token_id = 0
    module = kind(config)
    symbols = torch.randint(3, 90, (2, 16), generator=generator)
    if inputs == "images":
        size = getattr(getattr(config, "vision_config", config), "image_size", 64)
        size = size if isinstance(size, int) else size[0]
        return module, {"pixel_values": torch.randn(2, 3, size, size, generator=generator)}
    if inputs == "sound":
        return module, {"input_values": torch.randn(2, 1600, generator=generator)}
    if inputs == "pairs":
        return module, {"input_ids": symbols, "decoder_input_ids": symbols[:, :8].clone()}
    return module, {"input_ids": symbols}


def _tiny(settings, other_names) -> dict:
    """The settings of a tiny configuration; those of its parts too."""
    known = settings.keys() | {k for k, v in other_names.items() if not _by_stage(settings, v)}
    small = {k: v for k, v in _TINY.items() if k in known}
    parts = {k: v for k, v in settings.items() if k.endswith("_config") and isinstance(v, dict)}
    return small | {k: _tiny(v, {}) for k, v in parts.items()}


def _by_stage(settings, name: str) -> bool:
    """Whether a setting counts stages, or has a number for each of them."""
    return name in ("num_stages", "num_layers") or isinstance(settings.get(name), list | tuple)


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


def awake(module, inputs) -> None:
    """Moves constant parameters, and gives running statistics what they would be of the inputs."""
    import torch

    generator = torch.Generator().manual_seed(2)
    norms = [part for part in module.modules() if hasattr(part, "running_mean")]
    before = [part.momentum for part in norms]
    with torch.no_grad():
        for value in module.parameters():
            if value.numel() > 1 and bool((value == value.flatten()[0]).all()):
                value.add_(MOVED * torch.randn(value.shape, generator=generator))
        for part in norms:
            part.momentum = 1.0
        _logits(module.train(), inputs)
        for part, momentum in zip(norms, before, strict=True):
            part.momentum = momentum


def first_float(outputs):
    import torch
    from torch.utils import _pytree

    if hasattr(outputs, "logits"):
        return outputs.logits
    leaves = _pytree.tree_leaves(outputs)
    return next(t for t in leaves if isinstance(t, torch.Tensor) and t.is_floating_point())


def torch_step(module, inputs, double: bool, moved: int = 0):
    """(the loss, what one step adds to each parameter).

    moved: the seed of a relative change of all weights by a rounding error; 0: none.
    """
    import torch

    module = copy.deepcopy(module).train()
    if double:
        module = module.double()
    generator = torch.Generator().manual_seed(moved)
    with torch.no_grad():
        for value in module.parameters() if moved else ():
            value.mul_(1 + ROUNDING * torch.randn(value.shape, generator=generator))
    named = {n: p for n, p in module.named_parameters() if p.requires_grad}
    loss, slopes = _loss_and_slopes(module, inputs, list(named.values()))
    steps = {
        n: np.zeros(p.shape) if g is None else -RATE * g.detach().double().numpy()
        for (n, p), g in zip(named.items(), slopes, strict=True)
    }
    return float(loss.detach()), steps


def _loss_and_slopes(module, inputs, parameters):
    """A module that gives one number gives its loss; else it is the mean of squares."""
    import torch

    out = _logits(module, inputs)
    loss = out if out.ndim == 0 else (out * out).mean()
    return loss, torch.autograd.grad(loss, parameters, allow_unused=True)


def _logits(module, inputs):
    """The module's output for these inputs, in its parameters' type."""
    kind = next(module.parameters()).dtype
    inputs = {k: v.to(kind) if v.is_floating_point() else v for k, v in inputs.items()}
    args = (inputs["x"],) if "x" in inputs else ()
    return first_float(module(*args, **({} if args else inputs)))


def picked(outputs):
    """The logits of a model that gives them among others."""
    if isinstance(outputs, dict):
        outputs = outputs["logits"]
    while isinstance(outputs, tuple):
        outputs = outputs[0]
    return outputs


def judged(package: str, name: str) -> dict:
    import torch

    torch.set_num_threads(1)
    module, inputs = made(package, name)
    count = sum(p.numel() for p in module.parameters())
    found = {"parameters": count}
    if count > PARAMETERS_MAX:
        return {**found, "verdict": "too large"}
    still(module)
    awake(module, inputs)
    start = time.perf_counter()
    model = imported(module, inputs)
    found["import_s"] = round(time.perf_counter() - start, 1)
    step = step_of_sgd()
    start = time.perf_counter()
    step(model, _arrays(inputs))
    found["compile_s"] = round(time.perf_counter() - start, 1)
    libraries = Path(os.environ.get("XDG_CACHE_HOME", "/nonexistent")).rglob("*.so")
    found["artifact_kb"] = sum(file.stat().st_size for file in libraries) // 1000
    found |= timed(step, model, module, inputs)
    found |= best_of(step, model, module, lambda seed: made(package, name, seed)[1])
    if found["verdict"] == "equal":
        found |= round_trip(model, module, inputs)
    return found


def best_of(step, model, module, drawn) -> dict:
    """Errors and verdict: the best of some inputs, and in f64 where that is not enough.

    drawn: gives the inputs of a seed.
    """
    tried: list[dict] = []
    for seed in range(1, INPUTS_MAX + 1):
        tried.append(compared(step, model, module, drawn(seed)))
        if max(tried[-1]["loss_error"], tried[-1]["step_error"]) <= TOLERANCE:
            break
    best = {key: min(each[key] for each in tried) for key in ("loss_error", "step_error")}
    own = {f"torch_{key}": max(each[f"torch_{key}"] for each in tried) for key in best}
    found = best | own | {"inputs": len(tried)}
    if not all(each["finite"] for each in tried):
        return {**found, "verdict": "not finite in PyTorch"}
    if min(each["alive"] for each in tried) < ALIVE:
        return {**found, "verdict": "not judged", "reason": "the gradient is next to nothing"}
    good = all(best[key] <= TOLERANCE + 3 * own[f"torch_{key}"] for key in best)
    if max(best.values()) > TOLERANCE:
        double = in_double(step, model, module, drawn(1))
        found |= {f"f64_{key}": gap for key, gap in double.items()}
        good = good and max(double.values()) <= TOLERANCE
    return {**found, "verdict": "equal" if good else "wrong"}


def imported(module, inputs):
    import delian as dl

    args, kwargs = ((inputs["x"],), {}) if "x" in inputs else ((), inputs)
    return dl.from_torch(module, args, kwargs)


def step_of_sgd():
    import delian as dl

    def loss(model, arrays):
        outputs, statistics = model.in_training(arrays)
        outputs = picked(outputs)
        return outputs if outputs.ndim == 0 else np.mean(outputs * outputs), statistics

    @dl.compile(threads=1)
    def step(model, arrays):
        (value, statistics), slope = dl.value_and_grad(loss, has_aux=True)(model, arrays)
        after = dl.tree.map(lambda p, g: p - np.float32(RATE) * g, model, slope)
        return after.with_statistics(statistics), slope, value

    return step


def _arrays(inputs):
    return tuple(v.numpy() for v in inputs.values())


def timed(step, model, module, inputs) -> dict:
    """The least of some steps of each, in turn."""
    module = copy.deepcopy(module).train()
    trained = [p for p in module.parameters() if p.requires_grad]
    ours, theirs = [], []
    for _ in range(STEPS):
        start = time.perf_counter()
        _loss_and_slopes(module, inputs, trained)
        theirs.append(time.perf_counter() - start)
        start = time.perf_counter()
        step(model, _arrays(inputs))
        ours.append(time.perf_counter() - start)
    return {"step_s": round(min(ours), 5), "torch_s": round(min(theirs), 5)}


def compared(step, model, module, inputs) -> dict:
    """The imported model's loss and step beside PyTorch's."""
    want, wanted_step = torch_step(module, inputs, True)
    single, single_step = torch_step(module, inputs, False)
    moves = [torch_step(module, inputs, True, seed) for seed in range(1, MOVES + 1)]
    errors = errors_of(*own_step(step, model, inputs, wanted_step), want, wanted_step)
    others = [errors_of(*each, want, wanted_step) for each in ((single, single_step), *moves)]
    weights = _norm({n: p.detach().numpy() for n, p in module.named_parameters()})
    return {
        **errors,
        **{f"torch_{key}": max(each[key] for each in others) for key in errors},
        "finite": bool(np.isfinite(want)),
        "alive": _norm(wanted_step) / RATE / weights,
    }


def in_double(step, model, module, inputs) -> dict:
    """Errors of a step whose numbers are all f64: what is left is not rounding."""
    import delian as dl

    want, wanted_step = torch_step(module, inputs, True)
    model = dl.tree.map(lambda p: np.asarray(p, np.float64), model)
    inputs = {k: v.double() if v.is_floating_point() else v for k, v in inputs.items()}
    return errors_of(*own_step(step, model, inputs, wanted_step), want, wanted_step)


def own_step(step, model, inputs, names):
    """(the loss, what one step adds to each parameter) of the imported model."""
    _, slope, value = step(model, _arrays(inputs))
    slopes = slope.state_dict()
    return float(value), {n: -RATE * np.asarray(slopes[n], np.float64) for n in names}


def errors_of(loss, steps, want, wanted_step) -> dict:
    """Relative differences of a loss, and of a whole step."""
    gap = _norm({n: steps[n] - wanted_step[n] for n in wanted_step})
    return {
        "loss_error": abs(loss - want) / max(abs(want), 1e-12),
        "step_error": gap / max(_norm(wanted_step), 1e-12),
    }


def round_trip(model, module, inputs) -> dict:
    """The logits in inference of the model in onnxruntime, beside PyTorch's."""
    import delian as dl
    import onnxruntime
    import torch

    def inference(model, *arrays):
        return picked(model(*arrays))

    try:
        made = dl.to_onnx(inference, model, *_arrays(inputs))
    except dl.DelianError as fault:
        return {"onnx": "refused", "onnx_reason": str(fault)[:300]}
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(made.SerializeToString(), options)
    names = [given.name for given in session.get_inputs()]
    got = session.run(None, dict(zip(names, _arrays(inputs), strict=True)))[0]
    module = copy.deepcopy(module).eval()
    with torch.no_grad():
        single = _logits(module, inputs).double().numpy()
        want = _logits(module.double(), inputs).numpy()
    size = float(np.abs(want).max())
    if size < ALIVE:
        return {"onnx": "not judged"}
    gap, own = (float(np.abs(v - want).max()) / size for v in (got, single))
    good = gap <= TOLERANCE_OF_LOGITS + 3 * own
    return {"onnx": "equal" if good else "wrong", "onnx_error": gap, "torch_onnx_error": own}


def _norm(steps) -> float:
    return float(np.sqrt(sum(float((v * v).sum()) for v in steps.values())))


def in_a_process(package: str, name: str) -> dict:
    command = [sys.executable, __file__, package, "--one", name]
    with TemporaryDirectory() as cache:  # compiled afresh: times and sizes are of this model
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                timeout=SECONDS_MAX,
                env={**os.environ, "XDG_CACHE_HOME": cache},
            )
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
