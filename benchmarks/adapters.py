"""Training steps of LoRA adapters on frozen transformers, next to PyTorch with PEFT.

    python benchmarks/adapters.py [--model minilm gpt2] [--seconds 60] [--json]

minilm  Bert of MiniLM-L6's shape (6 x 384, 30,522 words) with a classifier; rank 8 on query and
        value; 16 x 64 tokens
gpt2    GPT-2 small's shape (12 x 768, 50,257 words, tied head); rank 8 on the joint query, key and
        value; 4 x 128 tokens

Weights are random. Engines are Delian on the imported module (`dl.from_torch`, `dl.lora`), torch
eager and torch.compile (inductor) on PEFT's model of the same module, from the same adapters, by
steps of SGD on the same batch. They take turns in one process with one thread, a timed step each.
Quoted are the least and the median; ratios are of the least. Dropout is off; after three steps the
losses must agree to 1e-3. --json ends in `targets`.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import platform
import sys
import warnings
from typing import Any

EAGER_MIN, COMPILED_MIN = 1.5, 1.2
TOLERANCE, RATE, RANK, ALPHA = 1e-3, 0.1, 8, 16
#: Rows, tokens a row, layers with adapters.
SHAPES = {
    "minilm": (16, 64, ("query", "value")),
    "gpt2": (4, 128, ("c_attn",)),
}


def made(name: str) -> tuple[Any, Any, Any]:
    """The module, ids, and labels: of a row, or of every token."""
    import torch
    import transformers as tf

    torch.manual_seed(0)
    rows, tokens, _ = SHAPES[name]
    if name == "minilm":
        config = tf.BertConfig(
            hidden_size=384,
            num_hidden_layers=6,
            num_attention_heads=12,
            intermediate_size=1536,
            vocab_size=30_522,
            num_labels=4,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
        module: Any = tf.BertForSequenceClassification(config)
        labels = torch.randint(0, 4, (rows,))
    else:
        config = tf.GPT2Config(
            attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0, use_cache=False, n_positions=tokens
        )
        module = tf.GPT2LMHeadModel(config)
        labels = torch.randint(0, config.vocab_size, (rows, tokens))
    return module, torch.randint(3, config.vocab_size, (rows, tokens)), labels


class AdapterStep:
    """The same, compiled whole by Delian."""

    def __init__(self, net: Any, module: Any, name: str, ids: Any, labels: Any) -> None:
        import tempfile

        import delian as dl
        import numpy as np
        from delian.core.learning import adapters

        model = dl.from_torch(module, (), {"input_ids": ids}, output="logits")
        model = dl.lora(model, RANK, SHAPES[name][2], ALPHA)
        with tempfile.TemporaryDirectory() as folder:
            net.save_pretrained(folder)
            model = adapters.load_adapter(adapters.without(model), folder)
        parts = adapters.split(model)

        def loss(trained: Any, frozen: Any, ids: Any, labels: Any) -> Any:
            logits = parts.join(trained, frozen).in_training((ids,))[0]
            return np.mean(dl.ops.cross_entropy(logits, labels))

        @dl.compile(threads=1, donate=(0,))
        def step(trained: Any, frozen: Any, ids: Any, labels: Any) -> Any:
            value, slope = dl.value_and_grad(loss)(trained, frozen, ids, labels)
            return dl.tree.map(lambda p, g: p - np.float32(RATE) * g, trained, slope), value

        self.step, self.trained, self.frozen = step, parts.trained, parts.frozen
        self.ids, self.labels = ids.numpy(), labels.numpy()
        self.loss = 0.0

    def __call__(self) -> None:
        self.trained, value = self.step(self.trained, self.frozen, self.ids, self.labels)
        self.loss = float(value)


def adapted(module: Any, name: str) -> Any:
    """PEFT's model; B is drawn, so that both factors have slopes in the first step."""
    import peft
    import torch

    config = peft.LoraConfig(
        r=RANK, lora_alpha=ALPHA, target_modules=list(SHAPES[name][2]), lora_dropout=0.0
    )
    net = peft.get_peft_model(copy.deepcopy(module), config)
    torch.manual_seed(1)
    with torch.no_grad():
        for key, value in net.named_parameters():
            if "lora_B" in key:
                value.normal_(0.0, 0.02)
    return net


def measure(name: str, seconds: float) -> dict[str, Any]:
    from kernels import say
    from packages import TorchStep, first_steps, gap, in_turns

    say(f"{name}: importing and compiling")
    module, ids, labels = made(name)
    module.eval()
    net, inputs = adapted(module, name), {"input_ids": ids}
    runs: dict[str, Any] = {
        "delian": AdapterStep(net, module, name, ids, labels),
        "eager": TorchStep(net, inputs, labels, False, False, RATE),
        "compiled": TorchStep(net, inputs, labels, False, True, RATE),
    }
    first = first_steps(runs)
    error = max(gap(run.loss, runs["eager"].loss) for run in runs.values())
    say(f"{name}: measuring")
    times = in_turns(runs, seconds)
    least = times["ms_min"]
    return {
        "model": name,
        "parameters": sum(p.numel() for p in module.parameters()),
        "trained": sum(p.numel() for p in net.parameters() if p.requires_grad),
        "error": error,
        "first_step_s": first,
        **times,
        "faster_than_eager": least["eager"] / least["delian"],
        "faster_than_compiled": least["compiled"] / least["delian"],
    }


def targets(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    out = []
    for row in rows:
        name = row["model"]
        met = row["error"] <= TOLERANCE
        out.append(_target(f"{name}: difference of losses", TOLERANCE, row["error"], met))
        for engine, goal in (("eager", EAGER_MIN), ("compiled", COMPILED_MIN)):
            found = row[f"faster_than_{engine}"]
            out.append(_target(f"{name}: torch {engine} / delian", goal, found, found >= goal))
    return out


def _target(name: str, goal: float, measured: float, met: bool) -> dict[str, Any]:
    return {"name": name, "goal": goal, "measured": measured, "met": met}


def _line(row: dict[str, Any]) -> str:
    times = "  ".join(f"{engine} {ms:.1f} ms" for engine, ms in row["ms_min"].items())
    return (
        f"{row['model']}: {row['faster_than_eager']:.2f} times eager,"
        f" {row['faster_than_compiled']:.2f} times torch.compile; {times}; first step"
        f" {row['first_step_s']['delian']:.0f} s, torch.compile's"
        f" {row['first_step_s']['compiled']:.0f} s; differs {row['error']:.1e}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", choices=SHAPES, nargs="+", default=list(SHAPES))
    parser.add_argument("--seconds", type=float, default=60.0, help="of measuring a model")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    from kernels import confine, say

    confine(1)
    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    before, rows = os.getloadavg()[0], []
    for name in options.model:
        rows.append(measure(name, options.seconds))
        say(_line(rows[-1]))
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
    print(f"load {before:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
