"""What of a step a shield covers, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from delian.core.compiler import random, tree
from delian.core.compiler.api import module
from delian.core.compiler.ir import DType, TensorType
from delian.core.learning import Classification, Samples
from delian.core.learning.nn import Dense, Mlp, NormalisedMlp, sgd
from delian.core.placement.cut.cut import DEVICE, EDGE
from delian.core.placement.cut.owned_weights import cut_at, kept_below
from delian.core.placement.cut.training_step import step_of, step_parts
from delian.core.placement.split_training.shields import check_rows, released, shields_of, spent_on
from delian.core.placement.split_training.step_sides import Programs
from delian.core.privacy.mechanisms.accountant import Budget
from delian.core.privacy.mechanisms.activation_noise import BoundaryError, Shield

ROWS = 6


@module
class Ahead:
    """To each row the one after it is added, but for the last."""

    layers: tuple[Dense, ...]

    @staticmethod
    def init(key, inputs, hidden, outputs):
        return Ahead(Mlp.init(key, inputs, hidden, outputs).layers)

    def __call__(self, x, weight):
        x = self.layers[0](np.concatenate([x[:-1] + x[1:], x[-1:]], 0))
        return self.layers[2](self.layers[1](x))


def cut(kind, above, stays=True):
    """The parts of a net of three layers whose leaves named so are above, and its weights."""
    task = Classification("net", lambda key: kind.init(key, 5, (4, 8), 3), Samples(ROWS, 1.0))
    model = task.init(random.key(0))
    x, y = TensorType(DType.F32, (ROWS, 5)), TensorType(DType.I64, (ROWS,))
    step = kept_below(step_of(task, sgd(0.1), model, x, y, stays=stays))
    leaves, structure = tree.flatten(model)
    names = structure.paths()
    homes = {i: EDGE if n.startswith(above) else DEVICE for i, n in enumerate(names)}
    parts = step_parts(step, cut_at(step, homes))
    return parts, dict(enumerate(np.asarray(a) for a in leaves))


def test_in_the_u_shape_activations_and_gradients_are_released():
    parts, weights = cut(Mlp, ("layers.1.",))
    assert [t.shape for t in released(parts, ROWS).values()] == [(ROWS, 4), (ROWS, 8)]
    check_rows(Programs(parts, "reference"), weights, ROWS)


def test_labels_in_the_clear_are_refused():
    parts, _ = cut(Mlp, ("layers.1.", "layers.2."), stays=False)
    with pytest.raises(BoundaryError, match="batch itself would go up"):
        released(parts, ROWS)


def test_what_is_no_row_for_each_example_is_refused():
    parts, _ = cut(Mlp, ("layers.1.",))
    with pytest.raises(BoundaryError, match="not a row for each of 7"):
        released(parts, 7)


def test_a_batch_normalisation_below_is_found_out():
    parts, weights = cut(NormalisedMlp, ("layers.1.",))
    with pytest.raises(BoundaryError, match="depends on other rows"):
        check_rows(Programs(parts, "reference"), weights, ROWS)


def test_rows_that_depend_on_later_ones_alone_are_found_out():
    parts, weights = cut(Ahead, ("layers.1.",))
    with pytest.raises(BoundaryError, match="depends on other rows"):
        check_rows(Programs(parts, "reference"), weights, ROWS)


def test_one_shield_is_for_all_tensors_and_others_are_counted():
    parts, _ = cut(Mlp, ("layers.1.",))
    one, two = Shield(1.0, 1.0), Shield(0.1, 1.0)
    assert list(shields_of(parts, ROWS, [one]).values()) == [one, one]
    assert list(shields_of(parts, ROWS, [one, two]).values()) == [one, two]
    for many in ([], [one] * 3):
        with pytest.raises(BoundaryError, match=f"{len(many)} shields for 2 tensors"):
            shields_of(parts, ROWS, many)


def test_a_pass_costs_what_each_tensor_s_rows_cost():
    parts, _ = cut(Mlp, ("layers.1.",))
    one, two = Shield(1.0, 5.0), Shield(0.1, 5.0)
    spent = spent_on(parts, shields_of(parts, ROWS, [one, two]), Budget(100.0, 1e-5))
    assert spent.releases == ((4, one), (8, two))
    apart = [a + b for a, b in zip(one.cost(4), two.cost(8), strict=True)]
    assert np.allclose(spent.cost, apart)
