"""Texts in tokens: what `delian simulate text` learns, reports and predicts, on a small text."""

from __future__ import annotations

import json
import math

import delian as dl
import numpy as np
import pytest
from delian.cli.main import app
from delian.core.common.errors import DelianError
from delian.simulations.report.report_page import page
from delian.simulations.scenario.scenario_file import load, override
from typer.testing import CliRunner

pytest.importorskip("tokenizers")

SMALL = [
    *("model.width=16", "model.depth=1", "model.heads=2", "evaluation.every=3", "rounds=6"),
    *("data.vocabulary=300", "data.steps=12", "data.min_characters=100", "fleet.edges=1"),
    *("data.held_out_devices=1", "round.cohort=3", "algorithm.learning_rate=0.02", "seed=3"),
    *("fleet.dropout=0.0", "privacy.clip=1000.0", "data.max_windows=40"),
]
WORDS = "one two three four five six seven eight nine ten"
#: The second input of a module of ids is its mask.
TORCH = """
import torch

class Tagger(torch.nn.Module):
    def __init__(self, ids=300, outputs=2):
        super().__init__()
        self.table = torch.nn.Embedding(ids, 8)
        self.head = torch.nn.Linear(8, outputs)

    def forward(self, input_ids, attention_mask):
        found = self.table(input_ids) * attention_mask[..., None]
        return self.head(found.sum(1) / attention_mask.sum(1, keepdim=True).clamp(min=1))
"""


@pytest.fixture(scope="module")
def play(tmp_path_factory):
    path = tmp_path_factory.mktemp("play") / "play.txt"
    blocks = [f"{role}:\n{WORDS}\n{WORDS}" for role in ["Ann", "Bob", "Cid", "Dan"] * 12]
    path.write_text("\n\n".join(blocks))
    return path


def scenario(*settings):
    own = any(each.startswith("model.name=") for each in settings)
    small = [each for each in SMALL if not (own and each.startswith("model."))]
    return override(load("text"), [*small, *settings])


def ran(play, *settings, backend="reference"):
    return dl.simulate(scenario(*settings), data=play, backend=backend, progress=False)


@pytest.fixture(scope="module")
def run(play):
    return ran(play, backend="native")


def test_the_loss_falls_and_the_report_has_perplexity(run):
    rounds = [r for r in run.result.rounds if r.global_metrics]
    first, last = rounds[0].global_metrics, rounds[-1].global_metrics
    assert last["perplexity"] < 0.6 * first["perplexity"] and last["perplexity"] < 60
    losses = [r.global_loss for r in rounds]
    assert losses[-1] < losses[0] - 0.5
    assert last["perplexity"] == pytest.approx(math.exp(losses[-1]), rel=0.2)  # means of devices
    report = run._report
    assert report["rounds"][-1]["global_metrics"]["perplexity"] == last["perplexity"]
    shown = page(report)
    assert "perplexity" in shown and "bits_per_character" in shown
    assert report["data"]["tokens"]["task"] == "next-token"
    assert any("tokenizer was trained" in note for note in report["data"]["notes"])


def test_perplexity_is_the_exponential_of_the_mean_loss_of_all_tokens(run):
    stage = run._simulation.stage
    model = run.model
    losses, tokens = 0.0, 0
    for device in stage.judged:
        arrays = stage.arrays[device]
        start, end = int(arrays.support), int(arrays.support) + int(arrays.query)
        logits = model.outputs(arrays.x[start:end]).astype(np.float64)
        y = arrays.y[start:end]
        counted = y >= 0
        logs = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
        own = np.take_along_axis(logs, np.where(counted, y, 0)[..., None], axis=-1)[..., 0]
        losses, tokens = losses - own[counted].sum(), tokens + counted.sum()
    last = run.result.rounds[-1].global_metrics["perplexity"]
    assert last == pytest.approx(math.exp(losses / tokens), rel=1e-4)


