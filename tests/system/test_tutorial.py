"""docs/tutorials: the commands of the pages on fleets as they stand, by processes on loopback."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from delian.core.node.net.mqtt.broker import mosquitto_path
from support.readme_commands import BLOCK
from support.terminals import Terminals

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "tutorials"
#: Lines that the processes of a terminal print when they serve.
SERVING = {"coordinator": 1, "devices": 4, "clinics": 5, "broker": 1}


@pytest.fixture
def terminals(tmp_path):
    """Of the folder in which the pages' commands run."""
    made = Terminals(tmp_path, SERVING)
    yield made
    made.close()


def comes(terminals, command: str, text: str) -> bool:
    """Whether a command shows a text in the end; each try takes a process its time."""
    return any(text in terminals.run("", command) for _ in range(200))


def test_a_fleet_of_four_trains_evaluates_and_predicts_by_the_page_s_commands(terminals):
    (_, install), *blocks = BLOCK.findall((FOLDER / "fleet.md").read_text())
    assert "pip install" in install, "what runs here is installed"
    said = [terminals.run(name, commands) for name, commands in blocks]
    fleet, trained = next(text for text in said if "judged by" in text), said[-1]
    assert re.search(r"run 1 is waiting: needs 15 devices \(at least 3\), \d ready", fleet)
    rounds = re.findall(r"round (\d+)/30 attempt 1: (\d) of \d devices reported", fleet)
    assert [int(number) for number, _ in rounds] == list(range(1, 31)), fleet
    assert all(int(reported) >= 3 for _, reported in rounds)
    assert rounds[-1][1] == "4" and "model 30 judged by 4 devices: global_accuracy=0.9" in fleet
    assert fleet.rstrip().endswith("done")
    *predicted, true = trained.split("\n")[:6]
    assert len(predicted) == 5 and all(label.isdigit() for label in predicted)
    assert sum(a == b for a, b in zip(predicted, true.split(), strict=True)) >= 4

    # What the page offers to try afterwards.
    terminals.run("", "delian device consent no --state device-3")
    assert comes(terminals, "delian fleet show device-3", "unconsented")
    terminals.run("", "delian fleet revoke device-4")
    assert comes(terminals, "delian device status --state device-4", "was revoked")
    again = terminals.run("", "delian run submit digits")
    assert "1 without consent" in again and "consent yes" in again

    # The page that goes on here, without the device that was revoked.
    if mosquitto_path() is not None:
        terminals.run("", "delian run cancel 2 && delian device consent yes --state device-3")
        terminals.close()
        blocks = BLOCK.findall((FOLDER / "fleet_mqtt.md").read_text())
        trained = [terminals.run(name, commands) for name, commands in blocks][-1]
        assert "round 5/5 attempt 1: 3 of 3 devices reported" in trained, trained
        assert "model 5 judged by 3 devices: global_accuracy=0." in trained


def test_five_clinics_answer_questions_by_the_page_s_commands(terminals, tmp_path):
    (_, install), *blocks = BLOCK.findall((FOLDER / "questions.md").read_text())
    assert "pip install" in install, "what runs here is installed"
    said = [terminals.run(name, commands) for name, commands in blocks]
    files, refused, (answers, page, differs, log, noised) = said[1], said[2], said[-5:]
    counted = re.findall(r"^([fm]) +(\d+) +([\d.]+)", files, re.MULTILINE)
    assert len(counted) == 2 and "MAX(age) is no sum of a site's rows" in refused
    assert counted == re.findall(r"^([fm]) +(\d+) +([\d.]+)", answers, re.MULTILINE)[:2]
    assert "Logistic regression" in answers and "C(sex)[T.m]" in answers
    assert "log-rank test" in page and (tmp_path / "survival.html").stat().st_size > 10_000
    assert "device's owner does not allow the question" in differs
    assert "answered" in log and "glm of patients" in log
    assert re.search(r"epsilon: +\d", noised)

    # A site that is gone is left out, and the answer says so.
    terminals.run("", "pkill -9 -f -- '--state clinic-5 '")
    fewer = terminals.run("", "delian ask 'SELECT count(*) FROM patients'")
    assert re.search(r"^sites: +4", fewer, re.MULTILINE), fewer

    # The same over MQTT, for two of the clinics.
    if mosquitto_path() is None:
        return
    terminals.close()
    (_, issue), (broker, up), (cloud, serve) = BLOCK.findall(
        (FOLDER / "fleet_mqtt.md").read_text()
    )[:3]
    terminals.run("", issue)
    terminals.run(broker, up.replace("farm", "clinics"))
    terminals.run(cloud, serve)
    run = "delian device run --state clinic-{n} --table patients=clinic-{n}.csv {home} &"
    homes = ["", "", "", *["--home mqtts://127.0.0.1:8883"] * 2]
    lines = [run.format(n=n, home=home) for n, home in enumerate(homes, 1)]
    terminals.run("clinics", "\n".join([*lines, "wait"]))
    again = terminals.run("", answers_of(blocks))
    assert counted == re.findall(r"^([fm]) +(\d+) +([\d.]+)", again, re.MULTILINE)
    # A site tells its owner what was asked, and the coordinator's record who has asked it.
    ca = "state/delian/cloud/ca/ca.pem"
    calls = f"delian audit export --out record && delian audit calls record --ca {ca} --json"
    record = terminals.run("", calls)
    assert '"question": "aggregates"' in record and '"where": "age >= 50"' in record


def answers_of(blocks: list[tuple[str, str]]) -> str:
    """The page's first question to the clinics."""
    block = next(text for name, text in blocks if not name and "ask glm" in text)
    return block.partition("\n")[0]
