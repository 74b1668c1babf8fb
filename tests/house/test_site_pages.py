"""The navigation and the reference of the documentation site fit the pages and the public names."""

from __future__ import annotations

import json
import runpy
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import delian as dl
import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
MADE = runpy.run_path(str(DOCS / "site" / "pages.py"))
NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))


def leaves(nav: Any) -> Iterator[str]:
    """The pages of a navigation."""
    if isinstance(nav, str):
        yield nav
    else:
        for part in nav.values() if isinstance(nav, dict) else nav:
            yield from leaves(part)


def test_every_page_is_in_the_navigation_once():
    config = tomllib.loads((DOCS / "site" / "zensical.toml").read_text())
    named = list(leaves(config["project"]["nav"]))
    assert len(named) == len(set(named))
    pages = {uri for uri in MADE["pages"]() if not uri.startswith("source/")}
    assert set(named) == pages


def test_the_reference_lists_every_public_name():
    listed = [name for names in MADE["FACE"].values() for name in names.split()]
    assert len(listed) == len(set(listed))
    assert {*listed, *MADE["PACKAGES"]} == set(dl.__all__)


def test_links_out_of_the_documentation_lead_to_pages_of_the_site():
    pages = MADE["pages"]()
    assert "](project/security.md)" in pages["limits.md"]
    assert "](../source/examples/own_model.py.md)" in pages["project/readme.md"]
    assert "](tutorials/fleet.md)" in pages["index.md"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_kept_without_outputs(path):
    notebook = json.loads(path.read_text())
    assert notebook["nbformat"] == 4
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [] and cell["execution_count"] is None
