"""Texts asked of a run on a text: `dl.load(run).predict(texts)`, and `delian predict` of files."""

import json

import delian as dl
import numpy as np
import pytest
from delian.cli.main import app
from typer.testing import CliRunner

SMALL = {"model.hidden": 24, "model.embedding": 4, "model.layers": 1, "algorithm.epochs": 3}
STEPS = 8


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run on a text that a model of a few steps foretells, and the folder it is saved in."""
    folder = tmp_path_factory.mktemp("text")
    (folder / "even.txt").write_text("one two three four five\n\n" * 200)
    found = dl.simulate(
        data=folder / "even.txt",
        rounds=6,
        devices=4,
        settings={**SMALL, "data.steps": STEPS},
        backend="reference",
        progress=False,
    )
    found.save(folder / "out")
    return found, folder / "out"


@pytest.fixture
def asked(run, tmp_path, monkeypatch):
    def ask(name: str, content: str, *options: str):
        (tmp_path / name).write_text(content)
        command = ["predict", str(run[1]), str(tmp_path / name), *options]
        return CliRunner().invoke(app, command)

    return ask


def test_a_text_is_answered_with_the_character_that_follows_it(run):
    texts = ["two thre", "one two three fou", "one two thr", "th"]
    found = run[0].model.predict(texts)
    assert found.shape == (4,) and set(found) <= set("ehinoruvwtfx \n")
    assert found[:2].tolist() == ["e", "r"]
    chances = run[0].model.predict_proba(texts)
    assert chances.shape == (4, len(run[0].model.labels))
    np.testing.assert_allclose(chances.sum(axis=1), 1, atol=1e-5)
    assert run[0].personal_model(0).predict(texts).shape == (4,)


def test_the_answer_is_that_of_the_window_s_last_step(run):
    model, text = run[0].model, "one two three"
    code = {each: k for k, each in enumerate(model.labels)}
    window = np.array([[code[each] for each in text[-STEPS:]]], np.uint8)
    np.testing.assert_array_equal(model.outputs([text])[0], model.outputs(window)[0, -1])
    short = np.zeros((1, STEPS), np.uint8)
    short[0, :3] = [code[each] for each in "thr"]
    np.testing.assert_array_equal(model.outputs(["thr"])[0], model.outputs(short)[0, 2])


def test_arrays_and_any_number_of_texts_are_taken(run):
    model = dl.load(run[1], backend="reference")
    texts = np.array(["two thr", "four fi"] * 200)
    found = model.predict(texts)
    assert found.shape == (400,) and len(set(found[::2])) == 1
    np.testing.assert_array_equal(found, run[0].model.predict(texts.astype(object)))


@pytest.mark.parametrize(
    ("texts", "why"),
    [
        (["one", ""], "text 2 is empty"),
        (["one", "two!"], "text 2 has the character '!'"),
        ("one", "this is one"),
    ],
)
def test_what_is_no_text_of_the_model_is_refused(run, texts, why):
    with pytest.raises(dl.DelianError, match=why):
        run[0].model.predict(texts)


def test_a_model_of_rows_takes_no_texts():
    x = np.random.default_rng(0).normal(size=(80, 3))
    other = dl.simulate(
        data=(x, (x[:, 0] > 0).astype(int)), rounds=1, backend="reference", progress=False
    )
    with pytest.raises(dl.DelianError, match="takes no texts"):
        other.model.predict(["one", "two"])


def test_lines_and_columns_of_files_are_texts(asked):
    lines = asked("new.txt", "two thre\none two three fou\n").stdout
    assert lines.splitlines() == ['"e"', '"r"']
    table = asked("new.csv", "kind,text\na,two thre\nb,four five\nb,three \n", "--json").stdout
    found = json.loads(table)["predictions"]
    assert len(found) == 3 and found[0] == "e"
    spaces = json.loads(asked("space.csv", "text\nthree \nthree\n", "--json").stdout)
    assert spaces["predictions"][0] != spaces["predictions"][1]  # a space at the end is read
    odds = asked("new.txt", "two thre\n", "--probabilities").stdout.split("\t")
    assert odds[0] == '"e"' and len(odds) > 10


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("empty.txt", "", "is empty"),
        ("two.csv", "a,b\none,two\n", "has no column `text`"),
    ],
)
def test_files_without_texts_are_refused(asked, name, content, why):
    fault = asked(name, content).exception
    assert isinstance(fault, dl.DelianError) and why in fault.message


def test_a_model_that_looks_ahead_gives_no_answer_for_short_texts():
    from delian.core.learning.next_character import after_texts

    def ahead(windows):
        """Logits of each step that depend on the next character."""
        return np.eye(3, dtype=np.float32)[np.roll(windows, -1, axis=1)]

    assert after_texts(["abca"], "abc", 4, ahead).shape == (1, 3)
    with pytest.raises(dl.DelianError, match="looks at what follows"):
        after_texts(["ab"], "abc", 4, ahead)
