"""Judges imported models of ONNX by ONNX's own backend suite, which is part of its package.

    python tests/judges/onnx_suite.py [PATTERN...] [--plain] [--gradients] [--models] [--json FILE]

Needs the package onnx. Each case of the suite (nodes, and models that PyTorch exported) is read,
run as plain Python and then by the native back end, and compared with the suite's own results and
tolerances. Prints what is wrong, why the others were refused, and counts. --plain leaves out the
native back end: a fast look for wrong answers.

A result that differs from the suite's is judged by the same model in f64: `closer` is one that
agrees with it where the suite's own does not. --gradients compares, for each case that passed, the
slope of a weighted sum of its float outputs along a random way through its float inputs and
parameters with central differences, in f64 by the reference back end; all of them moved by about
1e-3 first, away from edges such as a relu's at 0. --models judges the package's networks alone.
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
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import delian as dl
import numpy as np
import onnx
from delian.core.common.errors import DelianError, ProgramError
from delian.core.compiler.ir import DType
from delian.core.learning.interchange.onnx import element_types, model_files
from onnx.backend.test.loader import load_model_tests
from onnx.backend.test.runner import Runner

PLAIN_TYPES = frozenset(DType.names())
#: How far inputs are moved before their slopes are taken.
JITTER = 1e-3
#: In place of patterns: the networks.
MODELS = "<models>"
#: Inputs of which differences have no digits left.
HUGE = 1e8
KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator")


@dataclass
class Verdict:
    """passed, closer, refused, wrong or crashed (an error that is no refusal), and why."""

    name: str
    kind: str
    state: str
    why: str = ""
    gradient: str = ""


def cases() -> Iterator[tuple[str, Any]]:
    for kind in KINDS:
        for case in load_model_tests(kind=kind):
            yield kind, case


@dataclass
class Network:
    """A network of the package, as a case: its weights are constants, its results are stored."""

    name: str
    model: Any
    data_sets: list[Any]
    rtol: float = 1e-3
    atol: float = 1e-7


def networks() -> Iterator[tuple[str, Any]]:
    for path in sorted((Path(onnx.__file__).parent / "backend/test/data/light").glob("*.onnx")):
        model, output = onnx.load(path), onnx.TensorProto()
        output.ParseFromString(path.with_name(f"{path.stem}_output_0.pb").read_bytes())
        held = {tensor.name for tensor in model.graph.initializer}
        inputs = [v for v in model.graph.input if v.name not in held]
        given = [Runner.generate_dummy_data(v, name=path.stem) for v in inputs]
        yield "light", Network(path.stem, model, [(given, [output])])


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


def judge(kind: str, case: Any, backends: tuple[Any, ...], gradients: bool) -> Verdict:
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
                    state = "closer" if is_closer(proto, inputs, got, case) else "wrong"
                    return Verdict(case.name, kind, state, why)
    except ProgramError as error:
        return Verdict(case.name, kind, "refused", f"{error.code}: {error.message[:300]}")
    except DelianError as error:
        return Verdict(case.name, kind, "refused", error.message[:300])
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(where.filename).name}:{where.lineno}"
        why = f"{type(error).__name__}: {str(error)[:200]} ({place})"
        return Verdict(case.name, kind, "crashed", why)
    slope = judge_gradient(proto, pairs[0][0]) if gradients and pairs else ""
    return Verdict(case.name, kind, "passed", gradient=slope)


def is_closer(proto: Any, inputs: list[Any], got: Any, case: Any) -> bool:
    """Whether what we got is what f64 gives."""
    with in_double():
        exact = dl.from_onnx(proto).run(*[wider(x) for x in inputs], backend=None)
    rounded = [e.astype(g.dtype) for e, g in zip(exact, got, strict=True)]
    try:
        compare(rounded, got, case)
    except AssertionError:
        return False
    return True


def wider(x: Any) -> Any:
    if isinstance(x, list):
        return [wider(each) for each in x]
    return x if x is None or x.dtype != np.float32 else x.astype(np.float64)


@contextmanager
def in_double() -> Iterator[None]:
    """Reads models so that what is f32 in them is f64: tensors, and the type that casts name."""
    read = model_files.Tensors.array
    with (
        mock.patch.dict(element_types.NUMPY_TYPES, {onnx.TensorProto.FLOAT: np.float64}),
        mock.patch.object(model_files.Tensors, "array", lambda self, t: wider(read(self, t))),
    ):
        yield


def judge_gradient(proto: Any, inputs: list[Any]) -> str:
    """agrees, differs, refused or none, and why."""
    try:
        with in_double():
            return _judge_gradient(dl.from_onnx(proto), inputs)
    except ProgramError as error:
        return f"refused: {error.code}: {error.message[:200]}"
    except DelianError as error:
        return f"refused: {error.message[:200]}"


def _judge_gradient(model: Any, inputs: list[Any]) -> str:
    names = model.graph.inputs
    given = dict(zip(names, inputs, strict=False))
    fixed = {n: given.pop(n) for n in model.graph.static_inputs if n in given}
    model = model.bind(**fixed) if fixed else model
    rng = np.random.default_rng(0)

    def nudged(x: Any) -> Any:
        return x + JITTER * rng.normal(size=x.shape) if x.dtype == np.float64 else x

    values = list(given.values())
    values = [x if isinstance(x, list | type(None)) else wider(np.asarray(x)) for x in values]
    if any(not isinstance(x, np.ndarray) or x.dtype.name not in PLAIN_TYPES for x in values):
        return "none: an input is no plain array"
    if any(np.abs(x).max(initial=0.0) > HUGE for x in values if x.dtype == np.float64):
        return "none: inputs too large for differences"
    values = [nudged(x) for x in values]
    model = replace(model, parameters={n: nudged(p) for n, p in model.parameters.items()})
    moving = [k for k, x in enumerate(values) if x.dtype == np.float64]
    results = dl.tree.leaves(dl.compile(model, backend="reference")(*values))
    smooth = [k for k, y in enumerate(results) if np.asarray(y).dtype == np.float64]
    weights = {k: rng.normal(size=np.shape(results[k])) for k in smooth}
    ways = [rng.normal(size=values[k].shape) for k in moving]
    turns = {n: rng.normal(size=p.shape) for n, p in model.parameters.items()}
    if not smooth or not (moving or turns):
        return "none: no floats"

    def value(parameters: Any, moved: Any, still: Any) -> Any:
        whole = list(still)
        for k, x in zip(moving, moved, strict=True):
            whole[k] = x
        leaves = dl.tree.leaves(replace(model, parameters=parameters)(*whole))
        return sum(np.sum(leaves[k] * weights[k]) for k in smooth)

    here = model.parameters, tuple(values[k] for k in moving)
    slopes = dl.compile(dl.grad(value, (0, 1)), backend="reference")(*here, values)
    along = sum(np.sum(slopes[0][n] * w) for n, w in turns.items())
    along += sum(np.sum(g * w) for g, w in zip(slopes[1], ways, strict=True))

    def ahead(step: float) -> Any:
        parameters = {n: p + step * turns[n] for n, p in here[0].items()}
        moved = tuple(x + step * w for x, w in zip(here[1], ways, strict=True))
        return value(parameters, moved, values)

    estimates = [(ahead(h) - ahead(-h)) / (2 * h) for h in (1e-5, 1e-6)]
    scale = max(1.0, *(abs(float(e)) for e in estimates))
    if not np.isfinite(estimates).all():
        return "none: not finite"
    if min(abs(along - e) for e in estimates) <= 1e-5 * scale:
        return "agrees"
    if abs(estimates[0] - estimates[1]) > 1e-4 * scale:
        return "none: no slope here"
    return f"differs: {along} and {estimates}"


def _chosen_cases(patterns: list[str]) -> list[tuple[str, Any]]:
    if MODELS in patterns:
        return list(networks())
    wanted = re.compile("|".join(patterns))
    found = [(kind, case) for kind, case in cases() if wanted.search(case.name)]
    return sorted(found, key=lambda pair: pair[1].name)


def _part(
    patterns: list[str], start: int, step: int, backends: tuple[Any, ...], gradients: bool
) -> list[Verdict]:
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    return [judge(k, c, backends, gradients) for k, c in _chosen_cases(patterns)[start::step]]


def report(verdicts: list[Verdict]) -> str:
    lines = []
    for state in ("wrong", "crashed", "closer", "refused"):
        for v in verdicts:
            if v.state == state:
                lines.append(f"{state} {v.name}: {v.why}")
    bad = [v for v in verdicts if v.gradient.startswith(("differs", "refused"))]
    lines += [f"gradient of {v.name} {v.gradient}" for v in bad]
    counts = Counter(v.state for v in verdicts)
    lines.append(
        f"onnx {onnx.__version__}: {len(verdicts)} cases, "
        + ", ".join(f"{counts[s]} {s}" for s in ("passed", "closer", "refused", "wrong", "crashed"))
    )
    slopes = Counter(v.gradient.partition(":")[0] for v in verdicts if v.gradient)
    if slopes:
        lines.append("gradients: " + ", ".join(f"{n} {s}" for s, n in sorted(slopes.items())))
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("patterns", nargs="*")
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--gradients", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--models", action="store_true")
    options = parser.parse_args()
    options.patterns += [MODELS] if options.models else []
    backends = (None,) if options.plain else (None, "native")
    many = options.workers
    if many == 1:
        verdicts = _part(options.patterns, 0, 1, backends, options.gradients)
    else:
        with ProcessPoolExecutor(many) as pool:
            rest = many, backends, options.gradients
            parts = [pool.submit(_part, options.patterns, k, *rest) for k in range(many)]
            verdicts = [v for part in parts for v in part.result()]
    verdicts.sort(key=lambda v: v.name)
    print(report(verdicts))
    if options.json:
        options.json.write_text(json.dumps([asdict(v) for v in verdicts], indent=1))
    return int(any(v.state in ("wrong", "crashed") for v in verdicts))


if __name__ == "__main__":
    sys.exit(main())
