"""What a device's owner gives to training."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Literal

from ...core.common.errors import DelianError
from ...core.learning.data.sources import DataSettings
from ...core.node.sandbox.process_limits import WorkerLimits
from ...core.node.sandbox.walls import Sandbox

#: Data sources that run code of the owner's: it runs in a process that has run no program yet.
OWNERS_CODE = ("python:", "entry:")


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """What the owner gives to training. Raises DelianError for limits that make no sense."""

    data: DataSettings = field(default_factory=DataSettings)
    """Where the rows come from."""
    memory_mib: int = 2048
    """As in `WorkerLimits`; also what the device reports to a run."""
    compile_memory_mib: int = 2048
    """As in `WorkerLimits`."""
    cpu_s: int = 3600
    """As in `WorkerLimits`."""
    wall_s: int = 3600
    """As in `WorkerLimits`."""
    files: int = 128
    """As in `WorkerLimits`."""
    nice: int = 10
    """As in `WorkerLimits`."""
    sandbox: Sandbox = "prefer"
    """As in `WorkerLimits`."""
    operations_max: int = 2**50
    """As in `WorkerLimits`."""
    backend: Literal["native", "reference"] = "native"
    """What runs the programs."""
    artifacts: tuple[str, ...] = ()
    """Files of `delian build`, whose programs are not compiled here."""
    checkpoint_s: int = 30
    """Seconds between two checkpoints of a training on data in windows."""

    def __post_init__(self) -> None:
        _ = self.limits
        if self.checkpoint_s < 0:
            raise DelianError(f"worker.checkpoint_s is {self.checkpoint_s}", "at least 0")

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
