"""What a device's log says of the tasks and sessions that it refuses, once for each reason."""

from __future__ import annotations

from typing import Final

from ...core.privacy.secagg import logged
from ..protocol.acceptance import DENY_LIST_VERSION
from ..protocol.releases import BUDGET

#: What the log says of a task or session that the device refuses, by the reason of its record.
OWNER_REFUSES: Final = {
    "unmasked": (
        "a plain task was refused: edges and the coordinator could read its update;"
        " the owner allows plain tasks by `required = false` in [device.masks]"
    ),
    "deny list": (
        "a masked task was refused: the deny list is too old; neither the home nor the coordinator"
        " has given a newer one (`deny_list_days` in [device.masks])"
    ),
    DENY_LIST_VERSION: (
        "a masked task was refused: it names a newer deny list than this device's, and neither the"
        " home nor the coordinator has given that list"
    ),
    BUDGET: (
        "a task was refused: its update would bring this device's account of epsilon above a cap,"
        " or has no noise of the devices; the caps are `epsilon` in [device.budget] and the"
        " federation's terms (`delian device terms`)"
    ),
    "policy": (
        "a masked task was refused: it is below the floor, which the owner sets by"
        " `cohort_min` and `corrupt` in [device.masks]"
    ),
    logged.LOG: (
        "a masked session was ended: nothing proved that the other devices' certificates are in"
        " the federation's certificate log"
    ),
    logged.WITNESSES: (
        "a masked session was ended: too few witnesses have signed the head of the certificate log"
    ),
}
