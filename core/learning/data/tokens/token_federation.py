"""Texts, or ids at hand, as a federation of rows of token ids.

A device holds a role of a play, a piece of a text, some files of a folder, or rows. Its query set
is the end of its text, so that no neighbouring tokens lie in both sets. Rows with one label each
are dealt out like those of any table.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ....common.errors import DelianError
from .. import federated_data
from ..data_files import require_file
from ..labelled_arrays import Labelled, federate
from ..partition.deal import Deal
from ..shakespeare_plays import speech_blocks
from ..stored_rows import StoredArray
from ..tabular.brought_folders import read_table
from ..tabular.tables import TableChoice, table_of
from ..tabular.text_folders import SUFFIXES, TEXT, read_text_files
from ..text_pieces import cut, text_of
from .token_facts import VOCABULARY_MAX, TokenFacts, TokenTask
from .token_rows import Ids, padded_texts, rows_of, shifted_rows
from .tokenizer_file import ENDS, MASKS, PADDINGS, TextTokenizer, trained_tokenizer

Documents = Literal["paragraphs", "lines", "whole"]
Clients = Literal["pieces", "roles"]
#: What says a tokenizer, after the texts that it may be trained on are known.
Tokenized = Callable[[Sequence[str]], TextTokenizer]

_PARAGRAPHS = re.compile(r"(?<=\n)\s*\n")
ROWS_MIN = 2
_TRAINED = (
    "the tokenizer was trained on the texts of the devices that train, together, and rows that"
    " judge may be among them: for devices of others, train it on public text"
)


@dataclass(frozen=True)
class TokenChoice:
    """How texts become rows of ids on devices."""

    task: TokenTask = "next-token"
    """What is learnt."""
    steps: int = 64
    """Tokens of a row."""
    packing: bool = True
    """Whether documents follow one another in a row."""
    documents: Documents = "paragraphs"
    """What a document is: a paragraph of a text, a line, or a file whole."""
    clients: Clients = "pieces"
    """What a device holds of a text: a piece, or what a role of a play says."""
    devices: int | None = None
    """How many; None: all roles."""
    min_characters: int = 1000
    """Roles that say less are left out."""
    max_windows: int = 200
    """Rows of a device are so many at most."""
    query_fraction: float = 0.2
    """The share of a device's rows that only judge."""
    held_out_devices: int = 0
    """Devices that never train."""
    seed: int = 0
    """Draws devices that are held out, and roles where not all are wanted."""
    padding: int | None = None
    """The id of padding; None: the tokenizer's."""
    end: int | None = None
    """The id of a document's end; None: the tokenizer's."""
    mask: int | None = None
    """The id of the mask; None: the tokenizer's."""
    vocabulary: int = 0
    """Of a tokenizer that is trained, its tokens; of ids at hand, how many there are."""
    target: str = ""
    """Of texts with labels, the column of labels; empty: found by its name."""


def token_texts(
    path: Path, choice: TokenChoice, tokenizer: TextTokenizer | None
) -> federated_data.FederatedData:
    """What devices hold of a text, a folder of texts, a table of texts with labels, or ids.

    Args:
        path: a text file, a folder of them, an .npy file of ids [n, T]; for classification a table
            with texts and labels or a folder of texts by class.
        choice: how.
        tokenizer: None: one is trained on the rows that train. Ids at hand need none.

    Raises:
        DelianError: what is at the path does not fit the choice, or is too little.
    """
    if path.suffix == ".npy":
        return _of_ids(path, choice)

    def tokenized(texts: Sequence[str]) -> TextTokenizer:
        name = f"the tokenizer of {path.name}"
        return tokenizer or trained_tokenizer(texts, choice.vocabulary, name)

    notes = () if tokenizer is not None else (_TRAINED,)
    if choice.task == "classification":
        return _labelled(path, choice, tokenized, notes)
    if choice.clients == "roles":
        blocks = speech_blocks(text_of(path))
        parts, left_out = _roles(path, blocks, choice)
        dealt, least = "a role a device", f"{choice.min_characters:,} characters"
    else:
        parts, left_out, least = _pieces(path, choice), 0, ""
        dealt = "a part of the texts a device" if path.is_dir() else "a piece of the text a device"
    return _of_documents(path.name, parts, dealt, choice, tokenized, notes, left_out, least)


