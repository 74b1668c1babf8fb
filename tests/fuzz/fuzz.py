"""Fuzzes one decoder with atheris, coverage-guided, from its good inputs and the kept corpus.

    python tests/fuzz/fuzz.py envelope -max_total_time=60
    python tests/fuzz/fuzz.py --all 20          # every decoder, 20 seconds each, as child processes

A run of all takes the same seed each time, so that what it finds is a change's doing and not luck;
give a decoder alone no `-seed`, or another, to look further. What crashes is written to the present
folder as crash-*; `python tests/fuzz/fuzz.py NAME FILE` replays it. Needs atheris, which the extra
`delian[dev]` installs.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from pathlib import Path

CORPUS = Path(__file__).resolve().parent / "corpus"


def main() -> int:
    if len(sys.argv) >= 3 and sys.argv[1] == "--all":
        return fuzz_all(float(sys.argv[2]))
    return fuzz_one(sys.argv[1], sys.argv[2:])


def fuzz_all(seconds: float) -> int:
    """Every decoder in a process of its own: libFuzzer never returns."""
    import decoders

    failed = []
    for name in decoders.DECODERS:
        print(f"== {name}", flush=True)
        command = [sys.executable, __file__, name, f"-max_total_time={seconds:g}", "-seed=1"]
        run = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=seconds + 600)
        lines = run.stderr.splitlines()
        print("\n".join(line for line in lines[-3:]), flush=True)
        if run.returncode != 0:
            failed.append(name)
            print("\n".join(lines[-40:]), flush=True)
    print("findings: " + (", ".join(failed) or "none"))
    return 1 if failed else 0


def fuzz_one(name: str, arguments: list[str]) -> int:
    import atheris

    with atheris.instrument_imports(include=["delian"]):
        import decoders
    decoder = decoders.DECODERS[name]

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
