"""One round of Flower's SecAgg+ for `secagg.py`, run by a Python that has flwr and not delian.

    python secagg_flower.py DEVICES SHARES THRESHOLD NUMBERS SILENT

Server and clients are flwr's own: SecAggPlusWorkflow and secaggplus_mod. In place of a network,
`send_and_receive` calls the clients one after the other and measures each; what is left of the
process's time is the server's. The last SILENT clients answer no more once shares are out. Rounding
an update to integers is measured apart and taken off. Prints one line of JSON.
"""

from __future__ import annotations

import copy
import json
import os
import sys
import time
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"

import flwr
import flwr.client.mod.secure_aggregation.secaggplus_mod
import numpy as np
from flwr.app import Context, Message, RecordDict
from flwr.client import ClientApp, NumPyClient
from flwr.client.mod import secaggplus_mod
from flwr.common import ndarrays_to_parameters
from flwr.server import LegacyContext, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
from flwr.supercore.task_identity import TaskIdentity

STAGES = ("setup", "share", "mask", "unmask")


class Client(NumPyClient):
    """Gives back what it was given, and a hundredth more. Its weight is the largest that there is:
    with a smaller one the workflow rounds more coarsely.
    """

    def fit(self, parameters: Any, config: Any) -> Any:
        return [parameters[0] + np.float32(0.01)], 1_000, {}


class Clock:
    def __init__(self) -> None:
        self.spent = 0.0

    def around(self, work: Any) -> Any:
        def run(*arguments: Any, **named: Any) -> Any:
            begin = time.process_time()
            try:
                return work(*arguments, **named)
            finally:
                self.spent += time.process_time() - begin

        return run


class Grid:
    """What a workflow takes for the network: the stages come in their order, one call each."""

    def __init__(self, devices: int, silent: int) -> None:
        self.run = SimpleNamespace(run_id=1)
        self.ids = list(range(1, devices + 1))
        self.silent = set(self.ids[devices - silent :])
        self.stage = 0
        self.spent: dict[int, dict[str, float]] = defaultdict(dict)
        self.sent: dict[int, int] = defaultdict(int)
        self.app = ClientApp(client_fn=lambda _: Client().to_client(), mods=[secaggplus_mod])
        self.contexts = {
            i: Context(run_id=1, node_id=i, node_config={}, state=RecordDict(), run_config={})
            for i in self.ids
        }

    def get_node_ids(self) -> list[int]:
        return self.ids

    def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> list[Message]:
        replies = []
        for message in messages:
            device = message.metadata.dst_node_id
            if self.stage >= 2 and device in self.silent:
                continue
            # Every client its own copy, as over a network: they take fields out of it.
            content = copy.deepcopy(message.content)
            kind, group = message.metadata.message_type, message.metadata.group_id
            message = Message(content, device, kind, group_id=group)
            facts = message.metadata.__dict__
            facts["_run_id"], facts["_src_node_id"], facts["_message_id"] = 1, 1, "one"
            begin = time.process_time()
            reply = self.app(message, self.contexts[device])
            self.spent[device][STAGES[self.stage]] = time.process_time() - begin
            reply.metadata.__dict__["_src_node_id"] = device
            self.sent[device] += size(reply)
            replies.append(reply)
        self.stage += 1
        return replies


def size(message: Message) -> int:
    """Bytes in the fields of a reply, their names and lengths left out."""
    total = 0
    for record in message.content.config_records.values():
        for value in record.values():
            parts = value if isinstance(value, list) else [value]
            total += sum(len(p) if isinstance(p, bytes | str) else 8 for p in parts)
    return total


def main() -> None:
    devices, shares, threshold, numbers, silent = map(int, sys.argv[1:])
    grid = Grid(devices, silent)
    begin = np.random.default_rng(0).normal(0, 0.1, numbers).astype(np.float32)
    strategy = FedAvg(
        fraction_evaluate=0.0,
        min_fit_clients=devices,
        min_available_clients=devices,
        initial_parameters=ndarrays_to_parameters([begin]),
    )
    run = Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config={})
    context = LegacyContext(context=run, config=ServerConfig(num_rounds=1), strategy=strategy)
    workflow = SecAggPlusWorkflow(num_shares=shares, reconstruction_threshold=threshold)
    rounding = Clock()
    module = sys.modules["flwr.client.mod.secure_aggregation.secaggplus_mod"]
    module.quantize = rounding.around(module.quantize)  # type: ignore[attr-defined]
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = (
        1  # else messages cannot be made
    )
    before = time.process_time()
    DefaultWorkflow(fit_workflow=workflow)(grid, context)  # type: ignore[arg-type]
    total = time.process_time() - before
    result = context.state.array_records["parameters"].to_numpy_ndarrays()[0]
    assert np.abs(result - (begin + np.float32(0.01))).max() < 1e-4, "the mean is wrong"
    ends = [grid.spent[i] for i in grid.ids if i not in grid.silent]
    clients = sum(sum(spent.values()) for spent in grid.spent.values())
    round_ms = rounding.spent * 1e3 / len(ends)
    mean = {name: sum(spent[name] for spent in ends) * 1e3 / len(ends) for name in STAGES}
    found = {
        "version": flwr.__version__,
        "device_ms": round(sum(mean.values()) - round_ms, 1),
        "device_by_step_ms": {name: round(value, 1) for name, value in mean.items()},
        "rounding_ms": round(round_ms, 1),
        "coordinator_s": round(total - clients, 2),
        "upload_mb": round(max(grid.sent.values()) / 1e6, 2),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
