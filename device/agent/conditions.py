"""What the device is and what its state and its owner allow, read from the operating system.

Power, network, idleness, memory, storage and temperature come from /proc and /sys as Linux has
them; elsewhere, and where a file is missing, what is not known counts as no hindrance but for the
network, which counts as none. Consent is a file that the owner writes. The owner's configuration
overrides each.

`Watch` reads them at a modest rate and notifies the device's machine only when something has
changed, so that a quiet device writes nothing. Sizes are reported in steps, because they change all
the time.
"""

from __future__ import annotations

import asyncio
import fnmatch
import logging
import os
import platform
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ...core.common.errors import DelianError
from ...core.common.files import write_whole
from ...core.node.storage.disk import state_in
from ...core.wire.admission_pb2 import DeviceFacts, Eligibility
from ...core.wire.journal_pb2 import Conditions

log = logging.getLogger("delian.device.agent.conditions")

#: Memory and storage are reported in steps of this many MiB.
STEP_MIB = 256
#: How often the consent file is read: what its owner says counts within seconds.
CONSENT_EVERY_S = 1.0
#: A first word of the consent file that means yes. Anything else means no.
CONSENT = frozenset({"yes", "true", "1", "on"})
#: Longest file that is read.
_FILE_BYTES_MAX = 256 << 10
#: Route flags of Linux (include/uapi/linux/route.h): the interface is up.
_RTF_UP = 1


@dataclass(frozen=True, slots=True)
class ConditionSettings:
    """What the owner sets. Of `powered` to `fresh`, None means: find out."""

    powered: bool | None = None
    unmetered: bool | None = None
    idle: bool | None = None
    consented: bool | None = None
    fresh: bool | None = None
    consent_file: Path | None = None
    """Holds `yes` or `no`; without the file there is no consent."""
    metered_interfaces: tuple[str, ...] = ("wwan*", "ppp*", "rmnet*", "usb*")
    """Patterns of network interfaces that cost money."""
    load_max: float = 0.5
    """The share of its processors that may be busy with something else while the device counts as
    idle.
    """
    battery_min: int = 101
    """Percent, at which a device on battery still counts as powered; 101: never."""
    celsius_max: float = 80.0
    """Hotter than this it is not idle."""
    storage_mib: int = 4096
    """Room that bundles, weights, frozen parts and the personal model may take."""
    poll_s: float = 15.0
    """How often to look."""

    def __post_init__(self) -> None:
        if not 0 < self.poll_s <= 3600:
            raise DelianError(f"conditions.poll_s is {self.poll_s}", "from above 0 to 3600")
        if self.load_max < 0:
            raise DelianError(f"conditions.load_max is {self.load_max}", "a share, such as 0.5")


def abi() -> str:
    """Which native artifacts this machine loads: "linux-x86_64"."""
    return f"{sys.platform}-{platform.machine().lower()}"


# ---------------------------------------------------------------- the operating system


def read_power(sys_root: Path, battery_min: int) -> bool:
    """On mains, or a battery that is charged to `battery_min` percent; or no battery at all."""
    folder = sys_root / "class" / "power_supply"
    batteries = []
    for supply in _children(folder):
        kind = _text(supply / "type")
        if kind in ("Mains", "USB") and _text(supply / "online") == "1":
            return True
        # A mouse or a headset has a battery too.
        if kind == "Battery" and _text(supply / "scope") != "Device":
            batteries.append(supply)
    if not batteries:
        return True
    for battery in batteries:
        if _text(battery / "status") in ("Charging", "Full"):
            return True
        level = _text(battery / "capacity")
        if level.isdigit() and int(level) >= battery_min:
            return True
    return False


def default_interfaces(proc_root: Path) -> tuple[str, ...]:
    """The network interfaces through which the default route goes, IPv4 and IPv6."""
    found = []
    for line in _text(proc_root / "net" / "route").splitlines()[1:]:
        fields = line.split()
        if len(fields) < 8 or fields[1] != "00000000" or fields[7] != "00000000":
            continue
        if _hex(fields[3]) & _RTF_UP:
            found.append(fields[0])
    for line in _text(proc_root / "net" / "ipv6_route").splitlines():
        fields = line.split()
        if len(fields) < 10 or fields[0] != "0" * 32 or fields[1] != "00":
            continue
        if _hex(fields[8]) & _RTF_UP and fields[9] != "lo":
            found.append(fields[9])
    return tuple(dict.fromkeys(found))


def read_unmetered(proc_root: Path, metered: tuple[str, ...]) -> bool:
    """There is a way out, and it costs nothing."""
    ways = default_interfaces(proc_root)
    return bool(ways) and not any(fnmatch.fnmatchcase(w, p) for w in ways[:1] for p in metered)


def read_load(proc_root: Path) -> float | None:
    """The load average over a minute, as a share of the processors."""
    fields = _text(proc_root / "loadavg").split()
    try:
        return float(fields[0]) / (os.cpu_count() or 1)
    except (IndexError, ValueError):
        return None


def read_busy(proc_root: Path) -> tuple[int, int] | None:
    """(busy, all) ticks of the processors since they started, those that run niced apart.

    Our own training is niced, and must not keep the device from training.
    """
    fields = _text(proc_root / "stat").partition("\n")[0].split()
    if len(fields) < 8 or fields[0] != "cpu":
        return None
    try:
        user, nice, system, idle, wait, irq, soft = map(int, fields[1:8])
    except ValueError:
        return None
    return user + system + irq + soft, user + nice + system + idle + wait + irq + soft


