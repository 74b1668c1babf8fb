"""Clients with a training script as real daemons: agents, edges, a broker, a coordinator."""

import textwrap

import numpy as np
import pytest
from delian.core.common.errors import DelianError
from delian.simulations.processes.processes import Shape, simulate_processes
from delian.simulations.runs.simulate import simulate
from delian.simulations.scenario.own_data import fitted_to_script
from delian.simulations.scenario.scenario_file import override

DEVICES = 3
SCRIPT = """
    import numpy as np, delian.client as client

    for task in client.tasks({"w": np.zeros((2, 3))}):
        point = np.full((2, 3), float(task.client))
        error = float(np.abs(task.weights["w"] - point).mean())
        w = task.weights["w"] + 0.5 * (point - task.weights["w"])
        task.send({"w": w}, examples=10, loss=error, metrics={"accuracy": 1 / (1 + error)})
"""


@pytest.fixture
def scenario(tmp_path):
    def made(body):
        file = tmp_path / "pulls.py"
        file.write_text(textwrap.dedent(body))
        every = ["rounds=2", "evaluation.every=2", "privacy.clip=20", f"round.cohort={DEVICES}"]
        return override(fitted_to_script(file, DEVICES), every)

    return made


def test_daemons_make_the_model_of_the_simulation(scenario):
    pulls = scenario(SCRIPT)
    real = simulate_processes(pulls, Shape(DEVICES, 2))
    assert [record.reported for record in real.rounds] == [DEVICES] * 2
    want = simulate(pulls, backend="reference").bundle.weights
    np.testing.assert_allclose(real.bundle.weights, want, atol=1e-3)
    np.testing.assert_allclose(want, 1 - 0.5**2, atol=1e-3)


def test_a_script_that_dies_everywhere_ends_the_run_with_its_last_words(scenario):
    dies = scenario(SCRIPT.replace("point =", 'raise OSError("the disk is gone")\n        point ='))
    with pytest.raises(DelianError, match=r"(?s)device-0: client_update.*the disk is gone") as end:
        simulate_processes(dies, Shape(DEVICES, 2))
    assert "--keep" in end.value.hint
