"""Memory and time of a device that trains adapters on a frozen base in few bits.

    python benchmarks/adapter_memory.py [--shape minilm|gpt2] [--kind i8] [--blocks loop] [--torch]

One step is a forward and a backward pass and a step of descent of LoRA's r=8 on queries and values:
of GPT-2's small size (12 x 768, 50,257 symbols, 4 x 128 tokens) or of MiniLM's (6 x 384, 30,522
symbols, 16 x 64 tokens), both as decoders with a tied head and random weights. The program and its
weights are made in one process. Another one loads them as a device does, the weights mapped from a
file, takes three steps on one thread, and says how much memory it had at most: all of it, mapped
weights included. --torch has the same of PyTorch eager with PEFT, in f32, in a process of its own.

--json ends in `targets`: the bytes of the device's process.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

#: Blocks, width, heads, symbols, longest sequence; sequences and tokens of a batch; most MB.
SHAPES: dict[str, tuple[int, ...]] = {
    "gpt2": (12, 768, 12, 50_257, 1024, 4, 128, 400),
    "minilm": (6, 384, 12, 30_522, 512, 16, 64, 120),
}
#: What blocks keep for the way back: nothing but their input, all, or as one loop what took long to
#: compute, up to 64 MiB. And what fits into the memory of a shape.
BLOCKS = ("again", "kept", "loop")
FITTING = {"gpt2": "kept", "minilm": "again"}
RANK, ALPHA, RATE, STEPS = 8, 16, 0.01, 3


def base(shape: str, kind: str, again: bool) -> Any:
    """A decoder of that shape with random weights, in few bits but for `f32`."""
    import numpy as np
    from delian import nn

    depth, width, heads, symbols, longest = SHAPES[shape][:5]
    rng = np.random.default_rng(0)

    def normal(*size: int) -> Any:
        return rng.standard_normal(size, np.float32) * np.float32(0.02)

    def dense(inputs: int, outputs: int) -> Any:
        return few(nn.Dense(normal(inputs, outputs), np.zeros(outputs, np.float32)))

    def few(layer: Any) -> Any:
        return layer if kind == "f32" else nn.quantised(layer, kind)

    def block() -> Any:
        four = (dense(width, width) for _ in range(4))
        attention = nn.MultiHeadAttention(*four, heads)
        norms = nn.LayerNorm.init(width), nn.LayerNorm.init(width)
        up, down = dense(width, 4 * width), dense(4 * width, width)
        return nn.TransformerBlock(attention, norms[0], None, None, up, down, norms[1], True)

    table = few(nn.Embedding(normal(symbols, width)))
    blocks = tuple(block() for _ in range(depth))
    return nn.Decoder(table, normal(longest, width), blocks, nn.LayerNorm.init(width), None, again)


def make(shape: str, kind: str, keeps: str, folder: Path) -> dict[str, Any]:
    """Writes the step as IR, and what it is given; compiles it into the cache."""
    from dataclasses import replace

    import delian as dl
    import numpy as np
    from delian import nn
    from delian.core.compiler.backends import compile_function
    from delian.core.compiler.ir_codec import encode_function
    from delian.core.learning import adapters

    symbols, _, rows, tokens = SHAPES[shape][3:7]
    model = dl.lora(base(shape, kind, keeps == "again"), RANK, ("query", "value"), ALPHA)
    if keeps == "loop":
        model = replace(model, blocks=nn.stacked(model.blocks, recomputed=False))

    parts = adapters.split(model)

    def step(trained: Any, frozen: Any, symbols: Any, labels: Any) -> Any:
        def loss(trained: Any) -> Any:
            return np.mean(parts.join(trained, frozen).losses(symbols, labels))

        value, slope = dl.value_and_grad(loss)(trained)
        return dl.tree.map(lambda p, g: p - RATE * g, trained, slope), value

    batch = np.random.default_rng(1).integers(0, symbols, (2, rows, tokens))
    function = dl.compile(step, donate=(0,)).trace(parts.trained, parts.frozen, *batch).function
    program = compile_function(function, threads=1)
    folder.joinpath("step.ir").write_bytes(encode_function(function))
    given = dl.tree.leaves((parts.trained, parts.frozen, *batch))
    for i, leaf in enumerate(given):
        np.save(folder / f"{i}.npy", leaf)
    weights = sum(leaf.nbytes for leaf in dl.tree.leaves(model))
    report: Any = program
    return {"weights_mb": weights / 1e6, "arena_mb": report.report.arena_bytes / 1e6}


def device(folder: Path) -> None:
    """The device's process: steps of the program that is there."""
    import numpy as np
    from delian.core.compiler.backends import compile_function
    from delian.core.compiler.ir_codec import decode_function

    function = decode_function(folder.joinpath("step.ir").read_bytes())
    step = compile_function(function, threads=1)
    given = [
        np.load(folder / f"{i}.npy", mmap_mode=None if i in function.donated else "r")
        for i in range(len(function.param_types))
    ]
    count, seconds, losses = len(function.donated), [], []
    for _ in range(STEPS):
        begun = time.process_time()
        *given[:count], loss = step(*given)
        seconds.append(time.process_time() - begun)
        losses.append(float(loss))
    print(json.dumps({"peak_mb": peak() / 1e6, "step_s": min(seconds), "losses": losses}))


