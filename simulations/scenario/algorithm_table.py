"""A scenario's [algorithm] table, and those in [alternatives].

The keys that only an algorithm has are derived from its dataclass
(`core.learning.hyperparameters`), when its table is first validated; keys of the local optimiser
and of the server stand here.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, GetCoreSchemaHandler, create_model, model_validator
from pydantic_core import CoreSchema, PydanticCustomError
from pydantic_core.core_schema import no_info_plain_validator_function

from ...core.common.field_docs import field_docs
from ...core.learning import algorithm_registry, hyperparameters
from ...core.learning.plan import ROUNDS_MAX
from .settings_table import Table, conflict

if TYPE_CHECKING:
    from ...core.learning import Algorithm

#: `algorithm.name` of an algorithm in a Python file.
OWN: Literal["python"] = "python"
#: And where scripts train.
SCRIPT: Literal["script"] = "script"
#: The keys that a run of scripts has.
_SERVERS = {"name", "server_learning_rate", "server_optimizer", "server_decay_rounds"}


class AlgorithmTable(Table):
    """The keys of all algorithms."""

    name: str
    """Which algorithm."""
    batch_size: int = Field(default=10, ge=1, le=65_536)
    """Examples in a local step (episodes bring their own size)."""
    learning_rate: float = Field(default=0.1, gt=0.0, le=100.0)
    """The device's learning rate (beta of MAML, where it is taken on the adapted model)."""
    momentum: float = Field(default=0.0, ge=0.0, lt=1.0)
    """The device's momentum; begins at zero each round."""
    optimizer: Literal["sgd", "adam"] = "sgd"
    """The device's optimiser; its state is zero at the start of each round."""
    server_learning_rate: float = Field(default=1.0, gt=0.0, le=100.0)
    """How far the server goes along the mean update. 1 with sgd is plain averaging."""
    server_optimizer: Literal["sgd", "momentum", "adam", "yogi", "adagrad"] = "sgd"
    """The server's optimiser (FedOpt; momentum of 0.9 is FedAvgM)."""
    server_decay_rounds: int = Field(default=0, ge=0, le=ROUNDS_MAX)
    """Rounds in which the server's learning rate falls to zero, along half a cosine; `rounds` is a
    good value. 0: the rate stays as it is.
    """

    algorithm_class: ClassVar[type[Algorithm]]
    """The class whose fields the other keys are."""

    @property
    def label(self) -> str:
        """The name that file names and lines of progress have."""
        return self.name

    def hyperparameters(self) -> dict[str, Any]:
        """The values of the fields of `algorithm_class` that are keys, by name."""
        known = hyperparameters.hyperparameters(self.algorithm_class)
        return {name: getattr(self, name) for name in known}

    @classmethod
    def meanings(cls) -> dict[str, str]:
        from ...core.learning import Episodes, Samples

        sources = {**field_docs(Episodes), **field_docs(Samples)}
        return {**sources, **field_docs(cls.algorithm_class), **super().meanings()}


class OwnTable(AlgorithmTable):
    """Your own algorithm, a dataclass in a Python file.

    It extends `dl.learn.Algorithm` or an algorithm of the catalogue. Fields that are not set here
    have its own defaults.
    """

    name: Literal["python"] = OWN
    """Which algorithm."""
    file: str
    """The Python file, relative to the scenario's folder. It is run."""
    kind: str = ""
    """The class in it. Empty: the only one that is an algorithm."""
    settings: dict[str, float | int | bool | str] = Field(default={}, max_length=32)
    """Fields of its own, by name."""

    @property
    def label(self) -> str:
        return self.kind or Path(self.file).stem


class ScriptTable(AlgorithmTable):
    """The mean of what training scripts send; the script itself has the local training."""

    name: Literal["script"] = SCRIPT
    """Which algorithm."""

    @model_validator(mode="after")
    def _local_keys_are_the_scripts(self) -> ScriptTable:
        for key in sorted(self.model_fields_set - _SERVERS):
            raise conflict(
                key,
                "a script trains as it is written, and does not get this key",
                "data.settings has what the script should know",
            )
        return self


