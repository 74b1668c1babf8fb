"""Losses of PyTorch, by name or a user's own, for a module of a scenario."""

from pathlib import Path

import delian as dl
import numpy as np
import pytest
from delian.core.common.errors import DelianError
from delian.simulations.runs.simulate import simulate
from delian.simulations.scenario import scenario_file

pytest.importorskip("torch")

NET = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, x):
        return self.layers(x)


class Labels(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x):
        return self.layer(x)


class Line(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def forward(self, x):
        return self.layer(x)[:, 0]
"""
LOSSES = """
import torch
from torch import nn


class Pinball(nn.Module):
    def __init__(self, share=0.5):
        super().__init__()
        self.share = share

    def forward(self, outputs, targets):
        error = targets - outputs
        return torch.maximum(self.share * error, (self.share - 1) * error)


class Pairs(nn.Module):
    def forward(self, outputs, targets):
        return (outputs[:, None] - outputs).square().mean() + (outputs - targets).abs().mean()


class Focal(nn.CrossEntropyLoss):
    def forward(self, logits, labels):
        losses = super().forward(logits, labels)
        return (1 - torch.exp(-losses)) ** 2 * losses
"""


def _scenario(folder: Path, *settings: str, labels: bool = False):
    (folder / "net.py").write_text(NET)
    (folder / "losses.py").write_text(LOSSES)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((400, 3)).astype(np.float32)
    y = (x @ [1.0, -2.0, 0.5] + 0.1 * rng.standard_normal(400)).astype(np.float32)
    if labels:
        y = (y > 0).astype(np.int32)
    else:
        y[::10] += 8  # what squared errors follow, and absolute ones do not
    np.savez(folder / "rows.npz", x=x, y=y)
    kind = "labels" if labels else "numbers"
    (folder / "rows.toml").write_text(
        'name = "rows"\nrounds = 12\n[data]\nsource = "npz"\npath = "rows.npz"\n'
        f'partition = "iid"\ntargets = "{kind}"\n'
        f'[model]\nname = "torch"\nfile = "net.py"\nmodule = "{"Labels" if labels else "Net"}"\n'
        '[algorithm]\nname = "fedavg"\nlearning_rate = 0.1\nepochs = 3\nbatch_size = 16\n'
        "[fleet]\ndevices = 6\n[evaluation]\nevery = 12\n"
    )
    return scenario_file.override(scenario_file.load(str(folder / "rows.toml")), settings)


def _bias(folder: Path, *settings: str) -> float:
    """How far above the targets' median a trained model's outputs are, on average."""
    scenario = _scenario(folder, *settings)
    result = simulate(scenario, threads=1)
    assert result.bundle is not None
    result.bundle.save(folder / "model.bundle")
    from delian.simulations.scenario.torch_modules import imported

    model = imported(scenario, (3,), "float32").load_bundle(folder / "model.bundle")
    x = np.load(folder / "rows.npz")["x"]
    return float(np.mean(model(x)[:, 0] - x @ np.array([1.0, -2.0, 0.5])))


def test_what_a_model_learns_follows_from_its_loss(tmp_path: Path) -> None:
    squared = _bias(tmp_path)
    smooth = _bias(tmp_path, "model.loss=SmoothL1Loss", "model.loss_settings={beta=0.1}")
    high = _bias(tmp_path, "model.loss=losses.py:Pinball", "model.loss_settings={share=0.8}")
    assert 0.5 < squared < 1.1  # the mean of what was added
    assert abs(smooth) < 0.3  # the median
    assert high > smooth + 0.05


@pytest.mark.parametrize("module", ["Net", "Line"])
def test_one_logit_is_that_of_the_second_of_two_labels(tmp_path: Path, module: str) -> None:
    keys = ["rounds=4", f"model.module={module}"]
    usual = simulate(_scenario(tmp_path, *keys, labels=True), threads=1)
    named = simulate(
        _scenario(tmp_path, *keys, "model.loss=BCEWithLogitsLoss", labels=True), threads=1
    )
    assert usual.rounds[-1].global_accuracy > 0.85
    assert named.rounds[-1].training_loss == pytest.approx(usual.rounds[-1].training_loss, rel=1e-5)
    assert usual.bundle is not None
    usual.bundle.save(tmp_path / "model.bundle")
    model = dl.load(tmp_path / "model.bundle")
    x = np.load(tmp_path / "rows.npz")["x"][:20]
    logits = model.outputs(x)
    assert logits.shape == (20, 2) and not logits[:, 0].any()
    np.testing.assert_array_equal(model.predict(x), logits[:, 1] > 0)
    chances = 1 / (1 + np.exp(-logits[:, 1]))
    np.testing.assert_allclose(model.predict_proba(x)[:, 1], chances, rtol=1e-5)


def test_one_logit_for_more_labels_is_refused(tmp_path: Path) -> None:
    scenario = _scenario(tmp_path, "model.module=Line", labels=True)
    arrays = dict(np.load(tmp_path / "rows.npz"))
    np.savez(tmp_path / "rows.npz", x=arrays["x"], y=arrays["y"] + np.arange(400) % 2)
    with pytest.raises(DelianError, match=r"the data has 3 labels"):
        simulate(scenario, threads=1)


@pytest.mark.parametrize(
    ("loss", "settings"),
    [
        ("CrossEntropyLoss", "{label_smoothing=0.1, weight=[1.0, 2.0]}"),
        ("MultiMarginLoss", "{}"),
        ("losses.py:Focal", "{}"),
    ],
)
def test_labels_are_learnt_by_other_losses(tmp_path: Path, loss: str, settings: str) -> None:
    keys = [f"model.loss={loss}", f"model.loss_settings={settings}"]
    result = simulate(_scenario(tmp_path, *keys, labels=True), threads=1)
    assert result.rounds[-1].global_accuracy > 0.85


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        (["model.loss=SmoothL2Loss"], r"no loss SmoothL2Loss\n  hint: did you mean SmoothL1Loss\?"),
        (["model.loss=losses.py:Pinbal"], "no class `Pinbal`"),
        (["model.loss=losses.py:Pairs"], "Pairs gives one number, which is not the mean"),
        (["model.loss=SmoothL1Loss", "model.loss_settings={beta=-1.0}"], "negative values"),
        (["model.loss=MSELoss", 'model.loss_settings={reduction="sum"}'], "has a reduction"),
        (["model.loss=HuberLoss", "model.loss_settings={beta=1.0}"], "HuberLoss cannot be made"),
        (["model.loss=CosineEmbeddingLoss"], "CosineEmbeddingLoss does not take outputs"),
    ],
)
def test_a_loss_that_cannot_serve_is_refused(tmp_path: Path, keys: list[str], says: str) -> None:
    with pytest.raises(DelianError, match=says):
        simulate(_scenario(tmp_path, *keys), threads=1)


def test_reports_name_the_loss_and_not_its_folder(tmp_path: Path) -> None:
    scenario = _scenario(tmp_path, f"model.loss={tmp_path}/losses.py:Pinball")
    assert scenario.to_json()["model"]["loss"] == "losses.py:Pinball"
    assert scenario.loss_file == tmp_path / "losses.py"


def test_a_second_run_in_a_process_has_the_same_trace(tmp_path: Path) -> None:
    scenario = _scenario(tmp_path, "model.loss=losses.py:Pinball", "rounds=1")
    first, again = (simulate(scenario, threads=1) for _ in range(2))
    assert first.trace_hash == again.trace_hash