def token_facts(tokenizer: TextTokenizer, choice: TokenChoice) -> TokenFacts:
    """What is known of a tokenizer's ids. Raises DelianError where a task needs an id more."""
    chosen = {"padding": choice.padding, "end": choice.end, "mask": choice.mask}
    names = {"padding": PADDINGS, "end": ENDS, "mask": MASKS}
    ids = {
        key: tokenizer.id_of(names[key]) if given is None else given
        for key, given in chosen.items()
    }
    special = {*tokenizer.special, *(each for each in ids.values() if each is not None)}
    return _checked(
        TokenFacts(
            choice.task,
            tokenizer.vocabulary,
            **ids,
            special=tuple(sorted(special)),
            characters=tokenizer.characters if choice.task == "next-token" else (),
            tokenizer=tokenizer.text,
        )
    )


def _checked(facts: TokenFacts) -> TokenFacts:
    for name in ("padding", "end", "mask"):
        if (found := getattr(facts, name)) is not None and found >= facts.vocabulary:
            raise DelianError(
                f"data.{name}_id is {found}, and the vocabulary has {facts.vocabulary} ids",
                "ids count from 0",
            )
    needed = {"masked-token": "mask", "classification": "padding"}.get(facts.task)
    if needed is not None and getattr(facts, needed) is None:
        raise DelianError(
            f"the task {facts.task} needs an id for {needed}, and the tokenizer has no such token",
            f"name the id: data.{needed}_id=N",
        )
    return facts


def _pieces(path: Path, choice: TokenChoice) -> dict[str, list[str]]:
    """Each device's documents: a piece of a text, or some of a folder's files."""
    devices = choice.devices
    assert devices is not None, "the scenario checked it"
    if path.is_dir():
        files = sorted(each for each in path.iterdir() if each.suffix.lower() in SUFFIXES)
        if len(files) < devices:
            raise DelianError(
                f"{path} has {len(files)} texts ({', '.join(SUFFIXES)}) for {devices} devices",
                f"--set fleet.devices={len(files)}" if files else "put the texts into the folder",
            )
        texts = read_text_files(files)
        shares = np.array_split(np.arange(len(texts)), devices)
        pieces = [[texts[i] for i in share] for share in shares]
    else:
        pieces = [[piece] for piece in cut(text_of(path), devices)]
    width = len(str(devices))
    return {
        f"part-{i + 1:0{width}}": [d for text in held for d in split(text, choice.documents)]
        for i, held in enumerate(pieces)
    }


def split(text: str, documents: Documents) -> list[str]:
    """A text's documents, in order; what is between them is left out, and so are empty ones."""
    if documents == "whole":
        found = [text]
    else:
        found = text.split("\n") if documents == "lines" else _PARAGRAPHS.split(text)
    return [each for each in found if each.strip()]


def _roles(
    path: Path, blocks: Mapping[str, list[str]], choice: TokenChoice
) -> tuple[dict[str, list[str]], int]:
    """Each role's speeches, and how many roles say too little."""
    sizes = {role: sum(map(len, said)) for role, said in blocks.items()}
    roles = sorted(role for role, size in sizes.items() if size >= choice.min_characters)
    wanted = len(roles) if choice.devices is None else choice.devices
    if not roles or wanted > len(roles):
        raise DelianError(
            f"{path} has {len(roles)} roles of at least {choice.min_characters} characters;"
            f" {wanted or 1} are asked for",
            "lower fleet.devices or data.min_characters; data.clients=pieces deals any text",
        )
    rng = np.random.default_rng([choice.seed, federated_data.PARTITION_STREAM])
    names = [roles[i] for i in sorted(rng.choice(len(roles), wanted, replace=False))]
    return {name: blocks[name] for name in names}, len(blocks) - len(roles)


