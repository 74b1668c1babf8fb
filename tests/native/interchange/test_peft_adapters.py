"""Adapters on models of PyTorch, equal to PEFT: training, and files both ways.

`tests/judges/adapter_table.py` has more architectures, and a model with published weights.
"""

import functools
import json

import delian as dl
import numpy as np
import pytest
from delian.core.common.errors import DelianError

torch = pytest.importorskip("torch")
peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")
nn = torch.nn

WORDS, WIDTH = 23, 8
STEPS, RATE = 20, 0.2


class Tagger(nn.Module):
    """A table, two layers with adapters, a normalisation, a tied part and a head."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.up = nn.Linear(WIDTH, 12)
        self.down = nn.Linear(12, WIDTH, bias=False)
        self.norm = nn.LayerNorm(WIDTH)
        self.conv = nn.Conv1d(WIDTH, WIDTH, 3, padding=1)
        self.fixed = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, ids):
        x = self.words(ids)
        x = self.norm(x + self.down(torch.tanh(self.up(x))))
        x = x + self.conv(x.transpose(1, 2)).transpose(1, 2)
        return self.head(self.fixed(x))


def tagger():
    torch.manual_seed(1)
    return Tagger()


@functools.cache
def imported():
    return dl.from_torch(tagger(), (IDS[0],))


@functools.cache
def imported_gpt2():
    return dl.from_torch(gpt2(), (IDS[0],), output="logits")


IDS = torch.randint(0, WORDS, (STEPS, 4, 6), generator=torch.Generator().manual_seed(2))
LABELS = torch.randint(0, 5, (STEPS, 4, 6), generator=torch.Generator().manual_seed(3))
CONFIGS = {
    "lora": lambda: peft.LoraConfig(
        r=3, lora_alpha=6, target_modules=["up", "down", "words"], modules_to_save=["head", "conv"]
    ),
    "rslora": lambda: peft.LoraConfig(
        r=4,
        lora_alpha=6,
        target_modules="up|down",
        use_rslora=True,
        rank_pattern={"up": 2},
        alpha_pattern={"down": 3},
        init_lora_weights=False,
    ),
    "dora": lambda: peft.LoraConfig(
        r=3, lora_alpha=6, target_modules=["up", "down"], use_dora=True, init_lora_weights=False
    ),
    "ia3": lambda: peft.IA3Config(
        target_modules=["up", "down"], feedforward_modules=["down"], modules_to_save=["head"]
    ),
}


def trained_by_torch(net, optimizer, loss, batches):
    """The losses of a training by PyTorch."""
    found = []
    for batch in batches:
        value = loss(net, *batch)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        found.append(value.item())
    return found


def trained_here(model, optimizer, loss, batches):
    """The model after a training with respect to its adapters alone, and the losses."""
    parts = dl.adapters.split(model)

    @dl.compile(threads=1)
    def step(trained, state, frozen, *batch):
        def value(trained):
            return loss(parts.join(trained, frozen), *batch)

        found, slope = dl.value_and_grad(value)(trained)
        change, state = optimizer.update(slope, state, trained)
        return dl.nn.optim.apply(trained, change), state, found

    trained, found = parts.trained, []
    state = optimizer.init(trained)
    for batch in batches:
        arrays = [tensor.numpy() for tensor in batch]
        trained, state, value = step(trained, state, parts.frozen, *arrays)
        found.append(float(value))
    return parts.join(trained, parts.frozen), found


def tensors(folder):
    return dl.read_safetensors(folder / "adapter_model.safetensors")[0]


def compare(folders, before):
    """Two folders hold the same tensors, to 1e-4 of each one's size, and these have moved."""
    got, want = (tensors(folder) for folder in folders)
    assert set(got) == set(want)
    assert max(np.abs(want[name] - before[name]).max() for name in want) > 0.02
    for name, value in want.items():
        limit = 1e-4 * max(np.abs(value).max(), 1e-2)
        np.testing.assert_allclose(got[name], value, rtol=0, atol=limit, err_msg=name)


