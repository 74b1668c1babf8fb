"""Clients of a simulation that train by a user's script, in processes."""

from __future__ import annotations

import textwrap
from pathlib import Path

import delian as dl
import numpy as np
import pytest
from delian.core.common.errors import DelianError

#: Each client pulls its weights half of the way to a point of its own.
PULLS = """
    import numpy as np
    import delian.client as client

    for task in client.tasks({"w": np.zeros((2, 3)), "steps": np.array([7])}):
        point = np.full((2, 3), float(task.client))
        error = np.abs(task.weights["w"] - point).mean()
        metrics = {"accuracy": 1 / (1 + error), "loss": error}
        if task.purpose == "evaluate":
            task.send(examples=10, metrics=metrics)
            continue
        with (task.folder / "rounds").open("a") as file:
            print(task.round, file=file)
        w = task.weights["w"] + task.settings.get("rate", 0.5) * (point - task.weights["w"])
        task.send({"w": w}, examples=10 + 10 * (task.client == 3), metrics=metrics)
"""
FEW = {"evaluation.every": 1, "privacy.clip": 20}


@pytest.fixture
def script(tmp_path: Path):
    def write(body: str = PULLS) -> Path:
        file = tmp_path / "pulls.py"
        file.write_text(textwrap.dedent(body))
        return file

    return write


def simulated(file: Path, **given) -> dl.Run:
    given = {"devices": 4, "rounds": 3, "settings": FEW, **given}
    return dl.simulate(data=file, progress=False, backend="reference", **given)


def test_the_shared_weights_are_the_mean_of_what_scripts_send(script):
    run = simulated(script())
    # Toward the mean of 0, 1, 2 and twice 3, half of the way a round.
    want = (0 + 1 + 2 + 3 + 3) / 5 * (1 - 0.5**3)
    np.testing.assert_allclose(run.weights["w"], want, atol=1e-3)
    assert [r.reported for r in run.result.rounds] == [4, 4, 4]
    assert run.result.data["examples"] == [10, 10, 10, 20]
    assert run.result.rounds[-1].global_accuracy == pytest.approx(
        np.mean([1 / (1 + abs(want - c)) for c in range(4)]), abs=1e-3
    )


def test_masked_and_plain_runs_give_the_same_weights(script):
    file = script()
    plain, masked = (
        simulated(file, settings={**FEW, "privacy.aggregation": kind}).weights["w"]
        for kind in ("plain", "secure")
    )
    np.testing.assert_array_equal(plain, masked)


def test_a_run_does_not_depend_on_the_number_of_processes(script):
    file = script()
    one, three = (simulated(file, threads=threads) for threads in (1, 3))
    assert one.result.trace_hash == three.result.trace_hash
    np.testing.assert_array_equal(one.weights["w"], three.weights["w"])


def test_settings_reach_the_script(script):
    run = simulated(script(), settings={**FEW, "data.settings": {"rate": 1.0}}, rounds=1)
    np.testing.assert_allclose(run.weights["w"], 9 / 5, atol=1e-3)


def test_a_caller_s_weights_begin_the_run(script):
    run = simulated(script(), model={"w": np.full((2, 3), 9 / 5, np.float32)}, rounds=1)
    np.testing.assert_allclose(run.weights["w"], 9 / 5, atol=1e-3)


def test_equal_weights_count_clients_and_not_examples(script):
    run = simulated(script(), settings={**FEW, "data.equal_weights": True}, rounds=1)
    np.testing.assert_allclose(run.weights["w"], 6 / 4 / 2, atol=1e-3)


def test_each_client_may_have_a_process_of_its_own(script):
    file = script(
        PULLS.replace("for task", "own = client.site().client\n\n    for task").replace(
            "float(task.client)", "float(own)"
        )
    )
    run = simulated(file, settings={**FEW, "data.process_each": True})
    np.testing.assert_allclose(run.weights["w"], 9 / 5 * (1 - 0.5**3), atol=1e-3)


