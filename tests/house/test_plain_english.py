"""Plain technical English: words of a private dialect do not come back into text that people read.

Read are the docstrings, comments and texts of the folders in CLEAN, and the pages in PAGES.
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
#: Names that are stored or sent, labels of random streams, a parameter of Federation.
TERMS = re.compile(
    r"^\"(strangers?|told|nobody|edge has started anew|answer that nobody waits for"
    r"|nobody wanted the sum|time to go on without who is silent, or to ask them again)\"$"
    r"|^b\"heard\"$|^f\" stranger\"$|\bbeside: whether"
)

DIALECT = re.compile(
    rf"\b(?:{'|'.join([*PERSONS.split(), *SPEECH.split(), *RARE.split(), *PHRASES])})\b", re.I
)

#: Folders without the dialect. A folder is added when it is clean, and stays.
CLEAN: tuple[str, ...] = (
    "cli",
    "cloud/authority",
    "cloud/protocol",
    "cloud/service",
    "cloud/store",
    "core/common",
    "core/compiler/backends",
    "core/compiler/ops",
    "core/compiler/passes",
    "core/compiler/primitives",
    "core/compiler/transforms",
    "core/learning",
    "core/node",
    "core/placement",
    "core/privacy",
    "core/protocol",
    "core/wire",
    "device/agent",
    "device/protocol",
    "device/serving",
    "edge/protocol",
    "edge/service",
    "simulations/dst",
    "simulations/federation",
    "simulations/placement",
    "simulations/processes",
    "simulations/report",
    "simulations/resume",
    "simulations/runs",
    "simulations/scenario",
)
#: The glossary lists the words; the protocol's page has triggers that records of runs name.
NOT_READ = {"docs/glossary.md", "docs/language.md", "docs/protocol.md"}
PAGES = sorted(
    name
    for pattern in ("*.md", "docs/**/*.md")
    for path in ROOT.glob(pattern)
    if (name := path.relative_to(ROOT).as_posix()) not in NOT_READ
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


@pytest.mark.parametrize("folder", CLEAN)
def test_code_is_written_in_plain_english(folder):
    found = [
        f"{path.relative_to(ROOT)}:{line}: {', '.join(words)}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        if "_pb2" not in path.name
        for line, text in texts(path)
        if (words := dialect(text))
    ]
    assert not found, "use the terms of docs/glossary.md: " + "; ".join(found)


@pytest.mark.parametrize("page", PAGES)
def test_documentation_is_written_in_plain_english(page):
    lines = (ROOT / page).read_text(encoding="utf-8").split("\n")
    found = [
        f"{page}:{n}: {', '.join(w)}" for n, line in enumerate(lines, 1) if (w := dialect(line))
    ]
    assert not found, "use the terms of docs/glossary.md: " + "; ".join(found)


def test_dialect_is_found_where_it_is():
    assert dialect("Nobody is told anew who has left.") == ["Nobody", "told", "anew", "who"]
    assert dialect("The whole holder retells it; whose turn?") == []
