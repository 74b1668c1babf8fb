"""Jobs and the processes of a script that do them."""

import sys
import textwrap

import numpy as np
import pytest
from delian.core.common.errors import DelianError
from delian.core.learning.leaf import Leaf
from delian.core.node.scripts.script_process import (
    ScriptCommand,
    ScriptJob,
    ScriptProcess,
    ScriptReply,
)
from delian.simulations.federation.script_pool import ScriptPool
from delian.simulations.federation.script_worker import PLACES

KEY = np.zeros(2, np.uint32)
LEAVES = [Leaf("w", "f32", (3,))]
#: Adds its client's number; ends where it is asked to.
ADDS = """
    import os, delian.client as client

    for task in client.tasks():
        if task.client == 13:
            print("unlucky", flush=True)
            os._exit(3)
        if task.client == 7:
            task.fail("not today")
            continue
        task.send({"w": task.weights["w"] + task.client}, examples=os.getpid())
"""


@pytest.fixture
def command(tmp_path):
    file = tmp_path / "adds.py"
    file.write_text(textwrap.dedent(ADDS))
    return ScriptCommand((sys.executable, str(file)))


@pytest.fixture
def pool(command):
    given = {"processes": 1, "clients": 20, "timeout_s": 60.0}
    with ScriptPool(command, LEAVES, {}, **given) as made:
        yield made


WEIGHTS = np.ones(3, np.float32)


def submitted(pool, client, then=ScriptReply.kept, weights=WEIGHTS):
    return pool.submit("train", 1, client, weights, KEY, then)


def test_answers_are_those_of_their_jobs(pool):
    asked = [submitted(pool, client) for client in (1, 2, 3, 4, 5)]
    for client, each in enumerate(asked, 1):
        np.testing.assert_array_equal(each.result().weights, np.full(3, 1.0 + client))


def test_jobs_have_their_own_weights_whichever_came_before(pool):
    models = [np.full(3, 10.0 * i, np.float32) for i in range(4)]
    turns = [0, 0, 1, 0, 2, 3, 3, 1]
    asked = [submitted(pool, 1, weights=models[i]) for i in turns]
    assert [each.result().weights[0] for each in asked] == [10.0 * i + 1 for i in turns]


def test_what_is_made_of_an_answer_may_raise(pool):
    failing = submitted(pool, 1, lambda reply: 1 // 0)
    after = submitted(pool, 2)
    with pytest.raises(ZeroDivisionError):
        failing.result()
    assert after.result().weights[0] == 3


def test_a_job_that_was_sent_to_a_process_that_ended_is_done_by_the_next(pool):
    first = submitted(pool, 1).result().examples
    submitted(pool, 2).result()  # shorter than the first, in which the script was imported
    bad, *rest = [submitted(pool, client) for client in (13, 3, 4)]
    with pytest.raises(DelianError, match=r"(?s)client 13, round 1, train.*with 3.*unlucky"):
        bad.result()
    replies = [each.result() for each in rest]
    assert [reply.weights[0] for reply in replies] == [4, 5]
    assert {reply.examples for reply in replies}.isdisjoint({first})


def test_a_job_that_the_script_fails_leaves_its_process_to_the_others(pool):
    before = submitted(pool, 1).result().examples
    bad, after = submitted(pool, 7), submitted(pool, 2)
    with pytest.raises(DelianError, match="client 7, round 1, train: not today"):
        bad.result()
    assert after.result().examples == before


def test_jobs_that_wait_when_the_pool_is_closed_have_no_answer(pool):
    asked = [submitted(pool, client) for client in range(1, 6)]
    pool.close()
    for each in asked[-2:]:
        with pytest.raises(DelianError):
            each.result()


def test_a_process_takes_jobs_while_it_works(command, tmp_path):
    process = ScriptProcess(command, LEAVES, {}, tmp_path / "log", places=PLACES)
    try:
        for client in range(PLACES):
            job = ScriptJob("train", 1, 1, client, 20)
            process.send(job, np.full(3, 10.0 * client, np.float32), 60.0)
        for client in range(PLACES):
            weights = process.receive(60.0).weights
            np.testing.assert_array_equal(weights, np.full(3, 11.0 * client))
    finally:
        process.kill()
