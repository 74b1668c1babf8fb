"""When a task's weights are the script's own."""

import numpy as np
import pytest
from delian.client.tasks import Task
from delian.core.common.errors import DelianError
from delian.core.node.sandbox.frames import Frame

HEAD = {"task": 1, "purpose": "train", "run": 1, "round": 1, "client": 0, "seed": 0}


class Host:
    """The connection of a script, whose weights lie where its host may write again."""

    leaves = (("a", (2,)), ("b", (1, 1)))

    def __init__(self):
        self.settings = self.others = {}
        self.given = np.arange(3, dtype=np.float32)

    def weights(self, frame):
        return self.given

    def put(self, task, weights):
        return {}, b""

    def send(self, head, body=b""):
        self.given[:] = -1  # as a host does that has the answer


@pytest.fixture
def host():
    return Host()


@pytest.fixture
def task(host):
    return Task(host, Frame(HEAD, bytearray()))


def test_the_script_may_change_its_weights(host, task):
    task.weights["a"] += 7
    assert task.arrays()[0].tolist() == [7, 8]
    assert host.given.tolist() == [0, 1, 2]


def test_weights_that_were_taken_stay_after_the_answer(task):
    kept = task.weights
    task.send(kept, examples=1)
    assert task.weights is kept and kept["b"].tolist() == [[2]]


def test_weights_that_were_not_taken_end_with_the_answer(task):
    task.fail("no rows")
    with pytest.raises(DelianError, match="no longer there"):
        _ = task.weights


def test_a_module_gets_the_weights_as_the_script_has_them(task):
    torch = pytest.importorskip("torch")
    net = torch.nn.ParameterDict({"a": torch.zeros(2), "b": torch.zeros(1, 1)})
    task.load_into(net)
    assert net["a"].tolist() == [0, 1]
    task.weights["a"] *= 2
    task.load_into(net)
    assert net["a"].tolist() == [0, 2]
