"""A placement plan: for every bandwidth of the device's link, where to cut a program.

The cuts that are best somewhere between two bandwidths are few and computed beforehand (`sweep`),
so that an agent that sees its link change looks the new one up. A plan is a file that agents load:
it comes from outside, is limited before it is read, and its cuts are checked against the program
when they are used.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...common.errors import DelianError
from .link_model import LinkProfile
from .profile import read_object, reason

FORMAT = 1
BYTES_MAX = 64 << 20
_PIECES_MAX = 4096
_TIERS_MAX = 8
_CUT_BYTES_MAX = 8 << 20
_TEXT_MAX = 256
_HINT = "make it with delian partition plan"


@dataclass(frozen=True, slots=True)
class Piece:
    """One cut, the best from `low` to `high` bytes a second up the first link."""

    low: float
    high: float
    cut: bytes
    """As `program_split.Cut.to_bytes` writes it."""
    tiers: tuple[float, ...]
    """By tier, the seconds that its part takes."""
    up: tuple[int, ...]
    """Bytes up over each link."""
    down: tuple[int, ...]
    """Bytes down over each link."""
    wires_s: tuple[float, ...]
    """By link, seconds to encode and decode what goes over it."""
    memory: tuple[int, ...]
    """By tier, bytes of weights and working memory."""
    messages: tuple[int, ...] = ()
    """By link, how many messages go over it; empty: one up, and one down where bytes come back."""

    def links_s(self, links: Sequence[LinkProfile]) -> tuple[float, ...]:
        """By link, the seconds of what goes over it, both ways and with its latency."""
        out = []
        for k, (link, up, down) in enumerate(zip(links, self.up, self.down, strict=True)):
            ways = self.messages[k] if self.messages else self.beyond(k) + (down > 0)
            out.append(up / link.up + down / link.down + ways * link.latency_s + self.wires_s[k])
        return tuple(out)

    def beyond(self, link: int) -> bool:
        """Whether anything runs beyond a link."""
        return self.up[link] > 0 or self.down[link] > 0

    def seconds(self, links: Sequence[LinkProfile]) -> float:
        """The latency of one call over these links."""
        return sum(self.tiers) + sum(self.links_s(links))


@dataclass(frozen=True, slots=True)
class PlacementPlan:
    """The cuts of one program of a bundle."""

    bundle: str
    """The bundle's content hash."""
    program: str
    """Its name in it."""
    profiles: tuple[str, ...]
    """By tier, the digest of the profile that was used."""
    links: tuple[LinkProfile, ...]
    """The links given; the pieces vary the first one's bandwidth, with a fixed ratio."""
    objective: str
    """As it was written."""
    pieces: tuple[Piece, ...]
    """In order of bandwidth, without a gap."""

    def __post_init__(self) -> None:
        if not self.pieces:
            raise DelianError("a plan without a cut", _HINT)
        if not self.links:
            raise DelianError("a plan without a link", _HINT)
        tiers = len(self.links) + 1
        for piece in self.pieces:
            if len(piece.tiers) != tiers or len(piece.memory) != tiers:
                raise DelianError("a plan whose pieces have other tiers than its links", _HINT)
            if len(piece.messages) not in (0, tiers - 1):
                raise DelianError("a plan whose pieces have other links than it has", _HINT)
            if not len(piece.up) == len(piece.down) == len(piece.wires_s) == tiers - 1:
                raise DelianError("a plan whose pieces have other links than it has", _HINT)
        lows = [p.low for p in self.pieces]
        if lows != sorted(lows) or any(p.low > p.high for p in self.pieces):
            raise DelianError("a plan whose pieces are not in order of bandwidth", _HINT)

    def at(self, up: float) -> int:
        """The piece for a bandwidth up the first link, bytes a second, or the nearest."""
        return max(bisect_right([p.low for p in self.pieces], up) - 1, 0)

    def to_json(self) -> str:
        body = {
            "format": FORMAT,
            "bundle": self.bundle,
            "program": self.program,
            "profiles": list(self.profiles),
            "links": [link.body() for link in self.links],
            "objective": self.objective,
            "pieces": [_piece_body(p) for p in self.pieces],
        }
        return json.dumps(body, sort_keys=True, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes, where: str = "plan") -> PlacementPlan:
        """Reads what `to_json` wrote. Raises DelianError, naming `where`, for anything else."""
        body = read_object(text, BYTES_MAX, FORMAT, where, _HINT)
        try:
            return cls(
                bundle=_text(body["bundle"]),
                program=_text(body["program"]),
                profiles=tuple(_text(d) for d in _most(body["profiles"], _TIERS_MAX)),
                links=tuple(LinkProfile.of(b) for b in _most(body["links"], _TIERS_MAX)),
                objective=_text(body["objective"]),
                pieces=tuple(_piece(b) for b in _most(body["pieces"], _PIECES_MAX)),
            )
        except (KeyError, TypeError, ValueError, OverflowError, binascii.Error) as error:
            raise DelianError(f"{where}: not a plan: {reason(error)}", _HINT) from None
        except DelianError as error:
            raise DelianError(f"{where}: {error.message}", error.hint) from None

    def digest(self) -> str:
        """SHA-256 of the plan, in hexadecimal."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()


def _piece_body(piece: Piece) -> dict[str, Any]:
    return {
        "low": piece.low,
        "high": piece.high,
        "cut": base64.b64encode(piece.cut).decode(),
        "tiers": list(piece.tiers),
        "up": list(piece.up),
        "down": list(piece.down),
        "wires_s": list(piece.wires_s),
        "memory": list(piece.memory),
        "messages": list(piece.messages),
    }


def _piece(body: Mapping[str, Any]) -> Piece:
    text = body["cut"]
    if not isinstance(text, str) or len(text) > _CUT_BYTES_MAX:
        raise ValueError(f"a cut is at most {_CUT_BYTES_MAX} characters")
    return Piece(
        low=_number(body["low"]),
        high=_number(body["high"]),
        cut=base64.b64decode(text, validate=True),
        tiers=tuple(_number(s) for s in _most(body["tiers"], _TIERS_MAX)),
        up=tuple(int(_number(n)) for n in _most(body["up"], _TIERS_MAX)),
        down=tuple(int(_number(n)) for n in _most(body["down"], _TIERS_MAX)),
        wires_s=tuple(_number(s) for s in _most(body["wires_s"], _TIERS_MAX)),
        memory=tuple(int(_number(n)) for n in _most(body["memory"], _TIERS_MAX)),
        messages=tuple(int(_number(n)) for n in _most(body.get("messages", []), _TIERS_MAX)),
    )


def _most(body: Any, count: int) -> list[Any]:
    if not isinstance(body, list) or len(body) > count:
        raise ValueError(f"a list of at most {count} is expected")
    return body


def _number(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number) or number < 0:
        raise ValueError(f"{value} is no number from 0")
    return number


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > _TEXT_MAX:
        raise ValueError(f"a text of at most {_TEXT_MAX} characters is expected")
    return value
