"""A model's file as a folder that Hugging Face's tools read."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from ...core.common.errors import DelianError
from ...core.learning.interchange.model_card import RunFacts, card_text, open_folder, write_card
from ...simulations.report.svg import count
from ..simulation.short_options import torch_settings
from . import model_file_facts

WEIGHTS = "model.safetensors"
#: A report of more devices than a bundle's folder would have.
_REPORT_BYTES_MAX = 1 << 28


def convert_to_folder(
    source: Path, folder: Path, torch: str | None, scenario: str | None, settings: list[str]
) -> model_file_facts.Facts:
    """Writes the folder. The arguments are those of `delian model convert`.

    Raises DelianError for a file that cannot be read, a module that is not the bundle's, and a
    folder that cannot be written.
    """
    run = run_facts(source.parent) if source.suffix == ".bundle" else RunFacts()
    file = folder / WEIGHTS
    if torch or scenario:
        from ...core.learning.adapters.adapted import settings_of, trained_names
        from ...core.learning.adapters.peft_files import NAME as ADAPTER_WEIGHTS
        from ...core.learning.adapters.peft_files import save_adapter

        if source.suffix != ".bundle":
            raise DelianError(
                "--torch and --scenario say of which module a .bundle is",
                "a .onnx and a .safetensors have names of their own",
            )
        model = _trained(source, torch, scenario, settings)
        if settings_of(model) is not None:
            save_adapter(model, folder)
            file, count = folder / ADAPTER_WEIGHTS, len(trained_names(model))
        else:
            model.save_folder(folder, run)
            count = len(model.parameters) + len(model.statistics)
    elif settings:
        raise DelianError("--set changes the scenario with the module", "give it by --scenario")
    else:
        count = _by_leaves(source, folder, run)
    size = file.stat().st_size
    return {"file": str(folder), "parameters": count, "bytes": size}


def _trained(source: Path, torch: str | None, scenario: str | None, settings: list[str]) -> Any:
    """The module of a scenario with the bundle's weights."""
    from ...core.compiler.ir import TensorType
    from ...core.compiler.random import key
    from ...core.learning.bundle import load
    from ...core.learning.partial import with_bundle
    from ...simulations.scenario.data_settings import TorchModule
    from ...simulations.scenario.recipes import adapted
    from ...simulations.scenario.scenario_file import load as load_scenario
    from ...simulations.scenario.scenario_file import override
    from ...simulations.scenario.torch_modules import imported

    keys = [*torch_settings(torch, None), *settings]
    chosen = override(load_scenario(scenario or "digits"), keys)
    if not isinstance(chosen.model, TorchModule):
        raise DelianError(f"the model of {scenario} is no PyTorch module", "name it by --torch")
    rows = load(source).inference.param_types[-1]
    if not isinstance(rows, TensorType):
        raise DelianError(f"{source}: its program `infer` takes no rows", "is it a model's?")
    module = imported(chosen, rows.shape[1:], rows.dtype.numpy)
    return with_bundle(adapted(chosen, lambda key: module)(key(chosen.seed)), source)


def _by_leaves(source: Path, folder: Path, run: RunFacts) -> int:
    """A file's parameters by the names that they have in it."""
    kind = model_file_facts.kind_of(source)
    open_folder(folder)
    if kind == ".safetensors":
        from ...core.learning.interchange.safetensors_file import (
            read_safetensors,
            write_safetensors,
        )

        arrays, metadata = read_safetensors(source)
        write_safetensors(folder / WEIGHTS, arrays, metadata)
        count, library = len(arrays), "pytorch" if metadata.get("format") == "pt" else "delian"
    else:
        count = model_file_facts.convert(source, folder / WEIGHTS)["parameters"]
        library = kind[1:] if kind == ".onnx" else "delian"
    write_card(folder, card_text(source.stem, library, run))
    return count


def run_facts(folder: Path) -> RunFacts:
    """What the report.json in a run's folder says; nothing where there is none, or another file."""
    path = folder / "report.json"
    try:
        if not path.is_file() or path.stat().st_size > _REPORT_BYTES_MAX:
            return RunFacts()
        report = json.loads(path.read_bytes())
        summary, scenario = report["summary"], report["scenario"]
        measure = str(summary["measure"])
        figures = {measure: summary["global_accuracy"]}
        if summary["personalised_accuracy"] is not None:
            figures[f"{measure} of personalized models"] = summary["personalised_accuracy"]
        training = (
            f"Trained by federated learning with Delian: {summary['algorithm']},"
            f" {count(summary['rounds'], 'round')}, {count(summary['devices'], 'device')},"
            f" scenario {scenario['name']}."
        )
        metrics = {k: float(v) for k, v in figures.items() if v is not None and math.isfinite(v)}
        return RunFacts(metrics, str(report["data"]["source"]), training)
    except (OSError, ValueError, TypeError, KeyError):
        return RunFacts()
