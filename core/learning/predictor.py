"""Predictions of a run's model: `dl.load(bundle).predict(x)`, for any number of rows."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..common.errors import DelianError
from ..common.files import read_at_most
from ..compiler.backends import Backend
from .bundle import Bundle
from .bundle import load as load_bundle
from .data.tokens.token_facts import TokenFacts, facts_of
from .next_character import after_texts, are_texts
from .runtime import Runtime

if TYPE_CHECKING:
    from .data.tabular.encoding import Encoding
    from .data.tokens.tokenizer_file import TextTokenizer

#: The report next to a bundle, which names labels and features.
REPORT = "report.json"
REPORT_BYTES_MAX = 1 << 30


@dataclass(frozen=True)
class Predictor:
    """A model that is ready to be asked. `repr` says what it takes and gives."""

    bundle: Bundle
    """Its programs."""
    weights: NDArray[np.float32] = field(repr=False)
    """The model, f32[M], as `infer` takes it."""
    labels: tuple[str, ...] = ()
    """The names of classes; empty: their numbers."""
    encoding: Encoding | None = None
    """Of a table, how its columns become the features that the program takes."""
    backend: Backend = "native"
    tokens: TokenFacts | None = None
    """Of rows of token ids, what is known of them."""
    _runtime: list[Runtime] = field(default_factory=list, repr=False, compare=False)

    @property
    def regression(self) -> bool:
        """Whether it gives numbers, and not classes."""
        return self.bundle.manifest.learns_numbers

    @property
    def of_characters(self) -> bool:
        """Whether it gives the character that follows each of a text, and their names are known."""
        logits: Any = self.bundle.inference.result_types[0]
        each_step = len(self.row_shape) == 1 and len(logits.shape) == len(("n", "steps", "C"))
        return each_step and bool(self.labels) and all(len(name) == 1 for name in self.labels)

    @cached_property
    def tokenizer(self) -> TextTokenizer:
        """What makes ids of texts. Raises DelianError where it is not known."""
        from .token_texts import tokenizer_of

        assert self.tokens is not None, "a model of tokens"
        return tokenizer_of(self.tokens)

    @property
    def of_texts(self) -> bool:
        """Whether it takes texts: of characters, or of tokens whose tokenizer is known."""
        return self.of_characters or bool(self.tokens and self.tokens.tokenizer)

    def predict(self, x: Any) -> NDArray[Any]:
        """The class of each row, by name where they have names, or the numbers that are learnt.

        Args:
            x: [n, ...], raw rows as the run's data had them, or of a table a data frame or a dict
                of columns, or of a text n texts: the answer is the character or the token that
                follows each, the token of its first mask, or its label.

        Returns:
            [n] labels (text, or i64), or f32 [n] or [n, k].

        Raises:
            DelianError: rows of another shape, or a column that is missing.
        """
        outputs: NDArray[Any] = self.outputs(x)
        if self.regression:
            single = outputs.ndim == 2 and outputs.shape[1] == 1
            return outputs.reshape(-1) if single else outputs
        found: NDArray[Any] = np.argmax(outputs, axis=-1)
        if self.tokens is not None and self.tokens.task != "classification" and are_texts(x):
            return np.array([self.tokenizer.token(int(each)) for each in found])
        return np.array(self.labels)[found] if self.labels else found

    def predict_proba(self, x: Any) -> NDArray[np.float32]:
        """The probability of each class, f32[n, ..., C]: the softmax of the logits.

        Raises DelianError as `predict` does, and for a model that gives numbers.
        """
        if self.regression:
            raise DelianError("this model gives numbers, and no classes", "use predict")
        logits = self.outputs(x)
        above = np.exp(logits - logits.max(axis=-1, keepdims=True))
        probabilities: NDArray[np.float32] = above / above.sum(axis=-1, keepdims=True)
        return probabilities

    def outputs(self, x: Any) -> NDArray[np.float32]:
        """What the model gives: logits f32[n, ..., C], or numbers f32 [n] or [n, k].

        Of n texts, the logits of the character or token that is asked for: f32[n, C].
        """
        if are_texts(x) and self.tokens is not None:
            from .token_texts import outputs_of_texts

            steps = self.row_shape[0]
            return outputs_of_texts(list(x), self.tokens, self.tokenizer, steps, self.outputs)
        if are_texts(x):
            steps = self.row_shape[0] if self.of_characters else 0
            return after_texts(list(x), self.labels, steps, self.outputs)
        rows = self.rows(x)
        if not self._runtime:
            self._runtime.append(Runtime(self.bundle, self.backend, programs=("infer",)))
        runtime = self._runtime[0]
        kind = self.bundle.inference.param_types[-1]
        size = kind.shape[0]  # type: ignore[union-attr]
        given = []
        for start in range(0, max(len(rows), 1), size):
            part = rows[start : start + size]
            batch = np.zeros((size, *rows.shape[1:]), rows.dtype)
            batch[: len(part)] = part
            given.append(np.array(runtime.infer(self.weights, batch)[: len(part)]))
        return np.concatenate(given)

    @property
    def row_shape(self) -> tuple[int, ...]:
        """The shape of a row that the program takes."""
        kind: Any = self.bundle.inference.param_types[-1]
        return tuple(kind.shape[1:])

    def rows(self, x: Any) -> NDArray[Any]:
        """Rows, or columns of a table, as the program takes them.

        Raises DelianError for rows of another shape, and for a column that is missing.
        """
        kind: Any = self.bundle.inference.param_types[-1]
        if self.encoding is not None and (isinstance(x, Mapping) or hasattr(x, "columns")):
            from .data.tabular.columns import frame_columns

            x = self.encoding.examples(frame_columns(x))
        rows = np.asarray(x)
        wanted = kind.shape[1:]
        if rows.shape[1:] != wanted and rows.ndim and rows.shape[1:] == wanted[:-1]:
            rows = rows[..., None]  # grey images, which models take with one channel
        if (
            rows.ndim != len(kind.shape)
            or rows.shape[1:] != wanted
            or rows.dtype.kind not in "fiub"
        ):
            raise DelianError(
                f"the model takes rows of {list(wanted)}, not {rows.dtype}{list(rows.shape)}",
                "give raw rows as the run's data had them, [n, ...]",
            )
        return np.ascontiguousarray(rows, kind.dtype.numpy)

    def __repr__(self) -> str:
        kind: Any = self.bundle.inference.param_types[-1]
        gives = "numbers" if self.regression else "classes"
        names = f" ({', '.join(self.labels[:6])})" if self.labels else ""
        size = self.weights.size
        return f"<model of {size:,} parameters: rows {list(kind.shape[1:])} to {gives}{names}>"


def load(path: str | os.PathLike[str], backend: Backend = "native") -> Predictor:
    """The model of a bundle, or of a run's folder.

    The names of labels and features are those of the report next to it, where there is one.

    Raises:
        DelianError: there is none, it is damaged, or it has no weights.
    """
    file = Path(path)
    file = file / "model.bundle" if file.is_dir() else file
    bundle = load_bundle(file, own=True)
    if not bundle.weights.size:
        raise DelianError(
            f"{file} has no weights: it is quantised already, or for inference alone",
            "name the bundle that it was made from, such as model.bundle of a run",
        )
    labels, encoding, tokens = _names(file.parent / REPORT)
    model = Runtime(bundle, backend, programs=()).model_of(bundle.weights)
    return Predictor(bundle, model, labels, encoding, backend, tokens)


def _names(report: Path) -> tuple[tuple[str, ...], Encoding | None, TokenFacts | None]:
    """Labels, columns and tokens that a report names; none where it cannot be read."""
    try:
        said = json.loads(read_at_most(report, REPORT_BYTES_MAX))["data"]
        labels = () if said["numbers"] else tuple(str(name) for name in said["label_names"])
    except (OSError, ValueError, KeyError, TypeError, DelianError):
        return (), None, None
    plain = labels == tuple(str(k) for k in range(len(labels)))
    return () if plain else labels, columns_of(said), facts_of(said)


def columns_of(card: Mapping[str, Any]) -> Encoding | None:
    """How the columns of a run's data became features, by its card; None: they were no table's.

    Raises DelianError for a card that cannot be read.
    """
    from .data.tabular.encoding import Encoding

    preparation = card.get("preparation")
    if not isinstance(preparation, Mapping):
        return None
    return Encoding.from_json(preparation)
