"""Scripts for NVFlare's and Flower's client APIs, and the examples, as sites of a simulation."""

from __future__ import annotations

import textwrap
from pathlib import Path

import delian as dl
import numpy as np
import pytest

NVFLARE = """
    import numpy as np
    import delian.client.nvflare as flare
    from delian.client.nvflare import SummaryWriter

    flare.init()
    assert flare.system_info()["job_id"] == flare.get_job_id()
    writer = SummaryWriter()
    while flare.is_running():
        received = flare.receive()
        weights = {name: np.array(value) for name, value in received.params.items()}
        accuracy = float(np.exp(-abs(weights["w"].mean() - 4.0)))
        if flare.is_submit_model():
            raise RuntimeError("no site is asked for its model")
        if flare.is_evaluate():
            flare.send(flare.FLModel(metrics={"accuracy": accuracy}))
            continue
        assert flare.is_train() and flare.get_site_name().startswith("site-")
        weights["w"] += 1.0
        writer.add_scalar("mean", weights["w"].mean(), received.current_round)
        steps = {"NUM_STEPS_CURRENT_ROUND": 5}
        flare.send(flare.FLModel(params=weights, metrics={"accuracy": accuracy}, meta=steps))
"""

FLOWER_APP = """
    import numpy as np
    from delian.client.flower import ArrayRecord, ClientApp, Context, Message
    from delian.client.flower import MetricRecord, RecordDict

    app = ClientApp()

    @app.train()
    def train(msg: Message, context: Context):
        (w,) = msg.content["arrays"].to_numpy_ndarrays()
        assert context.node_config["num-partitions"] == 4
        assert 0 <= context.node_config["partition-id"] < 4
        arrays = ArrayRecord([w + context.run_config["step-size"]])
        numbers = MetricRecord({"train_loss": 0.5, "num-examples": 5})
        content = RecordDict({"arrays": ArrayRecord({"w": arrays["00000"]}), "metrics": numbers})
        return Message(content=content, reply_to=msg)

    @app.evaluate()
    def evaluate(msg: Message, context: Context):
        (w,) = msg.content["arrays"].to_numpy_ndarrays()
        error = abs(w.mean() - 4.0)
        numbers = {"eval_loss": error, "eval_acc": float(np.exp(-error)), "num-examples": 5}
        return Message(content=RecordDict({"metrics": MetricRecord(numbers)}), reply_to=msg)

    app.run()
"""

FLOWER_CLIENT = """
    import numpy as np
    from delian.client.flower import ClientApp, NumPyClient

    class Adds(NumPyClient):
        def fit(self, parameters, config):
            return [parameters[0] + config["step-size"]], 5, {}

        def evaluate(self, parameters, config):
            error = abs(parameters[0].mean() - 4.0)
            return error, 5, {"accuracy": float(np.exp(-error))}

    ClientApp(client_fn=lambda context: Adds().to_client()).run()
"""


@pytest.mark.parametrize("body", [NVFLARE, FLOWER_APP, FLOWER_CLIENT])
def test_a_script_for_another_system_trains_here(tmp_path: Path, body):
    file = tmp_path / "adds.py"
    file.write_text(textwrap.dedent(body))
    run = dl.simulate(
        data=file,
        model={"w": np.zeros(5, np.float32)},
        devices=4,
        rounds=3,
        settings={"privacy.clip": 10, "data.settings": {"step-size": 1.0}},
        progress=False,
        backend="reference",
    )
    np.testing.assert_allclose(run.weights["w"], 3.0, atol=1e-3)
    assert run.accuracy == pytest.approx(np.exp(-1.0), abs=1e-3)


EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "scripts"


@pytest.mark.parametrize(
    ("name", "package", "devices", "rounds", "settings", "least"),
    [
        ("torch_digits", "torch", 5, 4, {}, 0.85),
        ("sklearn_digits", "sklearn", 5, 2, {}, 0.9),
        ("xgboost_digits", "xgboost", 5, 2, {"privacy.clip": 1e6, "data.equal_weights": True}, 0.8),
        ("lightning_digits", "lightning", 3, 3, {"data.process_each": True}, 0.8),
        ("transformers_digits", "transformers", 3, 3, {"data.process_each": True}, 0.3),
    ],
)
def test_the_examples_learn_under_masks(
    tmp_path, monkeypatch, name, package, devices, rounds, settings, least
):
    pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)  # trainers write into the current folder
    file = EXAMPLES / f"{name}.py"
    assert len(file.read_text().splitlines()) <= 40
    run = dl.simulate(
        data=file,
        devices=devices,
        rounds=rounds,
        settings={"privacy.aggregation": "secure", **settings},
        progress=False,
    )
    assert run.accuracy > least
    assert all(r.reported == devices for r in run.result.rounds)
