"""The model after n steps, from one program for any n, is `personalise`'s of n steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import delian as dl
import numpy as np
import pytest
from delian.core import learning
from delian.core.compiler.backends import compile_function
from delian.core.learning import Algorithm, Classification, Samples, SampleSet
from delian.core.learning.build.partial_training import divided
from delian.core.learning.build.personal_steps import stepped
from delian.core.learning.leaf_roles import Roles
from delian.core.learning.nn import Mlp, sgd

RATE = 0.25


def task() -> Classification:
    return Classification("t", lambda key: Mlp.init(key, 3, (4,), 2), Samples(4, 1.0))


def data() -> SampleSet:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(9, 3)).astype(np.float32)
    y = rng.integers(0, 2, 9).astype(np.int32)
    return SampleSet(x, y, np.array(6, np.int64), np.array(3, np.int64))


ALGORITHMS: list[Algorithm] = [
    learning.FedAvg(personal_learning_rate=RATE),
    learning.Maml(personal_learning_rate=RATE),
    learning.MetaSgd(inner_learning_rate=RATE),
    learning.Ditto(personal_learning_rate=RATE),
    learning.FedPer(personal_learning_rate=RATE),
    learning.PFedMe(local=sgd(RATE)),
    learning.ProtoNet(),
]


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda a: type(a).__name__)
def test_one_program_has_the_model_of_any_number_of_steps(algorithm: Algorithm) -> None:
    the_task, rows, key = task(), data(), dl.random.key(5)
    division = divided(the_task, algorithm, Roles(), 0)
    state, frozen = algorithm.init(division.task, dl.random.key(1)), list(division.arrays)
    own = algorithm.client_state(division.task, state)
    kept = division.kept(state, own)
    program = compile_function(stepped(the_task, algorithm, rows), "reference")
    for steps in (1, 2, 7):
        shared = division.shared(state)
        given = [*dl.tree.leaves((shared, frozen, rows, key, kept)), np.array(steps, np.int64)]
        after = program(*[np.asarray(leaf) for leaf in given])
        once = replace(algorithm, personal_steps=steps)
        expected = once.personalise(division.task, state, rows, key, own)
        for ours, theirs in zip(after, dl.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-6)


def test_no_step_leaves_the_shared_model() -> None:
    algorithm = learning.FedAvg()
    model = algorithm.init(task(), dl.random.key(1))
    program = compile_function(stepped(task(), algorithm, data()), "reference")
    leaves: list[Any] = dl.tree.leaves(model)
    given = [*leaves, *dl.tree.leaves(data()), dl.random.key(5), np.array(0, np.int64)]
    for ours, theirs in zip(program(*given), leaves, strict=True):
        np.testing.assert_array_equal(ours, theirs)
