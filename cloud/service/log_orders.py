"""What the coordinator's machine learns of the certificate log.

Its newest head, as an order, when the file that sessions prove devices from has all that the head
counts.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

from ...core.common.errors import DelianError
from ...core.node.identity.log.certificate_log import CertificateLog
from ...core.node.identity.log.log_copy import LogCopy
from ...core.wire.log_pb2 import Checkpoint

log = logging.getLogger("delian.cloud")

#: How often it is asked for a newer head. A device that has just joined or renewed is left out of
#: masked sums for so long.
FOLLOW_S: Final = 2.0


async def follow(source: CertificateLog | LogCopy, tell: Callable[[Checkpoint], None]) -> None:
    """Reports each newer head that devices accept, until it is cancelled.

    source: the log of the CA's folder, or a copy of it.
    """
    told: Checkpoint | None = None
    said = ""
    while True:
        try:
            update = await asyncio.to_thread(source.update, 0, time.time())
            head = update.checkpoint
            if head != told:
                # Some seconds for a million entries: not in the machine.
                await asyncio.to_thread(source.file.tree)
                told = head
                tell(head)
            said = ""
        except (DelianError, OSError, TimeoutError) as error:
            if str(error) != said:
                said = str(error)
                log.warning("masked sums go by an old head of the certificate log: %s", error)
        await asyncio.sleep(FOLLOW_S)
