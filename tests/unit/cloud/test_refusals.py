"""What an operator reads of devices that refused."""

from __future__ import annotations

from delian.cloud.protocol.refusal_texts import REFUSALS, explained
from delian.core.wire.round_pb2 import (
    BELOW_FLOOR,
    DEADLINE,
    MASKS_REQUIRED,
    NO_ROOM,
    NOT_SIGNED,
    QUESTION_REFUSED,
    TASK_NOT_SIGNED,
)


def test_owners_refusals_are_said_with_their_numbers():
    why = explained("too few devices reported", [MASKS_REQUIRED, DEADLINE, MASKS_REQUIRED])
    assert why == "too few devices reported: device's owner requires masks (2 devices)"


def test_other_reasons_add_nothing():
    assert explained("too few devices reported", [DEADLINE, 99]) == "too few devices reported"


def test_each_lasting_refusal_has_words():
    never = {MASKS_REQUIRED, BELOW_FLOOR, NOT_SIGNED, TASK_NOT_SIGNED, QUESTION_REFUSED, NO_ROOM}
    assert set(REFUSALS) == never