def torch_loss(net, ids, labels):
    return nn.functional.cross_entropy(net(ids).flatten(0, 1), labels.flatten())


def loss(model, ids, labels):
    logits, _ = model.in_training((ids,))
    return np.mean(dl.ops.cross_entropy(logits.reshape(-1, 5), labels.reshape(-1)))


@pytest.mark.parametrize("kind", CONFIGS)
def test_training_and_files_are_those_of_peft(kind, tmp_path):
    net = peft.get_peft_model(tagger(), CONFIGS[kind]())
    net.save_pretrained(tmp_path / "first")
    model = imported()
    batches = list(zip(IDS, LABELS, strict=True))
    own = [value for value in net.parameters() if value.requires_grad]
    wanted = trained_by_torch(net, torch.optim.SGD(own, lr=RATE), torch_loss, batches)
    start = dl.adapters.load_adapter(model, tmp_path / "first")
    ours, losses = trained_here(start, dl.nn.optim.sgd(RATE), loss, batches)
    np.testing.assert_allclose(losses, wanted, rtol=1e-4)

    net.save_pretrained(tmp_path / "theirs")
    dl.adapters.save_adapter(ours, tmp_path / "ours")
    compare((tmp_path / "ours", tmp_path / "theirs"), tensors(tmp_path / "first"))
    with torch.no_grad():
        theirs = net.eval()(IDS[0]).numpy()
        reads_ours = peft.PeftModel.from_pretrained(tagger(), tmp_path / "ours").eval()(IDS[0])
    logits = ours(IDS[0].numpy())
    reads_theirs = dl.adapters.load_adapter(model, tmp_path / "theirs")(IDS[0].numpy())
    np.testing.assert_allclose(reads_ours.numpy(), logits, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(reads_theirs, theirs, rtol=1e-5, atol=1e-5)
    merged = dl.adapters.merged(ours)
    np.testing.assert_allclose(merged(IDS[0].numpy()), logits, rtol=1e-4, atol=1e-5)
    plain = tagger()
    plain.load_state_dict(
        {key: torch.tensor(value) for key, value in merged.state_dict().items()}, strict=False
    )
    with torch.no_grad():
        np.testing.assert_allclose(plain(IDS[0]).numpy(), logits, rtol=1e-4, atol=1e-5)


def gpt2():
    torch.manual_seed(1)
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            n_layer=1,
            n_head=2,
            n_embd=16,
            vocab_size=WORDS,
            n_positions=8,
            resid_pdrop=0,
            embd_pdrop=0,
            attn_pdrop=0,
            initializer_range=0.2,
            use_cache=False,
            bos_token_id=None,
            eos_token_id=None,
        )
    )


def next_token(model, ids):
    logits, _ = model.in_training((ids,))
    return np.mean(dl.ops.cross_entropy(logits[:, :-1].reshape(-1, WORDS), ids[:, 1:].reshape(-1)))


def torch_next_token(net, ids):
    logits = net(ids).logits
    return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def test_gpt2_with_its_own_kind_of_layer_trains_as_in_peft(tmp_path):
    config = peft.LoraConfig(
        r=4, lora_alpha=8, target_modules="all-linear", fan_in_fan_out=True, task_type="CAUSAL_LM"
    )
    net = peft.get_peft_model(gpt2(), config)
    net.save_pretrained(tmp_path / "first")
    model = imported_gpt2()
    own = [value for value in net.parameters() if value.requires_grad]
    batches = [(ids,) for ids in IDS]
    optimizer = torch.optim.AdamW(own, lr=5e-3)
    wanted = trained_by_torch(net, optimizer, torch_next_token, batches)
    start = dl.adapters.load_adapter(model, tmp_path / "first")
    ours, losses = trained_here(start, dl.nn.optim.adamw(5e-3), next_token, batches)
    np.testing.assert_allclose(losses, wanted, rtol=1e-4)
    net.save_pretrained(tmp_path / "theirs")
    dl.adapters.save_adapter(ours, tmp_path / "ours")
    compare((tmp_path / "ours", tmp_path / "theirs"), tensors(tmp_path / "first"))
    written = json.loads((tmp_path / "ours" / "adapter_config.json").read_text())
    assert written["fan_in_fan_out"] is True and written["task_type"] == "CAUSAL_LM"
    with torch.no_grad():
        reads_ours = peft.PeftModel.from_pretrained(gpt2(), tmp_path / "ours").eval()
        logits = reads_ours(IDS[0]).logits.numpy()
    np.testing.assert_allclose(ours(IDS[0].numpy()), logits, rtol=1e-5, atol=1e-5)
    same = dl.lora(model, 4, "all-linear", 8)
    assert dl.adapters.adapter_roles(same) == dl.adapters.adapter_roles(ours)


