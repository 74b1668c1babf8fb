"""What README.md, docs/ and examples/ say is so: their code gives what stands beside it."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import delian as dl
import numpy as np
import pytest
from delian.core.compiler.text import print_function

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
#: The project's code, and files of others that pages speak of.
SOURCES = [
    path.relative_to(ROOT).as_posix() for end in ("py", "h", "c") for path in ROOT.rglob(f"*.{end}")
]
THEIRS = {"net.py", "net.h", "math.h", "server_app.py"}


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"delian_documents_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_the_readme_s_example_prints_what_it_says(tmp_path, capsys):
    (code,) = blocks(ROOT / "README.md", "python")
    said = re.findall(r"^print.*#\s*(\[.*\])$", code, re.MULTILINE)
    (tmp_path / "readme.py").write_text(code)
    load(tmp_path / "readme.py")
    assert capsys.readouterr().out.split("\n")[:-1] == said
    assert len(said) == 3


def test_the_architecture_s_programs_are_what_the_compiler_makes(tmp_path):
    page = ROOT / "docs" / "architecture.md"
    (code,) = blocks(page, "python")
    (tmp_path / "architecture.py").write_text(f"import numpy as np\n\n{code}")
    loss = load(tmp_path / "architecture.py").loss
    types = [np.zeros(shape, np.float32) for shape in ((3,), (8, 3), (8,))]
    made = [print_function(dl.trace(f, *types).function) for f in (loss, dl.grad(loss))]
    assert [text.strip() for text in blocks(page, "text")] == [text.strip() for text in made]


def test_one_s_own_algorithm_runs_and_its_report_shows_it(tmp_path):
    example = load(ROOT / "examples" / "own_algorithm.py")
    report = example.main(tmp_path / "run", rounds=2)
    assert report["summary"]["algorithm"] == "ClippedAvg" and report["summary"]["rounds"] == 2
    assert report["scenario"]["algorithm"]["length"] == 1.0
    assert "ClippedAvg" in (tmp_path / "run" / "report.html").read_text()
    losses = [r["personalised_loss"] for r in report["rounds"]]
    assert losses[1] < losses[0]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        assert (page.parent / link).exists(), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_are_named_are_there(page):
    folders = "proto|core|device|edge|cloud|simulations|cli|tests|examples|docs"
    for name in re.findall(rf"`((?:{folders})/[\w/.,{{}}]+)`", page.read_text()):
        for one in spelt_out(name):
            assert (ROOT / one).exists(), name
    for name in re.findall(r"`([\w/]+\.(?:py|h|c))`", page.read_text()):
        assert name in THEIRS or any(f"/{path}".endswith(f"/{name}") for path in SOURCES), name


def test_every_name_of_the_face_that_pages_and_hints_give_is_there():
    modules = [path for top in ("core", "examples") for path in (ROOT / top).rglob("*.py")]
    named = set()
    for file in (*PAGES, *modules):
        named |= set(re.findall(r"\bdl((?:\.[A-Za-z_]\w*)+)", file.read_text()))
    assert ".Static" in named
    for dotted in sorted(named):
        found = dl
        for part in dotted[1:].split("."):
            assert hasattr(found, part), f"dl{dotted}"
            found = getattr(found, part)


def test_a_size_that_is_static_makes_the_shape():
    assert dl.compile(lambda n: np.zeros(n, np.float32))(dl.Static(3)).shape == (3,)


def spelt_out(name: str) -> list[str]:
    """`a/{b,c}.py` is `a/b.py` and `a/c.py`."""
    head, brace, rest = name.partition("{")
    inside, _, tail = rest.partition("}")
    return [head + one + tail for one in inside.split(",")] if brace else [name]


def test_every_promise_of_the_security_page_names_tests_that_are_there():
    """A short name, `test_roles.py`, lies in the folder of the full one before it."""
    page = (ROOT / "SECURITY.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| ") and "tests/" in line]
    assert len(rows) > 25
    missing, unproven = [], []
    for row in rows:
        folder, found = ROOT, 0
        for name in re.findall(r"`((?:tests/)?[\w/]*test_\w+\.py|tests/[\w/]+)`", row):
            if name.startswith("tests/"):
                path = ROOT / name
                folder = path if path.is_dir() else path.parent
            else:
                path = folder / name
            found += 1
            if not path.exists():
                missing.append(name)
        if not found:
            unproven.append(row[:80])
    assert not missing and not unproven