def test_texts_are_answered_with_tokens(run, tmp_path):
    run.save(tmp_path / "out")
    model = dl.load(tmp_path / "out", backend="reference")
    found = model.predict(["one two three", "six seven eight nine"])
    assert found.shape == (2,) and all(isinstance(each, str) for each in found.tolist())
    chances = model.predict_proba(["one two"])
    assert chances.shape == (1, model.tokens.vocabulary)
    with pytest.raises(DelianError, match="text 2 is empty"):
        model.predict(["one", ""])
    (tmp_path / "asked.txt").write_text("one two three\nsix\n")
    command = ["predict", str(tmp_path / "out"), str(tmp_path / "asked.txt")]
    lines = CliRunner().invoke(app, command).stdout.splitlines()
    assert len(lines) == 2 and all(line[0] == line[-1] == '"' for line in lines)
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    report["data"]["tokens"]["vocabulary"] += 1
    (tmp_path / "out" / "report.json").write_text(json.dumps(report))
    with pytest.raises(DelianError, match="another run's"):
        dl.load(tmp_path / "out", backend="reference").predict(["one"])


def test_masked_tokens_are_learnt_and_asked_for(play):
    found = ran(play, "data.task=masked-token", "rounds=2", "evaluation.every=1")
    one, two = (r.global_metrics["perplexity"] for r in found.result.rounds)
    assert two < one < 400
    assert found.model.predict(["one <mask> three"]).shape == (1,)
    with pytest.raises(DelianError, match="text 1 has no masked token"):
        found.model.predict(["one two"])


def test_ids_at_hand_need_no_tokenizer(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "tokenizers", None)
    path = tmp_path / "ids.npy"
    np.save(path, (np.arange(60 * 13).reshape(60, 13) % 20 + 1).astype(np.uint16))
    keys = ("data.clients=pieces", "fleet.devices=4", "data.vocabulary=24", "rounds=2")
    found = dl.simulate(scenario(*keys), data=path, backend="reference", progress=False)
    assert found.result.rounds[-1].global_metrics["perplexity"] < 24
    assert list(found.result.rounds[-1].global_metrics) == ["perplexity"]
    assert found.model.outputs(np.zeros((1, 12), np.int32)).shape == (1, 12, 24)
    with pytest.raises(DelianError, match="its tokenizer is not known"):
        found.model.predict(["one"])


@pytest.fixture
def labelled(tmp_path):
    rows = [f'"{WORDS[: 20 + k % 9]} {"yes" if k % 2 else "no"}",{k % 2}' for k in range(120)]
    path = tmp_path / "rows.csv"
    path.write_text("text,label\n" + "\n".join(rows) + "\n")
    return path


LABELS = ("data.task=classification", "data.clients=pieces", "fleet.devices=4", "data.steps=24")


def test_labels_of_texts_are_learnt(labelled):
    found = ran(labelled, *LABELS, "rounds=5")
    assert found.result.rounds[-1].global_accuracy > 0.9
    assert found.model.predict(["one two yes", "one two three no"]).tolist() == [1, 0]


def test_a_module_of_pytorch_gets_the_mask_of_tokens(labelled, tmp_path):
    pytest.importorskip("torch")
    (tmp_path / "net.py").write_text(TORCH)
    own = ("model.name=torch", f"model.file={tmp_path / 'net.py'}")
    chosen = scenario(*own, *LABELS, "rounds=2")
    found = dl.simulate(chosen, data=labelled, backend="reference", progress=False)
    model = found.model
    ids = np.zeros((2, 24), np.int32)
    ids[0, :3] = [70, 80, 90]
    ids[1] = [70, 80, 90] * 8  # the mean of tokens is the same where padding is none
    short, long = model.outputs(ids)
    np.testing.assert_allclose(short, long, atol=1e-5)
    assert np.abs(short).max() > 1e-3
    small = override(chosen, ["model.settings.ids=200"])
    with pytest.raises(DelianError, match="embeds 200 ids, and the tokenizer has 283"):
        dl.simulate(small, data=labelled, backend="reference", progress=False)


