"""The kinds of devices, and a scenario's tables that change what they are like."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pydantic import Field

from .settings_table import Table


@dataclass(frozen=True, slots=True)
class DeviceClass:
    """One kind of device."""

    speed_flops: float
    """Median of the FLOP/s that its training reaches."""
    speed_sigma: float = 0.4
    """The spread, as the standard deviation of the logarithm."""
    load_sigma: float = 0.1
    """The same for one device from round to round."""
    startup_s: float = 0.2
    """From the task to the first step."""
    memory_mib: int = 1024
    """What a task may take."""
    availability: float = 1.0
    """Share of the time that it is there."""
    stay_s: float = 3600.0
    """Mean length of a stay."""
    dropout: float = 0.0
    """Chance that it vanishes while it trains."""
    away_s: float = 300.0
    """Mean time until it is back."""
    gflops_per_watt: float = 2.0
    """Billions of operations that it computes with one joule."""
    radio_uj_per_byte: float = 2.0
    """Microjoules of a byte that it sends or receives."""
    idle_w: float = 0.5
    """Watts that it uses while a round goes on, whatever it does."""
    battery_j: float | None = None
    """Joules that it may spend in a run; then it takes part no more. None: no limit."""

    def __post_init__(self) -> None:
        assert self.speed_flops > 0
        assert 0 < self.availability <= 1
        assert 0 <= self.dropout <= 1
        assert self.gflops_per_watt > 0
        assert self.radio_uj_per_byte >= 0 and self.idle_w >= 0


#: Sustained f32 FLOP/s of small networks trained on one core or two, from published on-device
#: training; order of magnitude only. So is their energy: operations at the power of a busy core or
#: GPU, bytes at what Wi-Fi was measured to take (2 to 5 uJ at 5 to 2 Mbit/s; wires take less). The
#: board with a GPU is a Jetson Nano, which EdgeFlowerTune (arXiv 2605.08636) found 12 to 15 times
#: as fast as a phone at the same training.
CLASSES: Mapping[str, DeviceClass] = {
    "phone": DeviceClass(speed_flops=4e9, memory_mib=2048),
    "laptop": DeviceClass(speed_flops=2e10, memory_mib=8192, gflops_per_watt=1.5, idle_w=5.0),
    "board": DeviceClass(speed_flops=8e8, memory_mib=512, gflops_per_watt=0.3, idle_w=2.0),
    "gpu_board": DeviceClass(
        speed_flops=5e10, memory_mib=4096, gflops_per_watt=6.0, radio_uj_per_byte=0.1, idle_w=2.0
    ),
}


class DeviceTraits(Table):
    """What one kind of device is like, where it is not as usual."""

    gflops: float | None = Field(default=None, gt=0.0, le=1e6)
    """Median of the billions of operations a second that its training reaches."""
    load_sigma: float | None = Field(default=None, ge=0.0, le=3.0)
    """How its speed varies from round to round: the standard deviation of the logarithm."""
    memory_mib: int | None = Field(default=None, ge=1, le=1 << 24)
    """What a task may take, in MiB."""
    gflops_per_watt: float | None = Field(default=None, gt=0.0, le=1e6)
    """Billions of operations that it computes with one joule."""
    radio_uj_per_byte: float | None = Field(default=None, ge=0.0, le=1e6)
    """Microjoules of a byte that it sends or receives."""
    idle_w: float | None = Field(default=None, ge=0.0, le=1e6)
    """Watts that it uses while a round goes on that asked it, whatever it does."""
    battery_j: float | None = Field(default=None, ge=0.0, le=1e12)
    """Joules that it may spend in the run; then it takes part no more. Absent: no limit."""

    def given(self, usual: DeviceClass) -> DeviceClass:
        """The class with what is set here."""
        values = self.model_dump(exclude_none=True)
        if "gflops" in values:
            values["speed_flops"] = values.pop("gflops") * 1e9
        return replace(usual, **values)
