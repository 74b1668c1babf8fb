"""PyTorch modules of users as models of a scenario."""

from pathlib import Path

import pytest
from delian.core.common.errors import DelianError
from delian.simulations.runs.simulate import simulate
from delian.simulations.scenario import scenario_file

pytest.importorskip("torch")

NET = """
import torch
from torch import nn

class Part(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv = nn.Conv2d(1, width, 3, padding=1)
        self.norm = nn.BatchNorm2d(width)

    def forward(self, x):
        return torch.relu(self.norm(self.conv(x)))

class Net(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.part = Part(width)
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(width * 16, 10)

    def forward(self, x):
        return self.head(self.drop(nn.functional.max_pool2d(self.part(x), 2).flatten(1)))
"""


def _scenario(folder: Path, *settings: str):
    (folder / "net.py").write_text(NET)
    keys = ["model.name=torch", f"model.file={folder / 'net.py'}", "model.module=Net"]
    short = ["algorithm.name=fedavg", "rounds=4", "evaluation.every=4"]
    return scenario_file.override(scenario_file.load("digits"), [*keys, *short, *settings])


def test_a_module_is_trained_under_masks_with_its_running_statistics(tmp_path: Path) -> None:
    result = simulate(_scenario(tmp_path), threads=1)
    assert result.rounds[-1].personalised_accuracy > 0.9
    assert result.rounds[-1].global_accuracy > 0.5


def test_a_constructor_gets_its_settings_and_the_scenario_its_seed(tmp_path: Path) -> None:
    from delian.simulations.scenario.torch_modules import imported

    narrow = "model.settings={width=4}"
    first = imported(_scenario(tmp_path, narrow), (8, 8, 1), "float32")
    assert first.parameters["part.conv.weight"].shape == (3, 3, 1, 4)
    again = imported(_scenario(tmp_path, narrow), (8, 8, 1), "float32")
    other = imported(_scenario(tmp_path, narrow, "seed=9"), (8, 8, 1), "float32")
    name = "head.weight"
    assert (first.parameters[name] == again.parameters[name]).all()
    assert (first.parameters[name] != other.parameters[name]).any()


def test_statistics_under_an_algorithm_that_does_not_update_them_are_refused(
    tmp_path: Path,
) -> None:
    with pytest.raises(DelianError, match=r"scaffold does not update .*part\.norm\.running_mean"):
        simulate(_scenario(tmp_path, "algorithm.name=scaffold"), threads=1)
    batch = _scenario(tmp_path, "algorithm.name=scaffold", "rounds=1", "model.batch_norm=batch")
    assert len(simulate(batch, threads=1).rounds) == 1


def test_a_run_begins_with_given_weights_and_its_result_goes_back(tmp_path: Path) -> None:
    import numpy as np
    from delian.simulations.scenario.torch_modules import imported

    scenario = _scenario(tmp_path, "rounds=1", "seed=5")
    start = imported(scenario, (8, 8, 1), "float32")
    start.save(tmp_path / "first.safetensors")
    weights = f"model.weights={tmp_path / 'first.safetensors'}"
    result = simulate(_scenario(tmp_path, "rounds=1", weights), threads=1)
    assert result.bundle is not None
    result.bundle.save(tmp_path / "model.bundle")
    trained = start.load_bundle(tmp_path / "model.bundle")
    moved = trained.parameters["head.weight"] - start.parameters["head.weight"]
    assert 0 < np.abs(moved).max() < 1
    assert (trained.statistics["part.norm.running_mean"] != 0).any()
    other = imported(_scenario(tmp_path, "model.settings={width=4}"), (8, 8, 1), "float32")
    with pytest.raises(DelianError, match="is not a bundle of Net"):
        other.load_bundle(tmp_path / "model.bundle")


def test_episodes_train_a_module(tmp_path: Path, shared_data: Path) -> None:
    (tmp_path / "net.py").write_text(NET.replace("width * 16, 10", "width * 14 * 14, 5"))
    keys = ["model.name=torch", f"model.file={tmp_path / 'net.py'}", "model.module=Net"]
    short = ["rounds=1", "round.cohort=4", "evaluation.devices=3", "model.batch_norm=batch"]
    scenario = scenario_file.override(scenario_file.load("omniglot"), [*keys, *short])
    result = simulate(scenario, data_path=shared_data / "omniglot_small.npz", threads=2)
    assert 0.0 <= result.rounds[0].personalised_accuracy <= 1.0


def test_ids_of_a_data_file_reach_an_embedding(tmp_path: Path) -> None:
    import numpy as np

    (tmp_path / "net.py").write_text(
        "from torch import nn\n\n\n"
        "class Net(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.table, self.head = nn.Embedding(9, 6), nn.Linear(6, 3)\n\n"
        "    def forward(self, symbols):\n"
        "        return self.head(self.table(symbols).mean(1))\n"
    )
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 240)
    x = 3 * y[:, None] + rng.integers(0, 3, (240, 5))
    np.savez(tmp_path / "rows.npz", x=x.astype(np.int32), y=y.astype(np.int32))
    (tmp_path / "ids.toml").write_text(
        'name = "ids"\nrounds = 3\n[data]\nsource = "npz"\npath = "rows.npz"\npartition = "iid"\n'
        '[model]\nname = "torch"\nfile = "net.py"\ninputs = "ids"\n'
        '[algorithm]\nname = "fedavg"\nlearning_rate = 1.0\nepochs = 5\n[fleet]\ndevices = 8\n'
    )
    result = simulate(scenario_file.load(str(tmp_path / "ids.toml")), threads=1)
    assert result.rounds[-1].global_accuracy > 0.9


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (["model.module="], "several classes in it extend Module: Part, Net"),
        (["model.module=Nut"], "no class `Nut`"),
        (["model.settings={widht=4}"], "Net cannot be made: TypeError: .*widht"),
        (["model.images=channels_last"], "DL123.*refuses this module"),
    ],
)
def test_a_module_that_cannot_serve_is_refused(
    tmp_path: Path, settings: list[str], says: str
) -> None:
    with pytest.raises(DelianError, match=says):
        simulate(_scenario(tmp_path, *settings), threads=1)