def test_a_script_that_says_no_accuracy_is_measured_by_its_loss(script):
    file = script(PULLS.replace('"accuracy": 1 / (1 + error), ', ""))
    run = simulated(file, settings={**FEW, "data.measure": "loss"})
    first, last = run.result.rounds[0], run.result.rounds[-1]
    assert 0 < last.global_accuracy < first.global_accuracy  # under the name of the measure
    assert "loss" in repr(run)


def test_a_script_has_no_program_to_infer(script):
    run = simulated(script(), rounds=1)
    with pytest.raises(DelianError, match="no program `infer`: the script pulls"):
        run.model.predict(np.zeros((1, 1)))


BAD = {
    "no first weights": (
        PULLS.replace('{"w": np.zeros((2, 3)), "steps": np.array([7])}', ""),
        r"first weights: no first weights: write client.tasks\(model\)",
    ),
    "it dies": (
        PULLS.replace("w = task", "raise OSError('the disk is gone')\n        w = task"),
        r"(?s)client \d, round 1, train.*ended with 1.*the disk is gone",
    ),
    "no Python": ("import delian.client\nx = (", "(?s)first weights.*ended with 1.*SyntaxError"),
    "another shape": (
        PULLS.replace('{"w": w}', '{"w": w[0]}'),
        r"(?s)round 1, train.*`w` are \[3\], and the run's model has \[2, 3\]",
    ),
    "an unknown array": (PULLS.replace('{"w": w}', '{"w": w, "v": w}'), "have v, which the run"),
    "site() of a shared process": (
        PULLS.replace("for task", "client.site()\n    for task"),
        "(?s)serves several simulated clients",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_script_ends_the_run_with_its_own_words(script, name):
    body, why = BAD[name]
    with pytest.raises(DelianError, match=why):
        simulated(script(textwrap.dedent(body)), threads=1)


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("algorithm.learning_rate", 0.1, "a script trains as it is written"),
        ("algorithm.name", "maml", "the algorithm script is for the data source script"),
        ("model.name", "mlp", "has a model of its own"),
        ("evaluation.steps", [1], "not asked for single steps"),
    ],
)
def test_keys_that_a_script_does_not_know_are_refused(script, key, value, why):
    with pytest.raises(DelianError, match=why):
        simulated(script(), settings={key: value})


def test_without_memory_to_share_weights_go_through_the_socket(script, monkeypatch):
    shared = simulated(script())
    monkeypatch.delattr("os.memfd_create")
    sent = simulated(script())
    assert sent.weights["w"].tobytes() == shared.weights["w"].tobytes()


def test_a_script_may_keep_the_weights_of_earlier_tasks(script):
    body = PULLS.replace(
        "    point =", '    kept = globals().setdefault("kept", task.weights["w"])\n        point ='
    ).replace("w = task.weights", "assert not kept.any()\n        w = task.weights")
    assert [r.reported for r in simulated(script(body)).result.rounds] == [4, 4, 4]


@pytest.fixture(scope="module")
def ray_cluster():
    ray = pytest.importorskip("ray", reason="an optional executor: delian[ray]")
    ray.init(num_cpus=2, include_dashboard=False, _node_ip_address="127.0.0.1")
    yield
    ray.shutdown()


ON_RAY = {**FEW, "data.executor": "ray"}


def test_a_ray_cluster_gives_the_same_weights(script, ray_cluster):
    there = simulated(script(), settings=ON_RAY, threads=2)
    assert simulated(script()).weights["w"].tobytes() == there.weights["w"].tobytes()


def test_a_fault_on_a_ray_cluster_has_the_script_s_own_words(script, ray_cluster):
    body, why = BAD["it dies"]
    with pytest.raises(DelianError, match=why):
        simulated(script(body), settings=ON_RAY, threads=1)


def test_more_processes_than_a_ray_cluster_has_cores_are_refused(script, ray_cluster):
    with pytest.raises(DelianError, match="the Ray cluster has 2 cores, and 3 processes"):
        simulated(script(), settings=ON_RAY, threads=3)


def test_a_folder_with_the_name_of_a_script_is_none(tmp_path):
    (tmp_path / "train.py").mkdir()
    with pytest.raises(DelianError, match=r"train\.py is no data of a known kind"):
        dl.simulate(data=tmp_path / "train.py", progress=False)
