"""Plain technical English: words of a private dialect do not come back into text that people read.

Read are the docstrings, comments and texts of the code, the pages of the documentation, and the
wire contract.
`docs/glossary.md` has the terms to use instead.
"""

from __future__ import annotations

import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

#: What stands for a node, a process or a thing, but is said of people.
PERSONS = "who whom whoever nobody somebody anybody everybody strangers?"
#: What machines do not do: they send, receive, report, store.
SPEECH = "tells? told hears? heard speaks? spoke spoken believes? believed remembers? knocks?"
#: Words that a dictionary marks as old or rare, and phrases that need a second reading.
RARE = "anew beside betwixt ere lest whence thereof hitherto sittings?"
PHRASES = ("of which none", "for want of", "none: none", "makes the model its own", "is no more")
#: Triggers, which records of runs name; the page of the protocol lists them.
TRIGGERS = (
    "edge has started anew",
    "answer that nobody waits for",
    "nobody wanted the sum",
    "time to go on without who is silent, or to ask them again",
)
#: Those, names that are stored or sent, labels of random streams, a parameter of Federation.
TERMS = re.compile(
    "|".join(TRIGGERS)
    + r"|^\"(strangers?|told|nobody)\"$|^b\"heard\"$|^f\" stranger\"$|\bbeside: whether"
)
#: The first column of the glossary's last table: the words that are replaced.
REPLACED = re.compile(r"^\| [^|]+(?=\|)")

DIALECT = re.compile(
    rf"\b(?:{'|'.join([*PERSONS.split(), *SPEECH.split(), *RARE.split(), *PHRASES])})\b", re.I
)

#: What is read.
CODE = ("__main__.py", "cli", "cloud", "core", "device", "edge", "simulations")
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for pattern in ("*.md", "docs/**/*.md", "proto/*.proto")
    for path in ROOT.glob(pattern)
)


def dialect(text: str) -> list[str]:
    return [found.group() for found in DIALECT.finditer(TERMS.sub("", text))]


def texts(path: Path) -> list[tuple[int, str]]:
    """Comments and texts of a module, with their lines."""
    with tokenize.open(path) as file:
        tokens = list(tokenize.generate_tokens(io.StringIO(file.read()).readline))
    kinds = (tokenize.STRING, tokenize.COMMENT)
    return [
        (token.start[0], without_fields(token.string)) for token in tokens if token.type in kinds
    ]


def without_fields(text: str) -> str:
    """An f-string without its expressions: they are code."""
    return re.sub(r"\{[^{}]*\}", "", text) if re.match(r"[rR]?[fF]", text) else text


def lines_of(page: str) -> list[str]:
    """The lines of a page, without the words that it lists as those not to use."""
    text = (ROOT / page).read_text(encoding="utf-8")
    used, heading, listed = text.partition("## Older words in the code")
    lines = used.split("\n")
    return lines + [REPLACED.sub("", line) for line in (heading + listed).split("\n")[1:]]


@pytest.mark.parametrize("name", CODE)
def test_code_is_written_in_plain_english(name):
    place = ROOT / name
    found = [
        f"{path.relative_to(ROOT)}:{line}: {', '.join(words)}"
        for path in (sorted(place.rglob("*.py")) if place.is_dir() else [place])
        if "_pb2" not in path.name
        for line, text in texts(path)
        if (words := dialect(text))
    ]
    assert not found, "use the terms of docs/glossary.md: " + "; ".join(found)


@pytest.mark.parametrize("page", PAGES)
def test_documentation_is_written_in_plain_english(page):
    found = [
        f"{page}:{n}: {', '.join(words)}"
        for n, line in enumerate(lines_of(page), 1)
        if (words := dialect(line))
    ]
    assert not found, "use the terms of docs/glossary.md: " + "; ".join(found)


def test_dialect_is_found_where_it_is():
    assert dialect("Nobody is told anew who has left.") == ["Nobody", "told", "anew", "who"]
    assert dialect("The whole holder retells it; whose turn?") == []