def torch_step(shape: str) -> None:
    """The same of PyTorch eager and PEFT."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import GPT2Config, GPT2LMHeadModel

    depth, width, heads, symbols, longest, rows, tokens, _ = SHAPES[shape]
    torch.set_num_threads(1)
    config = GPT2Config(
        vocab_size=symbols, n_positions=longest, n_embd=width, n_layer=depth, n_head=heads
    )
    # GPT-2 has queries, keys and values in one matrix.
    lora = LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=["c_attn"], fan_in_fan_out=True)
    model = get_peft_model(GPT2LMHeadModel(config), lora)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], RATE)
    batch = torch.randint(0, symbols, (rows, tokens))
    seconds = []
    for _ in range(STEPS):
        begun = time.process_time()
        model(input_ids=batch, labels=batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.process_time() - begun)
    print(json.dumps({"peak_mb": peak() / 1e6, "step_s": min(seconds)}))


def peak() -> int:
    """The most bytes that this process had in memory."""
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in x)
    return int(line.split()[1]) * 1024


def child(*arguments: str) -> dict[str, Any]:
    """What a process of this script with one thread says."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    done = subprocess.run(
        [sys.executable, __file__, *arguments],
        env={**os.environ, **threads},
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="minilm")
    parser.add_argument("--kind", choices=("f32", "bf16", "i8", "i4"), default="i8")
    parser.add_argument("--blocks", choices=BLOCKS, help="what they keep for the way back")
    parser.add_argument("--torch", action="store_true", help="PyTorch eager and PEFT too")
    parser.add_argument("--json", type=Path, help="file for the report")
    parser.add_argument("--device", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--torch-step", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.device:
        device(args.device)
        return 0
    if args.torch_step:
        torch_step(args.shape)
        return 0
    load = os.getloadavg()
    keeps = args.blocks or FITTING[args.shape]
    report: dict[str, Any] = {"shape": args.shape, "kind": args.kind, "blocks": keeps}
    with tempfile.TemporaryDirectory() as folder:
        report |= make(args.shape, args.kind, keeps, Path(folder))
        report["device"] = child("--device", folder)
    if args.torch:
        report["torch and PEFT"] = child("--torch-step", "--shape", args.shape)
    most, found = SHAPES[args.shape][-1], report["device"]["peak_mb"]
    name = f"device's process, {args.shape}, {args.kind}: MB"
    target = {"name": name, "goal": most, "measured": round(found, 1), "met": found <= most}
    report |= {"load": [load, os.getloadavg()], "targets": [target]}
    text = json.dumps(report, indent=1)
    print(text)
    if args.json:
        args.json.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
