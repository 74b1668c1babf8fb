"""The documentation site: without a warning, with every page, with nothing from another host."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The built site, of a copy of the checkout: a build writes into it."""
    for needed in ("zensical", "mkdocstrings_handlers"):
        if importlib.util.find_spec(needed) is None:
            pytest.skip(f"{needed} is not installed: the extra `docs`")
    copy = tmp_path_factory.mktemp("site") / "delian"
    copy.mkdir()
    for path in ROOT.iterdir():
        if path.name not in (".git", "build", "docs"):
            (copy / path.name).symlink_to(path)
    shutil.copytree(ROOT / "docs", copy / "docs", ignore=shutil.ignore_patterns("__pycache__"))
    done = subprocess.run(
        [sys.executable, copy / "docs" / "site" / "build.py"],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=1200,
    )
    assert done.returncode == 0, done.stdout
    assert "No issues found" in done.stdout
    return copy / "build" / "site"


def test_every_page_of_the_documentation_is_on_the_site(site):
    pages = [path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")]
    wanted = {page.with_suffix(".html").as_posix() for page in pages}
    wanted.discard("decisions/README.html")
    missing = {name for name in wanted if not (site / name).exists()}
    assert not missing
    assert (site / "project" / "security.html").exists()
    assert (site / "source" / "examples" / "own_algorithm.py.html").exists()


def test_the_reference_has_every_public_name(site):
    import delian as dl

    text = (site / "api" / "delian.html").read_text()
    missing = [
        name
        for name in dl.__all__
        if name not in ("nn", "ops") and f'id="delian.{name}"' not in text
    ]
    assert not missing
    assert "Runs a federation on this machine" in text
    assert 'id="delian.nn.Dense"' in (site / "api" / "nn.html").read_text()


def test_nothing_is_loaded_from_another_host(site):
    loaded = re.compile(r'<(?:script|link|img|iframe)\b[^>]*?(?:src|href)="?(?:https?:)?//[^" >]+')
    found = {
        page.relative_to(site): loads
        for page in site.rglob("*.html")
        if (loads := loaded.findall(page.read_text()))
    }
    assert not found
