"""The kinds of a PyTorch module's layers, by their names: what adapters are put on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def layer_kinds(torch: Any, module: Any) -> dict[str, str]:
    """`linear`, `conv1d` (transformers'), `embedding`, or the class of another layer with weights.

    " head" follows for the output layer of a model of transformers.
    """
    nn = torch.nn
    head = _head(module)
    found = {}
    for name, part in module.named_modules():
        weight = getattr(part, "weight", None)
        if name and isinstance(weight, torch.Tensor) and weight.ndim >= 2:
            kind = type(part).__name__
            if type(part) is nn.Linear:
                kind = "linear"
            elif isinstance(part, nn.Embedding):
                kind = "embedding"
            elif kind == "Conv1D" and type(part).__module__.startswith("transformers."):
                kind = "conv1d"
            found[name] = f"{kind} head" if part is head else kind
        elif name and isinstance(part, nn.MultiheadAttention):
            found[name] = "MultiheadAttention"
    return found


def _head(module: Any) -> Any:
    for part in module.modules():
        give: Callable[[], Any] | None = getattr(part, "get_output_embeddings", None)
        if callable(give) and (found := give()) is not None:
            return found
    return None
