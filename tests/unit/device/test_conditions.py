"""What a device reads of its own state, from a tree of files like the kernel's."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from delian.core.common.errors import DelianError
from delian.device.agent.conditions import (
    CONSENT_EVERY_S,
    ConditionSettings,
    Watch,
    default_interfaces,
    read_celsius,
    read_consent,
    read_memory_mib,
    read_power,
    read_unmetered,
    was_asked,
    write_consent,
)
from support.virtual_time import run as run_virtually

ROUTES = (
    "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"
    "{way}\t00000000\t0101A8C0\t0003\t0\t0\t100\t00000000\t0\t0\t0\n"
    "eth9\t0001A8C0\t00000000\t0001\t0\t0\t100\t00FFFFFF\t0\t0\t0\n"
)


class Machine:
    """A fake /proc and /sys."""

    def __init__(self, root: Path) -> None:
        self.proc, self.sys = root / "proc", root / "sys"
        self.put("proc/net/route", ROUTES.format(way="wlan0"))
        self.put("proc/loadavg", "0.00 0.00 0.00 1/100 1234")
        self.put("proc/stat", "cpu  100 50 100 1000 0 0 0 0 0 0\ncpu0 1 1 1 1\n")
        self.put("proc/meminfo", "MemTotal: 8000000 kB\nMemAvailable:    2097152 kB\n")

    def put(self, path: str, text: str) -> None:
        file = self.proc.parent / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def supply(self, name: str, **facts: object) -> None:
        for key, value in facts.items():
            self.put(f"sys/class/power_supply/{name}/{key}", f"{value}\n")

    def watch(self, tmp_path: Path, **given) -> Watch:
        fresh = given.pop("is_fresh", lambda: None)
        settings = ConditionSettings(**given)
        return Watch(settings, tmp_path, 1024, fresh, self.proc, self.sys)


@pytest.fixture
def machine(tmp_path) -> Machine:
    return Machine(tmp_path)


def test_power_comes_from_mains_from_a_charged_battery_or_from_having_none(machine):
    assert read_power(machine.sys, 101), "no battery: a desk or a board"
    machine.supply("BAT0", type="Battery", status="Discharging", capacity=90)
    assert not read_power(machine.sys, 101)
    assert read_power(machine.sys, 80)
    machine.supply("mouse", type="Battery", scope="Device", status="Full", capacity=100)
    assert not read_power(machine.sys, 101), "a mouse's battery is not the machine's"
    machine.supply("AC", type="Mains", online=0)
    assert not read_power(machine.sys, 101)
    machine.supply("AC", type="Mains", online=1)
    assert read_power(machine.sys, 101)


def test_the_way_out_decides_whether_the_network_costs_money(machine):
    assert default_interfaces(machine.proc) == ("wlan0",)
    assert read_unmetered(machine.proc, ("wwan*",))
    machine.put("proc/net/route", ROUTES.format(way="wwan0"))
    assert not read_unmetered(machine.proc, ("wwan*",))
    machine.put("proc/net/route", ROUTES.format(way="wlan0").splitlines()[0] + "\n")
    assert not read_unmetered(machine.proc, ()), "no way out is not a free one"
    machine.put("proc/net/ipv6_route", "0" * 32 + f" 00 {'0' * 32} 00 {'f' * 32} 1 1 0 0001 eth0")
    assert read_unmetered(machine.proc, ())


def test_busy_processors_are_not_idle_and_our_own_niced_training_does_not_count(machine, tmp_path):
    watch = machine.watch(tmp_path, load_max=0.5)
    assert watch.look().eligibility.idle
    machine.put("proc/stat", "cpu  190 50 100 1010 0 0 0 0\n")
    assert not watch.look().eligibility.idle
    machine.put("proc/stat", "cpu  190 150 100 1010 0 0 0 0\n")
    assert watch.look().eligibility.idle, "nice time is training"
    machine.put("proc/stat", "nonsense\n")
    machine.put("proc/loadavg", "900.0 1 1 1/1 1")
    assert not watch.look().eligibility.idle


def test_a_hot_device_is_left_alone(machine, tmp_path):
    machine.put("sys/class/thermal/thermal_zone0/temp", "45000\n")
    machine.put("sys/class/thermal/thermal_zone1/temp", "91000\n")
    machine.put("sys/class/thermal/cooling_device0/temp", "99999999\n")
    assert read_celsius(machine.sys) == 91.0
    assert not machine.watch(tmp_path, celsius_max=90.0).look().eligibility.idle
    assert machine.watch(tmp_path, celsius_max=95.0).look().eligibility.idle


def test_consent_is_a_file_of_the_owner_and_nothing_else_is_consent(tmp_path):
    file = tmp_path / "owner" / "consent"
    assert not read_consent(file) and not read_consent(None)
    write_consent(file, True)
    assert read_consent(file)
    write_consent(file, False)
    assert not read_consent(file)
    for text, meant in (("YES please\n", True), ("", False), ("maybe", False), ("no yes", False)):
        file.write_text(text)
        assert read_consent(file) is meant


def test_memory_storage_and_freshness_are_told_in_steps(machine, tmp_path):
    assert read_memory_mib(machine.proc) == 2048
    fresh = [True]
    watch = machine.watch(tmp_path, storage_mib=700, is_fresh=lambda: fresh[0])
    seen = watch.look()
    assert seen.facts.memory_mib == 1024, "what the owner gives"
    assert seen.facts.storage_mib == 512
    assert "-" in seen.facts.abi and seen.eligibility.fresh
    fresh[0] = False
    assert not watch.look().eligibility.fresh
    machine.put("proc/meminfo", "MemAvailable: 307200 kB\n")
    assert watch.look().facts.memory_mib == 256
    machine.put("proc/meminfo", "MemAvailable: 20480 kB\n")
    assert watch.look().facts.memory_mib == 20


def test_the_owner_overrides_every_condition(machine, tmp_path):
    names = ("powered", "unmetered", "idle", "consented", "fresh")
    for value in (True, False):
        watch = machine.watch(tmp_path, **dict.fromkeys(names, value))
        told = watch.look().eligibility
        assert [getattr(told, n) for n in names] == [value] * 5


def test_only_changes_are_told(machine, tmp_path):
    consent = tmp_path / "consent"
    told = []

    async def scene() -> None:
        watch = machine.watch(tmp_path, consent_file=consent, poll_s=0.01, idle=True)
        looks, look = [], watch.look

        def counted():
            looks.append(look())
            return looks[-1]

        watch.look = counted
        looking = asyncio.create_task(watch.run(told.append))
        while len(looks) < 6:
            await asyncio.sleep(0.01)
        assert len(told) == 1
        write_consent(consent, True)
        while len(told) < 2:
            await asyncio.sleep(0.01)
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)

    run_virtually(scene())
    assert [c.eligibility.consented for c in told] == [False, True]


def test_the_owner_s_word_counts_within_a_second_or_so(machine, tmp_path):
    consent, told = tmp_path / "consent", []

    async def scene() -> float:
        loop = asyncio.get_running_loop()
        watch = machine.watch(tmp_path, consent_file=consent, poll_s=900, idle=True)
        looking = asyncio.create_task(watch.run(lambda seen: told.append(loop.time())))
        while not told:
            await asyncio.sleep(0.01)
        write_consent(consent, True)
        while len(told) < 2:
            await asyncio.sleep(0.1)
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)

    run_virtually(scene())
    assert told[1] - told[0] <= 2 * CONSENT_EVERY_S


def test_an_owner_is_asked_once(tmp_path):
    consent = tmp_path / "consent"
    assert not was_asked(ConditionSettings(consent_file=consent))
    assert was_asked(ConditionSettings(consented=False, consent_file=consent))
    write_consent(consent, False)
    assert was_asked(ConditionSettings(consent_file=consent)), "no is an answer"


def test_a_machine_without_these_files_is_judged_with_care(tmp_path):
    watch = Watch(ConditionSettings(), tmp_path, 512, proc_root=tmp_path, sys_root=tmp_path)
    told = watch.look()
    assert told.eligibility.powered and told.eligibility.idle
    assert not told.eligibility.unmetered and not told.eligibility.consented
    assert told.facts.memory_mib == 512


def test_settings_that_make_no_sense_are_refused():
    for wrong in ({"poll_s": 0}, {"load_max": -1}):
        with pytest.raises(DelianError):
            ConditionSettings(**wrong)
