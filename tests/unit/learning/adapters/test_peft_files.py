"""Folders of adapters: what comes back, and hostile ones."""

import json
import re

import delian as dl
import numpy as np
import pytest
from delian.core.common.errors import DelianError
from delian.core.learning.adapters import peft_config


def base(width=6):
    keys = dl.random.split(dl.random.key(3), 4)
    return {
        "layers": [
            {
                "query": dl.nn.Dense.init(keys[k], width, width),
                "value": dl.nn.Dense.init(keys[k + 1], width, width),
            }
            for k in range(2)
        ],
        "head": dl.nn.Dense.init(keys[3], width, 3),
    }


def run(model, x):
    for layer in model["layers"]:
        x = np.tanh(layer["query"](x)) + layer["value"](x)
    return model["head"](x)


def moved(model):
    parts, draw = dl.adapters.split(model), np.random.default_rng(1)
    trained = {
        name: (value + draw.standard_normal(value.shape)).astype(np.float32)
        for name, value in parts.trained.items()
    }
    return parts.join(trained, parts.frozen)


X = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
MAKERS = {
    "lora": lambda m: dl.lora(m, 2, ("query", "value"), 8, modules_to_save=("head",)),
    "rslora": lambda m: dl.lora(m, 2, "layers.1.*", 3.5, 0.25, True),
    "all": lambda m: dl.lora(m, 3, "all-linear", 6),
    "dora": lambda m: dl.dora(m, 2, ("query",), 8),
    "ia3": lambda m: dl.ia3(m, ("query", "value"), ("1.value",), modules_to_save=("head",)),
}


@pytest.mark.parametrize("kind", MAKERS)
def test_an_adapter_comes_back_as_it_was(kind, tmp_path):
    model = moved(MAKERS[kind](base()))
    dl.adapters.save_adapter(model, tmp_path / "adapter")
    again = dl.adapters.load_adapter(base(), tmp_path / "adapter")
    np.testing.assert_array_equal(run(again, X), run(model, X))
    assert dl.adapters.adapter_roles(again) == dl.adapters.adapter_roles(model)
    other = dl.adapters.load_adapter(MAKERS[kind](base()), tmp_path / "adapter")
    np.testing.assert_array_equal(run(other, X), run(model, X))
    dl.adapters.save_adapter(again, tmp_path / "again")
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        if kind in ("lora", "dora") or name != "adapter_config.json":
            want = (tmp_path / "adapter" / name).read_bytes()
            assert (tmp_path / "again" / name).read_bytes() == want


@pytest.fixture
def folder(tmp_path):
    dl.adapters.save_adapter(moved(MAKERS["lora"](base())), tmp_path)
    return tmp_path


def refused(folder, text, model=None):
    with pytest.raises(DelianError, match=re.escape(text)) as caught:
        dl.adapters.load_adapter(base() if model is None else model, folder)
    assert caught.value.hint


def configured(folder, **options):
    path = folder / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **options}))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"peft_type": "LOHA"}, "peft_type 'LOHA' is not read"),
        ({"peft_type": ["LORA"]}, "peft_type ['LORA'] is not read"),
        ({"peft_type": None}, "peft_type None is not read"),
        ({"use_dora": True}, "an adapter of kind dora has a, b, magnitude"),
        ({"use_dora": "yes"}, "use_dora is 'yes'"),
        ({"r": 4}, "has rank 2, and the configuration says 4"),
        ({"r": 0}, "rank of an adapter cannot be 0"),
        ({"r": 10**30}, "r is 1000"),
        ({"r": "8"}, "r is '8'"),
        ({"r": True}, "r is True"),
        ({"lora_alpha": None}, "lora_alpha is None"),
        ({"lora_dropout": 1.5}, "dropout cannot be 1.5"),
        ({"bias": "all"}, "the option 'bias' = 'all'"),
        ({"lora_bias": True}, "the option 'lora_bias' = True"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights 'pissa' changes the base"),
        ({"layer_replication": [[0, 2]]}, "the option 'layer_replication'"),
        ({"trainable_token_indices": [1]}, "the option 'trainable_token_indices'"),
        ({"use_qalora": True}, "the option 'use_qalora'"),
        ({"of_tomorrow": {"a": 1}}, "the option 'of_tomorrow'"),
        ({"rank_pattern": {"(a+)+$": 3}}, "rank_pattern has the regular expression"),
        ({"rank_pattern": {"query": 3}}, "has rank 2, and the configuration says 3"),
        ({"alpha_pattern": {"query": "x"}}, "alpha_pattern is"),
        ({"alpha_pattern": [1]}, "alpha_pattern is"),
        ({"target_modules": ["query"]}, "an adapter that the configuration does not name"),
        ({"target_modules": ["query", 3]}, "target_modules is"),
        ({"target_modules": ["nothing"]}, "no layer of the model is named by 'nothing'"),
        ({"modules_to_save": None}, "head.bias is unknown"),
        ({"modules_to_save": "head"}, "modules_to_save is 'head'"),
        ({"modules_to_save": ["head", "layers.0.query"]}, "configuration does not name"),
        ({"task_type": 7}, "task_type is 7"),
        ({"fan_in_fan_out": "yes"}, "fan_in_fan_out is 'yes'"),
        ({"fan_in_fan_out": 1}, "fan_in_fan_out is 1"),
        ({"use_rslora": 0}, "use_rslora is 0"),
    ],
)
def test_a_configuration_that_means_something_else_is_refused(folder, options, text):
    configured(folder, **options)
    refused(folder, text)


