"""The keys of split training: a device trains with its edge, each a part of the model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

from pydantic import Field, model_validator

from ...core.common.errors import DelianError
from ...core.common.files import read_at_most
from .partial_settings import Patterns
from .settings_table import Table, conflict

if TYPE_CHECKING:
    from ...core.placement.cut.profile import NodeProfile
    from ...core.placement.split_training.run_step import SplitSettings
    from .scenario import Link


class Split(Table):
    """Devices that train with their edges, each a part of the model (docs/placement.md).

    The cut is the one with the fastest step over a device's link as it was measured. A device whose
    owner or edge does not take part trains the whole model.
    """

    enabled: bool = False
    """Whether devices may train with their edges."""
    on_device: Patterns = ()
    """Leaves whose readers stay on the device, as ["embedding.*", "blocks.0.*"]: what goes up is
    then behind these.
    """
    labels_stay: bool = False
    """Whether labels, and what reveals them, stay on the device too."""
    wire: Literal["f32", "f16", "i8"] = "f32"
    """The narrowest form in which tensors may cross; wider ones where these cost less."""
    device_gflops: float = Field(default=2.0, gt=0.0, le=1e6)
    """Operations a second of a device that was not measured, in 10^9."""
    edge_gflops: float = Field(default=20.0, gt=0.0, le=1e6)
    """The same of an edge."""
    device_profile: str = ""
    """A device's profile (`delian profile`), in the place of `device_gflops`."""
    edge_profile: str = ""
    """The same of an edge."""
    device_memory_mib: int | None = Field(default=None, ge=1, le=2**30)
    """Memory for a device's part of the model. Absent: as its profile says; no limit without one.
    """

    @model_validator(mode="after")
    def _is_asked_for(self) -> Self:
        if self.model_fields_set - {"enabled"} and not self.enabled:
            raise conflict("enabled", "the other keys of `split` are for split.enabled = true")
        return self

    def settings(self, folder: Path, link: Link) -> SplitSettings:
        """How the run's step is cut. folder: of the profiles' files. Raises DelianError."""
        from ...core.placement.cut.link_model import LinkProfile
        from ...core.placement.split_training.run_step import SplitSettings

        rate = link.bandwidth_mbps * 125e3
        memory = self.device_memory_mib
        wires = ("f32", "f16", "i8")
        return SplitSettings(
            profiles=(
                _profile(self.device_profile, folder, "device", self.device_gflops),
                _profile(self.edge_profile, folder, "edge", self.edge_gflops),
            ),
            link=LinkProfile(rate, rate, link.latency_ms / 1e3),
            on_device=self.on_device,
            labels_stay=self.labels_stay,
            wires=wires[: wires.index(self.wire) + 1],
            memory=(None if memory is None else memory << 20, None),
        )


def _profile(file: str, folder: Path, name: str, gflops: float) -> NodeProfile:
    from ...core.placement.cut.costs import nominal
    from ...core.placement.cut.profile import BYTES_MAX, NodeProfile

    if not file:
        return nominal(name, gflops * 1e9)
    path = folder / file
    try:
        content = read_at_most(path, BYTES_MAX)
    except OSError as error:
        raise DelianError(
            f"split.{name}_profile: {path}: {error.strerror}",
            "a file of delian profile, in the scenario's folder or the working folder",
        ) from error
    return NodeProfile.from_json(content, str(path))
