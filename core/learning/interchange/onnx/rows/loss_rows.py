"""Losses: ONNX has classes on the second axis."""

from __future__ import annotations

import numpy as np

from .....compiler import ops
from .....compiler.ir import Tensor
from ..onnx_errors import OnnxError
from ..operator_rows import Row, Rows


def nll_loss(
    x: Tensor,
    target: Tensor,
    weight: Tensor = None,
    *,
    ignore_index: int | None = None,
    reduction: str = "mean",
) -> Tensor:
    """NegativeLogLikelihoodLoss: log-probabilities [N, C, ...], classes [N, ...]."""
    if target.dtype.kind not in "iu" or target.ndim != x.ndim - 1:
        raise OnnxError(
            f"classes are whole numbers [N, ...], not {target.dtype} of {target.ndim} axes",
            "export the loss for labels, or the model without its loss",
        )
    classes = x.shape[1]
    label = target.astype(np.int64)
    counts = np.ones(target.shape, np.bool_)
    if ignore_index is not None:
        counts = label != ignore_index
    # Without a gather: a label that is ignored may lie outside of the classes.
    sizes = (1, classes) + (1,) * (x.ndim - 2)
    chosen = np.expand_dims(np.where(counts, label, 0), 1) == np.arange(classes).reshape(sizes)
    found = -np.sum(np.where(chosen, x, 0), axis=1)
    share = counts.astype(x.dtype)
    if weight is not None:
        share = share * np.sum(np.where(chosen, weight.reshape(sizes), 0), axis=1).astype(x.dtype)
    loss = np.where(counts, found * share, 0).astype(x.dtype)
    if reduction == "none":
        return loss
    total = np.sum(loss)
    return total / np.sum(share) if reduction == "mean" else total


def softmax_cross_entropy(
    scores: Tensor,
    target: Tensor,
    weight: Tensor = None,
    *,
    ignore_index: int | None = None,
    reduction: str = "mean",
    outputs: tuple[bool, ...] = (True,),
) -> tuple[Tensor, ...]:
    """SoftmaxCrossEntropyLoss, and the log-probabilities on demand."""
    log = ops.log_softmax(scores, 1)
    loss = nll_loss(log, target, weight, ignore_index=ignore_index, reduction=reduction)
    return (loss, log)[: len(outputs)]


LOSS_ROWS: Rows = {
    "NegativeLogLikelihoodLoss": Row(nll_loss),
    "SoftmaxCrossEntropyLoss": Row(softmax_cross_entropy, several=True, counted=True),
}
