"""Bad input for every command: exit code 2, one error, and a hint that works when it is followed.

What a hint names is there: each `delian ...` in it parses, each option belongs to the command.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import typer
from delian.cli import main as command

ROOT: Any = typer.main.get_command(command.app)

BAD = """
simulat
hepl
--verson
simulate --rond 5
simulate --round 5
simulate --learning 5
simulate nowhere
simulate small.csv
simulate code.py
simulate net.pt
simulate digitz
simulate digits -s digits
simulate --rounds 0
simulate --rounds five
simulate --rounds
simulate --learning-rate fast
simulate --seed -1
simulate --threads 0
simulate --backend gpu
simulate --mode cluster
simulate --algorithm fedopt
simulate --compare fedavgg
simulate --compare fomaml
simulate --set roundz=3
simulate --set rounds
simulate --set rounds=zero
simulate --set fleet.devices=1
simulate --set fleet.dropout=2
simulate --data nowhere.csv
simulate --data noise
simulate --data folder
simulate --data small.csv
simulate --data words.csv
simulate --data few.txt
simulate --data noise.txt
simulate digits --data few.txt
simulate --data net.pt
simulate --data net.onnx
simulate --data model.pkl
simulate --data rows.xlsx
simulate --data hf://someone/rows
simulate --data good.npz --target nothing
simulate --torch net.onnx
simulate --torch net.pth
simulate --torch hf://someone/net
simulate --torch nowhere.py:Net
simulate --loss MSE
simulate --set model.name=onnx --set model.file=net.keras
simulate --algorithm fedavg --set split.enabled=true --set split.edge_profile=net.keras
simulate --algorithm fedavg --set split.enabled=true --set split.device_profile=nowhere.json
simulate --set model.name=python --set model.file=net.safetensors
simulate --edges 2
simulate --mode processes --devices 100
simulate --resume nowhere
simulate --resume folder
simulate --resume folder --rounds 3
simulate --out empty
simulate --events folder
quickstart
quickstart --yes --data nowhere.csv
quickstart --yes --rounds 3
new
new kept
new -- -x
new x --template pytorch
analyse digits
analyse digits means
analyse digits histogram --bins 0
ask
ask select --site small.csv --site small.csv --site small.csv
ask 'select max(a) from t' --site small.csv --site small.csv --site small.csv
ask 'select count(*) from t' --site small.csv
ask 'select count(*) from t' --set floor=3
ask nope --site small.csv --site small.csv --site small.csv
ask values --site nowhere.csv --site small.csv --site small.csv
ask values --set of --site small.csv --site small.csv --site small.csv
ask glm 'y ~' --site small.csv --site small.csv --site small.csv
ask aggregates --limit a=3 --site small.csv --site small.csv --site small.csv
compare
compare digits:fedavgg digits
compare digits:fedavg digits:ditto --seeds 0
compare nowhere
compare net.onnx
sweep digits
sweep digits rounds
sweep digits roundz=1,2
dst --seeds 0
dst --seed many
scenario show nope
scenario show
scenario list all
scenario chain digits --set chain=clap
scenario keys fleet
data tokenizer nowhere
data tokenizer few.txt --vocabulary 1
data tokenizer few.txt --vocabulary many
study nowhere.toml
study edge-tunning
study even.txt
data check nowhere
data check few.txt
data pack nowhere
data pack nowhere packed.npz
data pack even.txt few.txt
data show nope
data show --data noise
data show digits --out folder
doctor nurse
token --tier cloudy
token --valid yesterday
approve nowhere
join
join notatoken
join --token-file nowhere
predict
predict nowhere.bundle good.npz
predict noise good.npz
predict folder good.npz
predict net.onnx good.npz
build noise
build nowhere.bundle
build good.npz --target c
quantise noise
quantise noise --data good.npz -o x.bundle
quantise net.pt --data good.npz -o x.bundle
profile --seconds fast
tune noise
ir show nowhere.py:f
ir show nowhere.py
ir show noise
ir show code.py:g
ir show code.py:f --arg f33[2]
ir show code.py:f --arg f32[2] --after nowhere
ir passes all
ir c small.csv
ir time noise:infer
ir diff noise noise
cache lss
cache ls all
cache clear all
cloud run --listen here
cloud run --nonsense
edge run
edge run --number x --insecure --coordinator 127.0.0.1:1
device run
device run --insecure --home 127.0.0.1:1
device run --insecure --number 1 --home here --data good.npz
device run --insecure --number 1 --home 127.0.0.1:1 --data nowhere.npz
device run --insecure --number 1 --home 127.0.0.1:1 --data net.keras
device status --state nowhere
device consent maybe
device consent
device predict nowhere.npz
device predict noise
device ask noise good.npz --plan noise
device questions --limit 0
device run --table patients
device rollback
device cascade noise noise good.npz
device terms --accept
broker up --port x
broker acl
broker acl --federation demo --for mosquito
broker acl --federation demo --for mosquitto --edges cat
run submit nope --insecure
run submit digits
run submit digits --insecure --set roundz=3
run show
run show abc
run watch abc
run pause 0
run resume 0
run cancel x
run ls --limit 0
run clone 3 --plan x
fleet ls
fleet ls --tier cloudy
fleet show unknown
fleet revoke device-x
fleet drain
config show nowhere
config show --set device.nope=3
config show --set nope
config keys device
ca init
ca init empty --federation demo
ca init x --federation "a b"
ca show nowhere
ca revoke device-5 --ca nowhere
ca issue pilot x
ca issue operator x --ca nowhere
ca issue operator x --role king --ca nowhere
ca delegate nowhere --site north
ca list --ca nowhere
ca terms nowhere
ca restored --ca nowhere
authority run --state empty
authority migrate nowhere x
authority request folder/a --federation demo --site ""
authority accept nowhere nowhere --fingerprint x
log show nowhere
log verify nowhere
log watch nowhere --once
log show folder --day yesterday
witness init empty
witness add nowhere nowhere
witness show nowhere
witness run nowhere
artifact root-init empty
artifact key-init empty
artifact root-sign nowhere --federation demo --key nowhere
artifact sign noise --out x
artifact verify noise --root noise
artifact verify nowhere --root nowhere
audit export
audit verify nowhere
audit verify empty
audit calls nowhere
model check noise
model check nowhere.onnx
model check net.pt
model convert nowhere.onnx x.safetensors
model convert small.csv x.onnx
model ls
model show nowhere.onnx
model show 3
model export best out
model promote
model rollback
bundle explain noise
bundle explain nowhere
partition explain noise --device small.csv --edge small.csv
partition plan noise --device small.csv --edge small.csv -o x
partition cascade noise noise --data good.npz
partition simulate nope
partition simulate --set x=1
help nope
version 2
"""
ROWS = BAD.strip().splitlines()

#: Of hints that are followed literally: the bad line, and the good one that the hint makes of it.
#: `{hint}` is what the hint says between its first backticks or behind `for example: `.
FOLLOWED = {
    "data show --data even.txt --set fleet.devices=60 --set data.steps=80": "data show --data"
    " even.txt --set data.steps=80 {options}",
    "data show --data even.txt --set data.steps=400": "data show --data even.txt"
    " --set data.steps=400 {options}",
    "scenario sho digits": "{hint} digits",
    "scenario show digitz": "scenario show {hint}",
    "device consent maybe": "{example}",
    "data show digits --data even.txt": "data show --data even.txt",
    "ir show code.py:f --arg f32[2] --after simplfy": "ir show code.py:f --arg f32[2]"
    " --after {meant}",
    "new kept": "{example}",
    "scenario list all": "{example}",
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A folder of things that cannot serve, and of a few that can."""
    folder = tmp_path_factory.mktemp("files")
    (folder / "noise").write_bytes(bytes(range(256)) * 8)
    (folder / "noise.txt").write_bytes(bytes(range(256)) * 8)
    (folder / "empty").write_bytes(b"")
    (folder / "folder").mkdir()
    (folder / "kept").mkdir()
    (folder / "kept" / "notes").write_text("mine")
    np.savez(folder / "good.npz", x=np.zeros((60, 16), np.float32), y=np.arange(60) % 3)
    (folder / "small.csv").write_text("a,b\n1,2\n")
    notes = [f"note{i},{'ab'[i % 2]}" for i in range(120)]
    (folder / "words.csv").write_text("\n".join(["note,label", *notes]) + "\n")
    (folder / "few.txt").write_text("few\n")
    (folder / "even.txt").write_text("one two three four five\n\n" * 200)
    (folder / "code.py").write_text("def f(x):\n    return x * x\n")
    return folder


