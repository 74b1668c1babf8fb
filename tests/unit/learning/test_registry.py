"""An algorithm is one file: what is derived from its class."""

from __future__ import annotations

from dataclasses import MISSING, dataclass
from typing import Annotated, Literal

import pytest
from delian.core.common.field_docs import field_docs
from delian.core.learning import (
    Algorithm,
    Bounds,
    FedAvg,
    FromRun,
    Scaffold,
    algorithm_registry,
    hyperparameters,
)
from delian.simulations.scenario.algorithm_table import table_of


@dataclass(frozen=True)
class Own(FedAvg):
    epochs: int = 1
    """Not used."""
    pull: Annotated[float, Bounds(gt=0.0, le=2.0)] = 0.5
    """How strong
    it is.
    """
    how: Annotated[Literal["near", "far"], Bounds()] = "near"
    devices: Annotated[int, FromRun("training_devices")] = 0
    unknown: NotImported = None  # noqa: F821


def test_a_field_with_bounds_is_a_hyperparameter_and_a_redeclared_one_without_is_none():
    found = hyperparameters.hyperparameters(Own)
    assert list(found) == [
        *("local_steps", "personal_steps", "personal_learning_rate"),
        *("pull", "how"),
    ]
    assert (found["pull"].type, found["pull"].default) == (float, 0.5)
    assert hyperparameters.facts_wanted(Own) == {"devices": "training_devices"}
    assert field_docs(Own)["pull"] == "How strong it is."


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("pull", 2.0, True),
        ("pull", 1, True),
        ("pull", 0.0, False),
        ("pull", float("nan"), False),
        ("pull", True, False),
        ("pull", "1", False),
        ("local_steps", 3, True),
        ("local_steps", 3.0, False),
        ("how", "far", True),
        ("how", "off", False),
    ],
)
def test_a_hyperparameter_allows_values_of_its_type_within_its_bounds(name, value, allowed):
    assert hyperparameters.hyperparameters(Own)[name].allows(value) == allowed


@pytest.mark.parametrize("name", algorithm_registry.names())
def test_every_algorithm_documents_itself_and_its_fields(name):
    kind = algorithm_registry.algorithm_class(name)
    about, documented = kind.about, field_docs(kind)
    assert kind.__name__.lower() == name and issubclass(kind, Algorithm)
    assert about.title and about.paper and about.uploads
    assert about is vars(kind)["about"], "its own, not an inherited one"
    first, _, rest = (kind.__doc__ or "").partition("\n")
    assert first.endswith(".") and (not rest or rest.startswith("\n")), "one line, then a blank one"
    for field, known in hyperparameters.hyperparameters(kind).items():
        assert documented.get(field), f"{field} has no text under it"
        assert known.default is not MISSING and known.allows(known.default), field
    table = table_of(name).model_validate({"name": name})
    assert table.hyperparameters() == {
        field: known.default for field, known in hyperparameters.hyperparameters(kind).items()
    }


def test_a_name_that_is_no_algorithm_is_refused():
    with pytest.raises(KeyError):
        algorithm_registry.algorithm_class("scafold")
    assert algorithm_registry.exported("Scaffold") is Scaffold
    for name in ("scaffold", "SCAFFOLD", "Algorithm"):
        assert algorithm_registry.exported(name) is None
    assert (algorithm_registry.title("scaffold"), algorithm_registry.title("Own")) == (
        "SCAFFOLD",
        "Own",
    )


def test_a_file_with_two_algorithms_is_refused(monkeypatch):
    from delian.core.learning.algorithms import fedavg

    second = type("Second", (FedAvg,), {"__module__": fedavg.__name__})
    monkeypatch.setattr(fedavg, "Second", second, raising=False)
    algorithm_registry.algorithm_class.cache_clear()
    with pytest.raises(TypeError, match="must define one subclass of Algorithm"):
        algorithm_registry.algorithm_class("fedavg")
