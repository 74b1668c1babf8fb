"""Folders of models: what Hugging Face's tools read of them."""

import json
from pathlib import Path

import delian as dl
import numpy as np
import pytest
from delian.core.common.errors import DelianError
from delian.core.learning.interchange.model_card import RunFacts

torch = pytest.importorskip("torch")
nn = torch.nn
RUN = RunFacts({"accuracy": 0.91, "accuracy of personalized models": 0.97}, "digits", "Trained.")


class Config:
    def __init__(self, width):
        self.width = width

    def to_dict(self):
        return {"width": self.width, "dtype": torch.float32, "model_type": "small"}


class Small(nn.Module):
    def __init__(self, width=3):
        super().__init__()
        self.config = Config(width)
        self.head = nn.Linear(width, 2)
        self.register_buffer("scale", torch.ones(2))

    def forward(self, x):
        return {"logits": self.head(x) * self.scale}


class Logits(nn.Module):
    """What a scenario trains: another module's logits."""

    def __init__(self):
        super().__init__()
        self.inner = Small()

    def forward(self, x):
        return self.inner(x)["logits"]


@pytest.mark.parametrize("kind", [Small, Logits])
def test_a_folder_has_weights_configuration_and_card(tmp_path: Path, kind):
    module = kind()
    dl.from_torch(module, (torch.ones(2, 3),)).save_folder(tmp_path / "out", RUN)
    arrays, metadata = dl.read_safetensors(tmp_path / "out" / "model.safetensors")
    assert {*arrays} == {"head.weight", "head.bias", "scale"} and metadata == {"format": "pt"}
    weight = dict(module.named_parameters(), **dict(module.named_buffers()))
    for name, value in arrays.items():
        own = weight.get(name, weight.get(f"inner.{name}")).detach().numpy()
        np.testing.assert_array_equal(value, own)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    expected = {"width": 3, "dtype": "float32", "model_type": "small", "architectures": ["Small"]}
    assert config == expected
    card = (tmp_path / "out" / "README.md").read_text()
    assert card.startswith('---\nlibrary_name: "pytorch"\ntags:\n- "federated"\n')
    assert "| accuracy | 0.91 |" in card and "license" in card.lower()


def test_a_card_that_is_there_stays_and_weights_are_replaced(tmp_path: Path):
    model = dl.from_torch(Logits(), (torch.ones(2, 3),))
    model.save_folder(tmp_path)
    (tmp_path / "README.md").write_text("---\nlicense: mit\n---\n")
    state = {name: value + 1 for name, value in model.state_dict().items()}
    model.load_state_dict(state).save_folder(tmp_path)
    assert "license: mit" in (tmp_path / "README.md").read_text()
    arrays, _ = dl.read_safetensors(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(arrays["head.bias"], state["inner.head.bias"])


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DelianError, match="no folder can be made"):
        dl.from_torch(Logits(), (torch.ones(2, 3),)).save_folder(tmp_path / "file")


def test_a_card_is_yaml_that_the_hub_reads(tmp_path: Path):
    hub = pytest.importorskip("huggingface_hub")
    run = RunFacts({"accuracy": 0.5}, 'a "quoted": name', "Trained.")
    dl.from_torch(Small(), (torch.ones(2, 3),)).save_folder(tmp_path, run)
    card = hub.ModelCard.load(tmp_path / "README.md")
    assert card.data.library_name == "pytorch" and "federated" in card.data.tags
    (result,) = card.data.eval_results
    assert (result.metric_type, result.metric_value) == ("accuracy", 0.5)
    assert result.dataset_name == 'a "quoted": name' and card.data.model_name == "Small"


def test_transformers_reads_a_folder_bit_for_bit(tmp_path: Path):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=30,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=20,
        num_labels=3,
    )
    source = transformers.BertForSequenceClassification(config).eval()
    ids = torch.arange(12).reshape(2, 6)
    model = dl.from_torch(source, (ids,), output="logits")
    state = {name: value * np.float32(1.5) for name, value in model.state_dict().items()}
    model.load_state_dict(state).save_folder(tmp_path, RUN)
    for reader in (
        transformers.BertForSequenceClassification,
        transformers.AutoModelForSequenceClassification,
    ):
        read, report = reader.from_pretrained(tmp_path, output_loading_info=True)
        assert not any(report.values()), report
        for name, value in read.state_dict().items():
            if name in state:
                np.testing.assert_array_equal(value.numpy(), state[name])
    assert {*state} <= {*read.state_dict()}
    got = read.eval()(ids).logits.detach().numpy()
    want = model.load_state_dict(state)(ids.numpy())
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_transformers_reads_tied_weights(tmp_path: Path):
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        n_embd=16, n_layer=1, n_head=2, vocab_size=30, bos_token_id=0, eos_token_id=0
    )
    source = transformers.GPT2LMHeadModel(config).eval()
    source.config.use_cache = False
    model = dl.from_torch(source, (torch.arange(12).reshape(2, 6),), output="logits")
    model.save_folder(tmp_path)
    read = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    for name, value in source.state_dict().items():
        np.testing.assert_array_equal(read.state_dict()[name].numpy(), value.numpy())