@pytest.fixture
def refused(delian, files, monkeypatch):
    """Runs a bad command line in the folder; gives the hint."""

    def run(line: str) -> str:
        monkeypatch.chdir(files)
        code, out, err = delian(*shlex.split(line))
        assert code == command.INPUT_ERROR and not out, (code, out, err)
        assert "Traceback" not in err and "error: " in err, err
        assert err.count("error: ") == 1 and "hint: " in err, err
        return " ".join(err.partition("hint: ")[2].split())

    return run


def command_of(words: list[str]) -> tuple[Any, list[str]]:
    """The command or group that words begin with, and the words behind its name."""
    found = ROOT
    while words and words[0] in getattr(found, "commands", {}):
        found, words = found.commands[words[0]], words[1:]
    return found, words


def options_of(found: Any) -> set[str]:
    """Of a command, or of all commands of a group."""
    inner = getattr(found, "commands", {}).values()
    own = {option for each in found.params for option in (*each.opts, *each.secondary_opts)}
    return own.union({"--help", "-h"}, *(options_of(each) for each in inner))


def named(hint: str) -> Iterator[str]:
    """The commands that a hint names: `delian ...` up to the end of its quotes or clause."""
    for match in re.finditer(r"(?<![\w./-])delian (?=[a-z-])([^`;,)]*)", hint):
        yield match[1].partition(", or ")[0].strip()


