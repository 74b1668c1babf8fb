"""Data of text: characters or tokens."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from .partition_settings import RowData
from .settings_table import DEVICES_MAX, conflict


class ShakespeareData(RowData):
    """The next character of a play: a speaking role is a device."""

    source: Literal["shakespeare"] = "shakespeare"
    """Where the data comes from."""
    path: str | None = None
    """The text file, relative to the scenario's folder. `--data` wins over it."""
    steps: int = Field(default=80, ge=2, le=4096)
    """Characters in a window."""
    min_characters: int = Field(default=1000, ge=8, le=10_000_000)
    """Roles that say less are left out."""
    max_windows: int = Field(default=200, ge=2, le=100_000)
    """At most this many windows of a role are used."""
    query_fraction: float = Field(default=0.2, gt=0.0, lt=1.0)
    """The share of a role's windows, the last ones, that only judge."""
    held_out_devices: int = Field(default=0, ge=0, le=DEVICES_MAX)
    """Roles that never train and show how the model serves newcomers."""
    held_out_query_fraction: float | None = Field(default=None, gt=0.0, lt=1.0)
    """The share of their windows that only judge; they adapt to the rest. Absent: as others."""


class TextData(RowData):
    """Your own text, in characters or in tokens; a device holds one piece of it.

    Without `tokenizer` and `vocabulary`: the next character of a text file. With one of them rows
    are ids of tokens, of a text, a folder of texts, a table of texts with labels, or ids in an .npy
    file [n, T].
    """

    source: Literal["text"] = "text"
    """Where the data comes from."""
    path: str | None = None
    """The text file, relative to the scenario's folder. `--data` wins over it."""
    steps: int = Field(default=80, ge=2, le=4096)
    """Characters, or tokens, in a window."""
    max_windows: int = Field(default=200, ge=2, le=100_000)
    """At most this many windows of a piece are used."""
    query_fraction: float = Field(default=0.2, gt=0.0, lt=1.0)
    """The share of a piece's windows, the last ones, that only judge."""
    held_out_devices: int = Field(default=0, ge=0, le=DEVICES_MAX)
    """Pieces that never train and show how the model serves newcomers."""
    task: Literal["next-token", "masked-token", "classification"] = "next-token"
    """What is learnt: the next token, tokens that are masked (BERT's 15%), or a label a text."""
    tokenizer: str | None = None
    """A tokenizer.json of Hugging Face's tokenizers, relative to the scenario's folder."""
    vocabulary: int = Field(default=0, ge=0, le=1 << 20)
    """Without a tokenizer: a byte-level BPE of so many tokens is trained on the texts of the
    devices that train. Of ids in a file: how many ids there are. 0: characters, or the ids found.
    """
    packing: bool = True
    """Whether documents follow one another in a window, each with its end; labels across the border
    do not count. Otherwise a window is of one document, and padded.
    """
    documents: Literal["paragraphs", "lines", "whole"] = "paragraphs"
    """What a document of a text is; `whole`: a file, or a device's piece of it."""
    clients: Literal["pieces", "roles"] = "pieces"
    """What a device holds of a text in tokens: a piece, or what a role of a play says, whose
    speeches are its documents.
    """
    min_characters: int = Field(default=1000, ge=1, le=10_000_000)
    """Roles that say less are left out."""
    target: str = ""
    """Of texts with labels, the column of labels. Absent: as of `table`."""
    padding_id: int | None = Field(default=None, ge=0, le=1 << 20)
    """The id of padding. Absent: the tokenizer's."""
    end_id: int | None = Field(default=None, ge=0, le=1 << 20)
    """The id after a document. Absent: the tokenizer's."""
    mask_id: int | None = Field(default=None, ge=0, le=1 << 20)
    """The id of a masked token. Absent: the tokenizer's."""

    @property
    def in_tokens(self) -> bool:
        """Whether rows are ids of tokens, and not characters."""
        ids = self.path is not None and self.path.endswith(".npy")
        return bool(self.tokenizer or self.vocabulary or ids)

    @model_validator(mode="after")
    def _tokens_have_a_tokenizer(self) -> Self:
        if self.tokenizer and self.vocabulary:
            raise conflict("vocabulary", "the vocabulary is that of data.tokenizer: leave it out")
        if self.in_tokens:
            return self
        defaults = {"task": "next-token", "clients": "pieces"}
        for key, usual in defaults.items():
            if getattr(self, key) != usual:
                raise conflict(
                    key,
                    f"{getattr(self, key)} is for tokens, and the data is in characters: set"
                    " data.tokenizer or data.vocabulary",
                )
        return self
