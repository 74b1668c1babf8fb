"""A run that is stopped and resumed, however often and wherever, ends as one that never was: the
same trace, the same weights to the last bit, the same report.
"""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from delian.core.common.errors import DelianError
from delian.core.compiler.backends.native.toolchain import toolchain
from delian.core.node.storage.disk import FolderInUse, FolderLock
from delian.device.agent.client_state_file import Kept
from delian.simulations.federation.client_states import ClientStates
from delian.simulations.resume import kept_run, resumable
from delian.simulations.resume.history import _ROUND, _UPDATE, WHOLE_MAX, RunLog
from delian.simulations.resume.resumable import Resumable, Saved
from delian.simulations.runs.result import (
    Event,
    Phase,
    Replaying,
    RoundFinished,
    UpdateFinished,
)
from delian.simulations.runs.simulate import simulate
from delian.simulations.scenario import scenario_file
from delian.simulations.scenario.datasets import load_data
from support.resumed_runs import (
    PLAIN,
    SMALL,
    Killed,
    Killer,
    bits_of,
    kept_after_every_round,  # noqa: F401
    run,
)


def check(folder: Path, kills: list[int], algorithm: str, *settings: str) -> list[Killer]:
    """Runs it once as it is and once with kills; gives who killed, and at last nobody."""
    whole = run(algorithm, *settings)
    assert whole.trace_hash
    killers = [Killer(round) for round in (*kills, 0)]
    for killer in killers[:-1]:
        with pytest.raises(Killed):
            run(algorithm, *settings, on_event=killer, resume=folder)
    resumed = run(algorithm, *settings, on_event=killers[-1], resume=folder)
    for was, now in zip(bits_of(whole), bits_of(resumed), strict=True):
        assert was == now
    assert resumed.host["updates"] == whole.host["updates"]
    assert not folder.exists()
    return killers


SECURE = 'privacy.aggregation="secure"'
NOISED = [SECURE, "privacy.noise=distributed", "privacy.epsilon=8", "privacy.clip_quantile=0.5"]
BUFFERED = ["round.mode=buffered", "round.concurrency=8", "round.buffer=3", "rounds=12"]


@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [
        ("fedavg", [PLAIN]),
        ("fedavg", [SECURE]),
        ("fomaml", [PLAIN, "fleet.dropout=0.3"]),
        ("scaffold", [PLAIN, "fleet.dropout=0.2"]),
        ("ditto", [SECURE]),
        ("fedavg", [PLAIN, "evaluation.federated=true", "evaluation.cohort=4"]),
    ],
)
def test_as_if_it_had_never_been_killed(
    tmp_path: Path, algorithm: str, settings: list[str]
) -> None:
    first, second, last = check(tmp_path / "run", [3, 5], algorithm, *settings)
    assert second.replayed >= 2 and last.replayed >= 4
    assert last.trained < 4 * first.trained


def test_with_a_clip_that_moves_and_noise(tmp_path: Path) -> None:
    check(tmp_path / "run", [3, 5], "fedavg", *NOISED)


@pytest.mark.parametrize(
    "settings", [[PLAIN], [SECURE], [PLAIN, "algorithm.server_optimizer=adam"]], ids=str
)
def test_of_a_buffered_run(tmp_path: Path, settings: list[str]) -> None:
    check(tmp_path / "run", [4, 9], "fedavg", *settings, *BUFFERED)


def test_what_of_a_buffered_run_is_still_to_be_used_is_trained_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    load = Resumable.load

    def looked(self: Resumable) -> Saved | None:
        saved = load(self)
        if saved is not None:
            seen.append(saved.facts["waves"])
        return saved

    monkeypatch.setattr(Resumable, "load", looked)
    again = []
    outcome = RunLog.outcome

    def trained(self: RunLog, device: int, start: Any) -> Any:
        def started() -> Any:
            again.append(device)
            return start()

        return outcome(self, device, started)

    monkeypatch.setattr(RunLog, "outcome", trained)
    check(tmp_path / "run", [4, 9], "fedavg", PLAIN, *BUFFERED)
    assert all(seen) and again