@pytest.mark.parametrize(
    "options",
    [
        {"peft_version": "9.9", "inference_mode": False, "fan_in_fan_out": True},
        {"target_modules": "(x+x+)+y"},  # a regular expression of a file is not run
        {"layers_to_transform": [0, 1], "exclude_modules": ["head"]},
        {"of_tomorrow": None, "another": {}, "third": False},
        {"lora_dropout": 0.5, "rank_pattern": {"query": 2}},
    ],
)
def test_options_that_change_nothing_are_taken(folder, options):
    want = run(dl.adapters.load_adapter(base(), folder), X)
    configured(folder, **options)
    np.testing.assert_array_equal(run(dl.adapters.load_adapter(base(), folder), X), want)


def test_alpha_by_name_scales_an_adapter(folder):
    configured(folder, alpha_pattern={"0.query": 20})
    model = dl.adapters.load_adapter(base(), folder)
    scales = [layer["query"].weight.scale for layer in model["layers"]]
    assert scales == [10.0, 4.0]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 100_000, b"3"])
def test_a_configuration_that_is_none_is_refused(folder, content):
    (folder / "adapter_config.json").write_bytes(content)
    refused(folder, "adapter_config.json: is no")


@pytest.mark.parametrize("folder", [5, None, ["a"], b"folder"])
def test_what_names_no_folder_is_refused(folder):
    refused(folder, "no folder of an adapter")
    with pytest.raises(DelianError, match="no folder of an adapter"):
        dl.adapters.save_adapter(moved(MAKERS["lora"](base())), folder)


def test_a_configuration_that_is_too_long_or_missing_is_refused(folder):
    path = folder / "adapter_config.json"
    path.write_bytes(b" " * (peft_config.BYTES_MAX + 1))
    refused(folder, "it has more than")
    path.unlink()
    refused(folder, "cannot be read")
    path.mkdir()
    refused(folder, "is not a file")


def rewritten(folder, change):
    path = folder / "adapter_model.safetensors"
    tensors, metadata = dl.read_safetensors(path)
    dl.write_safetensors(path, change(tensors), metadata)


QUERY = "base_model.model.layers.0.query"


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda t: {}, "there is no adapter in it"),
        (lambda t: {k[5:]: v for k, v in t.items()}, "does not begin with base_model.model."),
        (
            lambda t: {k.replace("layers.0", "layers.7"): v for k, v in t.items()},
            "an adapter of another model: there is no layer layers.7.query",
        ),
        (
            lambda t: {k: v for k, v in t.items() if QUERY not in k},
            "there is no adapter of layers.0.query",
        ),
        (lambda t: {k: v for k, v in t.items() if "head" not in k}, "head.bias"),
        (lambda t: {k: v for k, v in t.items() if k != f"{QUERY}.lora_A.weight"}, "query has b,"),
        (lambda t: {**t, f"{QUERY}.lora_A.weight": np.ones((2, 5), np.float32)}, "A of layers.0"),
        (lambda t: {**t, f"{QUERY}.lora_B.weight": np.ones((5, 2), np.float32)}, "B of layers.0"),
        (lambda t: {**t, f"{QUERY}.lora_A.weight": np.ones(12, np.float32)}, "A of layers.0"),
        (lambda t: {**t, f"{QUERY}.lora_A.weight": np.ones((2, 6), np.int32)}, "is of int32"),
        (lambda t: {k: v * np.float32(np.nan) for k, v in t.items()}, "has NaN or infinity"),
        (
            lambda t: {**t, f"{QUERY}.lora_embedding_A": np.ones((2, 6), np.float32)},
            "a layer linear",
        ),
        (lambda t: {**t, f"{QUERY}.ia3_l": np.ones((6, 1), np.float32)}, "has a, b, factors"),
        (
            lambda t: {**t, "base_model.model.x.weight": np.ones(2, np.float32)},
            "x.weight is unknown",
        ),
        (
            lambda t: {**t, "base_model.model.head.weight": np.ones((3, 7), np.float32)},
            "head.weight has the shape [3, 7], and needs [6, 3]",
        ),
        (
            lambda t: {**t, f"{QUERY}.base_layer.weight": np.ones((6, 6), np.float32)},
            "the table of layers.0.query differs",
        ),
    ],
)
def test_tensors_of_another_model_are_refused(folder, change, text):
    rewritten(folder, change)
    refused(folder, text)


def test_a_base_of_another_width_is_refused(folder):
    refused(folder, "an adapter of another model: A of layers.0.query", base(7))


def test_a_torn_file_is_refused(folder):
    path = folder / "adapter_model.safetensors"
    content = path.read_bytes()
    for length in (0, 7, 100, len(content) - 1):
        path.write_bytes(content[:length])
        refused(folder, "adapter_model.safetensors")
    path.unlink()
    refused(folder, "cannot be read")


def test_a_file_that_is_longer_than_any_adapter_is_not_read(folder):
    with (folder / "adapter_model.safetensors").open("r+b") as file:
        file.truncate(1 << 33)  # sparse: it takes no room on the disk
    refused(folder, "an adapter of this model has at most")


def test_another_kind_or_rank_than_the_models_is_refused(folder):
    refused(folder, "has another rank", dl.lora(base(), 3, ("query", "value")))
    refused(folder, "are LowRank, and the model's are Dora", dl.dora(base(), 2, ("query", "value")))
    refused(folder, "on other layers than the model's", dl.lora(base(), 2, ("query",)))


def test_half_precision_is_read(folder):
    want = run(dl.adapters.load_adapter(base(), folder), X)
    rewritten(folder, lambda t: {k: v.astype(np.float16) for k, v in t.items()})
    got = run(dl.adapters.load_adapter(base(), folder), X)
    np.testing.assert_allclose(got, want, rtol=0.02, atol=0.05)
    assert not np.array_equal(got, want)
