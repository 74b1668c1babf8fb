"""What the readers of TensorBoard, MLflow and W&B find of a run that was recorded for them."""

from __future__ import annotations

import json
import struct

import delian as dl
import pytest
from delian.core.common.errors import DelianError
from delian.simulations.integrations.trackers import trackers
from delian.simulations.runs.result import RoundFinished, Started
from delian.simulations.scenario.scenario_file import load

BLOCK, HEADER = 1 << 15, 7


@pytest.fixture(scope="module")
def result(make_result):
    return make_result(load("synthetic-mlp"))


def pass_on(listener, result):
    listener(Started(result.scenario, 100, 0))
    for record in result.rounds:
        listener(RoundFinished(record))


def records(content):
    """Of W&B's file: a header, then the log format of LevelDB, in blocks of 32 KiB."""
    assert content[:4] == b":W&B"
    place, whole = HEADER, b""
    while place + HEADER <= len(content):
        if BLOCK - place % BLOCK < HEADER:
            place += BLOCK - place % BLOCK
            continue
        length, kind = struct.unpack_from("<HB", content, place + 4)
        whole += content[place + HEADER : place + HEADER + length]
        place += HEADER + length
        if kind in (1, 4):  # whole, or the last part
            yield whole
            whole = b""


def test_tensorboard_reads_what_was_written(result, tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util import tensor_util

    listener = trackers(tensorboard=tmp_path / "tb")
    pass_on(listener, result)
    listener.close(result)
    assert listener.where() == [f"tensorboard --logdir {tmp_path / 'tb'}"]
    (run,) = (tmp_path / "tb").iterdir()
    read = EventAccumulator(str(run)).Reload()
    series = read.Tensors("accuracy/personalized")
    assert [event.step for event in series] == [r.round for r in result.rounds]
    values = [float(tensor_util.make_ndarray(event.tensor_proto)) for event in series]
    assert values == pytest.approx([r.personalised_accuracy for r in result.rounds])
    assert json.loads((run / "settings.json").read_text())["algorithm.name"] == "fedavg"


def test_mlflow_reads_what_was_written(result, tmp_path):
    pytest.importorskip("mlflow")
    from mlflow.tracking import MlflowClient

    for uri, target in (
        (f"sqlite:///{tmp_path / 'a' / 'mlflow.db'}", tmp_path / "a"),
        (f"sqlite:///{tmp_path / 'b.db'}", f"sqlite:///{tmp_path / 'b.db'}"),
    ):
        listener = trackers(mlflow=target)
        pass_on(listener, result)
        listener.close(result)
        assert listener.where() == [f"mlflow ui --backend-store-uri {uri}"]
        client = MlflowClient(tracking_uri=uri)
        (run,) = client.search_runs([client.get_experiment_by_name("delian").experiment_id])
        assert run.info.status == "FINISHED"
        assert run.data.params["data.source"] == "synthetic"
        history = client.get_metric_history(run.info.run_id, "accuracy/shared")
        assert [(m.step, m.value) for m in history] == [
            (r.round, r.global_accuracy) for r in result.rounds
        ]
    with pytest.raises(DelianError, match="MLflow cannot use"):
        trackers(mlflow="carrier-pigeon://host")


def test_wandb_reads_what_was_written(result, tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    from wandb.proto.wandb_internal_pb2 import Record

    monkeypatch.chdir(tmp_path)
    listener = trackers(wandb="offline")
    pass_on(listener, result)
    listener.close(result)
    (folder,) = (tmp_path / "wandb").glob("offline-run-*")
    assert listener.where() == [f"wandb sync wandb/{folder.name}"]
    (file,) = folder.glob("*.wandb")
    rounds, config = {}, {}
    for content in records(file.read_bytes()):
        record = Record.FromString(content)
        config |= {each.key: each.value_json for each in record.run.config.update}
        values = {
            each.key or "/".join(each.nested_key): json.loads(each.value_json)
            for each in record.history.item
        }
        if "accuracy/shared" in values:
            rounds[values["_step"]] = values["accuracy/shared"]
    assert rounds == pytest.approx({r.round: r.global_accuracy for r in result.rounds})
    assert json.loads(config["algorithm.name"]) == "fedavg"


def test_dl_simulate_records_its_run(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = dl.simulate(
        "synthetic-mlp",
        rounds=2,
        settings=["fleet.devices=6", "data.held_out_devices=0", "round.cohort=3"],
        backend="reference",
        tensorboard=tmp_path,
    )
    (folder,) = tmp_path.iterdir()
    read = EventAccumulator(str(folder)).Reload()
    steps = [event.step for event in read.Tensors("loss/training")]
    assert steps == [r.round for r in run.result.rounds] == [1, 2]


def test_the_command_records_its_run_and_says_how_to_see_it(tmp_path, monkeypatch):
    pytest.importorskip("mlflow")
    from delian.cli.main import app
    from mlflow.tracking import MlflowClient
    from typer.testing import CliRunner

    monkeypatch.chdir(tmp_path)
    small = ["fleet.devices=6", "data.held_out_devices=0", "round.cohort=3", "rounds=2"]
    settings = [word for each in small for word in ("--set", each)]
    command = ["simulate", "synthetic-mlp", *settings, "--backend", "reference", "--mlflow", "ml"]
    said = CliRunner().invoke(app, command)
    assert said.exit_code == 0, said.output
    uri = f"sqlite:///{tmp_path / 'ml' / 'mlflow.db'}"
    assert f"delian: mlflow ui --backend-store-uri {uri}" in said.output
    client = MlflowClient(tracking_uri=uri)
    (run,) = client.search_runs([client.get_experiment_by_name("delian").experiment_id])
    assert run.data.params["fleet.devices"] == "6" and run.info.status == "FINISHED"
    assert len(client.get_metric_history(run.info.run_id, "loss/training")) == 2
