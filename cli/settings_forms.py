"""The forms of configuration values, and the base of its sections."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field


def is_loopback(address: str) -> bool:
    """Whether only this machine can reach "host:port"."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _address(text: str) -> str:
    host, colon, port = text.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    good = colon and bare and port.isdigit() and int(port) < 65536 and " " not in text
    if not good or (":" in host and host == bare):
        raise ValueError("host:port, with brackets around IPv6: [::1]:7443")
    return text


def _optional_address(text: str) -> str:
    return _address(text) if text else text


def _broker(text: str) -> str:
    if text:
        scheme, _, rest = text.partition("://")
        if scheme not in ("mqtt", "mqtts") or not rest or "@" in rest:
            raise ValueError("mqtts://host:port; our certificate names us")
        _address(rest if ":" in rest.rpartition("]")[2] else f"{rest}:8883")
    return text


def _path(path: Path) -> Path:
    return path.expanduser()


Address = Annotated[str, AfterValidator(_address)]
OptionalAddress = Annotated[str, AfterValidator(_optional_address)]
BrokerUrl = Annotated[str, AfterValidator(_broker)]
Folder = Annotated[Path, Field(strict=False), AfterValidator(_path)]
Texts = Annotated[tuple[str, ...], Field(strict=False)]  # TOML gives a list
Transport = Literal["auto", "grpc", "mqtt"]


class Section(BaseModel):
    """A table of the file. Unknown keys are refused, nothing changes later."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
