"""The decoders of the certificate log: heads, proofs, entries, pages, files, a witness's calls."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from delian.core.common import merkle_tree
from delian.core.common.errors import DelianError
from delian.core.node.identity.authority.authority import Authority, issue_to
from delian.core.node.identity.log import log_copy, log_entries
from delian.core.node.identity.log.log_file import LogFile
from delian.core.node.identity.log.witness import Witness
from delian.core.node.identity.pki.certificates import Role
from delian.core.wire.log_pb2 import CosignAsk, LogAsk, LogPage, LogUpdate
from google.protobuf.message import DecodeError

NOW = 1_900_000_000
_REFUSED = (DelianError, DecodeError)
_WITNESS = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))


@cache
def _authority() -> tuple[tempfile.TemporaryDirectory[str], Authority]:
    """A CA with a log of six certificates; its folder stays while the fuzzer runs."""
    folder = tempfile.TemporaryDirectory()
    authority = Authority.create(Path(folder.name) / "ca", "example")
    for number in range(1, 7):
        issue_to(authority, Role.DEVICE, number)
    return folder, authority


@cache
def _update() -> bytes:
    update = _authority()[1].log.update(3, NOW)
    update.checkpoint.cosignatures.append(log_entries.cosign(_WITNESS, update.checkpoint.head))
    return update.SerializeToString()


def _read_update(data: bytes) -> object:
    """An update for a node that knows three entries; also with its head signed by a CA that signs
    anything.
    """
    authority = _authority()[1]
    update = LogUpdate.FromString(data)
    known = log_entries.LogHead("example", 3, NOW, authority.log.tree.root(3))
    with contextlib.suppress(DelianError):
        log_entries.verify_head(update.checkpoint, authority.certificate, "example")
    log_entries.cosigned(update.checkpoint, [_WITNESS.public_key().public_bytes_raw()])
    head = log_entries.read_head(update.checkpoint.head)
    log_entries.check_update(known, update, head)
    return head


def _read_proof(data: bytes) -> object:
    """A batch proof of the leaves that the first byte names, in a tree of six."""
    tree = _authority()[1].log.tree
    chosen = [i for i in range(6) if data[:1] and data[0] >> i & 1]
    root = merkle_tree.root_of({i: tree.leaf(i) for i in chosen}, 6, data[1:])
    good = data[1:] == tree.inclusion(chosen, 6)
    assert (root == tree.root(6)) is good
    return root


def _proofs() -> list[bytes]:
    tree = _authority()[1].log.tree
    chosen = {0b1: [0], 0b100110: [1, 2, 5], 0b111111: list(range(6))}
    return [bytes([bits]) + tree.inclusion(indices, 6) for bits, indices in chosen.items()]


def _read_page(data: bytes) -> object:
    """A page as a copy of the log reads it, from its first entry."""
    authority = _authority()[1]

    async def ask(asked: LogAsk) -> LogPage:
        return LogPage.FromString(data)

    with tempfile.TemporaryDirectory() as folder:
        copy = log_copy.LogCopy(Path(folder), authority.certificate, "example")
        asyncio.run(copy.fetch(ask))
        assert copy.head is not None and copy.tree.root() == copy.head.root
        return copy.head


def _read_file(data: bytes) -> object:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log"
        path.write_bytes(data)
        file = LogFile(path)
        entries = file.entries(0, 100)
        assert file.tree().size == file.size() == len(entries)
        return entries


def _read_cosign(data: bytes) -> object:
    authority = _authority()[1]
    with tempfile.TemporaryDirectory() as folder:
        witness = Witness.create(Path(folder))
        witness.add(authority.pem)
        return witness.cosign(CosignAsk.FromString(data))


def _cosign() -> list[bytes]:
    authority = _authority()[1]
    return [CosignAsk(update=authority.log.update(n, NOW)).SerializeToString() for n in (0, 4)]


def _evidence() -> list[bytes]:
    update = LogUpdate.FromString(_update())
    with tempfile.TemporaryDirectory() as folder:
        path = log_copy.keep_evidence(Path(folder), update.checkpoint, update, "fuzzed")
        return [path.read_bytes(), update.checkpoint.SerializeToString()]


DECODERS: dict[str, tuple[Callable[[bytes], object], Callable[[], list[bytes]], tuple]] = {
    "log update": (_read_update, lambda: [_update()], _REFUSED),
    "log proof": (_read_proof, _proofs, _REFUSED),
    "log entry": (log_entries.read_entry, lambda: _authority()[1].log.file.entries(0, 2), _REFUSED),
    "log page": (
        _read_page,
        lambda: [_authority()[1].log.page(LogAsk(), NOW).SerializeToString()],
        _REFUSED,
    ),
    "log file": (
        _read_file,
        lambda: [(_authority()[1].folder / "log").read_bytes()],
        _REFUSED,
    ),
    "log heads": (log_copy.read_heads, _evidence, _REFUSED),
    "cosign": (_read_cosign, _cosign, _REFUSED),
}
