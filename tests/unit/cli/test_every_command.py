"""What holds of every command: an example that parses, JSON, a group for each kind of user."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from delian.cli import main as command
from delian.cli.examples import EXAMPLES

#: Commands without --json, and why.
WITHOUT_JSON = {
    "cloud run": "a daemon: its log is JSON by `log.format`",
    "edge run": "a daemon",
    "device run": "a daemon",
    "authority run": "a daemon",
    "witness run": "a daemon",
    "quickstart": "it asks questions, and prints the command to use in scripts",
    "help": "it prints help",
}
ROOT: Any = typer.main.get_command(command.app)


def leaves(group: Any = ROOT, *words: str) -> Iterator[tuple[str, Any]]:
    for name, inner in group.commands.items():
        if hasattr(inner, "commands"):
            yield from leaves(inner, *words, name)
        else:
            yield " ".join((*words, name)), inner


LEAVES = dict(leaves())


def test_every_command_has_one_example_and_no_other_has():
    assert LEAVES.keys() == EXAMPLES.keys()


@pytest.mark.parametrize("name", LEAVES)
def test_an_example_parses(name):
    delian, *words = shlex.split(EXAMPLES[name].partition(" > ")[0])
    assert delian == "delian" and " ".join(words).startswith(name)
    given = words[len(name.split()) :]
    context = LEAVES[name].make_context(name, list(given))
    assert not context.args
    for each in LEAVES[name].params:  # what the example gives is there
        if any(option in given for option in each.opts):
            assert context.params[each.name] not in (None, ()), each.name


def test_help_ends_with_the_example(capsys):
    for words in (["simulate"], ["ir", "show"], ["ca", "issue"]):
        with pytest.raises(SystemExit) as end:
            command._named(words)([*words, "--help"], prog_name="delian")
        out = " ".join(capsys.readouterr().out.split())
        assert end.value.code == 0 and f"Example: {EXAMPLES[' '.join(words)]}" in out


def test_every_command_that_prints_facts_prints_json():
    without = {
        name
        for name, each in LEAVES.items()
        if not any("--json" in parameter.opts for parameter in each.params)
    }
    assert without == WITHOUT_JSON.keys()


def test_commands_are_in_groups_by_user(delian):
    code, out, _ = delian("--help")
    panels = [line.split("─ ")[1].split(" ─")[0] for line in out.splitlines() if "╭─" in line]
    assert code == 0
    assert panels == [
        "Options",
        "Simulate and study",
        "Run a fleet",
        "On a device",
        "Identity and trust",
        "Models",
        "Compile and place",
    ]


def test_help_and_version_are_commands_too(delian):
    code, out, _ = delian("help")
    assert code == 0 and "Simulate and study" in out
    code, out, _ = delian("help", "run", "submit")
    assert code == 0 and "delian run submit [OPTIONS]" in out
    code, _, err = delian("help", "simulat")
    assert code == 2 and "simulate" in err
    version = delian("--version")[1]
    assert delian("version") == (0, version, "") and version.startswith("delian 0.")
    assert delian("version", "--json")[1] == {"version": version.split()[1]}


@pytest.mark.parametrize(
    ("words", "keys"),
    [
        (("scenario", "list"), {"name", "what", "default", "needs_data"}),
        (("scenario", "show", "digits"), {"name", "rounds", "data", "algorithm"}),
        (("scenario", "chain", "digits"), {"chain", "stages"}),
        (("scenario", "keys"), {"table", "key", "allowed", "default", "meaning"}),
        (("device", "consent", "yes"), {"file", "consented"}),
        (("ir", "passes"), {"name", "what", "native"}),
    ],
)
def test_json_has_the_facts(delian, words, keys):
    code, out, err = delian(*words, "--json")
    first = out[0] if isinstance(out, list) else out
    assert (code, err) == (0, "") and keys <= first.keys()


def test_programs_are_shown_as_json_too(delian, tmp_path):
    (tmp_path / "model.py").write_text(
        "import numpy as np\n\ndef f(x):\n    return np.sum(x * x)\n\n"
        "def g(x):\n    return np.sum(x)\n"
    )
    takes = ("--arg", "f32[3]", "--json")
    _, shown, _ = delian("ir", "show", "model.py:f", *takes)
    assert shown["takes"] == ["f32[3]"] and shown["gives"] == ["f32[]"] and shown["flops"] > 0
    assert "reduce_sum" in shown["text"]
    assert "float" in delian("ir", "c", "model.py:f", *takes)[1]["c"]
    code, found, _ = delian("ir", "diff", "model.py:f", "model.py:g", *takes)
    assert code == 1 and not found["same"] and found["diff"]
    assert delian("ir", "diff", "model.py:f", "model.py:f", *takes)[:2] == (
        0,
        {"same": True, "diff": ""},
    )
