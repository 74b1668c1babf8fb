"""The device's part of its random keys: 32 random bytes that leave the device in no message.

A device's key for a round is a hash of the round's key, its number and this secret
(`core.protocol.random_streams.device_key`). Without the secret, a party that knows the round's
key would know each device's key before a program runs, and could write a program that answers for
one device only.

    FOLDER/key-secret    drawn when a device first starts; a device without it draws another

A simulation by processes gives the same models as a virtual one, where devices have no secret. It
writes `SIMULATED` into the files of its devices before they start. There is no setting for it.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from ...core.common.errors import DelianError
from ...core.common.files import read_at_most, write_whole

log = logging.getLogger("delian.device")

FILE = "key-secret"
SECRET_BYTES = 32
#: What stands in the file of a device of a simulation: it has no secret.
SIMULATED = b"none: a simulated device, whose random keys follow from its number\n"


def key_secret(folder: Path) -> bytes:
    """The device's secret, 32 bytes; drawn and stored where there is none.

    Empty for a device of a simulation. Blocks. Raises DelianError where the file cannot be read or
    written, or is damaged.
    """
    path = folder / FILE
    try:
        found = read_at_most(path, len(SIMULATED))
    except FileNotFoundError:
        return _drawn(path)
    except OSError as error:
        raise DelianError(f"{path}: cannot be read: {error.strerror}") from None
    if found == SIMULATED:
        log.warning("a simulated device: its random keys follow from its number")
        return b""
    if len(found) != SECRET_BYTES:
        raise DelianError(
            f"{path}: {len(found)} bytes, where a device's secret has {SECRET_BYTES}",
            "remove the file: the device draws another secret when it starts",
        )
    return found


def _drawn(path: Path) -> bytes:
    secret = os.urandom(SECRET_BYTES)
    try:
        write_whole(path, secret, mode=0o600, durable=True)
    except OSError as error:
        raise DelianError(
            f"{path}: cannot be written: {error.strerror}", "make room, or check the permissions"
        ) from None
    return secret