def _of_documents(
    source: str,
    parts: Mapping[str, list[str]],
    dealt: str,
    choice: TokenChoice,
    tokenized: Tokenized,
    notes: tuple[str, ...],
    left_out: int,
    least: str,
) -> federated_data.FederatedData:
    """Devices that each hold documents, by name."""
    names = tuple(parts)
    held_out = federated_data.hold_out(len(names), choice.held_out_devices, choice.seed)
    training = [
        document
        for i, name in enumerate(names)
        if i not in held_out
        for document in _before_query(parts[name], choice.query_fraction)
    ]
    tokenizer = tokenized(training)
    facts = token_facts(tokenizer, choice)
    whole = facts.task == "masked-token" and not choice.packing
    made = [
        rows_of(
            tokenizer.encode(parts[name], whole=whole, most=choice.steps if whole else 0),
            choice.steps,
            facts,
            choice.packing,
        )
        for name in names
    ]
    how = "packed" if choice.packing else "padded"
    words = f"{dealt}, {how} rows of {choice.steps} tokens"
    return _federation(source, names, made, words, facts, choice, held_out, notes, left_out, least)


def _before_query(documents: Sequence[str], query_fraction: float) -> Sequence[str]:
    """Those before the last, which judge; of a single one its begin."""
    if len(documents) == 1:
        return [documents[0][: max(1, int(len(documents[0]) * (1 - query_fraction)))]]
    return documents[: max(1, int(len(documents) * (1 - query_fraction)))]


def _federation(
    source: str,
    names: tuple[str, ...],
    made: Sequence[tuple[Ids, Ids]],
    dealt: str,
    facts: TokenFacts,
    choice: TokenChoice,
    held_out: frozenset[int],
    notes: tuple[str, ...] = (),
    left_out: int = 0,
    least: str = "",
) -> federated_data.FederatedData:
    """Devices with rows (x, y), by name."""
    for name, (x, _) in zip(names, made, strict=True):
        if len(x) < ROWS_MIN:
            raise DelianError(
                f"device `{name}` has {len(x)} rows of {choice.steps} tokens, of which some train"
                " and some judge",
                "shorter rows (data.steps), or fewer devices with more text each",
            )
    cuts = [(x[: choice.max_windows], y[: choice.max_windows]) for x, y in made]
    sizes = [len(x) for x, _ in cuts]
    starts = np.cumsum([0, *sizes])
    x, y = (np.concatenate([each[k] for each in cuts]) for k in (0, 1))
    rows = [np.arange(a, a + n) for a, n in zip(starts, sizes, strict=False)]
    tables = federated_data.make_tables(
        x, y, rows, names, choice.query_fraction, choice.seed, shuffle=False
    )
    card = federated_data.DataCard(
        source,
        dealt,
        "rows of tokens",
        tuple(sizes),
        (),
        ((),) * len(names),
        left_out=left_out,
        least=least,
        notes=notes,
        tokens=facts.to_json(),
    )
    return federated_data.FederatedData(
        tables, held_out, (choice.steps,), facts.vocabulary, names, card, tokens=facts
    )


