"""`delian model show FILE`, `check` and `convert`: models in files, of any of the formats."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ...core.common.errors import DelianError
from ..options import AsJson
from ..output import table, tell
from . import model_file_facts

REFUSED = 1
ModelFile = Annotated[Path, typer.Argument(help="A .onnx, .safetensors or .bundle.")]


def add_to(app: typer.Typer) -> None:
    """Adds the commands to a group."""
    app.command("check")(check)
    app.command("convert")(convert)


def show_file(path: Path, as_json: bool) -> None:
    """Shows a file's parameters and programs."""
    facts = model_file_facts.facts_of(path)
    tell(facts, as_json, lambda: _lines(facts))


def check(file: ModelFile, as_json: AsJson = False) -> None:
    """List what would be refused of a model's file, before anything is compiled.

    Of a .onnx and a .safetensors: by their import; of a .bundle: by its export to ONNX. Exits with
    1 where there is something.
    """
    found = model_file_facts.refusals_of(file)

    def lines() -> list[str]:
        if not found:
            return [f"{file}: nothing is refused"]
        rows = [[each["what"], each["times"], each["why"]] for each in found]
        return table(("REFUSED", "TIMES", "WHY"), rows)

    tell({"file": str(file), "refused": found}, as_json, lines)
    if found:
        raise typer.Exit(REFUSED)


def convert(
    file: ModelFile,
    out: Annotated[
        Path,
        typer.Argument(help="The file to write, whose suffix says the format, or a folder."),
    ],
    torch: Annotated[
        str | None,
        typer.Option(
            metavar="FILE[:CLASS]", help="Of a folder: the PyTorch module that was trained."
        ),
    ] = None,
    scenario: Annotated[
        str | None,
        typer.Option(
            "--scenario", "-s", metavar="FILE", help="Of a folder: the scenario with the module."
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Change a key of the scenario; may be repeated."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write a model in another format.

    A .onnx or a .bundle becomes the .safetensors of its parameters; a .bundle becomes the .onnx of
    its inference.

    Each becomes a folder that Hugging Face's tools read: model.safetensors, and a README.md with
    the figures of the report.json next to the bundle; a README.md that is there stays. With --torch
    or --scenario the weights of a .bundle have the module's names and shapes, and a config.json is
    written where the module has a configuration.
    """
    from .model_folders import convert_to_folder

    if out.suffix in model_file_facts.KINDS:
        if torch or scenario or settings:
            raise DelianError("--torch, --scenario and --set are for folders", "name a folder")
        facts = model_file_facts.convert(file, out)
    else:
        facts = convert_to_folder(file, out, torch, scenario, settings or [])
    text = f"{out}: {facts['parameters']} parameters, {facts['bytes']} bytes"
    tell(facts, as_json, lambda: [text])


def _lines(facts: dict[str, Any]) -> list[str]:
    lines = [f"{facts['file']}: {facts['format']}, {facts['bytes']} bytes"]
    rows = [
        [each["name"], each["dtype"], str(each["shape"]), each["elements"]]
        for each in facts["parameters"]
    ]
    lines += ["", *table(("PARAMETER", "TYPE", "SHAPE", "ELEMENTS"), rows)]
    lines.append(f"{facts['elements']} elements in {len(rows)} parameters")
    for program in facts["programs"]:
        lines += ["", *_program_lines(program)]
    return lines


def _program_lines(program: dict[str, Any]) -> list[str]:
    """A loop counts one trip; sizes that a file leaves open are 1."""
    cost = f"{program['flops']} operations" if program["flops"] is not None else program["why"]
    ends = [
        [what, each["name"], each["type"]]
        for what, key in (("input", "inputs"), ("output", "outputs"))
        for each in program[key]
    ]
    used = [[name, count] for name, count in program["operators"].items()]
    return [
        f"program {program['name']}: {cost}",
        *table(("END", "NAME", "TYPE"), ends),
        *table(("OPERATOR", "TIMES"), used),
    ]
