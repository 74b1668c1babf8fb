"""The rules of the house that a reader relies on, kept by reading the checkout itself."""

from __future__ import annotations

import ast
import fnmatch
import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from support import wire_modules

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("cli", "client", "cloud", "core", "device", "edge", "simulations")
OUTSIDE = ("tests", "examples", "benchmarks", "deploy", "docs")
LINES_MAX = 600
FILES_MAX = 25
#: What each tier or package has: a table of transitions, a machine, a daemon, an entry point.
SAME_THING = ("__init__", "__main__", "table", "machine", "daemon")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def sources(*folders: str) -> list[Path]:
    found = [path for name in folders for path in sorted((ROOT / name).rglob("*.py"))]
    assert found or folders == OUTSIDE
    return [path for path in found if "_pb2" not in path.name]


def within_house(path: Path) -> str:
    return str(path.relative_to(ROOT))


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def test_pyproject_lists_every_package():
    folders = {path.parent for name in PACKAGES for path in (ROOT / name).rglob("*.py")}
    wanted = {"delian"} | {"delian." + within_house(f).replace("/", ".") for f in folders}
    assert set(PROJECT["tool"]["setuptools"]["packages"]) == wanted
    missing = [within_house(f) for f in folders if not (f / "__init__.py").exists()]
    assert not missing, "folders with modules and no __init__.py"


def test_pyproject_packs_every_file_that_is_no_module():
    patterns = PROJECT["tool"]["setuptools"]["package-data"]
    allowed = [
        f"{package.removeprefix('delian').lstrip('.').replace('.', '/')}/{pattern}".lstrip("/")
        for package, some in patterns.items()
        for pattern in some
    ]
    left_out = [
        within_house(path)
        for name in PACKAGES
        for path in (ROOT / name).rglob("*")
        if path.is_file()
        and path.suffix not in (".py", ".pyc", ".pyi")
        and not any(fnmatch.fnmatch(within_house(path), pattern) for pattern in allowed)
    ]
    assert not left_out


def test_the_root_holds_no_module_but_the_face_and_the_command():
    assert {path.name for path in ROOT.glob("*.py")} == {"__init__.py", "__main__.py"}


def test_packages_import_one_another_relatively_and_others_through_delian():
    wrong = []
    for path in sources(*PACKAGES, *OUTSIDE):
        inside = path.relative_to(ROOT).parts[0] in PACKAGES
        for node in ast.walk(parsed(path)):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module or ""]
            for name in names:
                first = name.partition(".")[0]
                if first in PACKAGES or (inside and first == "delian"):
                    wrong.append(f"{within_house(path)}:{node.lineno}: import of {name}")
    assert not wrong


def test_nothing_pickles_evaluates_or_swallows_every_error():
    wrong = []
    for path in sources(*PACKAGES):
        for node in ast.walk(parsed(path)):
            found = ""
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [alias.name for alias in node.names]
                names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
                found = next((n for n in names if n in ("pickle", "marshal", "shelve")), "")
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                found = node.func.id if node.func.id in ("eval", "exec") else ""
            elif isinstance(node, ast.ExceptHandler) and node.type is None:
                found = "bare except"
            if found:
                wrong.append(f"{within_house(path)}:{node.lineno}: {found}")
    assert not wrong


def test_every_module_says_what_it_is_for():
    silent = [
        within_house(path)
        for path in sources(*PACKAGES)
        if path.read_text(encoding="utf-8").strip() and ast.get_docstring(parsed(path)) is None
    ]
    assert not silent


def test_no_file_is_two_things():
    lengths = {p: len(p.read_text(encoding="utf-8").splitlines()) for p in sources(*PACKAGES)}
    assert not {within_house(p): n for p, n in lengths.items() if n > LINES_MAX}


def test_commands_print_through_the_one_function_that_escapes():
    """Labels, reasons and names are peers' text: a terminal would obey what is in them."""
    raw = re.compile(r"\b(typer\.(echo|secho|echo_via_pager)|click\.echo|(?<![\w.])print)\(")
    found = []
    for path in sources("cli"):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if path.name != "output.py" and raw.search(line):
                found.append(f"{within_house(path)}:{number}: use `echo` of cli/output.py")
    assert not found


def test_no_work_is_left_lying_about():
    notes = re.compile(r"\b(TODO|FIXME|XXX|NotImplementedError)\b")
    found = []
    for path in sources(*PACKAGES):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if notes.search(line) and "except" not in line and "suppress(" not in line:
                found.append(f"{within_house(path)}:{number}: {line.strip()}")
    assert not found


def test_the_generated_protobuf_modules_are_those_of_the_contract(tmp_path):
    pytest.importorskip("grpc_tools")

    def essence(module: Path) -> str:
        """Without the version of the tool that wrote it."""
        text = re.sub(r"# Protobuf Python Version: .*", "", module.read_text())
        text = re.sub(r"(Domain\.PUBLIC,)[\s\d,]+''", r"\1", text)
        return re.sub(r"GRPC_GENERATED_VERSION = .*", "", text)

    for fresh in wire_modules.generate(tmp_path):
        committed = ROOT / "core" / "wire" / fresh.name
        assert committed.exists(), f"{fresh.name} is missing: run wire_modules.py"
        assert essence(committed) == essence(fresh), f"{fresh.name} is stale: run wire_modules.py"


