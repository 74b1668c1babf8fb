"""Tutorials as programs: their blocks of code run as they stand, their outputs are compared.

A page's blocks are run in order, in one new folder:

    ```sh                      by bash; a failing command fails the page
    ```python                  as one script with the blocks of Python right before it
    ```python title="net.py"   is written to the file, as any block with a title
    ```text                    is what the block before it prints
    ```console                 is read by people only

In an output, `...` stands for the rest of a line, or alone for any lines. Times and rates may
differ, and percentages by `PERCENT_OFF`: processors round differently, and training carries it on.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .terminals import environment

BLOCK = re.compile(r'^```(\w+)(?: title="([\w./]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
PERCENT = re.compile(r"[-+]?\d+\.\d%")
TIME = re.compile(r"\d[\d,]*(?:\.\d+)?(?= (?:s|ms|min|updates a second)\b)")
PERCENT_OFF = 4.0
#: Between the outputs of two blocks of one script.
NEXT = "\x1e"
BLOCK_S = 1200.0
QUIET = {"NO_COLOR": "1", "COLUMNS": "100", "MPLBACKEND": "agg"}


@dataclass(frozen=True)
class Block:
    """A block of code: `sh`, `python`, `text` and so on."""

    language: str
    title: str
    text: str


def blocks_of(page: Path) -> list[Block]:
    """The blocks of a page, in order."""
    return [Block(*found) for found in BLOCK.findall(page.read_text(encoding="utf-8"))]


def run(page: Path, folder: Path) -> Iterator[tuple[Block, str, str]]:
    """Runs a page in `folder`: its runnable blocks, what each prints, and what the page shows."""
    work, env = folder / "work", environment(folder) | QUIET
    work.mkdir()
    pending: list[tuple[Block, str]] = []
    blocks = [block for block in blocks_of(page) if block.language != "console"]
    for block, following in zip(blocks, [*blocks[1:], Block("", "", "")], strict=True):
        shown = following.text if following.language == "text" else ""
        if block.title:
            (work / block.title).write_text(block.text)
        elif block.language == "python":
            pending.append((block, shown))
        elif block.language == "sh":
            yield from script(pending, work, env)
            pending = []
            yield block, printed(["bash", "-euo", "pipefail", "-c", block.text], work, env), shown
    yield from script(pending, work, env)


def script(
    parts: list[tuple[Block, str]], work: Path, env: dict[str, str]
) -> Iterator[tuple[Block, str, str]]:
    """Runs blocks of Python as one script."""
    if parts:
        (work / "script.py").write_text(f"print({NEXT!r})\n".join(b.text for b, _ in parts))
        outputs = printed([sys.executable, "script.py"], work, env).split(NEXT + "\n")
        for (block, shown), said in zip(parts, outputs, strict=True):
            yield block, said, shown


def printed(command: list[str], work: Path, env: dict[str, str]) -> str:
    """The standard output of a command that succeeds."""
    done = subprocess.run(
        command, cwd=work, env=env, text=True, capture_output=True, timeout=BLOCK_S, check=False
    )
    assert done.returncode == 0, f"{command[-1]}\n{done.stdout}\n{done.stderr[-4000:]}"
    return done.stdout


def differs(said: str, shown: str) -> str:
    """Where the output of a block is not what its page shows; empty: it is."""
    found = re.search(pattern(shown), "\n".join(line.rstrip() for line in said.splitlines()))
    if found is None:
        return f"the page shows\n{shown}\nbut it printed\n{said}"
    numbers = [float(number[:-1]) for number in PERCENT.findall(shown)]
    for there, here in zip(numbers, found.groups(), strict=True):
        if abs(there - float(here[:-1])) > PERCENT_OFF:
            return f"the page shows {there}%, and it printed {here}:\n{said}"
    return ""


def pattern(shown: str) -> str:
    """The lines of a page's output as a regular expression; a group a percentage."""
    lines = []
    for line in shown.rstrip().splitlines():
        if line.strip() == "...":
            lines.append(r"(?:.*\n)*?")
            continue
        text = PERCENT.sub("\0", TIME.sub("\1", line.rstrip()))
        text = re.escape(text).replace(re.escape("..."), ".*?")
        text = re.sub(r"(?:\\ )+", r" +", text)
        text = text.replace("\0", r"([-+]?\d+\.\d%)").replace("\1", r"[\d,.]+")
        lines.append(text + "(?:\n|$)")
    return "".join(lines)
