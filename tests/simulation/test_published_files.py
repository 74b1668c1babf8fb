"""Scenarios on data as it is published: `delian data show` says what lies on which device."""

from __future__ import annotations

import itertools
import json
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from delian.cli.main import app
from delian.core.common.errors import DelianError
from delian.core.learning.data import png
from delian.simulations.runs.simulate import simulate
from delian.simulations.scenario.datasets import load_data
from delian.simulations.scenario.scenario_file import load, override
from typer.testing import CliRunner


def shown(*arguments: str) -> dict[str, Any]:
    result = CliRunner().invoke(app, ["data", "show", *arguments, "--json"])
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


@pytest.fixture
def femnist(tmp_path: Path) -> Path:
    rng = np.random.default_rng(2)
    users = {
        f"f{i:04d}": {
            "x": rng.random((6 + i, 784)).round(3).tolist(),
            "y": rng.integers(0, 62, 6 + i).tolist(),
        }
        for i in range(4)
    }
    content = {"users": list(users), "num_samples": [6, 7, 8, 9], "user_data": users}
    (tmp_path / "all_data_0.json").write_text(json.dumps(content))
    return tmp_path


FEW = ("fleet.devices=4", "fleet.edges=1", "data.held_out_devices=1", "round.cohort=2")


def test_femnist_s_writers_are_devices(femnist: Path) -> None:
    settings = [word for key in (*FEW, "data.min_examples=2") for word in ("--set", key)]
    facts = shown("femnist", "--data", str(femnist), *settings)
    assert sorted(facts["examples"]) == [6, 7, 8, 9] and facts["classes"] == 62
    assert {name.split()[-1] for name in facts["names"]} == {f"f{i:04d}" for i in range(4)}


def test_a_writer_with_too_few_images_is_left_out_and_training_runs(femnist: Path) -> None:
    changes = ["fleet.devices=3", *FEW[1:], "data.min_examples=7", "rounds=1"]
    changes += ['model={name = "mlp", hidden = [4], classes = 62}', "evaluation.steps=[1]"]
    scenario = override(load("femnist"), changes)
    assert sorted(load_data(scenario, femnist).card.examples) == [7, 8, 9]
    result = simulate(scenario, data_path=femnist, backend="reference")
    assert all(len(d.steps_query) == 2 for d in result.devices)


def test_several_idx_sets_are_told_apart_by_name(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    for name, rows in (("emnist-digits", 40), ("emnist-letters", 60)):
        x = rng.integers(0, 256, (rows, 28, 28)).astype(np.uint8)
        for kind, array in (
            ("images-idx3", x),
            ("labels-idx1", np.arange(rows, dtype=np.uint8) % 4),
        ):
            head = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
            (tmp_path / f"{name}-train-{kind}-ubyte").write_bytes(head + array.tobytes())
    scenario = override(
        load("digits"),
        [
            *('data={source = "idx", partition = "iid", min_examples = 2}', "fleet.devices=5"),
            *("fleet.edges=1", "round.cohort=3"),
        ],
    )
    with pytest.raises(DelianError, match="emnist-digits, emnist-letters"):
        load_data(scenario, tmp_path)
    digits = override(scenario, ["data.files=emnist-digits"])
    assert sum(load_data(digits, tmp_path).card.examples) == 40


def white_png(side: int) -> bytes:
    """A white image of 1 bit: rows of no filter."""
    head = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    rows = zlib.compress((b"\0" + b"\xff" * ((side + 7) // 8)) * side)
    chunks = ((b"IHDR", head), (b"IDAT", rows), (b"IEND", b""))
    return png.SIGNATURE + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in chunks
    )


def test_omniglot_s_archives_are_shown_as_the_small_file_is(tmp_path: Path) -> None:
    for top, alphabets in (("background", ("Greek", "Latin")), ("evaluation", ("Angelic",))):
        with zipfile.ZipFile(tmp_path / f"images_{top}.zip", "w") as archive:
            for place in itertools.product(alphabets, range(1, 6), range(1, 5)):
                name = "images_{}/{}/character{:02d}/0001_{:02d}.png".format(top, *place)
                archive.writestr(name, white_png(105))
    settings = ["--set", "data.held_out_alphabets=1", "--set", "round.cohort=2"]
    facts = shown("omniglot", "--data", str(tmp_path), *settings, "--set", "fleet.edges=1")
    assert facts["names"] == [f"{n}, drawers 1-4" for n in ("Greek", "Latin", "Angelic")]
    assert facts["held_out"] == [2] and facts["examples"] == [20, 20, 20]
