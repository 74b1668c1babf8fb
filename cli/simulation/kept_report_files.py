"""Files of a simulation that is still running: the report so far, and what resumes the run.

DIR/unfinished       report and model after a round, once a minute
DIR/resume/asked     the options of the command, in JSON
DIR/resume/first     the run as it was kept (`simulations/resume/resumable.py`);
                     of a comparison also DIR/resume/second
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from ...core.common.errors import DelianError
from ..output import echo

if TYPE_CHECKING:
    from ...core.node.storage.disk import FolderLock
    from ...simulations.runs.result import Event, SimulationResult
    from .listeners import Listeners

ASKED = "asked"
ASKED_BYTES_MAX = 1 << 20
_HINT = "start it again, into another folder: --out DIR"


@dataclass(frozen=True, slots=True)
class Asked:
    """What decides a run among the options of `delian simulate`."""

    folder: str
    """In which it was begun, and in which files are named."""
    source: str
    settings: list[str]
    data: str | None
    algorithm: str | None
    compare: str | None
    seed: int | None
    backend: str

    @staticmethod
    def of(
        source: str,
        settings: list[str],
        data: Path | None,
        algorithm: str | None,
        compare: str | None,
        seed: int | None,
        backend: str,
    ) -> Asked:
        path = str(data) if data is not None else None
        return Asked(str(Path.cwd()), source, settings, path, algorithm, compare, seed, backend)

    def command(
        self,
        mode: str,
        devices: int | None,
        edges: int | None,
        mqtt: int | None,
        baselines: bool = False,
    ) -> str:
        """The command that gives the same run, in the folder in which it was begun.

        Files in that folder are named as they are there: a report is for others to read, too.
        """
        processes = mode == "processes"
        given = {
            "--data": self.data,
            "--algorithm": self.algorithm,
            "--compare": self.compare,
            "--seed": self.seed,
            "--backend": None if self.backend == "native" else self.backend,
            "--mode": mode if processes else None,
            "--devices": devices if processes else None,
            "--edges": edges,
            "--mqtt": mqtt,
        }
        words = ["delian", "simulate", *([self.source] if self.source else [])]
        words += [word for setting in self.settings for word in ("--set", setting)]
        words += [
            word
            for name, value in given.items()
            if value is not None
            for word in (name, str(value))
        ]
        words = [word.replace(f"{self.folder}{os.sep}", "") for word in words]
        return shlex.join([*words, *(["--baselines"] if baselines else [])])

    @staticmethod
    def read(folder: Path) -> Asked:
        """Raises DelianError where the folder has no run that can be resumed."""
        from ...core.common.files import read_at_most
        from ...simulations.report.report import RESUME

        path = folder / RESUME / ASKED
        if not folder.is_dir():
            raise DelianError(f"there is no folder {folder}", "name the one of the run's --out")
        if not path.exists():
            raise DelianError(
                f"{folder} holds no run that can be resumed",
                "one that has ended leaves nothing to resume it by, nor does --mode processes",
            )
        try:
            said = json.loads(read_at_most(path, ASKED_BYTES_MAX))
            asked = Asked(**{field.name: said[field.name] for field in fields(Asked)})
        except OSError as error:
            raise DelianError(f"cannot read {path}: {error.strerror}", _HINT) from None
        except (ValueError, KeyError, TypeError):
            raise DelianError(f"{path} is damaged", _HINT) from None
        texts = (asked.data, asked.algorithm, asked.compare)
        if (
            not all(isinstance(text, str) for text in (asked.folder, asked.source, asked.backend))
            or not isinstance(asked.settings, list)
            or not all(isinstance(word, str) for word in asked.settings)
            or not all(text is None or isinstance(text, str) for text in texts)
            or not (asked.seed is None or isinstance(asked.seed, int))
        ):
            raise DelianError(f"{path} is damaged", _HINT)
        return asked

    def go_there(self) -> None:
        """Works in the folder in which the run was begun. Raises DelianError."""
        try:
            os.chdir(self.folder)
        except OSError as error:
            raise DelianError(
                f"the run was begun in {self.folder}: {error.strerror}",
                "have its files there again: they are named from there",
            ) from None


class Keeper:
    """Keeps a run that goes on in folders within its own.

    Where another run into the same folder does so, that is left alone. A disk that cannot hold the
    report so far is reported at the end.

    resumes: it is a run that was stopped, and what there is of it is its own. listener: called with
    all events. command: that gives the run, for its report.
    """

    def __init__(self, folder: Path, resumes: bool = False) -> None:
        self._folder, self._resumes, self._made = folder, resumes, resumes
        self._first: SimulationResult | None = None
        self._lock: FolderLock | None = None
        self.listener: Listeners | None = None
        self.command = ""

    @property
    def _resume(self) -> Path:
        from ...simulations.report.report import RESUME

        return self._folder / RESUME

    def resumable(self, asked: Asked) -> None:
        """Has the run kept so that it can be resumed.

        Of one whose folder does not take that nothing is kept. Raises DelianError where one is to
        be resumed that still goes on.
        """
        from ...core.common.files import write_whole
        from ...core.node.storage.disk import FolderLock

        try:
            if not self._resumes:
                self._resume.mkdir()  # the process that creates it holds it
            self._lock = FolderLock(self._resume)
            if not self._resumes:
                write_whole(self._resume / ASKED, json.dumps(asdict(asked)), durable=True)
        except OSError as error:
            if self._resumes:
                raise DelianError(
                    f"cannot write into {self._resume}: {error.strerror}",
                    "a run that goes on is kept there: free the disk, or have the folder writable",
                ) from None
            self.forget()

    def place(self, second: bool) -> Path | None:
        """Where the first or the second run is kept; None: nowhere."""
        if self._lock is None:
            return None
        place = self._resume / ("second" if second else "first")
        if self._resumes and not second and not is_kept(place):
            echo("delian: nothing of the run was stored: it starts again", err=True)
        return place

    def forget(self) -> None:
        """What the run could be resumed by is removed."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None
            shutil.rmtree(self._resume, ignore_errors=True)

    def failed(self, fault: BaseException) -> None:
        """The run was broken off: what was kept of it stays, if something was."""
        if self.listener is not None:
            self.listener.failed()
        if self._lock is None:
            return
        if not self._resumes and not any(map(is_kept, self._resume.iterdir())):
            self.forget()
            return
        self._lock.close()
        if isinstance(fault, KeyboardInterrupt) or not self._resumes:
            echo(f"delian: {self._how('')}", err=True)

    def first_is(self, result: SimulationResult) -> None:
        """The first of two runs is over."""
        self._first = result
        self._keep(result, None)
        if self.listener is not None:
            self.listener.ended(result)

    def beside(self, view: Callable[[Event], None]) -> Callable[[Event], None]:
        """A view's function that keeps as well."""
        from ...simulations.runs.result import Unfinished

        def told(event: Event) -> None:
            view(event)
            if self.listener is not None:
                self.listener(event)
            if isinstance(event, Unfinished):
                first = self._first
                self._keep(first or event.result, event.result if first else None)

        return told

    def _keep(self, result: SimulationResult, second: SimulationResult | None) -> None:
        from ...simulations.report.report import UNFINISHED, build_report
        from .simulate_commands import write

        place = self._folder / UNFINISHED
        with suppress(DelianError, OSError):
            if not self._made or not place.exists():
                place.mkdir(parents=True)  # the process that creates it holds it
                self._made = True
            write(build_report(result, second, self.command), result, place)

    def over(self, run: SimulationResult) -> str:
        """All of the run is kept.

        Removes what there was of it, but what it can be resumed by where it was stopped. Returns
        the message about it. run: the one that ended last.
        """
        from ...simulations.report.report import UNFINISHED

        if self.listener is not None:
            self.listener.close(run)
        if self._made:
            shutil.rmtree(self._folder / UNFINISHED, ignore_errors=True)
        cannot = run.not_resumable and not run.resumable
        if run.stopped_by != "interrupt" or cannot or self._lock is None:
            self.forget()
            if run.stopped_by != "interrupt" or not cannot:
                return ""
            return f"it cannot be resumed: {run.not_resumable}"
        if not any(map(is_kept, self._resume.iterdir())):
            self.forget()
            return _nothing_kept(run)
        self._lock.close()
        where = f" after round {run.resumable}" if run.resumable else ""
        return self._how(where)

    def _how(self, where: str) -> str:
        return f"to go on{where}: delian simulate --resume {shlex.quote(str(self._folder))}"


def _nothing_kept(run: SimulationResult) -> str:
    if not run.rounds:
        return "no round had ended: there is nothing to resume"
    return "nothing of the run was stored yet: there is nothing to resume"


def is_kept(place: Path) -> bool:
    """Whether a run was kept in a folder, at least once."""
    from ...simulations.resume.resumable import KEPT

    return (place / KEPT).exists()


def no_others(given: Mapping[str, object]) -> None:
    """Rejects options that define a run when --resume is given."""
    others = [name for name, value in given.items() if value]
    if others:
        raise DelianError(
            f"--resume goes on with the run as it was begun, and {others[0]} would change it",
            "leave it out; --threads, --events and --json change no figure",
        )
