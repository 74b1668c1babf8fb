"""Progress is one plain line a round where nobody watches, and a table in a terminal."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest
from delian.simulations.runs.progress import Progress
from delian.simulations.runs.result import (
    Notice,
    Phase,
    Replayed,
    Replaying,
    RoundFinished,
    Started,
    UpdateFinished,
)
from delian.simulations.scenario.scenario_file import load
from rich.console import Console


class Clock:
    """Time that passes when a test says so."""

    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def result(make_result):
    return make_result(load("synthetic-mlp"))


def run(result, **console):
    screen, clock = io.StringIO(), Clock()
    scenario = result.scenario
    with Progress(Console(file=screen, **{"width": 110, **console}), scenario, clock) as progress:
        progress(Started(scenario, 100, 0))
        progress(Phase("compiling 6 programs"))
        for record in result.rounds:
            progress(UpdateFinished(record.round, 3, 10))
            clock.now += 0.5
            progress(RoundFinished(record))
    return screen.getvalue()


def test_a_pipe_gets_one_plain_line_a_round(result):
    lines = run(result).splitlines()
    assert len(lines) == 1 + 10
    assert "\x1b" not in "".join(lines)
    first = result.rounds[0]
    assert lines[1].startswith("round 1/10  accuracy ")
    assert f"{first.reported} of {first.selected} reported" in lines[1]
    assert f"{2 * first.reported} updates/s" in lines[1]
    assert "4.5 s left" in lines[1]


def test_virtual_time_is_told_apart_from_real_time(result):
    assert "3.5 s virtual" in run(result)
    rounds = [replace(r, virtual_seconds=0.0, wall_seconds=0.25) for r in result.rounds]
    real = replace(result, rounds=tuple(rounds))
    assert "0.25 s real" in run(real) and "virtual" not in run(real)
    assert "virtual" in run(result, force_terminal=True)
    screen = run(real, force_terminal=True, width=80)
    assert "real time" in screen and "virtual" not in screen and "…" not in screen


def test_a_terminal_gets_a_table_of_the_last_rounds(result):
    screen = run(result, force_terminal=True)
    assert "\x1b[" in screen
    assert "round 10/10" in screen and "personal" in screen


def test_a_rate_is_one_of_training_and_leaves_out_evaluation(result):
    screen, clock = io.StringIO(), Clock()
    with Progress(Console(file=screen, width=110), result.scenario, clock) as progress:
        progress(Started(result.scenario, 100, 0))
        clock.now += 7  # compiles
        progress(Phase("round 1"))
        clock.now += 0.5
        progress(UpdateFinished(1, 10, 10))
        clock.now += 9
        progress(UpdateFinished(1, 100, 100, evaluating=True))
        progress(RoundFinished(result.rounds[0]))
    reported = result.rounds[0].reported
    assert f"{2 * reported} updates/s" in screen.getvalue()
    assert "86 s left" in screen.getvalue()


def test_the_table_fits_a_terminal_of_eighty_columns(result):
    screen = run(result, force_terminal=True, width=80)
    assert "updates/s" in screen and "…" not in screen


def test_no_color_is_respected(result, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    screen = run(result, force_terminal=True)
    assert not any(f"\x1b[{code}m" in screen for code in ("31", "32", "33", "34", "1;34"))


def test_a_dumb_terminal_gets_plain_lines(result, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    assert "\x1b" not in run(result, force_terminal=True)


def test_a_narrow_terminal_has_fewer_columns_and_no_row_wraps(result):
    rounds = [replace(r, training_loss=0.5123) for r in result.rounds]
    trained = replace(result, rounds=tuple(rounds))
    assert "0.512" in run(trained, force_terminal=True)
    assert "loss 0.512" in run(trained).splitlines()[1]
    for width in (110, 80, 60, 44, 34):
        screen = run(trained, force_terminal=True, width=width)
        lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen).splitlines()
        names = next(line for line in reversed(lines) if "shared" in line and "round" in line)
        assert names.split()[:3] == ["round", "shared", "personal"], width
        assert ("spare" in names.split()) == (width >= 80), width
        assert "virtual" in names or width < 80
        last = next(line for line in reversed(lines) if line.split()[:1] == ["10"])
        assert len(last.split()) >= len(names.split()) and len(last) <= width
        assert ("the round had enough without it" in " ".join(" ".join(lines).split())) == (
            width >= 80
        )


def test_a_notice_is_said_before_the_rounds(result):
    screen = io.StringIO()
    with Progress(Console(file=screen, width=110), result.scenario, Clock()) as progress:
        progress(Notice("the noise drowns it"))
        progress(RoundFinished(result.rounds[0]))
    assert screen.getvalue().splitlines()[1] == "warning: the noise drowns it"
    screen = io.StringIO()
    console = Console(file=screen, width=110, force_terminal=True)
    with Progress(console, result.scenario, Clock()) as progress:
        progress(Notice("the noise drowns it"))
    assert "the noise drowns it" in screen.getvalue()


def replay(result, rounds):
    screen, drawn = io.StringIO(), io.StringIO()
    with Progress(Console(file=screen, width=110), result.scenario) as progress:
        for number in range(rounds + 1):
            progress(Replaying(number, rounds))
            Console(file=drawn, width=110).print(progress._draw())
        progress(Replayed(result.rounds[-1]))
    return screen.getvalue().splitlines()[1:], drawn.getvalue()


def test_a_pipe_gets_ten_lines_of_a_replay_and_one_of_its_beginning(result):
    lines, _ = replay(result, 72)
    assert lines[0] == "replaying round 0 of 72" and lines[-2] == "replaying round 72 of 72"
    assert lines[-1] == "replayed to round 10" and len(lines) == 12
    assert len(replay(result, 3)[0]) == 4 + 1


def test_a_terminal_s_bar_moves_while_a_run_is_replayed(result):
    _, drawn = replay(result, 7)
    assert all(f"round {n}/10" in drawn for n in range(8)) and drawn.count("replaying 7") == 8