def test_stopped_and_resumed(tmp_path: Path) -> None:
    whole, killer = run("scaffold", PLAIN), Killer()
    part = run("scaffold", PLAIN, on_event=killer, stop=lambda: killer.trained > 9, resume=tmp_path)
    assert part.interrupted and 0 < part.resumable <= len(part.rounds) < 6
    resumed = run("scaffold", PLAIN, resume=tmp_path)
    assert bits_of(resumed) == bits_of(whole) and not resumed.interrupted


@pytest.mark.parametrize("settings", [(), ('algorithm.server_optimizer="adam"',)])
def test_stopped_before_it_was_stored_it_is_stored_as_it_was_after_the_last_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: tuple[str, ...]
) -> None:
    monkeypatch.setattr(kept_run, "KEEP_S", 1e9)
    asked = (PLAIN, *settings)
    whole, killer = run("fedavg", *asked), Killer()
    part = run("fedavg", *asked, on_event=killer, stop=lambda: killer.trained > 10, resume=tmp_path)
    assert part.interrupted and part.resumable == len(part.rounds) == 2
    again = Killer()
    resumed = run("fedavg", *asked, on_event=again, resume=tmp_path)
    assert again.replayed == 2 and bits_of(resumed) == bits_of(whole)


def test_where_devices_keep_a_state_the_first_round_to_be_stored_goes_on_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next round's updates are in the states' file: the last round cannot be stored then."""
    monkeypatch.setattr(kept_run, "KEEP_S", 1e9)
    whole, killer = run("scaffold", PLAIN), Killer()
    part = run(
        "scaffold", PLAIN, on_event=killer, stop=lambda: killer.trained > 10, resume=tmp_path
    )
    assert part.interrupted and part.resumable == len(part.rounds) == 3
    again = Killer()
    resumed = run("scaffold", PLAIN, on_event=again, resume=tmp_path)
    assert again.replayed == 3 and bits_of(resumed) == bits_of(whole)


def test_a_replay_says_how_far_it_is(tmp_path: Path) -> None:
    killer, seen = Killer(4), []
    with pytest.raises(Killed):
        run("fedavg", PLAIN, on_event=killer, resume=tmp_path)

    def watch(event: Event) -> None:
        if isinstance(event, Replaying):
            seen.append((event.round, event.last))

    run("fedavg", PLAIN, on_event=watch, resume=tmp_path)
    assert seen == [(0, 3), (1, 3), (2, 3), (3, 3)]


def test_where_it_goes_on_is_told_by_the_rounds_number(tmp_path: Path) -> None:
    """Rounds are tried again where too few devices report, and attempts have no number."""
    settings, ended = (PLAIN, "round.reports_min=4", "fleet.dropout=0.4"), []

    def watch(event: Event) -> None:
        if isinstance(event, RoundFinished):
            ended.append(event.record)

    part = run("fedavg", *settings, on_event=watch, stop=lambda: len(ended) > 5, resume=tmp_path)
    assert not all(record.applied for record in part.rounds)
    assert part.resumable == part.rounds[-1].round < len(part.rounds)
    assert bits_of(run("fedavg", *settings, resume=tmp_path)) == bits_of(run("fedavg", *settings))


def test_stopped_while_it_judges(tmp_path: Path) -> None:
    whole, judged = run("fedavg", PLAIN), []

    def watch(event: Event) -> None:
        if isinstance(event, UpdateFinished) and event.evaluating and event.round == 4:
            judged.append(event)

    part = run("fedavg", PLAIN, on_event=watch, stop=lambda: len(judged) > 2, resume=tmp_path)
    assert part.interrupted and part.rounds[3].global_accuracy is None and part.resumable == 3
    assert bits_of(run("fedavg", PLAIN, resume=tmp_path)) == bits_of(whole)


@pytest.mark.parametrize("devices", [0, 3])
def test_stopped_while_it_adapts_by_steps(tmp_path: Path, devices: int) -> None:
    settings, asked = (PLAIN, "evaluation.steps=[1, 3]"), 0
    whole, adapts = run("fedavg", *settings), False

    def watch(event: Event) -> None:
        nonlocal adapts
        adapts |= event == Phase("adapting by steps")

    def stop() -> bool:
        nonlocal asked
        asked += adapts
        return asked > devices

    part = run("fedavg", *settings, on_event=watch, stop=stop, resume=tmp_path)
    assert part.interrupted and len(part.rounds) == part.resumable == 6
    assert not any(device.steps_query for device in part.devices)
    killer = Killer()
    resumed = run("fedavg", *settings, on_event=killer, resume=tmp_path)
    assert bits_of(resumed) == bits_of(whole) and not resumed.interrupted and not killer.trained


def test_stopped_before_it_is_where_it_was(tmp_path: Path) -> None:
    whole = run("fedavg", PLAIN)
    with pytest.raises(Killed):
        run("fedavg", PLAIN, on_event=Killer(5), resume=tmp_path)
    with pytest.raises(KeyboardInterrupt):
        run("fedavg", PLAIN, stop=lambda: True, resume=tmp_path)
    assert bits_of(run("fedavg", PLAIN, resume=tmp_path)) == bits_of(whole)


def test_stopped_while_updates_of_waves_are_computed_again(tmp_path: Path) -> None:
    settings = (PLAIN, *BUFFERED)
    whole = run("fedavg", *settings)
    with pytest.raises(Killed):
        run("fedavg", *settings, on_event=Killer(9), resume=tmp_path)
    killer = Killer()
    with pytest.raises(KeyboardInterrupt):
        run(
            "fedavg",
            *settings,
            on_event=killer,
            stop=lambda: killer.trained > 0,
            resume=tmp_path,
        )
    assert killer.trained and not killer.replayed
    assert bits_of(run("fedavg", *settings, resume=tmp_path)) == bits_of(whole)


def test_of_a_run_that_is_not_kept_no_models_are_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, forget = [], RunLog.forget

    def forgotten(self: RunLog) -> None:
        forget(self)
        held.append(len(self._held) + len(self.pending))

    monkeypatch.setattr(RunLog, "forget", forgotten)
    run("scaffold", PLAIN, *BUFFERED, resume=tmp_path / "run")
    assert held == [0] * 12


def test_one_that_is_kept_to_its_end_trains_no_more(tmp_path: Path) -> None:
    settings = (PLAIN, "evaluation.steps=[1]")
    first, killer = run("ditto", *settings, resume=tmp_path, forget=False), Killer()
    again = run("ditto", *settings, resume=tmp_path, on_event=killer)
    assert bits_of(again) == bits_of(first) and killer.trained == 0
    assert not tmp_path.exists()


# ---------------------------------------------------------------- what a crash leaves, and damage


def killed(folder: Path, *settings: str, round: int = 5) -> None:
    with pytest.raises(Killed):
        run("scaffold", PLAIN, *settings, on_event=Killer(round), resume=folder)


def test_a_torn_end_of_the_log_is_written_over(tmp_path: Path) -> None:
    whole = run("scaffold", PLAIN)
    killed(tmp_path)
    with (tmp_path / "log").open("ab") as log:
        log.write(b"R" + bytes(1000))
    (tmp_path / ".kept.1.2").write_bytes(b"a draft")
    killer = Killer()
    assert bits_of(run("scaffold", PLAIN, resume=tmp_path, on_event=killer)) == bits_of(whole)
    assert killer.replayed == 4


@pytest.mark.parametrize("file", ["log", "model-", "kept", "memory-"])
def test_killed_while_it_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    adam = "algorithm.server_optimizer=adam"
    whole, write, append = run("fedavg", PLAIN, adam), resumable.write_whole, Resumable._append
    left = [6]

    def counted(name: str) -> None:
        if name.startswith(file):
            left[0] -= 1
            if not left[0]:
                raise Killed

    def written(path: Path, *rest: Any, **named: Any) -> None:
        counted(path.name)
        write(path, *rest, **named)

    def appended(self: Resumable, pending: bytes) -> None:
        append(self, pending[:100])
        counted("log")
        append(self, pending)

    left[0] = 4
    monkeypatch.setattr(resumable, "write_whole", written)
    monkeypatch.setattr(Resumable, "_append", appended)
    with pytest.raises(Killed):
        run("fedavg", PLAIN, adam, resume=tmp_path)
    killer = Killer()
    resumed = run("fedavg", PLAIN, adam, resume=tmp_path, on_event=killer)
    assert bits_of(resumed) == bits_of(whole) and killer.replayed >= 2


@pytest.mark.parametrize("file", ["log", "model-*", "kept", "states"])
def test_what_is_damaged_is_not_resumed(tmp_path: Path, file: str) -> None:
    killed(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for path in tmp_path.glob(file):
        content = bytearray(path.read_bytes())
        content[len(content) // 2 : len(content) // 2 + 512] = bytes(512)
        if file == "states":
            content = bytearray(len(content))
        path.write_bytes(content)
    with pytest.raises(DelianError, match="damaged"):
        run("scaffold", PLAIN, resume=tmp_path)
    for name, content in before.items():
        (tmp_path / name).write_bytes(content)
    assert bits_of(run("scaffold", PLAIN, resume=tmp_path)) == bits_of(run("scaffold", PLAIN))


@pytest.mark.parametrize("file", ["log", "model-", "kept", "states"])
def test_a_disk_that_is_full_costs_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    whole, write, full = run("scaffold", PLAIN), resumable.write_whole, [True]

    def refused(name: str) -> None:
        if full[0] and name.startswith(file):
            raise OSError(errno.ENOSPC, "No space left on device")

    def written(path: Path, *rest: Any, **named: Any) -> None:
        refused(path.name)
        write(path, *rest, **named)

    def room(*given: Any) -> None:
        refused("states")

    monkeypatch.setattr(resumable, "write_whole", written)
    monkeypatch.setattr(resumable.os, "write", lambda fd, part, out=os.write: out(fd, part[:50]))
    if file == "log":
        monkeypatch.setattr(resumable, "sync_file", lambda fd: refused("log"))
    monkeypatch.setattr(os, "posix_fallocate", room)
    folder = tmp_path / "run"
    with pytest.raises(Killed):
        run("scaffold", PLAIN, on_event=Killer(3), resume=folder)
    assert not (folder / "kept").exists()
    full[0] = False
    killer = Killer(5)
    with pytest.raises(Killed):
        run("scaffold", PLAIN, on_event=killer, resume=folder)
    full[0] = True
    assert killer.replayed == 0
    with pytest.raises(Killed):
        run("scaffold", PLAIN, on_event=(later := Killer(6)), resume=folder)
    full[0] = False
    resumed = run("scaffold", PLAIN, on_event=(last := Killer()), resume=folder)
    assert later.replayed == 4 and last.replayed == (5 if file == "states" else 4)
    assert bits_of(resumed) == bits_of(whole)


def test_what_cannot_be_written_for_good_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*given: Any, **named: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(resumable, "write_whole", refused)
    monkeypatch.setattr(kept_run, "PENDING_BYTES_MAX", 1000)
    result = run("fedavg", PLAIN, resume=tmp_path / "run")
    assert bits_of(result) == bits_of(run("fedavg", PLAIN))
    assert "No space left" in result.not_resumable and not result.resumable


# ---------------------------------------------------------------- other runs


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["rounds=7"], "scenario.rounds was 6 and is 7"),
        (["seed=2"], "scenario.seed was 1 and is 2"),
        (["algorithm.learning_rate=0.05"], "scenario.algorithm.learning_rate was 0.5 and is 0.05"),
    ],
)
def test_another_scenario_is_refused(tmp_path: Path, settings: list[str], said: str) -> None:
    killed(tmp_path)
    with pytest.raises(DelianError) as refused:
        run("scaffold", PLAIN, *settings, resume=tmp_path)
    assert said in refused.value.message
    with pytest.raises(DelianError, match="backend was "):
        run("scaffold", PLAIN, resume=tmp_path, backend="reference")


def test_other_data_are_refused(tmp_path: Path) -> None:
    scenario = scenario_file.override(scenario_file.load("digits"), [*SMALL, PLAIN])
    data = load_data(scenario)
    with pytest.raises(Killed):
        simulate(scenario, data=data, on_event=Killer(4), resume=tmp_path)
    first, *rest = data.devices
    x = np.array(first.x)
    x.reshape(-1)[3] += 1
    other = dataclasses.replace(data, devices=(dataclasses.replace(first, x=x), *rest))
    with pytest.raises(DelianError, match="the data differ"):
        simulate(scenario, data=other, resume=tmp_path)


def test_another_program_is_found_out_by_what_happens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed(tmp_path)
    monkeypatch.setattr(resumable, "_differing", lambda *given: [])
    with pytest.raises(DelianError, match="is not as it was before"):
        run("scaffold", PLAIN, "fleet.dropout=0.5", resume=tmp_path)


def test_another_compiler_of_the_same_name_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = toolchain.find()
    if found is None:
        pytest.skip("needs a C compiler")
    killed(tmp_path)
    newer = dataclasses.replace(found, version="cc 99.1")
    monkeypatch.setattr(kept_run.toolchain, "find", lambda: newer)
    with pytest.raises(DelianError, match=r"compiler version was .* and is .cc 99.1"):
        run("scaffold", PLAIN, resume=tmp_path)


def test_states_of_another_round_are_refused(tmp_path: Path) -> None:
    """A folder that was copied while its run went on."""
    killed(tmp_path / "run", round=3)
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    with pytest.raises(Killed):
        run("scaffold", PLAIN, on_event=Killer(6), resume=tmp_path / "run")
    shutil.copy(tmp_path / "run" / "states", tmp_path / "copy")
    with pytest.raises(DelianError, match="states is damaged"):
        run("scaffold", PLAIN, resume=tmp_path / "copy")


@pytest.mark.parametrize("length", [WHOLE_MAX + 1, 2**31 - 1, -2])
def test_a_length_that_none_has_is_refused_before_there_is_room_for_it(length: int) -> None:
    content = _UPDATE.pack(b"U", 1, 1, 1, 1, 0.0, True, 0, 0.0, length)
    log = RunLog(memoryview(content), frozenset(), {}, {}, holds=False)
    with pytest.raises(DelianError, match="is not as it was"):
        log.outcome(1, lambda: pytest.fail("it is known"))


@pytest.mark.parametrize("long", [float("nan"), float("inf"), -1.0, 1e300])
def test_an_update_was_not_so_long(long: float) -> None:
    content = _UPDATE.pack(b"U", 1, 1, 1, 1, 0.0, True, 0, long, WHOLE_MAX + 1) + bytes(8)
    log = RunLog(memoryview(content), frozenset(), {}, {}, holds=False)
    with pytest.raises(DelianError, match="is not as it was"):
        log.outcome(1, lambda: pytest.fail("it is known"))


@pytest.mark.parametrize(
    "said", [b"\xff", b"3", b'{"round": 1}', b'{"global_spread": [1]}', b"[" * 5000]
)
def test_nothing_of_the_kind_was_judged(said: bytes) -> None:
    content = _ROUND.pack(b"R", bytes(32), 1, len(said)) + said
    log = RunLog(memoryview(content), frozenset(), {}, {}, holds=False)
    with pytest.raises(DelianError, match="what was judged"):
        log.round_again(bytes(32), 1)


@pytest.mark.parametrize("key", ["told", "log_bytes", "models", "facts", "format"])
def test_what_is_kept_by_another_hand_is_refused(tmp_path: Path, key: str) -> None:
    killed(tmp_path)
    said = json.loads((tmp_path / "kept").read_bytes()[:-32])
    del said[key]
    body = json.dumps(said).encode()
    (tmp_path / "kept").write_bytes(body + hashlib.sha256(body).digest())
    with pytest.raises(DelianError, match="kept is damaged"):
        run("scaffold", PLAIN, resume=tmp_path)


def test_a_folder_is_one_processs_own(tmp_path: Path) -> None:
    killed(tmp_path)
    lock = FolderLock(tmp_path)
    with pytest.raises(FolderInUse):
        run("scaffold", PLAIN, resume=tmp_path)
    lock.close()
    assert run("scaffold", PLAIN, resume=tmp_path).stopped_by is None


@pytest.mark.parametrize(
    ("algorithm", "settings", "options", "why"),
    [
        ("scaffold", BUFFERED, {}, "buffered run whose devices keep a state"),
        ("fedavg", ["rounds=1"], {"backend": "torch:cpu"}, "which devices train together"),
    ],
)
def test_what_cannot_be_resumed_is_not_kept(
    tmp_path: Path, algorithm: str, settings: list[str], options: dict[str, Any], why: str
) -> None:
    if "backend" in options:
        pytest.importorskip("torch")
    folder = tmp_path / "run"
    result = run(algorithm, PLAIN, *settings, resume=folder, **options)
    assert why in result.not_resumable and not folder.exists()
    folder.mkdir()
    with pytest.raises(DelianError, match=why):
        run(algorithm, PLAIN, *settings, resume=folder, **options)


# ---------------------------------------------------------------- client states


def test_states_that_were_kept_stay_until_they_are_kept_again(tmp_path: Path) -> None:
    def state(value: int) -> Kept:
        return Kept(bytes(32), np.full(3, value - 1, np.float32), np.full(3, value, np.float32))

    def last(states: ClientStates, device: int) -> float:
        kept = states.of(device)
        assert kept is not None
        return float(kept.after[0])

    states, path = ClientStates(3, 4), tmp_path / "states"
    states.put(1, state(1))
    states.put(2, state(2))
    places = states.keep(path)
    states.kept(places)
    known = states.digest()
    for value in (10, 11, 12):
        states.put(1, state(value))
    states.put(3, state(13))
    assert [last(states, d) for d in (1, 2, 3)] == [12, 2, 13]
    before = ClientStates(3, 4)
    before.resume(path, places, known)
    assert [last(before, d) for d in (1, 2)] == [1, 2] and before.of(3) is None
    newer = states.keep(path)
    states.kept(newer)
    latest = states.digest()
    states.put(1, state(20))
    after = ClientStates(3, 4)
    after.resume(path, newer, latest)
    assert [last(after, d) for d in (1, 2, 3)] == [12, 2, 13]
    for wrong in (b"", bytes(3), bytes([3, 0, 0, 0])):
        with pytest.raises(DelianError, match="another fleet"):
            ClientStates(3, 4).resume(path, wrong, latest)
    states.put(1, state(21))  # to the place that was the older one's
    with pytest.raises(DelianError, match="damaged"):
        ClientStates(3, 4).resume(path, places, known)


def test_what_was_not_kept_whole_is_gone_when_the_run_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was killed while it was kept first, and another that is over before it is kept."""
    for name in ("log", ".kept.1.2", "states"):
        (tmp_path / name).write_bytes(b"a part")
    monkeypatch.setattr(kept_run, "KEEP_S", 1e9)
    assert run("fedavg", PLAIN, resume=tmp_path).stopped_by is None
    assert not tmp_path.exists()


def test_what_others_have_in_the_folder_stays(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("it")
    killed(tmp_path)
    assert run("scaffold", PLAIN, resume=tmp_path).stopped_by is None
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
