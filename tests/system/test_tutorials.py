"""docs/tutorials: the commands and the Python of each page as they stand, and what they print."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from support import tutorial_pages

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "tutorials"
#: The first three are run by test_tutorial.py: they have daemons.
OTHERS = ("fleet.md", "fleet_mqtt.md", "questions.md", "index.md")
PAGES = [page for page in sorted(FOLDER.glob("*.md")) if page.name not in OTHERS]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_tutorial_does_what_it_says(page, tmp_path):
    if "import torch" in page.read_text() and importlib.util.find_spec("torch") is None:
        pytest.skip("the page uses PyTorch, which is not installed")
    ran = 0
    for block, said, shown in tutorial_pages.run(page, tmp_path):
        ran += 1
        assert not shown or not tutorial_pages.differs(said, shown), tutorial_pages.differs(
            said, shown
        )
        assert block.text.strip()
    assert ran >= 2, "a tutorial runs something"


def test_an_output_is_compared_by_its_lines_and_its_numbers():
    shown = "digits: 30 rounds in 3.5 s\n...\nall   89.1%  +8.9%\n"
    assert not tutorial_pages.differs("digits: 30 rounds in 13 s\nx\ny\nall 90.0% +8.0%\n", shown)
    assert tutorial_pages.differs("digits: 31 rounds in 13 s\nall 90.0% +8.0%\n", shown)
    assert tutorial_pages.differs("digits: 30 rounds in 13 s\nall 60.0% +8.0%\n", shown)
