"""Client updates a second of a whole simulation, beside peers, interleaved in one sitting.

    python benchmarks/simulation.py --model mlp --rounds 40 --repeat 5 \
        --peer 'torch1=V/bin/python floor_torch.py --model mlp --threads 1 --rounds 40'

The work is the synthetic benchmark of the FedAvg paper's models: 100 devices of 60 samples of 28 x
28, ten a round, one epoch of batches of ten at rate 0.1, no evaluation (here one device judges the
last model, the least that a scenario may ask for). A peer is any command that does the same work
and prints `##ROUND number unixtime` at the end of each round; Delian's own simulator is run the
same way, as a process of its own, through its tiers, its network and its ring sums.

Every command is started `--repeat` times, in turn, and watched from outside: client updates a
second from the end of the third round to the end of the last, the time from the start of the
process to the end of round one, the peak of the process tree's resident memory, how much was read
from disks, and how busy everything else on the machine was. Medians and best runs are given, and
ratios to Delian. A run beside more than 0.3 busy cores is marked.

Each turn is two runs, one after the other. While others have theirs a system may take from memory
the files that a command has read, and its modules and libraries are read again: that costs the
first run up to a second, by the disk and not by the program. Of it only that is given, the time to
the end of round one with "files read"; all else is of the second.

Delian runs twice more, with one thread, whose trace must be that of the others, and beside a
process that keeps the first core busy.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import psutil

DEVICES_PER_ROUND = 10
#: Rounds that are not counted: caches warm up in them.
SKIPPED = 2
#: Other work on the machine, in cores, above which a run is marked as disturbed.
DISTURBED = 0.3
SAMPLE_S = 0.1
BUSY = "delian, busy"
#: Client updates a second on two cores: what each model must reach.
GOALS = {"mlp": 1000.0, "cnn": 25.0}
RSS_MIB = 150.0
#: From the start of the process to the end of round one, with compiled programs in the cache.
FIRST_ROUND_S = 0.6
#: The share of its speed that a run may lose when one core is busy with something else.
LOST_MOST = 0.55
TRACE = re.compile(r"##TRACE (\w+)")
ROUND = re.compile(r"##ROUND (\d+) (\d+(?:\.\d+)?)")


@dataclass(frozen=True)
class Run:
    """One run of one command."""

    name: str
    updates_per_s: float
    first_round_s: float
    rss_mib: float
    read_mib: float
    other_cores: float
    trace: str = ""
    first_of_turn: bool = False


def child(model: str, rounds: int, threads: int) -> None:
    """Delian's side: the scenario of the repository, with a mark at each round's end."""
    from delian.simulations.runs.result import RoundFinished
    from delian.simulations.runs.simulate import simulate
    from delian.simulations.scenario import scenario_file

    scenario = scenario_file.override(
        scenario_file.load(f"synthetic-{model}"),
        [
            f"rounds={rounds}",
            f"evaluation.every={rounds}",
            "evaluation.devices=1",
            'privacy.aggregation="plain"',
        ],
    )

    def mark(event: object) -> None:
        if isinstance(event, RoundFinished):
            print(f"##ROUND {event.record.round} {time.time():.6f}", flush=True)

    result = simulate(scenario, threads=threads, on_event=mark)
    print(f"##FINAL {result.rounds[-1].global_accuracy}")
    print(f"##TRACE {result.trace_hash}")


def measure(name: str, command: list[str], limit_s: float, first: bool = False) -> Run:
    """Starts a command, watches its process tree, reads its marks. first: of a turn."""
    busy, read = _busy(), _read()
    start = time.time()
    try:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=sys.stderr,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        raise SystemExit(f"{name}: cannot start {command[0]}: {error.strerror}") from None
    watcher = _Watcher(process.pid)
    timer = threading.Timer(limit_s, process.kill)
    timer.start()
    ends: dict[int, float] = {}
    trace = ""
    assert process.stdout is not None
    for line in process.stdout:
        if found := ROUND.search(line):
            ends[int(found[1])] = float(found[2])
        elif found := TRACE.search(line):
            trace = found[1]
    code = process.wait()
    timer.cancel()
    rss, cpu = watcher.stop()
    wall = time.time() - start
    if code or len(ends) < SKIPPED + 2:
        raise SystemExit(
            f"{name}: exit code {code} after {len(ends)} rounds: {shlex.join(command)}"
        )
    order = sorted(ends)
    counted = order[SKIPPED:]
    span = ends[counted[-1]] - ends[order[SKIPPED - 1]]
    return Run(
        name=name,
        updates_per_s=DEVICES_PER_ROUND * len(counted) / span,
        first_round_s=ends[order[0]] - start,
        rss_mib=rss / 2**20,
        read_mib=(_read() - read) / 2**20,
        other_cores=max(0.0, (_busy() - busy - cpu) / wall),
        trace=trace,
        first_of_turn=first,
    )


class _Watcher:
    """The peak of a process tree's resident memory, and the processor time that it used."""

    def __init__(self, pid: int) -> None:
        self._root = psutil.Process(pid)
        self._cpu: dict[int, float] = {}
        self._peak = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._done.wait(SAMPLE_S):
            try:
                tree = [self._root, *self._root.children(recursive=True)]
            except psutil.Error:
                return
            rss = 0
            for process in tree:
                try:
                    rss += process.memory_info().rss
                    times = process.cpu_times()
                    self._cpu[process.pid] = times.user + times.system
                except psutil.Error:
                    continue
            self._peak = max(self._peak, rss)

    def stop(self) -> tuple[int, float]:
        self._done.set()
        self._thread.join()
        return self._peak, sum(self._cpu.values())


def _busy() -> float:
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - getattr(times, "iowait", 0.0))


