"""The wheel that users install."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

PACKAGES = ("cli", "client", "cloud", "core", "device", "edge", "simulations")


def test_a_wheel_has_every_file_of_the_packages(checkout: Path, tmp_path: Path) -> None:
    copy = tmp_path / "checkout"
    paths = [path for name in PACKAGES for path in (checkout / name).rglob("*") if path.is_file()]
    files = [str(path.relative_to(checkout)) for path in paths if path.suffix != ".pyc"]
    files += ["__init__.py", "__main__.py", "pyproject.toml", "README.md", "LICENSE"]
    for name in files:
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_bytes((checkout / name).read_bytes())
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(tmp_path), str(copy)]
    subprocess.run(pip, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    packed = set(zipfile.ZipFile(wheel).namelist())
    wanted = {f"delian/{n}" for n in files if n.startswith(PACKAGES)}
    assert wanted <= packed, sorted(wanted - packed)
    assert {"delian/__init__.py", "delian/__main__.py"} <= packed
    assert any(name.endswith("licenses/LICENSE") for name in packed)
