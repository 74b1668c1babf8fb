"""Text of peers that a terminal must not obey."""

from __future__ import annotations

import json

import pytest
from delian.core.common.printable import LINES, escaped, is_plain


@pytest.mark.parametrize("text", ["", "Alma's phone", "Zürich 3", "機器 5", "12\u202f000 · é"])
def test_printable_text_of_any_script_is_left_alone(text):
    assert is_plain(text) and escaped(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b]0;owned\x07", "\\u001b]0;owned\\u0007"),  # the window's title
        ("a\rb\nc\td", "a\\u000db\\u000ac\\u0009d"),
        ("\x9b2K", "\\u009b2K"),  # CSI in one byte
        ("a\u202eb\u2066c", "a\\u202eb\\u2066c"),  # bidirectional controls
        ("a\u2028b\u200bc\x7f", "a\\u2028b\\u200bc\\u007f"),
        ("a\U000e0041b\udc1b", "a\\U000e0041b\\udc1b"),  # a tag, half of a pair
    ],
)
def test_what_a_terminal_would_obey_is_written_out(text, shown):
    assert not is_plain(text) and escaped(text) == shown


def test_line_breaks_and_tabs_are_kept_where_the_caller_wants_lines():
    assert escaped("a\tb\n\x1bc\r", LINES) == "a\tb\n\\u001bc\\u000d"


def test_a_json_document_stays_one():
    facts = {"why": "a\x7fb\x1b"}
    assert json.loads(escaped(json.dumps(facts), LINES)) == facts
