"""Makes the protobuf modules in `core/wire/` from the contract in `proto/`.

    python tests/support/wire_modules.py            # writes core/wire/*_pb2.py and *_pb2.pyi
    python tests/support/wire_modules.py --check    # exits 1 when they differ from proto/

protoc is given a virtual path, so that the files in `proto/` import one another, and the generated
modules register, as `delian/core/wire/NAME.proto`: the place where the modules really live. A file
that declares a service also gets its `*_pb2_grpc.py`. Needs grpcio-tools, which the extra
`delian[dev]` installs.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

#: Where the modules live, as a path and, with dots, as a package.
VIRTUAL = "delian/core/wire"
ROOT = Path(__file__).resolve().parents[2]
WIRE, PROTO = ROOT / "core" / "wire", ROOT / "proto"


def protoc(arguments: list[str]) -> None:
    """Runs the protobuf compiler on every file of `proto/`; raises RuntimeError if it fails."""
    from grpc_tools import protoc as compiler  # type: ignore[import-untyped]

    # The tools' own folder holds google/protobuf/*.proto.
    builtin = Path(compiler.__file__).parent / "_proto"
    files = [str(path) for path in sorted(PROTO.glob("*.proto"))]
    command = ["protoc", f"-I{VIRTUAL}={PROTO}", f"-I{builtin}", *arguments, *files]
    if compiler.main(command) != 0:
        raise RuntimeError(f"protoc refused a file of {PROTO}")


def generate(into: Path) -> list[Path]:
    """Writes the modules into a folder; gives their paths."""
    with tempfile.TemporaryDirectory() as folder:
        outputs = [f"--{kind}_out={folder}" for kind in ("python", "pyi", "grpc_python")]
        protoc(outputs)
        made = []
        for source in sorted((Path(folder) / VIRTUAL).iterdir()):
            if source.name.endswith("_pb2_grpc.py") and not _has_service(source):
                continue
            made.append(into / source.name)
            shutil.copyfile(source, made[-1])
    return made


def _has_service(module: Path) -> bool:
    stem = module.name.removesuffix("_pb2_grpc.py")
    lines = (PROTO / f"{stem}.proto").read_text().splitlines()
    return any(line.startswith("service ") for line in lines)


def stale() -> list[str]:
    """The names of the modules that are missing or differ from what `proto/` gives."""
    with tempfile.TemporaryDirectory() as folder:
        return [
            fresh.name
            for fresh in generate(Path(folder))
            if not (WIRE / fresh.name).exists()
            or (WIRE / fresh.name).read_bytes() != fresh.read_bytes()
        ]


def main() -> int:
    """Generates the modules, or compares them with the contract."""
    parser = argparse.ArgumentParser(prog="python tests/support/wire_modules.py")
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit 1 on a difference"
    )
    if parser.parse_args().check:
        names = stale()
        print("\n".join(f"{name} differs from proto/" for name in names) or "up to date")
        return 1 if names else 0
    print("\n".join(f"core/wire/{path.name}" for path in generate(WIRE)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
