"""The file of a run's events: on a disk that fills up, and as others read it."""

from __future__ import annotations

import itertools
import json
import re
import sys
import time
import types
from pathlib import Path

import pytest
from delian.simulations.runs.event_file import EventFile
from delian.simulations.runs.result import Phase, RoundFinished, Started
from delian.simulations.scenario.scenario_file import load


@pytest.mark.skipif(sys.platform == "win32", reason="a file's size is limited, as a disk's is")
def test_half_a_line_that_a_full_disk_took_is_no_part_of_the_next_runs(tmp_path, capsys):
    import resource

    path = tmp_path / "events.jsonl"
    first = EventFile(path)
    first(Phase("reading"))
    whole = path.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(whole) + 20, hard))
    try:
        first(Phase("compiling"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == whole
    assert capsys.readouterr().err.count("no further events are written") == 1
    EventFile(path)(Phase("reading again"))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["doing"] for line in lines] == ["reading", "reading again"]


def test_the_example_that_reads_them_has_each_run_of_a_file_apart(
    tmp_path, monkeypatch, make_result
):
    """It follows a file for as long as nobody stops it, which here its first pause does."""
    page = Path(__file__).parents[2] / "docs" / "report.md"
    (code,) = re.findall(r"```python\n(import json.+?)```", page.read_text(), re.DOTALL)
    seen, closed = {}, []

    class SummaryWriter:
        def __init__(self, folder):
            self.folder = folder
            assert folder not in seen
            seen[folder] = []

        def add_scalar(self, name, value, step):
            seen[self.folder].append((name, step))

        def close(self):
            closed.append(self.folder)

    clock = itertools.count(1_790_000_000_000_000_000, 1_000_000)  # a millisecond a line
    monkeypatch.setattr(time, "time_ns", lambda: next(clock))
    events, whole = EventFile(tmp_path / "events.jsonl"), make_result(load("synthetic-mlp"))
    for event in [Started(whole.scenario, 3, 0), *map(RoundFinished, whole.rounds)]:
        events(event)
    events.ended(whole)
    for event in [Started(whole.scenario, 3, 0), *map(RoundFinished, whole.rounds[:2])]:
        events(event)
    monkeypatch.setitem(
        sys.modules, "tensorboardX", types.SimpleNamespace(SummaryWriter=SummaryWriter)
    )
    monkeypatch.setattr(sys, "argv", ["follow", str(tmp_path / "events.jsonl")])
    monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail("it waits", pytrace=False))
    with pytest.raises(pytest.fail.Exception, match="it waits"):
        exec(code, {})
    steps = [{step for _, step in scalars} for scalars in seen.values()]
    assert steps == [{r.round for r in whole.rounds}, {r.round for r in whole.rounds[:2]}]
    assert ("global_accuracy", 1) in next(iter(seen.values()))
    assert closed == list(seen)[:1]
