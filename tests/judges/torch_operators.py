"""PyTorch's own table of operators as the judge of `from_torch`.

    python tests/judges/torch_operators.py [--only NAME] [--samples N] [--backend native] [--json]

Each f32 sample of `op_db` is a call of an operator. A sample passes when outputs and gradients are
PyTorch's within PyTorch's tolerances. One that is refused counts where torch.export takes it and
torch's default decompositions give core ATen alone, without complex numbers.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import json
import sys
import warnings

import torch
from delian.core.learning.interchange.torch import torch_export
from torch.testing._internal.common_methods_invocations import op_db
from torch_samples import Verdicts, judge, tensors

warnings.simplefilter("ignore")


def is_core(module, given) -> bool:
    """Whether torch's own decompositions give core ATen alone."""
    try:
        with torch_export._quiet(torch):
            exported = torch.export.export(module, tuple(given), strict=False)
            program = exported.run_decompositions()
    except Exception:
        return False
    for node in program.graph.nodes:
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            continue
        if torch.Tag.core not in node.target.tags:
            return False
        if any(t.is_complex() for t in tensors(node.meta.get("val"))):
            return False
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--samples", type=int, default=8, help="of an operator, at most")
    parser.add_argument("--backend", default="reference")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows, reasons, total = {}, collections.Counter(), collections.Counter()
    for info in op_db:
        # torch.export ends the process on a sparse tensor; what is empty has no values to compare.
        if "sparse" in info.name or "empty" in info.name:
            continue
        if options.only not in info.name or torch.float32 not in info.supported_dtypes("cpu"):
            continue
        torch.manual_seed(0)
        slopes, verdicts = info.supports_autograd, Verdicts()
        try:
            made = info.sample_inputs("cpu", torch.float32, requires_grad=slopes)
            found = list(itertools.islice(made, options.samples))
        except Exception:  # a sample that this build of torch lacks a library for
            continue
        if found:
            calls = [(info.op, (s.input, *s.args), s.kwargs) for s in found]
            judge(calls, False, options.backend, verdicts, is_core)
        total += verdicts.count
        reasons += verdicts.reasons
        rows[f"{info.name} {info.variant_test_name}".strip()] = {
            **verdicts.count,
            **{f"first {kind}": text for kind, text in verdicts.first.items()},
        }
        if not options.json:
            name = f"{info.name} {info.variant_test_name}"
            print(name, dict(verdicts.count), *verdicts.first.values(), flush=True)
    counted = sum(total[k] for k in ("passed", "wrong", "refused", "fault"))
    share = total["passed"] / max(counted, 1)
    summary = {
        "operators": len(rows),
        **total,
        "share": share,
        "reasons": dict(reasons.most_common()),
    }
    if options.json:
        json.dump({"summary": summary, "rows": rows}, sys.stdout, indent=1)
    else:
        print(json.dumps(summary, indent=1))
    return 1 if total["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
