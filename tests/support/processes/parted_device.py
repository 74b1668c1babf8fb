"""The device of `parted`, a process of its own.

Asks a split model, one request after the other, and writes down what became of each.

    python tests/support/processes/parted_device.py ORDER.json

The order names the bundle, the plan, the homes, how many requests, and where results go. It says
"ready" when its cuts are open, then a line with the number of each tenth request, and reads nothing
but the order. From time to time between requests it runs the whole program alone, to see how long
that takes. Afterwards it runs it on all inputs and compares.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from delian.core.common.errors import DelianError
from delian.core.placement.subgraphs.request_driver import RefusedError
from delian.device.serving.split_model import SplitModel, SplitSettings

#: For the cuts to be opened; the first time the edge compiles them.
OPEN_S = 300.0
#: Requests between two lines.
EVERY = 10


def run(order: dict[str, Any]) -> dict[str, Any]:
    """What came of the requests; see `parted.Record`."""
    settings = SplitSettings(
        under_way=order["under_way"], slowdown=order["slowdown"], backend=order["backend"]
    )
    rng = np.random.default_rng(order["seed"])
    with SplitModel(
        order["bundle"], order["plan"], order["homes"], number=1, settings=settings
    ) as model:
        if not model.wait_open(OPEN_S):
            raise DelianError(f"{model.opened} cuts were opened in {OPEN_S} s")
        print("ready", flush=True)
        records: list[dict[str, Any]] = []
        inputs, answers, alone = [], [], []
        every = max(1, order["requests"] // order["alone"])
        for number in range(order["requests"]):
            x = rng.random(order["shape"], np.float32)
            began = time.monotonic()
            record: dict[str, Any] = {"began": began, "cut": model.cut.hex()}
            try:
                answered = model.ask(x, order["due_s"]).result()
            except RefusedError as error:
                record["refused"] = error.failure.name
            else:
                record |= {
                    "seconds": time.monotonic() - began,
                    "by": answered.by.value,
                    "fallback": answered.fallback,
                }
                inputs.append(x)
                answers.append(answered.results[0])
            records.append(record)
            if number % every == every // 2:  # among the requests: the same load
                alone.append(_timed(model, x))
            if number % EVERY == 0:
                print(number, flush=True)
            time.sleep(order["pause_s"])
        right = sum(
            bool(np.allclose(model.alone(x), answer, rtol=1e-4, atol=1e-5))
            for x, answer in zip(inputs, answers, strict=True)
        )
        switched = [
            {k: v.hex() if isinstance(v, bytes) else v for k, v in one.items()}
            for one in model.facts.switched
        ]
    return {
        "records": records,
        "switched": switched,
        "right": right,
        "alone_s": alone,
        "answered": model.facts.answered,
    }


def _timed(model: SplitModel, x: Any) -> float:
    """Seconds of the whole program on this device, as slow as it is to be."""
    began = time.perf_counter()
    model.alone(x, slowed=True)
    return time.perf_counter() - began


def main() -> None:
    """Runs the order that the first argument names."""
    order = json.loads(Path(sys.argv[1]).read_text())
    Path(order["out"]).write_text(json.dumps(run(order)))


if __name__ == "__main__":
    main()
