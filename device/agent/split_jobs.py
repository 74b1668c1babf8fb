"""The jobs of a training with the edge, in the training process.

    job      "client_update" with "split": {"up", "down": bytes a second, "latency_s", "piece"?},
             or {} before the link was measured
    answer   {"turn", "phase", "steps", "piece", "cut", "reply_max", ...} + an encoded request
    job      "split_turn" + the encoded reply
    answer   the next turn, or {"loss", "finite", ...} + the ring vector of the device's part

The cut follows from the link as the agent has measured it, by the plan in the bundle; where that is
to train alone, the job goes on as any other. What crosses to the agent is what goes to the edge and
comes back, and nothing else of the training.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from ...core.common.errors import DelianError
from ...core.compiler.ir import Array
from ...core.learning.runtime import Runtime
from ...core.placement.cut.link_model import LinkProfile
from ...core.placement.split_training.device_steps import DeviceSteps, MadePrograms
from ...core.placement.split_training.edge_round import views
from ...core.placement.split_training.run_step import RunStep
from ...core.placement.split_training.step_sides import Sent
from ...core.placement.subgraphs.request_codec import bytes_max, tensors_of, values_of
from ...core.wire import subgraph_pb2 as pb

#: (fields of the answer, ring vector, encoded request).
Made = tuple[dict[str, Any], Array, bytes]


class SplitJob:
    """One round's training with the edge. Made before the process is confined: it reads modules."""

    def __init__(self, runtime: Runtime, step: RunStep, number: int) -> None:
        self._runtime, self._step, self._number = runtime, step, number
        made, functions = runtime.programs, runtime.bundle.programs
        self._programs = MadePrograms(step, number, made, functions)
        self._steps: DeviceSteps | None = None
        self._examples = 0

    @classmethod
    def of(cls, runtime: Runtime, asked: Mapping[str, Any]) -> SplitJob | None:
        """The training by the cut that suits a link; None: the device trains by itself."""
        step = RunStep.of(runtime.bundle)
        if step is None:
            return None
        link = step.plan.links[0]
        if asked:
            link = LinkProfile(*(float(asked[k]) for k in ("up", "down", "latency_s")))
        before = asked.get("piece")
        known = isinstance(before, int) and 0 <= before < len(step.plan.pieces)
        number = step.best(link, before if known else None)
        return None if step.is_alone(number) else cls(runtime, step, number)

    def begin(self, state: Array, data: Sequence[Array], key: Array, examples: int) -> Made:
        """The first turn."""
        runtime = self._runtime
        self._examples = examples
        self._steps = DeviceSteps(
            *(self._step, self._number, runtime.programs, self._programs),
            leaves=views(state, runtime.manifest.state),
            frozen=runtime.frozen,
            data=data,
            key=key,
        )
        return self._asked(self._steps.start())

    def turn(self, reply: bytes) -> Made:
        """The next turn, or the end. Raises DelianError for a reply that does not fit."""
        steps = self._steps
        if steps is None:
            raise DelianError("a turn of a training that has not begun")
        try:
            outputs = pb.SubgraphReply.FromString(reply).outputs
        except DecodeError as error:
            raise DelianError(f"a reply that cannot be read: {error}") from error
        values = values_of(outputs, steps.reply.ports)
        sent = steps.take(Sent(steps.reply, (values,)))
        if sent is not None:
            return self._asked(sent)
        vector, finite = steps.upload(self._examples)
        self._steps = None
        return {"loss": steps.loss, "finite": finite}, vector, b""

    def _asked(self, sent: Sent) -> Made:
        assert self._steps is not None
        tensors = tensors_of(sent.tensors[0], sent.message.ports)
        head = {
            "turn": self._steps.turn,
            "phase": sent.message.turn,
            "steps": self._steps.steps,
            "piece": self._number,
            "cut": self._step.cuts[self._number].to_bytes().hex(),
            "reply_max": bytes_max(self._steps.reply.ports),
        }
        content = pb.SubgraphRequest(inputs=tensors).SerializeToString()
        return head, np.empty(0, np.uint32), content