def test_a_model_of_another_vocabulary_is_refused(play, tmp_path):
    (tmp_path / "own.py").write_text(
        "import delian as dl\n"
        "def init(key, shape, classes):\n"
        "    return dl.nn.TokenTransformer.init(key, classes, classes - 1, 16, 1, 2)\n"
    )
    chosen = scenario("model.name=python", f"model.file={tmp_path / 'own.py'}")
    with pytest.raises(DelianError, match="it is another model's"):
        dl.simulate(chosen, data=play, backend="reference", progress=False)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["data.vocabulary=0"], "clients"),
        (["data.tokenizer=a.json"], "leave it out"),
        (["model.name=mlp", "data.task=masked-token"], "does not read the data source text"),
        (["model.heads=3"], "does not fall into 3 heads"),
        (["data.clients=pieces"], "needs a number of devices"),
    ],
)
def test_what_does_not_fit_is_refused(settings, said):
    with pytest.raises(DelianError, match=said):
        scenario(*settings)


def test_an_lstm_reads_tokens_too_but_only_forwards(play):
    lstm = ["model.name=lstm", "model.hidden=8", "model.layers=1", "rounds=1"]
    found = ran(play, *lstm)
    assert found.result.rounds[-1].global_metrics["perplexity"] < 400
    with pytest.raises(DelianError, match="from left to right"):
        scenario(*lstm, "data.task=masked-token")


def test_a_transformer_reads_characters(tmp_path):
    path = tmp_path / "even.txt"
    path.write_text(f"{WORDS}\n\n" * 60)
    found = dl.simulate(
        data=path,
        model="transformer",
        devices=4,
        rounds=1,
        settings={"model.width": 16, "model.depth": 1, "data.steps": 8},
        backend="reference",
        progress=False,
    )
    assert found.model.predict(["one two three"]).shape == (1,)


def test_documents_can_be_apart(play):
    found = ran(play, "model.documents_apart=true", "rounds=1")
    assert found.result.rounds[-1].global_metrics["perplexity"] < 400
    row = np.zeros((2, 12), np.int32)
    row[:, 4:] = 50
    row[0, :4], row[1, :4] = [40, 41, 42, 1], [60, 61, 62, 1]  # two documents, each with an end
    one, two = found.model.outputs(row)
    np.testing.assert_allclose(one[4:], two[4:], atol=1e-5)


def test_data_of_tokens_are_shown_without_labels(play, tmp_path):
    keys = [part for each in SMALL for part in ("--set", each)]
    command = [
        "data",
        "show",
        "text",
        "--data",
        str(play),
        *keys,
        "--out",
        str(tmp_path / "d.html"),
    ]
    said = CliRunner().invoke(app, command)
    assert said.exit_code == 0 and "rows of tokens" in said.stdout and "tokens" in said.stdout
    assert "label" not in said.stdout and "Amounts" in (tmp_path / "d.html").read_text()


def test_a_tokenizer_is_trained_by_a_command_and_read_by_a_scenario(play, tmp_path):
    out = tmp_path / "tokenizer.json"
    command = ["data", "tokenizer", str(play), "--vocabulary", "280", "--out", str(out), "--json"]
    said = json.loads(CliRunner().invoke(app, command).stdout)
    assert said["tokens"] == 280 and said["text_tokens"] < said["characters"]
    chosen = scenario("data.vocabulary=0", f"data.tokenizer={out}", "rounds=1")
    found = dl.simulate(chosen, data=play, backend="reference", progress=False)
    assert found.result.data["tokens"]["vocabulary"] == 280
    assert not found.result.data["notes"]
    assert found.result.scenario.to_json()["data"]["tokenizer"] == "tokenizer.json"