def _read() -> int:
    """Bytes that all disks have given."""
    disks = psutil.disk_io_counters()
    return 0 if disks is None else int(disks.read_bytes)


@contextmanager
def busy_core() -> Iterator[None]:
    """Keeps the first core that this process may use busy."""
    core = min(os.sched_getaffinity(0))
    spin = f"import os\nos.sched_setaffinity(0, [{core}])\nwhile True: pass"
    process = subprocess.Popen([sys.executable, "-c", spin])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def summarise(runs: list[Run], model: str) -> dict[str, Any]:
    """Medians and bests by command, ratios of Delian to each peer, and the targets."""
    names = list(dict.fromkeys(r.name for r in runs))
    table: dict[str, Any] = {}
    for name in names:
        mine = [r for r in runs if r.name == name and not r.first_of_turn]
        firsts = [r for r in runs if r.name == name and r.first_of_turn]
        table[name] = {
            "updates_per_s": statistics.median(r.updates_per_s for r in mine),
            "updates_per_s_best": max(r.updates_per_s for r in mine),
            "first_round_s": statistics.median(r.first_round_s for r in mine),
            "first_round_files_read_s": _median([r.first_round_s for r in firsts]),
            "files_read_mib": _median([r.read_mib for r in firsts]),
            "rss_mib": statistics.median(r.rss_mib for r in mine),
            "disturbed_runs": sum(r.other_cores > DISTURBED for r in mine),
        }
    ours = table["delian"]
    ratios = {
        n: round(ours["updates_per_s"] / row["updates_per_s"], 2)
        for n, row in table.items()
        if not n.startswith("delian")
    }
    traces = {r.trace for r in runs if r.trace}
    lost = 1.0 - table[BUSY]["updates_per_s"] / ours["updates_per_s"]
    targets = [
        _target("updates a second, 2 cores", ours["updates_per_s"], GOALS[model], least=True),
        _target("start to end of round 1, s", ours["first_round_s"], FIRST_ROUND_S),
        _target("peak resident memory, MiB", ours["rss_mib"], RSS_MIB),
        _target("share of the speed lost beside a busy core", lost, LOST_MOST),
        _target("different traces, with 1 thread and with all", len(traces), 1),
    ]
    return {
        "model": model,
        "cores": psutil.cpu_count(),
        "runs": [asdict(r) for r in runs],
        "table": table,
        "times_faster_than": ratios,
        "targets": targets,
    }


def _median(values: list[float]) -> float | None:
    return statistics.median(values) if values else None


def _target(name: str, measured: float, goal: float, least: bool = False) -> dict[str, Any]:
    met = measured >= goal if least else measured <= goal
    return {"name": name, "goal": goal, "measured": round(measured, 3), "met": met}


def print_table(result: dict[str, Any]) -> None:
    print(f"\n{result['model']}, {result['cores']} cores; medians (best)")
    heads = f"{'first round, s':>16}{'files read, s (MiB)':>22}{'RSS, MiB':>10}{'disturbed':>11}"
    print(f"{'':18}{'updates/s':>18}{heads}")
    for name, row in result["table"].items():
        rate = f"{row['updates_per_s']:.1f} ({row['updates_per_s_best']:.1f})"
        seconds, mib = row["first_round_files_read_s"], row["files_read_mib"]
        anew = "" if seconds is None else f"{seconds:.2f} ({mib:.0f})"
        print(
            f"{name:18}{rate:>18}{row['first_round_s']:>16.2f}{anew:>22}{row['rss_mib']:>10.0f}"
            f"{row['disturbed_runs']:>11}"
        )
    for name, ratio in result["times_faster_than"].items():
        print(f"  {ratio:.2f} times {name}")
    for target in result["targets"]:
        mark = "met" if target["met"] else "MISSED"
        print(f"  {target['name']}: {target['measured']} (goal {target['goal']:g}): {mark}")


def peers_of(given: list[str], parser: argparse.ArgumentParser) -> dict[str, list[str]]:
    """Commands by name, of options NAME=COMMAND."""
    commands = {}
    for peer in given:
        name, separator, command = peer.partition("=")
        if not separator or not command.strip():
            parser.error(f"--peer {peer}: write NAME=COMMAND")
        try:
            commands[name] = shlex.split(command)
        except ValueError as error:
            parser.error(f"--peer {peer}: {error}")
    return commands


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=sorted(GOALS), default="mlp")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=COMMAND")
    parser.add_argument("--limit-s", type=float, default=300.0)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.repeat < 1 or args.rounds < SKIPPED + 2 or args.threads < 1:
        parser.error(f"at least one repeat, {SKIPPED + 2} rounds and one thread")
    if args.child:
        child(args.model, args.rounds, args.threads)
        return
    own = [sys.executable, __file__, "--child", "--model", args.model]
    own += ["--rounds", str(args.rounds), "--threads", str(args.threads)]
    commands = {"delian": own}
    commands |= peers_of(args.peer, parser)
    # An installation has its modules compiled; here what was edited since would be read anew.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    measure("warming up", own, args.limit_s)
    runs = []
    for i in range(args.repeat):
        for name, command in commands.items():
            runs.append(measure(name, command, args.limit_s, first=True))
            run = measure(name, command, args.limit_s)
            print(f"run {i + 1}: {name:12} {run.updates_per_s:8.1f} updates/s", file=sys.stderr)
            runs.append(run)
    alone = [*own[:-1], "1"]
    runs.append(measure("delian, 1 thread", alone, args.limit_s))
    with busy_core():
        runs.append(measure(BUSY, own, args.limit_s))
    result = summarise(runs, args.model)
    if args.json:
        print(json.dumps(result, indent=2))
    else:
        print_table(result)


if __name__ == "__main__":
    main()
