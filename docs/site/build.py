"""Builds the documentation site: `python docs/site/build.py` writes build/site.

Needs the extra `docs`. It fails where a link or an anchor leads nowhere, and where a docstring of
the Python reference cannot be read. Nothing in the site is loaded from another host; a browser's
search needs a server: `python -m http.server --directory build/site`.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pages

HERE = Path(__file__).resolve().parent
#: Where the pages are gathered, with the folder `site` that is made of them.
STAGE = pages.ROOT / "build" / "documentation"
SITE = pages.ROOT / "build" / "site"
EMPTY_HEADING = re.compile(r"<th[^>]*></th>")
#: Files of docs/ that pages show.
SHOWN = ("*.svg", "*.png")


def gather(stage: Path) -> None:
    """Writes the configuration and all pages into a new folder."""
    shutil.rmtree(stage, ignore_errors=True)
    for uri, text in pages.pages().items():
        file = stage / "pages" / uri
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    for pattern in SHOWN:
        for image in pages.DOCS.rglob(pattern):
            shutil.copy(image, stage / "pages" / image.relative_to(pages.DOCS))
    for name in ("site.css", "site.js"):
        shutil.copy(HERE / name, stage / "pages" / name)
    shutil.copy(HERE / "zensical.toml", stage / "zensical.toml")
    # Docstrings are found by the package's name, which the checkout's folder may not have. Only the
    # package is there: an environment within the checkout would be searched too.
    package = stage / "delian"
    package.mkdir()
    for init in pages.ROOT.glob("*/__init__.py"):
        (package / init.parent.name).symlink_to(init.parent)
    (package / "__init__.py").symlink_to(pages.ROOT / "__init__.py")


def main() -> int:
    """Builds; gives the exit status. What the tool says is printed."""
    gather(STAGE)
    if find_spec("zensical") is None:
        print("zensical is not installed: pip install '.[docs]'", file=sys.stderr)
        return 2
    done = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict", "--clean"],
        cwd=STAGE,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    print(done.stdout, end="")
    # Problems of docstrings are printed, and are no warnings to the tool.
    if done.returncode or "griffe" in done.stdout:
        return 1
    for page in (STAGE / "site").rglob("*.html"):
        # Markdown's tables have a heading, which pages leave empty where it says nothing.
        text = page.read_text(encoding="utf-8")
        page.write_text(EMPTY_HEADING.sub("<td></td>", text), encoding="utf-8")
    shutil.rmtree(SITE, ignore_errors=True)
    shutil.move(STAGE / "site", SITE)
    print(f"the site is {SITE.relative_to(pages.ROOT)}/index.html")
    return 0


if __name__ == "__main__":
    sys.exit(main())
