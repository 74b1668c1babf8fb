"""The certificate log at a node whose machine has the one head that counts.

A device, for sessions and between them, and an edge that helps. Here is what brings the machine
heads, and what keeps the evidence of a fork.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ...common.errors import DelianError
from ...wire.log_pb2 import Checkpoint, LogUpdate
from ..identity.log.log_copy import keep_evidence
from ..identity.log.log_entries import read_head

log = logging.getLogger("delian.identity")


class LogSink:
    """The receiver of certificate-log heads that come with the deny list.

    See `core.node.identity.enrolment.kept_deny_list.LogSink`. The machine verifies them.
    """

    def __init__(self, size: Callable[[], int], offer: Callable[[LogUpdate], None]) -> None:
        """size: of the log that the machine has accepted. offer: from another thread."""
        self._size, self._offer = size, offer

    def size(self) -> int:
        return self._size()

    def take(self, update: LogUpdate) -> None:
        self._offer(update)


def keep_fork(folder: Path, record: Mapping[str, Any]) -> None:
    """Keeps the heads of a "log_fork" record in the identity's folder.

    An old head that comes late is no evidence. Blocks.
    """
    why = record["why"]
    known, update = Checkpoint.FromString(record["known"]), LogUpdate.FromString(record["offered"])
    before, after = read_head(known.head), read_head(update.checkpoint.head)
    if after.size < before.size and after.issued_s <= before.issued_s:
        log.warning("an old head of the certificate log was refused: %s", why)
        return
    try:
        keep_evidence(folder, known, update, why)
    except (OSError, DelianError) as error:
        log.error("two heads of the certificate log cannot be kept: %s", error)
