"""`delian quickstart`: questions with defaults, the command that does the same, what is next."""

from __future__ import annotations

import shlex
from pathlib import Path

import numpy as np
import pytest
import typer
from delian.cli import main as command
from delian.cli.simulation import quickstart_commands, simulate_commands
from typer.testing import CliRunner

ROOT = typer.main.get_command(command.app)


@pytest.fixture
def runs(monkeypatch, tmp_path):
    """Stands in for `delian simulate`; gives its calls. The working folder is empty."""
    calls = []

    def simulate(**given):
        calls.append({key: value for key, value in given.items() if value is not None})
        given["out"].mkdir(parents=True)
        (given["out"] / simulate_commands.BUNDLE_NAME).write_bytes(b"")

    monkeypatch.setattr(simulate_commands, "simulate", simulate)
    monkeypatch.setattr(quickstart_commands, "is_terminal", lambda: True)
    monkeypatch.chdir(tmp_path)
    return calls


@pytest.fixture
def table(tmp_path):
    kind = np.arange(300) % 2
    rows = [f"{i % 7},{'ab'[k]},{k + i % 3}" for i, k in enumerate(kind)]
    (tmp_path / "mine.csv").write_text("\n".join(["size,kind,count", *rows]) + "\n")


def ask(*words, answers=""):
    done = CliRunner().invoke(command.app, ["quickstart", *words], input=answers)
    assert done.exit_code == 0, done.output
    return done.stdout


def printed(out: str) -> list[str]:
    """The words of the command that it says does the same."""
    (line,) = (each for each in out.splitlines() if each.startswith("delian simulate"))
    return shlex.split(line)


def same(out: str, call: dict[str, object]) -> None:
    """What was printed parses to what was run."""
    context = ROOT.commands["simulate"].make_context("simulate", printed(out)[2:])
    for key, value in call.items():
        found = context.params[key]
        assert (list(found) if isinstance(value, list) else found) == value, key


def test_enter_takes_the_default_of_each_question(runs):
    out = ask(answers="\n" * 3)
    assert runs == [{"named": "digits", "rounds": 30, "out": Path("delian-runs/quickstart-1")}]
    same(out, runs[0])
    assert "delian data show digits" in out and "delian new my-project" in out


def test_answers_are_those_of_the_command(runs, table):
    out = ask(answers="nowhere.csv\nmine.csv\nnope\nkind\nn\n7\n")
    (call,) = runs
    assert (call["data"], call["target"], call["rounds"]) == (Path("mine.csv"), "kind", 7)
    assert call["settings"] == ['privacy.aggregation="plain"']
    same(out, call)
    assert "delian predict delian-runs/quickstart-1 mine.csv" in out


def test_yes_asks_nothing(runs, table, monkeypatch):
    monkeypatch.setattr(quickstart_commands, "is_terminal", lambda: False)
    for _ in range(2):
        same(ask("--yes", "--data", "mine.csv"), {**(runs or [{}])[-1]})
    assert [str(call["out"]) for call in runs] == [
        "delian-runs/quickstart-1",
        "delian-runs/quickstart-2",
    ]


def test_without_a_terminal_it_says_how(delian):
    code, out, err = delian("quickstart")
    assert code == 2 and not out and "delian quickstart --yes" in err


def test_what_it_says_comes_next_parses(runs, table):
    lines = ask("--yes", "--data", "mine.csv").split("next:\n")[1].splitlines()
    assert len(lines) == 4
    for line in lines:
        group, words = ROOT, shlex.split(line)[1:]
        while hasattr(group, "commands"):
            group, words = group.commands[words[0]], words[1:]
        group.make_context("x", words)
