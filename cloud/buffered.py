"""A buffered-asynchronous run: see the class."""

from __future__ import annotations

from .rounds import RoundsMachine


class BufferedMachine(RoundsMachine):
    """Comes with the next change."""
