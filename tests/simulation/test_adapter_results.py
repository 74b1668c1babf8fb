"""What becomes of a run that trained a model in part: adapters, ONNX, safetensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import delian as dl
import numpy as np
import pytest
from delian.cli.programs.model_file_facts import convert
from delian.cli.programs.model_folders import convert_to_folder
from delian.core.common.errors import DelianError
from delian.core.common.user_code import load_class
from delian.core.learning.interchange.safetensors_file import read_safetensors
from delian.core.learning.nn import Mlp

NET = """
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(64, 12), torch.nn.Linear(12, 10)
    def forward(self, x):
        return self.last(torch.relu(self.first(x.flatten(1))))
"""
KEYS = {
    "rounds": 2,
    "round.cohort": 4,
    "round.reports_min": 2,
    "data.held_out_devices": 0,
    "algorithm.learning_rate": 0.05,
}
LORA = {"partial.adapters": "lora", "partial.targets": ["first", "last"], "partial.rank": 2}
IMAGES = np.random.default_rng(0).integers(0, 17, (5, 8, 8)).astype(np.float32)


def run(folder: Path, model: Any = None, **more: Any) -> Any:
    found = dl.simulate(
        "digits", devices=6, algorithm="fedavg", model=model, settings={**KEYS, **more}, threads=1
    )
    found.save(folder)
    return found


@pytest.fixture(scope="module")
def base() -> Any:
    return dl.lora(Mlp.init(dl.random.key(0), 64, (12,), 10), 2, "all-linear", 4.0)


@pytest.fixture(scope="module")
def found(base: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    folder = tmp_path_factory.mktemp("adapters") / "run"
    return run(folder, base), folder / "model.bundle"


def test_a_model_takes_the_adapters_of_a_run(base: Any, found: tuple[Any, Path]) -> None:
    result, bundle = found
    fresh = dl.lora(Mlp.init(dl.random.key(9), 64, (12,), 10), 2, "all-linear", 4.0)
    for model in (base, fresh):  # the frozen leaves come from the bundle too
        made = dl.learn.with_bundle(model, bundle)
        np.testing.assert_allclose(
            made(IMAGES / 16), result.model.outputs(IMAGES), rtol=1e-4, atol=1e-5
        )


def test_of_another_model_it_is_refused(base: Any, found: tuple[Any, Path]) -> None:
    for model in (dl.adapters.without(base), Mlp.init(dl.random.key(0), 64, (5,), 10)):
        with pytest.raises(DelianError, match="its model has other leaves"):
            dl.learn.with_bundle(model, found[1])
    with pytest.raises(DelianError, match="this bundle has no weights"):
        dl.learn.with_bundle(base, dl.load(found[1]).bundle.bare())


def test_onnx_has_frozen_leaves_inside(found: tuple[Any, Path], tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    convert(found[1], tmp_path / "net.onnx")
    session = runtime.InferenceSession(str(tmp_path / "net.onnx"))
    (port,) = session.get_inputs()
    rows = np.resize(IMAGES, (port.shape[0], 8, 8)).astype(np.float32)
    (logits,) = session.run(None, {port.name: rows.reshape(port.shape)})
    wanted = found[0].model.outputs(rows)
    np.testing.assert_allclose(logits, wanted, rtol=1e-4, atol=1e-4)


def test_safetensors_have_all_leaves(found: tuple[Any, Path], tmp_path: Path) -> None:
    convert(found[1], tmp_path / "net.safetensors")
    arrays, _ = read_safetensors(tmp_path / "net.safetensors")
    assert {name.rpartition(".")[2] for name in arrays} == {"a", "b", "base", "bias"}
    assert len(arrays) == 8


def test_a_personal_head_has_its_first_value_in_onnx(tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    result = run(tmp_path / "run", **{"partial.personal": ["layers.1.*"]})
    convert(tmp_path / "run" / "model.bundle", tmp_path / "net.onnx")
    session = runtime.InferenceSession(str(tmp_path / "net.onnx"))
    (port,) = session.get_inputs()
    rows = np.resize(IMAGES, (port.shape[0], 8, 8)).astype(np.float32)
    (logits,) = session.run(None, {port.name: rows.reshape(port.shape)})
    np.testing.assert_allclose(logits, result.model.outputs(rows), rtol=1e-4, atol=1e-4)


def test_peft_reads_what_a_federation_trained(tmp_path: Path) -> None:
    torch, peft = pytest.importorskip("torch"), pytest.importorskip("peft")
    (tmp_path / "net.py").write_text(NET)
    result = run(tmp_path / "run", **{"model.name": "torch", **_file(tmp_path), **LORA})
    scenario = result.result.scenario
    keys = [f"{name}={json.dumps(value)}" for name, value in LORA.items()]
    facts = convert_to_folder(
        tmp_path / "run" / "model.bundle",
        tmp_path / "adapter",
        f"{tmp_path / 'net.py'}:Net",
        None,
        [*keys, f"seed={scenario.seed}"],
    )
    assert facts["parameters"] == 4
    own = load_class(tmp_path / "net.py", torch.nn.Module, "Net", "")
    torch.manual_seed(scenario.seed)
    net = peft.PeftModel.from_pretrained(own(), str(tmp_path / "adapter"))
    logits = net(torch.from_numpy(IMAGES / 16)[:, None]).detach().numpy()
    np.testing.assert_allclose(logits, result.model.outputs(IMAGES), rtol=1e-4, atol=1e-4)


def _file(folder: Path) -> dict[str, str]:
    return {"model.file": str(folder / "net.py"), "model.module": "Net"}