def test_an_adapter_that_begins_here_is_read_by_peft(tmp_path):
    model = dl.lora(imported(), 3, r"(up|down)", 6, seed=4)
    ours, _ = trained_here(
        model, dl.nn.optim.sgd(RATE), loss, list(zip(IDS[:3], LABELS[:3], strict=True))
    )
    dl.adapters.save_adapter(ours, tmp_path)
    net = peft.PeftModel.from_pretrained(tagger(), tmp_path).eval()
    with torch.no_grad():
        np.testing.assert_allclose(net(IDS[0]).numpy(), ours(IDS[0].numpy()), rtol=1e-5, atol=1e-5)
        assert np.abs(net(IDS[0]).numpy() - tagger()(IDS[0]).numpy()).max() > 1e-3


@pytest.mark.parametrize("kind", ["lora", "dora"])
def test_dropout_has_the_mean_that_peft_has(kind, tmp_path):
    """The mean over draws is the output without dropout, since adapters are linear."""
    torch.manual_seed(5)

    class One(nn.Module):
        def __init__(self):
            super().__init__()
            self.query = nn.Linear(6, 3)

        def forward(self, x):
            return self.query(x)

    net = One()
    config = peft.LoraConfig(
        r=2,
        lora_alpha=4,
        lora_dropout=0.4,
        target_modules=["query"],
        use_dora=kind == "dora",
        init_lora_weights=False,
    )
    peft.get_peft_model(net, config).save_pretrained(tmp_path)
    torch.manual_seed(5)
    x = np.ones((4000, 6), np.float32)
    model = dl.adapters.load_adapter(dl.from_torch(One(), (torch.ones(4, 6),)), tmp_path)
    # Of a torch module without random operators: the key is for the adapters alone.
    drawn = model.in_training((x,), None, dl.random.key(2))[0]
    other = model.in_training((x,), None, dl.random.key(3))[0]
    whole = model.in_training((x,))[0]
    np.testing.assert_array_equal(whole, model(x))
    assert not np.array_equal(drawn, other) and np.abs(drawn - whole).max() > 1e-2
    np.testing.assert_allclose(drawn.mean(0), whole[0], atol=0.15)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda m: dl.lora(m, targets=("conv",)), "conv is a layer Conv1d"),
        (lambda m: dl.lora(m, targets=("fixed",)), "its weight is a constant of the program"),
        (lambda m: dl.dora(m, targets=("words",)), "words is a layer embedding"),
        (lambda m: dl.lora(m, targets=("norm",)), "no layer of the model is named by 'norm'"),
        (lambda m: dl.lora(m, targets=("up",)).state_dict(), "the model has adapters"),
    ],
)
def test_what_takes_no_adapter_is_refused(make, text):
    with pytest.raises(DelianError, match=text):
        make(imported())


def test_a_tied_weight_takes_no_adapter():
    model = imported_gpt2()
    for target in ("wte", "lm_head"):
        with pytest.raises(DelianError, match="is tied to"):
            dl.lora(model, targets=(target,))


def test_an_adapter_of_another_architecture_is_refused(tmp_path):
    peft.get_peft_model(gpt2(), peft.LoraConfig(target_modules=["c_attn"])).save_pretrained(
        tmp_path
    )
    with pytest.raises(DelianError, match="adapter of another model"):
        dl.adapters.load_adapter(imported(), tmp_path)
