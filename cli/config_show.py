"""`delian config`: what is configured, where each value came from, and which keys there are."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from .options import ConfigFile, Settings
from .output import echo

app = typer.Typer(help="Show the configuration and its keys.", no_args_is_help=True)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command("show")
def show(
    section: Annotated[
        str, typer.Argument(help="cloud, edge, device, operator, log or trace. Empty: all.")
    ] = "",
    origin: Annotated[
        bool, typer.Option("--origin", help="Also say where each value came from.")
    ] = False,
    config: ConfigFile = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Print the configuration as it is in force: defaults, file, environment and flags."""
    from ..core.common.errors import DelianError
    from .config import Origin, keys, load, shown, value_of

    loaded = load(config, settings=settings or ())
    rows = [
        (key, shown(key, value_of(loaded.config, key)), loaded.origin(key))
        for key, _ in keys()
        if section in ("", key[0])
    ]
    if not rows:
        raise DelianError(f"there is no section `{section}`", "cloud, edge, device, operator, log")
    if as_json:

        def entry(value: Any, where: Origin) -> Any:
            return {"value": value, "origin": where.kind, "from": str(where)} if origin else value

        found = {".".join(key): entry(value, where) for key, value, where in rows}
        echo(json.dumps(found, indent=2))
        return
    width = max(len(".".join(key)) for key, _, _ in rows)
    for key, value, where in rows:
        text = f"{'.'.join(key):<{width}} = {_toml(value)}"
        echo(f"{text}  # {where}" if origin else text)


@app.command("keys")
def list_keys(as_json: AsJson = False) -> None:
    """List every key with its default and meaning."""
    from .config import keys, shown
    from .settings import Config, state_home

    home = str(state_home())
    rows = []
    for key, field in keys():
        default = shown(key, field.get_default(call_default_factory=True))
        if isinstance(default, str):
            default = default.replace(home, "~/.local/state/delian")
        rows.append((key, default, field.description or ""))
    if as_json:
        found = [
            {"key": ".".join(key), "default": default, "meaning": meaning}
            for key, default, meaning in rows
        ]
        echo(json.dumps(found, indent=2))
        return
    section: tuple[str, ...] = ()
    for key, default, meaning in rows:
        if key[:-1] != section:
            section = key[:-1]
            model: Any = Config
            for part in section:
                model = model.model_fields[part].annotation
            purpose = " ".join((model.__doc__ or "").split())
            echo(f"\n[{'.'.join(section)}]  {purpose}")
        told = "" if default is None else f" (default {_toml(default)})"
        echo(f"  {key[-1]:<20} {meaning}{told}")


def _toml(value: Any) -> str:
    """A value as a TOML file has it; what is absent has no value there."""
    return "(absent)" if value is None else json.dumps(value)
