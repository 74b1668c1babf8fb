"""Errors of an import: what is refused, at which node, and what to do."""

from __future__ import annotations

from typing import Any

from ....common.errors import DelianError


class OnnxError(DelianError):
    """A model, or a node of it, that is refused."""


def refused(node: Any, why: str, hint: str = "") -> OnnxError:
    """The error of a node: its name and operator come first."""
    return OnnxError(f"{place_of(node)}: {why}", hint)


def place_of(node: Any) -> str:
    """A node as errors name it: its name, or its first output, and its operator."""
    name = node.name or next((o for o in node.output if o), "without a name")
    domain = f"{node.domain}." if node.domain not in ("", "ai.onnx") else ""
    return f"node {name[:200]!r} ({domain}{node.op_type[:100]})"
