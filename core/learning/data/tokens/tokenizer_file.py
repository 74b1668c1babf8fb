"""Tokenizers: a tokenizer.json of Hugging Face's package `tokenizers`, read or trained.

The package is an extra (`text`) and is imported when a tokenizer is used: devices have ids.
"""

from __future__ import annotations

import errno
import functools
import importlib
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ....common.errors import DelianError
from ....common.files import read_at_most
from ....common.install_hint import install
from ..data_files import require_file
from ..tabular.text_folders import FILES_MAX, SUFFIXES
from ..text_pieces import text_of
from .token_facts import VOCABULARY_MAX

TOKENIZER_BYTES_MAX = 64 << 20
#: Tokens of a trained tokenizer that stand for no text: their ids are 0, 1 and 2.
PADDING, END, MASK = "<pad>", "<end>", "<mask>"
#: All bytes are tokens, after these three.
VOCABULARY_MIN = 256 + 3
#: What other tokenizers call them.
PADDINGS = (PADDING, "[PAD]", "<|pad|>", "<|finetune_right_pad_id|>")
ENDS = (END, "<|endoftext|>", "</s>", "[SEP]", "<eos>", "<|end_of_text|>", "<|im_end|>")
MASKS = (MASK, "[MASK]", "<|mask|>")
#: What a tokenizer is trained on, at most.
CHARACTERS_MAX = 1 << 30
#: Texts that are encoded at once.
BATCH = 4096
#: A byte that does not begin a character, in UTF-8: 10xxxxxx.
_CONTINUES, _BEGINS_MASK = 0b1000_0000, 0b1100_0000

T = TypeVar("T")


class TextTokenizer:
    """A tokenizer: texts to ids and back."""

    def __init__(self, text: str, name: str) -> None:
        """text: of a tokenizer.json. name: what errors call it.

        Raises DelianError for a text that is no tokenizer, or has too many tokens, and where the
        package is missing.
        """
        self.text, self.name = text, name
        package = _package()
        self._made = _guarded(
            lambda: package.Tokenizer.from_str(text),
            f"{name} is no tokenizer",
            "give a tokenizer.json as the package `tokenizers` saves it; it may be cut short",
        )
        self._made.no_padding()
        self._made.no_truncation()
        ids = self._made.get_vocab(True).values()
        self.vocabulary: int = 1 + max(ids, default=-1)
        if not 1 < self.vocabulary <= VOCABULARY_MAX:
            raise DelianError(
                f"{name} has ids up to {self.vocabulary - 1}: from 2 to {VOCABULARY_MAX} are taken",
                "give the tokenizer that the model was made for",
            )

    def id_of(self, names: Sequence[str]) -> int | None:
        """The id of the first of these tokens that there is."""
        found = (self._made.token_to_id(name) for name in names)
        return next((each for each in found if each is not None), None)

    @property
    def special(self) -> tuple[int, ...]:
        """The ids of special tokens, in order."""
        added = self._made.get_added_tokens_decoder()
        return tuple(sorted(k for k, token in added.items() if token.special))

    def encode(
        self, texts: Sequence[str], *, whole: bool = False, most: int = 0
    ) -> list[NDArray[np.int32]]:
        """Each text's ids, i32[k].

        Args:
            texts: any number of them.
            whole: with the tokens that the tokenizer puts around a text, such as [CLS] and [SEP].
            most: ids of a text are cut to so many; 0: none is.

        Raises:
            DelianError: a text cannot be encoded.
        """
        if most:
            self._made.enable_truncation(most)
        found: list[NDArray[np.int32]] = []
        try:
            for start in range(0, len(texts), BATCH):
                part = list(texts[start : start + BATCH])
                encoded = _guarded(
                    functools.partial(self._made.encode_batch, part, add_special_tokens=whole),
                    f"{self.name} cannot encode the text",
                    "give another tokenizer, or a text without what it does not know",
                )
                found += [np.array(each.ids, np.int32) for each in encoded]
        finally:
            self._made.no_truncation()
        return found

    def token(self, number: int) -> str:
        """What an id stands for, as text."""
        return str(self._made.decode([number], skip_special_tokens=False))

    @functools.cached_property
    def characters(self) -> tuple[float, ...]:
        """By id, characters of its text; empty where the tokenizer is not of bytes.

        A character of several tokens counts where its first byte is. Special tokens have none.
        """
        if not _of_bytes(json.loads(self.text)):
            return ()
        codes = {character: byte for byte, character in _byte_names().items()}
        sizes = np.zeros(self.vocabulary)
        special = set(self.special)
        for token, number in self._made.get_vocab(True).items():
            if number in special:
                continue
            parts = [codes.get(each) for each in token]
            sizes[number] = (
                len(token)  # an added token is written as it is
                if None in parts
                else sum(byte & _BEGINS_MASK != _CONTINUES for byte in parts if byte is not None)
            )
        return tuple(sizes.tolist())


