"""The file of a run's events, on a disk that fills up."""

from __future__ import annotations

import json
import sys

import pytest
from delian.simulations.event_file import EventFile
from delian.simulations.result import Phase


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
