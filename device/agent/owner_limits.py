"""What a device's owner gives to training."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Literal

from ...core.learning.data.sources import DataSettings
from ...core.node.sandbox.process_limits import WorkerLimits
from ...core.node.sandbox.walls import Sandbox

#: Data sources that run code of the owner's: it runs in a process that has run no program yet.
OWNERS_CODE = ("python:", "entry:")


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """What the owner gives to training. Raises DelianError for limits that make no sense.

    Attributes:
        data: where the rows come from.
        memory_mib: as in `WorkerLimits`; also what the device reports to a run.
        compile_memory_mib: as in `WorkerLimits`; so are `cpu_s`, `wall_s`, `files`, `nice`,
            `sandbox` and `operations_max`.
        backend: "native" or "reference".
        artifacts: files of `delian build`, whose programs are not compiled here.
    """

    data: DataSettings = field(default_factory=DataSettings)
    memory_mib: int = 2048
    compile_memory_mib: int = 2048
    cpu_s: int = 3600
    wall_s: int = 3600
    files: int = 128
    nice: int = 10
    sandbox: Sandbox = "prefer"
    operations_max: int = 2**50
    backend: Literal["native", "reference"] = "native"
    artifacts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _ = self.limits

    @property
    def limits(self) -> WorkerLimits:
        """The limits of the training process."""
        return WorkerLimits(**{f.name: getattr(self, f.name) for f in fields(WorkerLimits)})

    @property
    def runs_owners_code(self) -> bool:
        """Whether the data source is code, which may do what no program may."""
        return self.data.source.startswith(OWNERS_CODE)

    def to_json(self) -> dict[str, Any]:
        own = {n: getattr(self, n) for n in self.__slots__ if n != "data"}
        return {**own, "data": {n: getattr(self.data, n) for n in self.data.__slots__}}

    @classmethod
    def from_json(cls, said: dict[str, Any]) -> WorkerSettings:
        given = dict(said["data"])
        for name in ("columns", "classes"):
            given[name] = tuple(given[name])
        made = {**said, "artifacts": tuple(said["artifacts"]), "data": DataSettings(**given)}
        return cls(**made)