def read_memory_mib(proc_root: Path) -> int | None:
    """Memory that is free or can be made so."""
    for line in _text(proc_root / "meminfo").splitlines():
        name, _, rest = line.partition(":")
        if name == "MemAvailable" and rest.split()[:1] and rest.split()[0].isdigit():
            return int(rest.split()[0]) // 1024
    return None


def read_celsius(sys_root: Path) -> float | None:
    """The hottest of the machine's sensors."""
    found = []
    for zone in _children(sys_root / "class" / "thermal"):
        value = _text(zone / "temp")
        if zone.name.startswith("thermal_zone") and value.lstrip("-").isdigit():
            found.append(int(value) / 1000)
    return max(found, default=None)


def read_consent(file: Path | None) -> bool:
    """What the owner's file says. No file, or one that cannot be read: no."""
    words = _text(file).lower().split() if file is not None else []
    return bool(words) and words[0] in CONSENT


def was_asked(settings: ConditionSettings) -> bool:
    """Whether the owner has said yes or no."""
    file = settings.consent_file
    return settings.consented is not None or (file is not None and file.exists())


def write_consent(file: Path, agreed: bool) -> None:
    """The owner agrees, or takes it back. Raises DelianError where that cannot be written."""
    with state_in(file.parent):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, "yes\n" if agreed else "no\n")


def _text(path: Path) -> str:
    try:
        with path.open("rb") as stream:
            return stream.read(_FILE_BYTES_MAX).decode("utf-8", "replace").strip()
    except OSError:
        return ""


def _children(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _hex(text: str) -> int:
    try:
        return int(text, 16)
    except ValueError:
        return 0


# ---------------------------------------------------------------- the watch


class Watch:
    """Looks again and again.

    storage: the folder whose disk counts. memory_mib: what the owner gives a task. is_fresh:
    whether there is data that was not trained on; None: it is unknown, and counts as fresh.
    stored: bytes of the blobs there, which make room for others: a device that has fetched a model
    has as much room for it as before.
    """

    def __init__(
        self,
        settings: ConditionSettings,
        storage: Path,
        memory_mib: int,
        is_fresh: Callable[[], bool | None] = lambda: None,
        proc_root: Path = Path("/proc"),
        sys_root: Path = Path("/sys"),
        stored: Callable[[], int] = lambda: 0,
    ) -> None:
        self._stored = stored
        self._settings, self._storage, self._memory_mib = settings, storage, memory_mib
        self._is_fresh, self._proc, self._sys = is_fresh, proc_root, sys_root
        self._ticks: tuple[int, int] | None = None
        self._told: bytes | None = None

    def look(self) -> Conditions:
        """How things are now."""
        own = self._settings
        eligibility = Eligibility(
            powered=_or(own.powered, lambda: read_power(self._sys, own.battery_min)),
            unmetered=_or(
                own.unmetered, lambda: read_unmetered(self._proc, own.metered_interfaces)
            ),
            idle=_or(own.idle, self._idle),
            consented=_or(own.consented, lambda: read_consent(own.consent_file)),
            fresh=_or(own.fresh, lambda: self._is_fresh() is not False),
        )
        facts = DeviceFacts(abi=abi(), memory_mib=self._memory(), storage_mib=self._room())
        return Conditions(facts=facts, eligibility=eligibility)

    def changed(self) -> Conditions | None:
        """The conditions, if they differ from those reported last."""
        seen = self.look()
        said = seen.SerializeToString(deterministic=True)
        if said == self._told:
            return None
        self._told = said
        return seen

    async def run(self, tell: Callable[[Conditions], None]) -> None:
        """Reports changes, until it is cancelled."""
        while True:
            # Off the loop: a network file system may take its time to say how full it is.
            seen = await asyncio.to_thread(self.changed)
            if seen is not None:
                log.info("conditions changed", extra=_facts(seen))
                tell(seen)
            await self._pause()

    async def _pause(self) -> None:
        """Until it is time to look again, or the owner's word has changed."""
        own, loop = self._settings, asyncio.get_running_loop()
        ends, said = loop.time() + own.poll_s, read_consent(own.consent_file)
        while (left := ends - loop.time()) > 0 and read_consent(own.consent_file) is said:
            await asyncio.sleep(min(left, CONSENT_EVERY_S))

    def _idle(self) -> bool:
        own = self._settings
        hottest = read_celsius(self._sys)
        if hottest is not None and hottest > own.celsius_max:
            return False
        before, self._ticks = self._ticks, read_busy(self._proc)
        if before is not None and self._ticks is not None and self._ticks[1] > before[1]:
            busy = (self._ticks[0] - before[0]) / (self._ticks[1] - before[1])
            return busy <= own.load_max
        load = read_load(self._proc)  # the first look has nothing to compare with
        return load is None or load <= own.load_max

    def _memory(self) -> int:
        there = read_memory_mib(self._proc)
        return _step(self._memory_mib if there is None else min(self._memory_mib, there))

    def _room(self) -> int:
        try:
            free = shutil.disk_usage(self._storage).free + self._stored() >> 20
        except OSError:
            free = 0
        return _step(min(self._settings.storage_mib, free))


def _or(own: bool | None, find: Callable[[], bool]) -> bool:
    return find() if own is None else own


def _step(mib: int) -> int:
    """Rounded down to a step; below one step the number itself, for zero says nothing."""
    return mib // STEP_MIB * STEP_MIB or max(1, mib)


def _facts(seen: Conditions) -> dict[str, object]:
    told = seen.eligibility
    flags = ("powered", "unmetered", "idle", "consented", "fresh")
    return {
        **{name: bool(getattr(told, name)) for name in flags},
        "memory_mib": seen.facts.memory_mib,
        "storage_mib": seen.facts.storage_mib,
    }