def read_tokenizer(path: Path) -> TextTokenizer:
    """The tokenizer of a file. Raises DelianError for one that is missing, too large or no such."""
    require_file(path, "name a tokenizer.json: data.tokenizer, from the scenario's folder")
    try:
        content = read_at_most(path, TOKENIZER_BYTES_MAX)
        return TextTokenizer(content.decode(), str(path))
    except UnicodeDecodeError:
        raise DelianError(
            f"{path} is no tokenizer: it is not UTF-8", "give a tokenizer.json"
        ) from None
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise DelianError(
                f"{path} has more than {TOKENIZER_BYTES_MAX >> 20} MiB",
                "a tokenizer.json of 250,000 tokens has 17 MiB; is it another file?",
            ) from None
        raise DelianError(f"cannot read {path}: {error.strerror}", "check the file") from None


def trained_tokenizer(texts: Iterable[str], vocabulary: int, name: str) -> TextTokenizer:
    """A byte-level BPE (Sennrich et al. 2016; Radford et al. 2019) of these texts.

    It has `vocabulary` tokens, or fewer where the texts have no more pairs: `<pad>`, `<end>` and
    `<mask>`, all bytes, and what is frequent. The tokens are words and parts of words of the texts.

    Raises DelianError for a vocabulary without room for all bytes, and without the package.
    """
    if not VOCABULARY_MIN < vocabulary <= VOCABULARY_MAX:
        raise DelianError(
            f"a tokenizer of {vocabulary} tokens: it has more than {VOCABULARY_MIN}, all bytes and"
            f" three others, and at most {VOCABULARY_MAX}",
            "2000 are enough for a few megabytes of text",
        )
    package = _package()
    levels = package.pre_tokenizers.ByteLevel
    made = package.Tokenizer(package.models.BPE())
    made.pre_tokenizer = levels(add_prefix_space=False)
    made.decoder = package.decoders.ByteLevel()
    trainer = package.trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[PADDING, END, MASK],
        initial_alphabet=sorted(levels.alphabet()),
        show_progress=False,
    )
    made.train_from_iterator(texts, trainer)
    return TextTokenizer(made.to_str(), name)


def read_documents(paths: Sequence[Path]) -> list[str]:
    """The paragraphs of text files, and of those in folders. Raises DelianError where none is."""
    files: list[Path] = []
    for path in paths:
        found = [path]
        if path.is_dir():
            found = sorted(each for each in path.rglob("*") if each.suffix.lower() in SUFFIXES)
        files += found
    if not files:
        raise DelianError(
            f"{', '.join(map(str, paths))}: no text among it",
            f"texts end with {', '.join(SUFFIXES)}",
        )
    if len(files) > FILES_MAX:
        raise DelianError(f"{len(files)} texts, and {FILES_MAX} are read", "give fewer")
    size, texts = 0, []
    for file in files:
        text = text_of(file)
        size += len(text)
        if size > CHARACTERS_MAX:
            raise DelianError(
                f"the texts have more than {CHARACTERS_MAX:,} characters",
                "a part of them is enough",
            )
        texts += [each for each in text.split("\n\n") if each.strip()]
    return texts


def _package() -> Any:
    """The package `tokenizers`. Raises DelianError where it is not installed."""
    try:
        return importlib.import_module("tokenizers")
    except ImportError:
        raise DelianError(
            "a tokenizer needs the package tokenizers, which is not installed here",
            f"{install('text')}, or give rows of ids (.npy)",
        ) from None


def _guarded(work: Callable[[], T], what: str, hint: str) -> T:
    """What a call of the package gives; its errors, and its panics, as DelianErrors."""
    try:
        return work()
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as fault:  # a panic of Rust is no Exception
        raise DelianError(f"{what}: {fault!s:.200}", hint) from None


def _of_bytes(described: Any) -> bool:
    """Whether tokens are written as bytes (`ByteLevel`), without a normalizer before it."""
    decoder = described.get("decoder") or {}
    return decoder.get("type") == "ByteLevel" and described.get("normalizer") is None


def _byte_names() -> dict[int, str]:
    """By byte, the character that a byte-level token has for it (GPT-2's table).

    Bytes that print stand for themselves, the others for characters from 256 on.
    """
    printed = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printed)]
    names = {byte: chr(byte) for byte in printed}
    return names | {byte: chr(256 + k) for k, byte in enumerate(others)}
