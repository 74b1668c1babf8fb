"""The operators of ONNX, a table a family of them."""

from __future__ import annotations

from dataclasses import replace

from ..operator_rows import Row, Rows
from .box_rows import BOX_ROWS
from .cast_rows import CAST_ROWS
from .convolution_rows import CONVOLUTION_ROWS
from .elementwise_rows import ELEMENTWISE_ROWS
from .gather_rows import GATHER_ROWS
from .learning_rows import LEARNING_ROWS
from .legacy_rows import LEGACY_ROWS
from .loss_rows import LOSS_ROWS
from .normalisation_rows import NORMALISATION_ROWS
from .quantised_rows import QUANTISED_ROWS
from .recurrent_rows import RECURRENT_ROWS
from .reduction_rows import REDUCTION_ROWS
from .resize_rows import RESIZE_ROWS
from .sampling_rows import SAMPLING_ROWS
from .sequence_rows import SEQUENCE_ROWS
from .shape_rows import SHAPE_ROWS
from .signal_rows import SIGNAL_ROWS
from .training_rows import TRAINING_ROWS

_ONNX: dict[str, Row | tuple[Row, ...]] = {
    **BOX_ROWS,
    **CAST_ROWS,
    **CONVOLUTION_ROWS,
    **ELEMENTWISE_ROWS,
    **GATHER_ROWS,
    **LOSS_ROWS,
    **NORMALISATION_ROWS,
    **QUANTISED_ROWS,
    **RECURRENT_ROWS,
    **REDUCTION_ROWS,
    **RESIZE_ROWS,
    **SAMPLING_ROWS,
    **SEQUENCE_ROWS,
    **SHAPE_ROWS,
    **SIGNAL_ROWS,
}


def _with_legacy(rows: Rows) -> Rows:
    """The rows, with those of old versions before them."""
    found = dict(rows)
    for name, (old, since) in LEGACY_ROWS.items():
        newer = rows[name]
        assert isinstance(newer, Row)
        found[name] = (*old, replace(newer, since=since))
    return found


#: The rows of each domain of operators; "" is ONNX's own.
DOMAINS: dict[str, Rows] = {
    "": _with_legacy(_ONNX),
    "ai.onnx.ml": LEARNING_ROWS,
    "ai.onnx.preview.training": TRAINING_ROWS,
}

#: Why an operator is refused, where there is more to say than that there is no row.
REASONS: dict[str, str] = {
    "Bernoulli": "it draws random numbers of ONNX's own",
    "Gradient": "gradients are Delian's own: dl.grad of the model",
    "ImageDecoder": "a program decodes no files",
    "Multinomial": "it draws random numbers of ONNX's own",
    "RandomNormal": "it draws random numbers of ONNX's own",
    "RandomNormalLike": "it draws random numbers of ONNX's own",
    "RandomUniform": "it draws random numbers of ONNX's own",
    "RandomUniformLike": "it draws random numbers of ONNX's own",
    "RegexFullMatch": "strings are no numbers of a program",
    "StringConcat": "strings are no numbers of a program",
    "StringNormalizer": "strings are no numbers of a program",
    "StringSplit": "strings are no numbers of a program",
    "TfIdfVectorizer": "a vocabulary is text before the model",
}