def check_hint(hint: str, line: str) -> None:
    """What the hint names is there."""
    rest = hint
    for text in named(hint):
        rest = rest.replace(text, "")
        found, words = command_of(text.split())
        assert found is not ROOT or text.startswith("-"), f"there is no `delian {text}`: {hint}"
        assert not hasattr(found, "commands") or not words or words[0].startswith("-"), hint
        given = {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}
        assert given <= options_of(found), f"{given - options_of(found)}: {hint}"
    there = options_of(command_of(shlex.split(line))[0]) | options_of(ROOT.commands["simulate"])
    alone = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", rest))
    assert alone <= there, f"{alone - there}: {hint}"


def test_there_are_at_least_a_hundred_over_all_commands():
    leaves = set()

    def walk(group: Any, *words: str) -> None:
        for name, inner in group.commands.items():
            if hasattr(inner, "commands"):
                walk(inner, *words, name)
            else:
                leaves.add(" ".join((*words, name)))

    walk(ROOT)
    without = {n for n in leaves if not any(f"{r} ".startswith(f"{n} ") for r in ROWS)}
    assert len(ROWS) == len(set(ROWS)) >= 200 and not without


@pytest.mark.parametrize("line", ROWS)
def test_a_bad_line_gets_an_error_and_a_hint_that_holds(refused, line):
    check_hint(refused(line), line)


@pytest.mark.parametrize("line", FOLLOWED)
def test_a_hint_works_when_it_is_followed(refused, delian, files, monkeypatch, tmp_path, line):
    hint = refused(line)
    quoted = re.search(r"`([^`]+)`", hint)
    options = re.match(r"((?:--set \S+ ?)+)", hint)
    example = re.search(r"delian ([^;`]*)", hint)
    meant = re.search(r"did you mean `?([\w.-]+)`?\?", hint)
    good = FOLLOWED[line].format(
        hint=quoted[1].removeprefix("delian ") if quoted else "",
        options=options[1].replace(",", "") if options else "",
        example=example[1] if example else "",
        meant=meant[1] if meant else "",
    )
    monkeypatch.chdir(files)
    code, _, err = delian(*shlex.split(good))
    assert code == 0, (good, err)
