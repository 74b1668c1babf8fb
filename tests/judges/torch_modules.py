"""PyTorch's own table of modules as the judge of `from_torch`.

    python tests/judges/torch_modules.py [--only NAME] [--samples N] [--backend NAME] [--json]

Each row of `torch.testing._internal.common_modules.module_db` makes modules and inputs. A sample
passes when the imported module gives PyTorch's outputs, in training or in inference, and its
gradients in all parameters and float inputs, within PyTorch's tolerances. A row passes when every
sample that PyTorch itself runs passes.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import json
import sys
import warnings

import torch
from torch.testing._internal import common_modules
from torch_samples import Verdicts, judge

warnings.simplefilter("ignore")


def samples(info, training: bool, verdicts: Verdicts):
    torch.manual_seed(0)
    for sample in info.module_inputs_func(info, "cpu", torch.float32, True, training):
        build, call = sample.constructor_input, sample.forward_input
        if call is None:
            continue
        try:
            torch.manual_seed(0)
            module = info.module_cls(*build.args, **build.kwargs)
            module.train(training)
            module(*call.args, **call.kwargs)
        except Exception:
            verdicts.add("torch refuses")
            continue
        yield module, call.args, call.kwargs


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--samples", type=int, default=60, help="of a row and a mode, at most")
    parser.add_argument("--backend", default="native")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows, reasons = {}, collections.Counter()
    for info in common_modules.module_db:
        if options.only not in info.name:
            continue
        verdicts = Verdicts()
        for training in (True, False):
            calls = list(itertools.islice(samples(info, training, verdicts), options.samples))
            if calls:
                judge(calls, training, options.backend, verdicts)
        count = verdicts.count
        bad = count["wrong"] or count["refused"] or count["fault"]
        rows[info.name] = {"whole": bool(count["passed"] and not bad), **count, **verdicts.first}
        reasons += verdicts.reasons
        if not options.json:
            print(info.name, dict(count), *verdicts.first.values(), flush=True)
    total = collections.Counter()
    for row in rows.values():
        total += collections.Counter({k: v for k, v in row.items() if isinstance(v, int)})
    whole = total.pop("whole", 0)
    summary = {"rows": len(rows), "whole": whole, **total, "reasons": dict(reasons.most_common())}
    if options.json:
        json.dump({"summary": summary, "rows": rows}, sys.stdout, indent=1)
    else:
        print(json.dumps(summary, indent=1))
    return 1 if total["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