@functools.cache
def table_of(name: str) -> type[AlgorithmTable]:
    """The table of an algorithm, with a key for each field that has bounds.

    Raises:
        KeyError: there is no algorithm of this name.
    """
    if name == OWN:
        from ...core.learning import Algorithm

        return _made(OwnTable, Algorithm, {}, OwnTable.__doc__ or "")
    if name == SCRIPT:
        from ...core.learning.scripts.script_bundle import ScriptUpdate

        return _made(ScriptTable, ScriptUpdate, {}, ScriptTable.__doc__ or "")
    kind = algorithm_registry.algorithm_class(name)
    which: Any = (Literal[name], name)
    return _made(AlgorithmTable, kind, {"name": which}, kind.__doc__ or "")


def _made(
    base: type[AlgorithmTable], kind: type[Algorithm], more: dict[str, Any], text: str
) -> type[AlgorithmTable]:
    from ...core.learning import Episodes, Samples

    known: Mapping[str, Any] = hyperparameters.hyperparameters(kind)
    of_source = {**hyperparameters.hyperparameters(Episodes)}
    of_source |= hyperparameters.hyperparameters(Samples)
    known = {**known, **{name: of_source[name] for name in kind.source_keys}}
    keys = {name: (each.type, _field(each)) for name, each in known.items()}
    made = create_model(kind.__name__, __base__=base, __module__=__name__, **{**more, **keys})
    made.__doc__ = text.partition("\n\n")[0]
    made.algorithm_class = kind
    return made


def _field(known: hyperparameters.Hyperparameter) -> Any:
    default: Any = ... if known.default is MISSING else known.default
    bounds: Any = known.bounds.given()
    return Field(default=default, **bounds)


class _Tables(Mapping[str, type[AlgorithmTable]]):
    """The tables of all algorithms, one's own too; each is made when it is first read."""

    def __getitem__(self, name: str) -> type[AlgorithmTable]:
        return table_of(name)

    def __contains__(self, name: object) -> bool:
        return name in (OWN, SCRIPT) or name in algorithm_registry.names()

    def __iter__(self) -> Iterator[str]:
        yield from (*algorithm_registry.names(), OWN)

    def __len__(self) -> int:
        return len(algorithm_registry.names()) + 1


TABLES = _Tables()


@dataclass(frozen=True, slots=True)
class Chosen:
    """The annotation of a field that holds an algorithm's table."""

    name: str = ""
    """The algorithm; empty: the table's key `name` chooses it."""

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return no_info_plain_validator_function(self._validated)

    def _validated(self, given: Any) -> AlgorithmTable | None:
        if isinstance(given, AlgorithmTable) or (given is None and self.name):
            return given
        if not isinstance(given, dict):
            raise PydanticCustomError("table_type", "a table is wanted")
        if self.name:
            return table_of(self.name).model_validate(given)
        name = given.get("name")
        if name is None:
            facts = {"discriminator": "'name'"}
            raise PydanticCustomError("union_tag_not_found", "which algorithm?", facts)
        if name not in TABLES:
            facts = {"discriminator": "'name'", "tag": str(name)}
            raise PydanticCustomError("union_tag_invalid", "no such algorithm", facts)
        return table_of(name).model_validate(given)


ChosenTable = Annotated[AlgorithmTable, Chosen()]


def alternatives() -> type[Table]:
    """The [alternatives] table, with a table for each built-in algorithm."""
    keys: dict[str, Any] = {
        name: (Annotated[AlgorithmTable | None, Chosen(name)], None)
        for name in algorithm_registry.names()
    }
    made = create_model("Alternatives", __base__=Table, __module__=__name__, **keys)
    made.__doc__ = "Settings for `--algorithm` and `--compare`, where defaults would be unfair."
    return made
