"""Tokenizers: trained ones, files that are damaged, and what is known of their ids."""

from __future__ import annotations

import json
import sys

import pytest
from delian.core.common.errors import DelianError
from delian.core.learning.data.tokens import tokenizer_file
from delian.core.learning.data.tokens.token_federation import TokenChoice, token_facts, token_texts
from delian.core.learning.data.tokens.tokenizer_file import (
    TextTokenizer,
    read_documents,
    read_tokenizer,
    trained_tokenizer,
)

tokenizers = pytest.importorskip("tokenizers")

TEXTS = [
    "the cat sat on the mat, naïve as it was",
    "a dog ran after the cat 😀",
    "ein Wörtchen",
] * 20


@pytest.fixture(scope="module")
def trained():
    return trained_tokenizer(TEXTS, 320, "made here")


def test_a_trained_tokenizer_writes_any_text_and_gives_it_back(trained):
    other = "日本 \x00 ÿ end"
    for text in [*TEXTS[:3], other]:
        (found,) = trained.encode([text])
        assert "".join(trained._made.decode(found.tolist(), skip_special_tokens=False)) == text
    assert trained.vocabulary <= 320 and trained.special == (0, 1, 2)
    assert [trained.token(k) for k in range(3)] == ["<pad>", "<end>", "<mask>"]
    assert len(trained.encode(TEXTS[:1])[0]) < len(TEXTS[0]) / 2
    assert trained_tokenizer(TEXTS, 320, "again").text == trained.text


def test_characters_of_tokens_add_up_to_those_of_a_text(trained):
    for text in [*TEXTS[:3], "日本語 и ещё"]:
        (found,) = trained.encode([text])
        assert sum(trained.characters[k] for k in found) == len(text)
    assert trained.characters[:3] == (0, 0, 0)


def test_a_tokenizer_of_words_has_no_characters():
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[UNK]": 0, "a": 1}, "[UNK]"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made = TextTokenizer(words.to_str(), "words")
    assert made.characters == () and made.encode(["a b"])[0].tolist() == [1, 0]
    assert token_facts(made, TokenChoice()).padding is None
    with pytest.raises(DelianError, match="needs an id for mask"):
        token_facts(made, TokenChoice(task="masked-token"))
    assert token_facts(made, TokenChoice(task="masked-token", mask=0)).special == (0,)


def test_a_file_is_read_as_it_was_saved(trained, tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text(trained.text)
    assert (
        read_tokenizer(path).encode(TEXTS[:2])[1].tolist() == trained.encode(TEXTS[1:2])[0].tolist()
    )
    made = tokenizers.Tokenizer.from_file(str(path))
    made.enable_truncation(2)
    made.enable_padding(length=9)
    made.save(str(path))
    assert len(read_tokenizer(path).encode(TEXTS[:1])[0]) not in (2, 9)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.999])
def test_a_torn_file_is_refused(trained, tmp_path, share):
    path = tmp_path / "tokenizer.json"
    path.write_text(trained.text[: int(len(trained.text) * share)])
    with pytest.raises(DelianError, match=r"tokenizer.json is no tokenizer"):
        read_tokenizer(path)


@pytest.mark.parametrize(
    "content", [b"\xff\xfe", b"[]", b'{"model": {"type": "BPE"}}', b"[" * 5000]
)
def test_another_file_is_refused(tmp_path, content):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    with pytest.raises(DelianError, match="is no tokenizer"):
        read_tokenizer(path)


def test_a_huge_file_is_not_read(tmp_path, monkeypatch):
    path = tmp_path / "tokenizer.json"
    with path.open("wb") as file:
        file.truncate(tokenizer_file.TOKENIZER_BYTES_MAX + 1)
    with pytest.raises(DelianError, match="more than 64 MiB"):
        read_tokenizer(path)
    with pytest.raises(DelianError, match="no data file"):
        read_tokenizer(tmp_path / "none.json")


def test_an_id_of_millions_is_refused(trained):
    described = json.loads(trained.text)
    described["model"]["vocab"]["far"] = 1 << 30
    with pytest.raises(DelianError, match="has ids up to 1073741824"):
        TextTokenizer(json.dumps(described), "far")


@pytest.mark.parametrize("vocabulary", [0, 259, 1 << 21])
def test_a_vocabulary_has_room_for_all_bytes(vocabulary):
    with pytest.raises(DelianError, match="more than 259"):
        trained_tokenizer(TEXTS, vocabulary, "none")


def test_where_the_package_is_missing_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(DelianError, match="not installed") as fault:
        trained_tokenizer(TEXTS, 300, "none")
    assert "[text]" in fault.value.hint


def test_documents_of_files_and_folders_are_read(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "b.md").write_text("three\n")
    (tmp_path / "a.txt").write_text("one\n\ntwo\n")
    assert read_documents([tmp_path / "a.txt", tmp_path]) == [
        *("one", "two\n"),
        *("one", "two\n", "three\n"),
    ]
    (tmp_path / "none").mkdir()
    with pytest.raises(DelianError, match="no text among it"):
        read_documents([tmp_path / "none"])


def test_devices_of_a_folder_have_files_and_of_a_play_roles(tmp_path):
    for k in range(4):
        (tmp_path / f"{k}.txt").write_text(f"text {k}\n\nmore of {k}\n" * 20)
    found = token_texts(tmp_path, TokenChoice(devices=2, steps=8, vocabulary=300), None)
    assert found.names == ("part-1", "part-2") and found.example_shape == (8,)
    with pytest.raises(DelianError, match="has 4 texts"):
        token_texts(tmp_path, TokenChoice(devices=5, steps=8, vocabulary=300), None)
    play = tmp_path / "play.txt"
    play.write_text("\n\n".join(f"{role}:\nwords of {role}" for role in "ABC" * 30))
    roles = token_texts(
        play, TokenChoice(clients="roles", min_characters=100, steps=8, vocabulary=300), None
    )
    assert roles.names == ("A", "B", "C")
    # Held-out devices' texts are not what the tokenizer is made of.
    apart = TokenChoice(
        clients="roles", min_characters=100, steps=8, vocabulary=300, held_out_devices=1
    )
    held = token_texts(play, apart, None)
    assert held.tokens.tokenizer != roles.tokens.tokenizer


def test_texts_with_labels_are_dealt_out_by_rows(tmp_path):
    path = tmp_path / "rows.csv"
    lines = [f"{'good' if k % 2 else 'bad'} thing {k},{k % 2},d{k % 3}" for k in range(60)]
    path.write_text("text,label,device\n" + "\n".join(lines) + "\n")
    found = token_texts(path, TokenChoice(task="classification", steps=6, vocabulary=300), None)
    assert found.names == ("d0", "d1", "d2") and found.classes == 2
    assert found.devices[0].x.shape == (20, 6) and found.devices[0].y.shape == (20,)
    assert found.card.label_names == ("0", "1") and found.tokens.padding == 0
    path.write_text("a,b,label\n" + "one,two,x\nthree,four,y\n" * 10)
    with pytest.raises(DelianError, match="no column `text`"):
        token_texts(path, TokenChoice(task="classification", vocabulary=300, devices=2), None)
