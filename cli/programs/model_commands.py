"""`delian model`: the models that runs have made, and those in files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...core.common.errors import DelianError
from ...core.common.foreign_formats import refuse_file
from ..fleet.coordinator_commands import Connect, on_coordinator
from ..options import AsJson
from ..output import table, tell, to_json, when
from .model_file_commands import add_to, show_file
from .model_file_facts import is_model_file

if TYPE_CHECKING:
    from ...core.wire.operator_pb2 import ModelRequest

app = typer.Typer(help="List, show, export, check and promote models.", no_args_is_help=True)

add_to(app)

ModelName = Annotated[
    str,
    typer.Argument(
        metavar="MODEL", help="RUN/ROUND, the whole digest of its weights, or an alias."
    ),
]
_OF_RUN = re.compile(r"([0-9]{1,10})/([0-9]{1,10})")
_DIGEST = re.compile(r"[0-9a-f]{64}")


@app.command("ls")
@on_coordinator
def list_models(
    connect: Connect,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1_000, help="The newest.")] = 100,
    as_json: AsJson = False,
) -> None:
    """List the newest models."""
    from ...core.wire.operator_pb2 import ListRequest

    with connect() as client:
        models = [to_json(m) for m in client.call("ListModels", ListRequest(limit=limit)).models]

    def lines() -> list[str]:
        rows = [
            [
                f"{m['run']}/{m['round']}",
                m["weights"]["digest"][:16],
                when(m["created_ms"]),
                " ".join(m["aliases"]) or "-",
                _metrics(m),
            ]
            for m in models
        ]
        return table(("MODEL", "DIGEST", "MADE (UTC)", "ALIASES", "METRICS"), rows)

    tell({"models": models}, as_json, lines)


@app.command("show")
@on_coordinator
def show(
    connect: Connect,
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="RUN/ROUND, a digest, an alias; or a .onnx, .safetensors or .bundle.",
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Show a model, of a run or in a file: parameters, programs, operators, costs."""
    if is_model_file(model):
        show_file(Path(model), as_json)
        return
    if Path(model).is_file():
        refuse_file(model, "model")
    with connect() as client:
        facts = to_json(client.call("GetModel", request_of(model)))
    tell(facts, as_json, lambda: _lines(facts))


@app.command("export")
@on_coordinator
def export(
    connect: Connect,
    model: ModelName,
    out: Annotated[Path, typer.Argument(help="The .bundle to write.")],
    as_json: AsJson = False,
) -> None:
    """Write a model with its programs and weights into one file."""
    from dataclasses import replace

    import numpy as np

    from ...core.learning.bundle import parse
    from ...core.learning.frozen import arrays_of
    from ...core.wire.blob_pb2 import BlobRef

    with connect() as client:
        found = client.call("GetModel", request_of(model))
        bundle = parse(client.get(found.bundle), "the coordinator's bundle")
        weights = np.frombuffer(client.get(found.weights), "<f4").astype(np.float32)
        parts = [
            client.get(BlobRef(digest=bytes.fromhex(part.digest), size=part.size))
            for part in bundle.manifest.frozen_parts
        ]
    frozen = tuple(arrays_of(bundle.manifest.frozen, parts))
    try:
        replace(bundle, weights=weights, frozen=frozen).save(out)
    except OSError as error:
        raise DelianError(f"{out}: cannot be written: {error.strerror}") from None
    facts = {**to_json(found), "file": str(out), "bytes": out.stat().st_size}
    tell(
        facts, as_json, lambda: [f"{out}: model {found.run}/{found.round}, {facts['bytes']} bytes"]
    )


@app.command("promote")
@on_coordinator
def promote(
    connect: Connect,
    model: ModelName,
    alias: Annotated[str, typer.Argument(help="The name to give it, as serving.")] = "serving",
    as_json: AsJson = False,
) -> None:
    """Let an alias point to a model; its weights are kept as long as it does."""
    from ...core.wire.operator_pb2 import PromoteRequest

    with connect() as client:
        request = PromoteRequest(model=request_of(model), alias=alias)
        facts = to_json(client.call("Promote", request))
    tell(facts, as_json, lambda: [f"{alias} is model {facts['run']}/{facts['round']}"])


@app.command("rollback")
@on_coordinator
def rollback(
    connect: Connect,
    alias: Annotated[str, typer.Argument(help="The alias to move back.")] = "serving",
    as_json: AsJson = False,
) -> None:
    """Let an alias point to where it pointed before."""
    from ...core.wire.operator_pb2 import PromoteRequest

    with connect() as client:
        facts = to_json(client.call("Rollback", PromoteRequest(alias=alias)))
    tell(facts, as_json, lambda: [f"{alias} is model {facts['run']}/{facts['round']} again"])


def request_of(name: str) -> ModelRequest:
    """A model as people name it."""
    from ...core.wire.operator_pb2 import ModelRequest

    if parts := _OF_RUN.fullmatch(name):
        return ModelRequest(run=int(parts[1]), round=int(parts[2]))
    if _DIGEST.fullmatch(name):
        return ModelRequest(digest=bytes.fromhex(name))
    return ModelRequest(alias=name)


def _lines(facts: dict[str, Any]) -> list[str]:
    pairs = [
        ("model", f"{facts['run']}/{facts['round']}"),
        ("weights", f"{facts['weights']['digest']} ({facts['weights']['size']} bytes)"),
        ("bundle", facts["bundle"]["digest"]),
        ("parent", facts["parent"] or "-"),
        ("made", when(facts["created_ms"])),
        ("aliases", " ".join(facts["aliases"]) or "-"),
        ("metrics", _metrics(facts)),
    ]
    return [f"{name:<10}{value}" for name, value in pairs]


def _metrics(facts: dict[str, Any]) -> str:
    return " ".join(f"{k}={v:.4g}" for k, v in sorted(facts["metrics"].items())) or "-"
