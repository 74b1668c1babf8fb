"""A model's card: the README.md of a folder that Hugging Face's tools read.

It begins with a block of YAML: the library, tags, and figures of the run as a `model-index`. The
licence of the weights is the publisher's to choose; the card has a place for it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ...common.errors import DelianError
from ...common.files import write_whole

NAME = "README.md"
#: What models of a federation are found by.
TAGS = ("federated", "federated-learning", "delian")


@dataclass(frozen=True)
class RunFacts:
    """What a card says of the run that trained the model."""

    metrics: Mapping[str, float] = field(default_factory=dict)
    """Figures by their names: `accuracy`, `mean squared error`."""
    dataset: str = ""
    """What the figures were measured on."""
    training: str = ""
    """One sentence on the algorithm, rounds and devices."""


def card_text(name: str, library: str, run: RunFacts) -> str:
    """The card of a model. Strings of the block are quoted, which YAML takes as JSON does."""
    lines = ["---", f"library_name: {json.dumps(library)}", "tags:"]
    lines += [f"- {json.dumps(tag)}" for tag in TAGS]
    if run.metrics and run.dataset:
        lines += _index(name, run)
    lines += ["---", "", f"# {name}", ""]
    lines.append(run.training or "Trained by federated learning.")
    lines += ["", "Weights are in `model.safetensors`, under the names of the framework."]
    if run.metrics:
        lines += ["", "| figure | value |", "|---|---|"]
        lines += [f"| {each} | {value:.6g} |" for each, value in run.metrics.items()]
    lines += ["", "## License", "", "Add `license:` to the block above, and its text here.", ""]
    return "\n".join(lines)


def _index(name: str, run: RunFacts) -> list[str]:
    lines = ["model-index:", f"- name: {json.dumps(name)}", "  results:", "  - task:"]
    lines += ['      type: "other"', "    dataset:"]
    lines += [f"      type: {json.dumps(run.dataset)}", f"      name: {json.dumps(run.dataset)}"]
    lines.append("    metrics:")
    for each, value in run.metrics.items():
        kind = each.replace(" ", "_")
        lines += [f"    - type: {json.dumps(kind)}", f"      name: {json.dumps(each)}"]
        lines.append(f"      value: {float(value)!r}")
    return lines


def open_folder(path: Path) -> None:
    """Makes the folder of a model, if there is none. Raises DelianError where it cannot."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DelianError(
            f"{path}: no folder can be made: {error.strerror}", "choose another one"
        ) from None


def write_text(path: Path, text: str) -> None:
    """Puts a text file in place. Raises DelianError where it cannot be written."""
    try:
        write_whole(path, text)
    except OSError as error:
        raise DelianError(f"{path}: cannot be written: {error.strerror}") from None


def write_card(folder: Path, text: str) -> None:
    """Writes the card, unless there is one: what is in it by hand, such as a licence, stays.

    Raises DelianError where it cannot be written.
    """
    path = folder / NAME
    if not path.exists():
        write_text(path, text)
