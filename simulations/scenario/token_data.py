"""From a scenario's [data] table of texts to rows of token ids, and to what is learnt of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...core.common.errors import DelianError
from ...core.learning import data
from ...core.learning.data.tokens.token_facts import TokenFacts
from . import data_settings
from .scenario import Scenario


def token_data(
    scenario: Scenario, source: data_settings.TextData, path: Path
) -> data.FederatedData:
    """What devices hold of texts in tokens, or of ids in a file. Raises DelianError."""
    file = scenario.tokenizer_file
    ids = path.suffix == ".npy"
    tokenizer = data.read_tokenizer(file) if file is not None and not ids else None
    devices = scenario.fleet.devices
    choice = data.TokenChoice(
        task=source.task,
        steps=source.steps,
        packing=source.packing,
        documents=source.documents,
        clients=source.clients,
        devices=devices,
        min_characters=source.min_characters,
        max_windows=source.max_windows,
        query_fraction=source.query_fraction,
        held_out_devices=source.held_out_devices,
        seed=scenario.seed,
        padding=source.padding_id,
        end=source.end_id,
        mask=source.mask_id,
        vocabulary=source.vocabulary,
        target=source.target,
    )
    if devices is None and (ids or (source.task != "classification" and source.clients != "roles")):
        raise DelianError("the data source text needs a number of devices", "set fleet.devices")
    return data.token_texts(path, choice, tokenizer)


def task_settings(tokens: TokenFacts) -> dict[str, Any]:
    """Arguments of the task that is learnt of these ids."""
    settings: dict[str, Any] = {"padding": tokens.padding}
    if tokens.task == "next-token" and tokens.characters:
        settings["characters"] = tokens.characters
    if tokens.task == "masked-token":
        settings |= {
            "vocabulary": tokens.vocabulary,
            "mask": tokens.mask,
            "special": tokens.special,
        }
    return settings
