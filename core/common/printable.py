"""Text that a terminal shows as it is, and the escaping of all other text.

A peer chooses its labels, reasons and error texts. A terminal obeys control characters in them:
ESC sequences move the cursor, clear lines and set the window's title (ECMA-48), C1 controls do the
same in one byte, bidirectional controls reorder a line (CVE-2021-42574). A character is plain if
Unicode calls it printable, or a space of another width.
"""

from __future__ import annotations

import unicodedata

LINES = "\n\t"


def is_plain(text: str) -> bool:
    """Whether the text is one line without control, format and unassigned characters."""
    return text.isprintable() or all(_plain(character) for character in text)


def escaped(text: str, keep: str = "") -> str:
    """The text with unprintable characters escaped as in JSON, but those in `keep`."""
    if is_plain(text):
        return text
    return "".join(c if _plain(c) or c in keep else _code(c) for c in text)


def _plain(character: str) -> bool:
    return character.isprintable() or unicodedata.category(character) == "Zs"


def _code(character: str) -> str:
    number = ord(character)
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"
