"""Networks by their tasks, each with its own loss and integer ids: the table of docs/models.md.

    python tests/judges/task_table.py [FAMILY ...] [--only NAME] [--json]

A family is a file of tests/judges/tasks: our own PyTorch modules after papers, and torchvision's
segmentation. A module is imported together with its loss, and trained by one step of SGD on four
rows and on seven: loss and step are compared with PyTorch in f64, as model_table.py does. Then all
outputs of inference are compared on seven rows, or on four where torch.export fixes the batch.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import traceback
import warnings
from collections.abc import Mapping
from functools import partial

import numpy as np
from model_table import TOLERANCE, best_of, imported, step_of_sgd, still

FAMILIES = ("recommenders", "tabular", "sequences", "generative", "images")
#: Rows of the batch that is the example, and of another one.
ROWS, OTHER_ROWS = 4, 7


def tasks_of(family: str) -> dict:
    from importlib import import_module

    return import_module(f"tasks.{family}").TASKS


def judged(make) -> dict:
    import torch
    from tasks.task import WithLoss, drawn

    torch.manual_seed(0)
    task = make()
    still(task.module)
    module = WithLoss(task.module, task.loss)
    inputs = drawn(task, ROWS, 1)
    found = {"parameters": sum(p.numel() for p in module.parameters())}
    model = imported(module, inputs)
    sizes = {s[0] for s in model.graphs.training.shapes if s}
    rows = [ROWS, OTHER_ROWS] if sizes == {None} else [ROWS]
    step = step_of_sgd()
    for count in rows:
        found[f"rows {count}"] = best_of(step, model, module, partial(drawn, task, count))
    found["inference"] = inference_error(model, module, drawn(task, rows[-1], 2))
    own = inference_error(None, module, drawn(task, rows[-1], 2))
    good = all(found[f"rows {count}"]["verdict"] == "equal" for count in rows)
    good = good and found["inference"] <= TOLERANCE + 3 * own
    return {**found, "verdict": "equal" if good else "wrong"}


def inference_error(model, module, inputs) -> float:
    """The largest difference of an output from PyTorch in f64; None: PyTorch's own in f32."""
    import delian as dl
    import torch

    module = copy.deepcopy(module).eval()
    wide = {k: v.double() if v.is_floating_point() else v for k, v in inputs.items()}
    with torch.no_grad():
        if model is None:
            got = _leaves(module(**inputs))
        else:
            arrays = [v.numpy() for v in inputs.values()]
            got = _leaves(dl.compile(threads=1)(_called)(model, arrays))
        want = _leaves(module.double()(**wide))
    worst = 0.0
    for ours, theirs in zip(got, want, strict=True):
        assert ours.shape == theirs.shape, (ours.shape, theirs.shape)
        size = max(float(np.abs(theirs).max(initial=0, where=np.isfinite(theirs))), 1e-12)
        same = (ours == theirs) | (np.isnan(ours) & np.isnan(theirs))
        with np.errstate(invalid="ignore"):
            gap = np.where(same, 0, np.abs(ours - theirs))
        worst = max(worst, float(np.nan_to_num(gap, nan=np.inf).max(initial=0)) / size)
    return worst


def _leaves(outputs) -> list[np.ndarray]:
    """Arrays of f64, those of a mapping in the order of its names."""
    if isinstance(outputs, Mapping):
        outputs = [outputs[name] for name in sorted(outputs)]
    if isinstance(outputs, list | tuple):
        return [leaf for each in outputs for leaf in _leaves(each)]
    return [np.asarray(outputs, np.float64)]


def _called(model, arrays):
    return model(*arrays)


def one(make) -> dict:
    from delian.core.common.errors import DelianError

    try:
        return judged(make)
    except DelianError as fault:
        return {"verdict": "refused", "reason": str(fault)[:600]}
    except Exception as fault:
        traceback.print_exc()
        return {"verdict": "fault", "reason": f"{type(fault).__name__}: {fault}"[:600]}


def main() -> int:
    import torch

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("families", nargs="*", metavar="FAMILY", help=", ".join(FAMILIES))
    parser.add_argument("--only", default="")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    # The fast path of nn.TransformerEncoder gives zeros at padding, where the layers themselves
    # and the exported graph go on.
    torch.backends.mha.set_fastpath_enabled(False)
    rows = {}
    for family in options.families or FAMILIES:
        for name, make in tasks_of(family).items():
            if options.only in name:
                rows[f"{family}/{name}"] = row = one(make)
                if not options.json:
                    print(f"{family}/{name}", json.dumps(row)[:700], flush=True)
    verdicts = [row["verdict"] for row in rows.values()]
    counts = {v: verdicts.count(v) for v in sorted(set(verdicts))}
    print(json.dumps({"counts": counts, "models": rows}, indent=1) if options.json else counts)
    return 1 if counts.get("wrong") or counts.get("fault") else 0


if __name__ == "__main__":
    sys.exit(main())