def _of_ids(path: Path, choice: TokenChoice) -> federated_data.FederatedData:
    """Rows of ids in an .npy file, a piece of them a device. Of next tokens a row has one more."""
    if choice.task == "classification":
        raise DelianError(
            f"{path} has ids without labels", "give arrays (.npz with `x` and `y`): source = npz"
        )
    ids = read_ids(path)
    least = int(ids.max()) + 1
    vocabulary = choice.vocabulary or max(least, 2)
    if least > vocabulary:
        raise DelianError(
            f"{path} has the id {least - 1}, and the vocabulary has {vocabulary} ids",
            f"data.vocabulary={least}, or the model's and the ids' tokenizers differ",
        )
    given: dict[str, Any] = {"padding": choice.padding, "end": choice.end, "mask": choice.mask}
    special = tuple(sorted({each for each in given.values() if each is not None}))
    facts = _checked(TokenFacts(choice.task, vocabulary, **given, special=special))
    devices = choice.devices
    assert devices is not None, "the scenario checked it"
    if len(ids) < devices * ROWS_MIN:
        raise DelianError(
            f"{path} has {len(ids)} rows for {devices} devices, which have {ROWS_MIN} at least",
            f"--set fleet.devices={max(1, len(ids) // ROWS_MIN)}",
        )
    if choice.task == "next-token":
        if ids.shape[1] < ROWS_MIN:
            raise DelianError(f"{path} has rows of one id: none follows", "rows of more ids")
        x, y = shifted_rows(ids, facts)
    else:
        x, y = ids, ids
    made = [(x[part], y[part]) for part in np.array_split(np.arange(len(x)), devices)]
    held_out = federated_data.hold_out(devices, choice.held_out_devices, choice.seed)
    width = len(str(devices))
    names = tuple(f"part-{i + 1:0{width}}" for i in range(devices))
    own = dataclasses.replace(choice, steps=x.shape[1])
    dealt = f"a piece of the rows a device, rows of {x.shape[1]} ids"
    return _federation(path.name, names, made, dealt, facts, own, held_out)


def read_ids(path: Path) -> Ids:
    """Ids i32[n, T] of an .npy file of whole numbers. Raises DelianError."""
    require_file(path, "give the file's path with --data FILE or data.path")
    stored = StoredArray(path)
    if stored.dtype.kind not in "iu" or len(stored.shape) != 1:
        raise DelianError(
            f"{path} is {stored.dtype}{[stored.rows, *stored.shape]}",
            "ids are whole numbers [n, T], such as i32 or u16, a row a window",
        )
    federated_data.check_memory(1, stored.rows, 2 * stored.shape[0] * np.dtype(np.int32).itemsize)
    found = stored.read(0, stored.rows)
    low, high = int(found.min()), int(found.max())
    if low < 0 or high >= VOCABULARY_MAX:
        raise DelianError(
            f"{path} has the id {low if low < 0 else high}: ids are from 0 to {VOCABULARY_MAX - 1}",
            "padding is an id as well: name it with data.padding_id",
        )
    return np.ascontiguousarray(found, np.int32)


def _labelled(
    path: Path, choice: TokenChoice, tokenized: Tokenized, notes: tuple[str, ...]
) -> federated_data.FederatedData:
    """Texts with a label each, dealt out as rows: by the table's devices, or at random."""
    columns, more = read_table(path)
    table = table_of(columns, path.name, TableChoice(choice.target, targets="labels"))
    words = [name for name, values in table.columns.items() if values.dtype.kind in "UO"]
    if TEXT not in words and len(words) != 1:
        found = ", ".join(words) or "none"
        raise DelianError(
            f"{path} has no column `{TEXT}`, and its columns of text are: {found}",
            "name the column of texts `text`",
        )
    texts = [str(each) for each in table.columns[TEXT if TEXT in words else words[0]]]
    tokenizer = tokenized(texts)
    facts = token_facts(tokenizer, choice)
    assert facts.padding is not None, "checked"
    ids = tokenizer.encode(texts, whole=True, most=choice.steps)
    x = padded_texts(ids, choice.steps, facts.padding)
    natural = table.owners is not None
    labelled = Labelled(
        path.name,
        x,
        table.y,
        table.owners,
        table.owner_names,
        label_names=table.label_names,
        notes=(*more, *notes),
    )
    made = federate(
        labelled,
        deal=Deal(partition="natural" if natural else "iid", min_examples=ROWS_MIN),
        devices=None if natural else choice.devices,
        query_fraction=choice.query_fraction,
        held_out_devices=choice.held_out_devices,
        seed=choice.seed,
    )
    card = dataclasses.replace(made.card, tokens=facts.to_json())
    return dataclasses.replace(made, card=card, tokens=facts)
