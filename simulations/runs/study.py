"""Many runs of scenarios, each in a process of its own.

What `delian compare`, `delian sweep` and `delian study` are made of.

A trial is a scenario with changes, and its result a few figures and the curve of its rounds. It is
named by the hash of what decides it, and kept in a file of that name as soon as it is done; a study
that is started again finds what it has already. What a user's model or algorithm imports is known
only when it has run: the file has the hashes of all users' code that its run was made of, and
counts as long as that is the same. Where trials run makes no difference to what they give:
processes of this machine, or the workers of a Ray cluster.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ...core.common import user_code
from ...core.common.errors import DelianError
from ...core.common.install_hint import install
from ...core.compiler import debugging
from ..report.report import make_folder, plain, summarise, write_whole
from ..scenario.datasets import with_data
from ..scenario.scenario import Scenario
from ..scenario.scenario_file import find, load, override

if TYPE_CHECKING:
    from .result import RoundRecord

FORMAT = 3
CURVE = ("global_accuracy", "personalised_accuracy", "global_loss", "personalised_loss")


@dataclass(frozen=True)
class Trial:
    """One run."""

    source: str
    """A scenario's file or name."""
    algorithm: str | None = None
    settings: tuple[str, ...] = ()
    """KEY=VALUE changes."""
    data: str | None = None
    """A file that stands in for the scenario's own."""

    def scenario(self) -> Scenario:
        """Raises DelianError for one that makes no sense."""
        chosen = with_data(load(self.source), Path(self.data) if self.data else None)
        named = [f"algorithm.name={self.algorithm}"] if self.algorithm is not None else []
        return override(chosen, [*named, *self.settings])

    def name(self) -> str:
        """The hash of the scenario as it will run, and of its data."""
        scenario = self.scenario()
        file = Path(self.data) if self.data else scenario.data_file
        facts = {
            "format": FORMAT,
            "scenario": scenario.to_json(),
            "data": _digest(file),
            "model": _digest(scenario.model_file),
        }
        if scenario.weights_file is not None:
            facts["weights"] = _digest(scenario.weights_file)
        if scenario.loss_file is not None:
            facts["loss"] = _digest(scenario.loss_file)
        if scenario.algorithm_file is not None:
            facts["algorithm"] = _digest(scenario.algorithm_file)
        if _has_code(scenario):
            facts["path"] = os.environ.get("PYTHONPATH", "")  # where they import from
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]


def _has_code(scenario: Scenario) -> bool:
    """Whether code of the user's own decides it too."""
    return scenario.model_file is not None or scenario.algorithm_file is not None


def _digest(file: Path | None) -> str | None:
    return hashlib.sha256(file.read_bytes()).hexdigest() if file and file.is_file() else None


def work(trial: Trial) -> dict[str, Any]:
    """Runs a trial, on one thread, here."""
    from .simulate import simulate

    data = Path(trial.data) if trial.data else None
    scenario = trial.scenario()
    with debugging.compiled():
        result = simulate(scenario, data_path=data, threads=1)
    curve = _curve(result.rounds)
    folder = find(trial.source).parent
    code = user_code.sources() if _has_code(scenario) else {}
    sources = {os.path.relpath(file, folder): digest for file, digest in code.items()}
    made = {"summary": summarise(result), "curve": curve, "sources": sources}
    answer: dict[str, Any] = plain(made)
    return answer


def _curve(rounds: Sequence[RoundRecord]) -> list[dict[str, Any]]:
    """The rounds that changed the model, each with what was spent until its end.

    That is in attempts that came to nothing too.
    """
    curve: list[dict[str, Any]] = []
    seconds, octets, joules = 0.0, 0, 0.0
    for r in rounds:
        up, down = r.bytes.get("device_edge_up", 0), r.bytes.get("device_edge_down", 0)
        seconds, octets = seconds + r.virtual_seconds, octets + up + down
        joules += math.fsum(r.joules.values())
        if r.applied:
            point = {"round": len(curve) + 1, "bytes_up": up}
            spent = {"seconds": seconds, "bytes": octets, "joules": joules}
            judged = {name: getattr(r, name) for name in CURVE}
            curve.append({**point, "spent": spent, **judged})
    return curve


class Executor(Protocol):
    """Where trials run."""

    def run(self, trials: Sequence[Trial]) -> Iterator[tuple[Trial, dict[str, Any]]]:
        """Each trial with its result, as they end. Raises DelianError for the first that fails."""


