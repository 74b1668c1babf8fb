"""What an algorithm gives that does not fit is refused in words, before a device trains."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from delian import tree
from delian.core.common.errors import ProgramError
from delian.core.learning import Algorithm, Classification, ClientResult, FedAvg, Samples, SampleSet
from delian.core.learning.build.bundle_builder import build
from delian.core.learning.nn import Mlp

DATA = SampleSet(np.zeros((8, 3), np.float32), np.zeros(8, np.int32), np.array(6), np.array(2))


def built(algorithm: Algorithm) -> Any:
    task = Classification("t", lambda key: Mlp.init(key, 3, (3,), 3), Samples(2, 1.0))
    example = np.zeros((2, 3), np.float32)
    return build(
        task, algorithm, DATA, example=example, clip=1.0, clients_max=4, weight_max=6.0, seed=1
    )


@dataclass(frozen=True)
class Keeps(FedAvg):
    def client_state(self, task: Any, state: Any) -> Any:
        return state


@dataclass(frozen=True)
class Tuple(FedAvg):
    def client_update(self, task: Any, state: Any, data: Any, key: Any, kept: Any = ()) -> Any:
        return state, self.weight(data), np.float32(0.0), kept


@dataclass(frozen=True)
class Turned(FedAvg):
    """As many numbers as the state, in arrays of other shapes."""

    def client_update(self, task: Any, state: Any, data: Any, key: Any, kept: Any = ()) -> Any:
        made = FedAvg.client_update(self, task, state, data, key, kept)
        return made._replace(update=tree.map(lambda u: u.reshape(-1, 1), made.update))


@dataclass(frozen=True)
class Rows(FedAvg):
    def client_update(self, task: Any, state: Any, data: Any, key: Any, kept: Any = ()) -> Any:
        return ClientResult(state, np.ones(3, np.float32), np.float32(0.0), kept)


@dataclass(frozen=True)
class Forgets(Keeps):
    def client_update(self, task: Any, state: Any, data: Any, key: Any, kept: Any = ()) -> Any:
        return ClientResult(state, self.weight(data), np.float32(0.0))


@dataclass(frozen=True)
class Widens(Keeps):
    def client_update(self, task: Any, state: Any, data: Any, key: Any, kept: Any = ()) -> Any:
        wide = tree.map(lambda k: k.astype(np.float64), kept)
        return ClientResult(state, self.weight(data), np.float32(0.0), wide)


@dataclass(frozen=True)
class Drops(FedAvg):
    def server_update(self, state: Any, memory: Any, mean: Any) -> Any:
        return tree.leaves(state)[:-1], memory


@dataclass(frozen=True)
class Part(FedAvg):
    def personalise(self, task: Any, state: Any, data: Any, key: Any, kept: Any = ()) -> Any:
        return tree.leaves(state)[:2]


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (Tuple, r"Tuple\.client_update gives no dl\.learn\.ClientResult\(update, weight"),
        (Turned, r"update of Turned\.client_update is no tree like the state: array 0 is \(9, 1\)"),
        (Rows, r"Rows\.client_update gives a weight \(3,\) and a loss \(\)"),
        (Forgets, r"Forgets\.client_update keeps has 0 arrays, and its client_state has 4"),
        (Widens, r"Widens\.client_update keeps: array 0 is float64, and in its client_state float"),
        (Drops, r"next state of Drops\.server_update has 3 arrays, and the state has 4"),
        (Part, r"what Part\.personalise gives has 2 arrays, and the model has 4"),
    ],
)
def test_what_does_not_fit_is_told_in_words(kind: type[Algorithm], says: str) -> None:
    with pytest.raises(ProgramError, match=says):
        built(kind())


def test_what_fits_leaves_no_trace_of_the_check_in_the_programs() -> None:
    names = {op.name for op in built(Keeps()).programs["server_update"].body.ops}
    assert names <= {"neg", "mul", "add", "sub", "constant"}, names
