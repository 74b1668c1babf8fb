"""`delian data tokenizer`: trains a tokenizer on texts at hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from ..output import echo

VOCABULARY = 2000


def tokenizer(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="PATH...", help="Text files (.txt, .text, .md), or folders of them."
        ),
    ],
    out: Annotated[
        Path, typer.Option("--out", metavar="FILE", help="Where the tokenizer is written.")
    ] = Path("tokenizer.json"),
    vocabulary: Annotated[
        int,
        typer.Option("--vocabulary", metavar="N", min=260, help="Tokens; fewer for little text."),
    ] = VOCABULARY,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Train a byte-level BPE on texts, as a tokenizer.json of Hugging Face's tokenizers.

    It reads the texts whole, here, and what is frequent in them is in the tokenizer: use texts of
    your own or public ones, and not those of devices. It has the tokens <pad>, <end> and <mask>.

    A scenario takes it as `data.tokenizer`. Needs the extra `text`.
    """
    from ...core.learning.data.tokens.tokenizer_file import read_documents, trained_tokenizer
    from ...simulations.report.report import write_whole

    texts = read_documents(paths)
    made = trained_tokenizer(texts, vocabulary, str(out))
    write_whole(out, made.text.encode())  # as bytes: nothing in it is changed
    characters = sum(map(len, texts))
    tokens = sum(map(len, made.encode(texts)))
    facts = {"tokens": made.vocabulary, "characters": characters, "text_tokens": tokens}
    if as_json:
        echo(json.dumps({"file": str(out), **facts}))
        return
    echo(f"{made.vocabulary} tokens from {characters:,} characters: {out}")
    echo(f"the texts have {tokens:,} tokens, of {characters / tokens:.2f} characters each")
