"""docs/model_table.md, made of what model_table.py has kept.

    python tests/judges/model_page.py torchvision.json timm.json transformers.json

The page goes to stdout; the files' names are the packages'.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

Row = Mapping[str, Any]

HEAD = """# Models of packages

Which models of torchvision, timm and transformers `dl.from_torch` imports, and how near they are to
PyTorch. The table is made by `tests/judges/model_table.py`, whose docstring says how a model is
judged, and by `tests/judges/model_page.py`.

A model is *equal* where the loss and the whole step of SGD (all gradients) agree with PyTorch in
f64. *step* is the relative difference of the step in f32, *torch* PyTorch's own; where a value next
to a ReLU's zero makes both large, *f64* is the difference of Delian's step in f64. *ONNX* is the
largest relative difference of the logits in onnxruntime. Times are of two rows with one thread,
taken while other jobs ran: *faster* is PyTorch eager's step by Delian's, each the least of three in
turn.
"""
COLUMNS = [
    "model",
    "parameters",
    "verdict",
    "step",
    "torch",
    "f64",
    "ONNX",
    "compile",
    "artifact",
    "faster",
]


def main() -> int:
    print(HEAD)
    for file in map(Path, sys.argv[1:]):
        rows = json.loads(file.read_text())
        print(f"## {file.stem} {version(file.stem)}\n")
        print(f"{summary(rows)}\n")
        print(f"| {' | '.join(COLUMNS)} |")
        print("|---|---:|---|---:|---:|---:|---:|---:|---:|---:|")
        for name, row in sorted(rows.items(), key=lambda item: item[0].lower()):
            if row["verdict"] == "equal":
                print(line(name, row))
        others = {n: r for n, r in rows.items() if r["verdict"] not in ("equal", "too large")}
        if others:
            print("\n| not equal | verdict | why |\n|---|---|---|")
            for name, row in sorted(others.items()):
                print(f"| {name} | {row['verdict']} | {why(row)} |")
        print()
    return 0


def summary(rows: Mapping[str, Row]) -> str:
    """One sentence of counts, and the middle ratio."""
    verdicts = [row["verdict"] for row in rows.values()]
    judged = sum(verdict in ("equal", "wrong", "refused") for verdict in verdicts)
    equal = [row for row in rows.values() if row["verdict"] == "equal"]
    ratios = [row["torch_s"] / row["step_s"] for row in equal]
    mean = math.exp(statistics.fmean(map(math.log, ratios)))
    trips = sum(row.get("onnx") == "equal" for row in equal)
    compiled = [row["compile_s"] for row in equal]
    return (
        f"{len(equal)} of {judged} models of at most 100 M parameters are equal; {trips} of these"
        f" give the same logits in onnxruntime. {verdicts.count('too large')} are larger and were"
        f" not tried. Compilation took {max(compiled):.0f} s at most,"
        f" {statistics.median(compiled):.1f} s in the middle; a step is {mean:.2f} times as fast"
        " as PyTorch eager's (geometric mean)."
    )


def line(name: str, row: Row) -> str:
    double = row.get("f64_step_error")
    trip = f"{row['onnx_error']:.0e}" if row.get("onnx") == "equal" else row.get("onnx", "")
    cells = [
        name,
        f"{row['parameters'] / 1e6:.1f} M" if row["parameters"] > 1e5 else f"{row['parameters']:,}",
        "equal",
        f"{row['step_error']:.0e}",
        f"{row['torch_step_error']:.0e}",
        f"{double:.0e}" if double is not None else "",
        trip,
        f"{row['compile_s']:.1f} s",
        f"{row['artifact_kb']} kB",
        f"{row['torch_s'] / row['step_s']:.2f}",
    ]
    return f"| {' | '.join(cells)} |"


def why(row: Row) -> str:
    """The first line of a reason, without the paths of a machine."""
    text = str(row.get("reason", "")).split("\n")[0].replace("|", "\\|")
    return text[:200]


if __name__ == "__main__":
    sys.exit(main())
