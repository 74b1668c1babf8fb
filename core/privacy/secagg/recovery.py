"""A member's secret from the shares that its neighbours gave, some of which may be wrong.

A mask key can be compared with its public half. A self-mask seed has none: there, a wrong share
shows only where shares are to spare, as it does not lie on one polynomial with the others. Two to
spare are looked at, which costs as much as making the secret twice more. One wrong share is then
found by leaving out each in turn; more are found as long as not all that is looked at is arranged
to fit. Of exactly a threshold of shares nothing can be said.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from . import kdf, shamir
from .secure_errors import SecureError

#: Shares beyond the threshold that are looked at: one to see that a share is wrong, one more to see
#: which.
_SPARE: Final = 2


@dataclass(frozen=True, slots=True)
class Recovered:
    """A secret that was recovered from its shares."""

    secret: bytes
    """32 bytes."""
    wrong: bool
    """Whether a share was left out as wrong."""


def recover(shares: Mapping[int, bytes], threshold: int, public: bytes | None = None) -> Recovered:
    """The secret of the shares, by point.

    Raises SecureError (reason `share`) where they do not fit, as far as that can be seen.

    public: the secret's X25519 public key; None: there is none to compare with.
    """
    looked_at = {at: shares[at] for at in sorted(shares)[: threshold + _SPARE]}
    secret = _combine(looked_at, threshold, public)
    if secret is not None:
        return Recovered(secret, wrong=False)
    # Without a public key, what is left must itself have a share to spare, or anything would do.
    needed = threshold + 1 if public is not None else threshold + 2
    if len(looked_at) >= needed:
        for left in looked_at:
            others = {at: share for at, share in looked_at.items() if at != left}
            secret = _combine(others, threshold, public)
            if secret is not None:
                return Recovered(secret, wrong=True)
    raise SecureError("share", "the shares that its neighbours gave do not fit")


def _combine(shares: Mapping[int, bytes], threshold: int, public: bytes | None) -> bytes | None:
    """The secret, or None where it can be seen that a share is wrong."""
    points = sorted(shares)
    first = {at: shares[at] for at in points[:threshold]}
    secret = shamir.combine(first, threshold)
    if public is not None:
        return secret if kdf.public_key(secret) == public else None
    for spare in points[threshold:]:
        # In GF(2^8) minus is xor: with all points moved by one of them, its value stands at zero.
        moved = {at ^ spare: share for at, share in first.items()}
        if shamir.combine(moved, threshold) != shares[spare]:
            return None
    return secret