def test_the_protobuf_that_is_installed_can_load_the_generated_modules():
    wanted = next(d for d in PROJECT["project"]["dependencies"] if d.startswith("protobuf"))
    lowest = tuple(map(int, re.search(r">=([\d.]+)", wanted)[1].split(".")))
    for module in (ROOT / "core" / "wire").glob("*_pb2.py"):
        version = re.search(r"# Protobuf Python Version: ([\d.]+)", module.read_text())[1]
        assert lowest >= tuple(map(int, version.split("."))), module.name


def test_the_command_starts_without_what_only_some_commands_need():
    run = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", "import delian.cli.main"],
        capture_output=True,
        text=True,
        check=True,
    )
    imported = {line.rpartition("|")[2].strip() for line in run.stderr.splitlines()}
    assert "delian.cli.main" in imported
    heavy = {"torch", "sklearn", "scipy", "grpc", "numpy", "pydantic", "google.protobuf"}
    assert not heavy & imported


@pytest.mark.parametrize(
    ("aggregation", "needed"), [("secure", {"cryptography"}), ("plain", set())]
)
def test_the_main_job_imports_nothing_that_takes_long_and_that_it_does_not_need(
    tmp_path, aggregation, needed
):
    keys = ("rounds=1", f"privacy.aggregation={aggregation}")
    settings = [word for key in keys for word in ("--set", key)]
    arguments = ["simulate", *settings, "--out", str(tmp_path / "run")]
    run = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "delian.cli", *arguments],
        capture_output=True,
        text=True,
        check=True,
    )
    imported = {line.rpartition("|")[2].strip() for line in run.stderr.splitlines()}
    assert "delian.simulations.runs.simulate" in imported
    heavy = {"torch", "sklearn", "scipy", "grpc", "aiomqtt", "asyncio", "pandas", "cryptography"}
    assert (heavy | {"numpy.ma"}) & imported == needed


def test_the_readme_has_two_commands_and_its_links_lead_somewhere():
    readme = (ROOT / "README.md").read_text()
    blocks = re.findall(r"^```sh\n(.*?)^```$", readme, re.DOTALL | re.MULTILINE)
    assert len(blocks) == 2 and all(len(block.splitlines()) == 1 for block in blocks)
    assert "delian simulate" in blocks[0] and "pytest" in blocks[1]
    for link in re.findall(r"\]\(([^)#]+)\)", readme):
        assert (ROOT / link).exists(), link


def test_what_is_generated_of_the_code_is_what_the_code_is():
    texts = runpy.run_path(str(ROOT / "tests" / "house" / "generated.py"))["texts"]
    for path, text in texts().items():
        assert path.read_text() == text, "run: python tests/house/generated.py"


@pytest.mark.parametrize(
    ("subject", "fits"),
    [
        ("secagg: reject a roster with a repeated number", True),
        ("frontend, passes: loops over lists", True),
        ("Merge branch 'x'", True),
        ("x", False),
        ("Frontend: loops", False),
        ("frontend:loops", False),
        ("frontend: " + "x" * 63, False),
    ],
)
def test_commit_subjects_are_area_and_statement(tmp_path, subject, fits):
    (tmp_path / "message").write_text(f"{subject}\n\nWhy: anything.\n")
    script = ROOT / "tests" / "house" / "commit_subject.py"
    done = subprocess.run([sys.executable, script, tmp_path / "message"], capture_output=True)
    assert (done.returncode == 0) is fits


def test_no_folder_is_a_drawer():
    """The folder list is the architecture: no folder has more than 25 modules."""
    full = {}
    for name in PACKAGES:
        for folder in {path.parent for path in sources(name)}:
            modules = [path for path in folder.glob("*.py") if "_pb2" not in path.name]
            if len(modules) > FILES_MAX:
                full[within_house(folder)] = len(modules)
    assert not full


def test_two_modules_have_one_name_only_where_they_are_the_same_thing():
    found: dict[str, list[str]] = {}
    for path in sources(*PACKAGES):
        if path.stem not in SAME_THING:
            found.setdefault(path.name, []).append(within_house(path))
    assert not {name: places for name, places in found.items() if len(places) > 1}


def test_known_flaky_tests_are_five_at_most_with_a_date_and_a_reason():
    lines = (ROOT / "tests/system/known_flaky.txt").read_text().splitlines()
    known = [line for line in lines if line and not line.startswith("#")]
    assert len(known) <= 5
    for line in known:
        assert re.fullmatch(r"(tests/\S+\.py)::\S+ \d{4}-\d\d-\d\d \S.*", line), line
        assert (ROOT / line.partition("::")[0]).is_file(), line


#: Examples of what has no public name yet: a simulation from Python, training in parts.
INSIDE = {"examples/own_algorithm.py": "simulations", "examples/split_training.py": ""}


def test_examples_and_documents_use_public_names():
    """A user's program needs `import delian as dl`, and a training script `delian.client`."""
    texts = {within_house(path): path.read_text() for path in sources("examples")}
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        blocks = re.findall(r"^```python\n(.*?)^```", path.read_text(), re.M | re.S)
        texts[within_house(path)] = "\n".join(blocks)
    pattern = re.compile(r"^\s*(?:from|import) delian\.(\w+)", re.M)
    found = {name: set(pattern.findall(text)) - {"client"} for name, text in texts.items()}
    wrong = {
        name: parts
        for name, parts in found.items()
        if parts and (name not in INSIDE or (INSIDE[name] and parts != {INSIDE[name]}))
    }
    assert not wrong
    assert {name for name, parts in found.items() if parts} == set(INSIDE), "a name to take out"
