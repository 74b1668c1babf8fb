"""What goes wrong in a session of secure aggregation."""

from __future__ import annotations

from ...common.errors import DelianError


class SecureError(DelianError):
    """A session that cannot go on, or a message that breaks its rules.

    reason: a short fixed word for counters and records; never holds anything of the message itself.
    """

    def __init__(self, reason: str, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.reason = reason
