"""The deny list as a node that has no CA keeps it: an edge refuses a revoked device also after a
restart without its uplink.

The coordinator hands the list out with a version (`Identity.Denied`); a node asks from time to time
and when somebody tells it to, and stores what it is told before it acts on it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from ..wire import enrolment_pb2
from .authority import DENIED_MAX, DenyList, serial_bytes
from .certificates import IdentityError
from .ledger import write_file

SERIAL_BYTES_MAX = 20  # RFC 5280, 4.1.2.2
FILE_BYTES_MAX = DENIED_MAX * 64
ASK_EVERY_S = 300
TIME_METADATA = "delian-time-ms"  # trailing metadata of the answer: the coordinator's Unix time


class KnownDenied:
    """What a node knows of the deny list. Calling it gives the list: `Guard` takes it as it is."""

    def __init__(self, path: Path, changed: Callable[[DenyList], None] | None = None) -> None:
        """Reads what was stored; raises IdentityError when it is damaged: without the list a node
        would trust those whom it must not.
        """
        self._path = path
        self._changed = changed
        self._list = _read(path)

    def __call__(self) -> DenyList:
        return self._list

    def request(self) -> enrolment_pb2.DeniedRequest:
        """What to ask the coordinator."""
        return enrolment_pb2.DeniedRequest(version=self._list.version)

    def update(self, reply: enrolment_pb2.DeniedList) -> bool:
        """Takes the coordinator's answer; durable on return. Whether it changed anything; raises
        IdentityError when it is no list. Call it off the event loop: it writes a file.

        A version that is lower than the known one is taken as well: the coordinator's CA was
        restored from a backup, and its list is the one that counts.
        """
        if reply.version == self._list.version:
            return False
        if len(reply.serials) > DENIED_MAX:
            raise IdentityError(f"a deny list of {len(reply.serials)} entries is too long")
        if any(not 0 < len(serial) <= SERIAL_BYTES_MAX for serial in reply.serials):
            raise IdentityError("the deny list has a serial number that cannot be")
        serials = frozenset(int.from_bytes(serial, "big") for serial in reply.serials)
        content = {"version": reply.version, "serials": [f"{s:x}" for s in sorted(serials)]}
        write_file(self._path, json.dumps(content).encode(), 0o600)
        self._list = DenyList(reply.version, serials)
        if self._changed is not None:
            self._changed(self._list)
        return True


def list_message(known: DenyList, version: int) -> enrolment_pb2.DeniedList:
    """The answer to somebody who has `version`."""
    message = enrolment_pb2.DeniedList(version=known.version)
    if version != known.version:
        message.serials.extend(map(serial_bytes, sorted(known.serials)))
    return message


def _read(path: Path) -> DenyList:
    try:
        with path.open("rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        return DenyList()
    except OSError as error:
        raise IdentityError(f"cannot read {path}: {error.strerror}") from None
    try:
        if len(content) > FILE_BYTES_MAX:
            raise ValueError
        facts = json.loads(content)
        serials = frozenset(int(serial, 16) for serial in facts["serials"])
        return DenyList(int(facts["version"]), serials)
    except (ValueError, KeyError, TypeError, RecursionError):
        raise IdentityError(
            f"{path} is damaged", "delete it while the coordinator can be reached"
        ) from None
