"""Fuzzes one decoder with atheris, coverage-guided, from its good inputs and the kept corpus.

    python tests/fuzz/fuzz.py envelope -max_total_time=60
    python tests/fuzz/fuzz.py --all 20    # every decoder, 20 seconds each, on all cores

A run of all takes the same seed each time, so that what it finds is a change's doing and not luck;
give a decoder alone no `-seed`, or another, to look further. What crashes is written to the present
folder as crash-*; `python tests/fuzz/fuzz.py NAME FILE` replays it. Needs atheris, which the extra
`delian[dev]` installs.
"""

from __future__ import annotations

import contextlib
import io
import os
import resource
import sys
import tempfile
from pathlib import Path
from typing import Any

CORPUS = Path(__file__).resolve().parent / "corpus"
#: Processor time that a decoder may take above its share, s: libFuzzer ends long inputs itself.
SPARE_S = 600


def main() -> int:
    if len(sys.argv) >= 3 and sys.argv[1] == "--all":
        return fuzz_all(sys.argv[2])
    return fuzz_one(sys.argv[1], sys.argv[2:])


def fuzz_all(seconds: str) -> int:
    """Every decoder in a process of its own, because libFuzzer never returns. The processes are
    forks of this one: to instrument the package takes longer than to fuzz a decoder.
    """
    with contextlib.redirect_stderr(io.StringIO()):  # a line for each module
        waiting = list(instrumented())
    running: dict[int, str] = {}
    failed = []
    with tempfile.TemporaryDirectory() as folder:
        while waiting or running:
            while waiting and len(running) < len(os.sched_getaffinity(0)):
                name = waiting.pop(0)
                pid = os.fork()
                if pid == 0:
                    fuzz_in_child(name, seconds, Path(folder, name))
                running[pid] = name
            pid, status = os.wait()
            name = running.pop(pid)
            said = Path(folder, name).read_text(errors="replace").splitlines()
            print("\n".join([f"== {name}", *said[-40 if status else -1 :]]), flush=True)
            if status:
                failed.append(name)
    print("findings: " + (", ".join(failed) or "none"))
    return 1 if failed else 0


def fuzz_in_child(name: str, seconds: str, output: Path) -> None:
    """Never returns. output: the file for what it prints."""
    status = 1
    try:
        limit = int(float(seconds)) + SPARE_S
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
        with output.open("wb") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        status = fuzz_one(name, [f"-max_total_time={seconds}", "-seed=1"])
    finally:
        sys.stderr.flush()
        os._exit(status)


def instrumented() -> dict[str, Any]:
    """The decoders, with the package instrumented."""
    import atheris

    with atheris.instrument_imports(include=["delian"]):
        import decoders
    return decoders.DECODERS


def fuzz_one(name: str, arguments: list[str]) -> int:
    import atheris

    decoder = instrumented()[name]

    def feed(data: bytes) -> None:
        with contextlib.suppress(decoder.refusals):
            decoder.read(data)

    with tempfile.TemporaryDirectory() as folder:
        for number, seed in enumerate(decoder.seeds()):
            (Path(folder) / f"seed-{number}").write_bytes(seed)
        kept = [str(CORPUS / name)] if (CORPUS / name).is_dir() else []
        files = [a for a in arguments if not a.startswith("-")]
        corpus = [] if files else [folder, *kept]
        limits = ["-rss_limit_mb=1024", "-timeout=10", "-verbosity=1", "-max_len=4096"]
        atheris.Setup([sys.argv[0], *limits, *arguments, *corpus], feed)
        atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
