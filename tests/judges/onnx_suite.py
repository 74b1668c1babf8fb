"""Judges imported models of ONNX by ONNX's own backend suite, which is part of its package.

    python tests/judges/onnx_suite.py [PATTERN...] [--plain] [--json FILE] [--workers N]

Needs the package onnx. Each case of the suite (nodes, and models that PyTorch exported) is read,
run as plain Python and then by the native back end, and compared with the suite's own results and
tolerances. Prints what is wrong, why the others were refused, and counts. --plain leaves out the
native back end: a fast look for wrong answers.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import delian as dl
import numpy as np
import onnx
from delian.core.common.errors import DelianError, ProgramError
from onnx.backend.test.loader import load_model_tests
from onnx.backend.test.runner import Runner

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator")


@dataclass
class Verdict:
    """passed, refused, wrong or crashed (an error that is no refusal), and why."""

    name: str
    kind: str
    state: str
    why: str = ""


def cases() -> Iterator[tuple[str, Any]]:
    for kind in KINDS:
        for case in load_model_tests(kind=kind):
            yield kind, case


def plain_value(value: Any, kind: Any = None) -> Any:
    """A value of the suite as arrays, lists or None."""
    if isinstance(value, onnx.TensorProto):
        return onnx.numpy_helper.to_array(value)
    if isinstance(value, list | tuple):
        return [plain_value(v) for v in value]
    return value


def data_sets(case: Any) -> tuple[Any, list[tuple[list[Any], list[Any]]]]:
    """The model, and pairs of inputs and wanted outputs."""
    if case.model is not None:
        pairs = [(list(a), list(b)) for a, b in case.data_sets]
        return case.model, [(plain_value(a), plain_value(b)) for a, b in pairs]
    folder = Path(case.model_dir)
    model = onnx.load(folder / "model.onnx")
    found = []
    for data in sorted(folder.glob("test_data_set*")):
        inputs = _values(data, "input", [v.type for v in model.graph.input])
        found.append((inputs, _values(data, "output", [v.type for v in model.graph.output])))
    return model, found


def _values(folder: Path, stem: str, types: list[Any]) -> list[Any]:
    found: list[Any] = []
    for k in range(len(list(folder.glob(f"{stem}_*.pb")))):
        data = (folder / f"{stem}_{k}.pb").read_bytes()
        if types[k].HasField("sequence_type"):
            sequence = onnx.SequenceProto()
            sequence.ParseFromString(data)
            found.append(onnx.numpy_helper.to_list(sequence))
        elif types[k].HasField("optional_type"):
            optional = onnx.OptionalProto()
            optional.ParseFromString(data)
            found.append(onnx.numpy_helper.to_optional(optional))
        else:
            tensor = onnx.TensorProto()
            tensor.ParseFromString(data)
            found.append(onnx.numpy_helper.to_array(tensor))
    return found


def compare(wanted: Any, got: Any, case: Any) -> None:
    """As the suite does, also for sequences of numbers, where it counts their elements."""
    if isinstance(wanted, list):
        assert isinstance(got, list) and len(got) == len(wanted), f"{len(wanted)} values"
        for one, other in zip(wanted, got, strict=True):
            compare(one, other, case)
    elif wanted is None or got is None:
        assert got is wanted, f"wanted {wanted}, not {got}"
    else:
        Runner.assert_similar_outputs([np.asarray(wanted)], [got], case.rtol, case.atol)


def judge(kind: str, case: Any, backends: tuple[Any, ...]) -> Verdict:
    try:
        proto, pairs = data_sets(case)
        model = dl.from_onnx(proto)
        for backend in backends:
            for inputs, wanted in pairs:
                got = model.run(*inputs, backend=backend)
                try:
                    compare(wanted, got, case)
                except AssertionError as error:
                    why = f"{backend or 'plain'}: {' '.join(str(error).split())[:300]}"
                    return Verdict(case.name, kind, "wrong", why)
    except ProgramError as error:
        return Verdict(case.name, kind, "refused", f"{error.code}: {error.message[:300]}")
    except DelianError as error:
        return Verdict(case.name, kind, "refused", error.message[:300])
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(where.filename).name}:{where.lineno}"
        why = f"{type(error).__name__}: {str(error)[:200]} ({place})"
        return Verdict(case.name, kind, "crashed", why)
    return Verdict(case.name, kind, "passed")


def _chosen_cases(patterns: list[str]) -> list[tuple[str, Any]]:
    wanted = re.compile("|".join(patterns))
    found = [(kind, case) for kind, case in cases() if wanted.search(case.name)]
    return sorted(found, key=lambda pair: pair[1].name)


def _part(patterns: list[str], start: int, step: int, backends: tuple[Any, ...]) -> list[Verdict]:
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    return [judge(k, c, backends) for k, c in _chosen_cases(patterns)[start::step]]


def report(verdicts: list[Verdict]) -> str:
    lines = []
    for state in ("wrong", "crashed", "refused"):
        for v in verdicts:
            if v.state == state:
                lines.append(f"{state} {v.name}: {v.why}")
    counts = Counter(v.state for v in verdicts)
    lines.append(
        f"onnx {onnx.__version__}: {len(verdicts)} cases, "
        + ", ".join(f"{counts[s]} {s}" for s in ("passed", "refused", "wrong", "crashed"))
    )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("patterns", nargs="*")
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--workers", type=int, default=1)
    options = parser.parse_args()
    backends = (None,) if options.plain else (None, "native")
    many = options.workers
    if many == 1:
        verdicts = _part(options.patterns, 0, 1, backends)
    else:
        with ProcessPoolExecutor(many) as pool:
            parts = [pool.submit(_part, options.patterns, k, many, backends) for k in range(many)]
            verdicts = [v for part in parts for v in part.result()]
    verdicts.sort(key=lambda v: v.name)
    print(report(verdicts))
    if options.json:
        options.json.write_text(json.dumps([asdict(v) for v in verdicts], indent=1))
    return int(any(v.state in ("wrong", "crashed") for v in verdicts))


if __name__ == "__main__":
    sys.exit(main())