class Processes:
    """A process a trial, some at once.

    Closing the iterator ends those that run; so does, on Linux, the end of this process, however it
    comes.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._running: set[subprocess.Popen[str]] = set()
        self._ended = threading.Event()

    def run(self, trials: Sequence[Trial]) -> Iterator[tuple[Trial, dict[str, Any]]]:
        self._ended.clear()
        with ThreadPoolExecutor(self.workers, thread_name_prefix="delian-trial") as pool:
            waiting: dict[Future[dict[str, Any]], Trial] = {
                pool.submit(self._one, trial): trial for trial in trials
            }
            try:
                while waiting:
                    for done in wait(waiting, return_when=FIRST_COMPLETED).done:
                        yield waiting.pop(done), done.result()
            finally:
                self._ended.set()
                for future in waiting:
                    future.cancel()
                for process in list(self._running):
                    process.kill()

    def _one(self, trial: Trial) -> dict[str, Any]:
        command = [sys.executable, "-m", "delian.simulations.runs.study", str(os.getpid())]
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C reaches this process, which then ends it
        )
        self._running.add(process)
        if self._ended.is_set():
            process.kill()
        try:
            said, told = process.communicate(json.dumps(asdict(trial)))
        finally:
            self._running.discard(process)
        if process.returncode != 0:
            last = told.strip().splitlines()[-1:] or [f"ended with {process.returncode}"]
            raise DelianError(f"the trial {shown(trial)} failed: {last[0]}")
        answer: dict[str, Any] = json.loads(said)
        return answer


class Ray:
    """The workers of a Ray cluster: the one that RAY_ADDRESS names, or one on this machine."""

    def __init__(self, workers: int) -> None:
        try:
            import ray
        except ImportError:
            raise DelianError("Ray is not installed", install("ray")) from None
        self._ray, self._workers = ray, workers

    def run(self, trials: Sequence[Trial]) -> Iterator[tuple[Trial, dict[str, Any]]]:
        ray = self._ray
        ours = not ray.is_initialized()
        if ours:
            local: dict[str, Any] = {}
            if not os.environ.get("RAY_ADDRESS"):
                local = {"num_cpus": self._workers, "_node_ip_address": "127.0.0.1"}
            ray.init(log_to_driver=False, include_dashboard=False, **local)
        try:
            remote = ray.remote(num_cpus=1)(work)
            waiting = {remote.remote(trial): trial for trial in trials}
            while waiting:
                (done,), _ = ray.wait(list(waiting), num_returns=1)
                trial = waiting.pop(done)
                try:
                    yield trial, ray.get(done)
                except ray.exceptions.RayTaskError as error:
                    raise DelianError(f"the trial {shown(trial)} failed: {error.cause}") from None
        finally:
            if ours:
                ray.shutdown()


EXECUTORS: Mapping[str, Callable[[int], Executor]] = {"processes": Processes, "ray": Ray}


def shown(trial: Trial) -> str:
    """A trial in a few words."""
    words = [trial.source, *([trial.algorithm] if trial.algorithm else []), *trial.settings]
    return " ".join(words)


def run(
    trials: Sequence[Trial],
    folder: Path,
    executor: Executor,
    on_done: Callable[[Trial, int, int], None] = lambda trial, done, of: None,
) -> dict[Trial, dict[str, Any]]:
    """The results of all trials, from `folder` where they are there, else run and put there.

    on_done: called with each finished trial, and the numbers of finished and of all trials. Raises
    DelianError for a trial that cannot run; those that have ended are kept.
    """
    make_folder(folder)
    files = {trial: folder / f"{trial.name()}.json" for trial in trials}
    results = {}
    for trial, file in files.items():
        if file.exists() and (found := _read(file, find(trial.source).parent)) is not None:
            results[trial] = found
            on_done(trial, len(results), len(files))
    missing = [trial for trial in files if trial not in results]
    for trial, result in executor.run(missing):
        facts = {"format": FORMAT, "trial": asdict(trial), "sources": {}, **result}
        content = json.dumps(facts, indent=1)
        write_whole(files[trial], content + "\n")
        results[trial] = _told(json.loads(content))
        on_done(trial, len(results), len(files))
    return results


def _read(file: Path, folder: Path) -> dict[str, Any] | None:
    """A result that was kept; None where it is of other code of the user's.

    folder: where names of sources begin.
    """
    try:
        content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        if content["format"] != FORMAT:
            raise ValueError(f"of format {content['format']}")
        sources: dict[str, str] = content["sources"]
        same = all(digest == _digest(folder / name) for name, digest in sources.items())
        return _told(content) if same else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DelianError(
            f"{file} holds no trial's result: {error}", "delete it, and it is run again"
        ) from None


def _told(content: Mapping[str, Any]) -> dict[str, Any]:
    return {name: content[name] for name in ("summary", "curve")}


def main() -> int:
    """A worker: a trial as JSON on standard input, its result on standard output.

    Its argument is the process that it works for, with which it ends where the system is Linux: a
    study may be killed.
    """
    from ...core.node.sandbox.process_limits import die_with

    die_with(int(sys.argv[1]))
    said = json.load(sys.stdin)
    trial = Trial(**{**said, "settings": tuple(said["settings"])})
    try:
        with contextlib.redirect_stdout(sys.stderr):  # what a user's model prints is no result
            result = work(trial)
    except DelianError as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        return 2
    json.dump(result, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
