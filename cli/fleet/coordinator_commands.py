"""How an operator's commands call a coordinator."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..options import ConfigFile

if TYPE_CHECKING:
    from ...core.node.service.operator_client import Client

Address = Annotated[
    str | None,
    typer.Option("--coordinator", metavar="HOST:PORT", help="(default: operator.coordinator)"),
]
Identity = Annotated[
    Path | None,
    typer.Option("--identity", help="The operator's identity. (default: operator.identity)"),
]
AuthorityAddress = Annotated[
    str | None,
    typer.Option("--authority", metavar="HOST:PORT", help="(default: operator.authority)"),
]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="No TLS; for a coordinator on this machine alone.")
]


@dataclass(frozen=True, slots=True)
class Connect:
    """The options by which a command's user names a coordinator."""

    coordinator: Address = None
    identity: Identity = None
    insecure: Insecure = False
    config: ConfigFile = None

    @contextmanager
    def __call__(self) -> Iterator[Client]:
        """The coordinator as the options and the configuration name it. Raises DelianError."""
        from ...core.node.service.operator_client import connected
        from ..config import load
        from ..programs.artifact_commands import signing_folder

        flags = {
            "operator.coordinator": self.coordinator,
            "operator.identity": self.identity,
            "operator.insecure": self.insecure or None,
        }
        operator = load(self.config, flags).config.operator
        identity = None if operator.insecure else operator.identity
        with connected(operator.coordinator, identity, signing_folder(operator)) as client:
            yield client


def on_coordinator(command: Callable[..., None]) -> Callable[..., None]:
    """A command that takes the fields of `Connect` as options, and gets them as `connect`."""
    own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]
    options = list(inspect.signature(Connect, eval_str=True).parameters.values())

    @functools.wraps(command)
    def called(**given: Any) -> None:
        command(Connect(**{option.name: given.pop(option.name) for option in options}), **given)

    at = len(own) - (own[-1].name == "as_json")
    parameters = [*own[:at], *options, *own[at:]]
    named = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters]
    called.__signature__ = inspect.Signature(named)  # type: ignore[attr-defined]
    called.__annotations__ = {p.name: p.annotation for p in parameters}
    return called


def authority_target(config: Path | None, authority: str | None) -> str:
    """The authority's "host:port", as the option or the configuration names it.

    Empty: the coordinator has no separate authority.
    """
    from ..config import load

    return load(config, {"operator.authority": authority}).config.operator.authority


@contextmanager
def connected_authority(
    config: Path | None, target: str, identity: Path | None
) -> Iterator[Client]:
    """The authority at "host:port", as its admin. Raises DelianError."""
    import grpc

    from ...core.node.identity.pki.certificates import authority_options, channel_credentials
    from ...core.node.service.operator_client import Client, own_identity
    from ...core.wire.authority_pb2_grpc import AuthorityStub
    from ..config import load

    operator = load(config, {"operator.identity": identity}).config.operator
    shown = own_identity(operator.identity).material()
    own = shown.identity()  # an operator asks the authority that issued its certificate
    options = list(authority_options(own.federation, own.authority))
    with grpc.secure_channel(target, channel_credentials(shown), options=options) as channel:
        yield Client(target, AuthorityStub(channel), (), what="authority")
