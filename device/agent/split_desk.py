"""The agent's side of a training with the edge: its turns, between training process and edge.

The training process has the data and no network, the agent has the network: so each turn of a step
goes from the one to the edge and back. The link is measured by these exchanges, and the estimate,
with the cut of the last round, goes to the training process with the next one.

An edge that does not take the device in, because its operator does not want it or because it knows
nothing of the round, costs a wait, and the device trains the whole model by itself. Once a step has
begun nothing half done counts: a training that is lost ends the task, and the coordinator asks
again.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from google.protobuf.message import DecodeError

from ...core.common.errors import DelianError
from ...core.learning.bundle import SPLIT_STEP
from ...core.node.identity.pki.certificates import channel_credentials
from ...core.node.identity.pki.identity_folder import HomeAddress
from ...core.node.sandbox import frames
from ...core.node.sandbox.worker_process import Stopped
from ...core.node.service.hosting import Who
from ...core.placement.cut.link_model import LinkProfile
from ...core.placement.split_training.measured_link import MeasuredLink
from ...core.placement.split_training.training_requests import SplitLostError, TrainingAsker
from ...core.placement.split_training.trainings import RUN_BYTES
from ...core.placement.subgraphs.frames.stream_client import Upstream
from ...core.placement.subgraphs.request_limits import MESSAGE_BYTES_MAX
from ...core.protocol.ports import Node, RunProgram
from ...core.wire.round_pb2 import PROGRAM_FAILED
from ...core.wire.subgraph_pb2 import (
    SUBGRAPH_COPIES,
    SubgraphOpen,
    SubgraphReply,
    SubgraphRequest,
    SubgraphTraining,
)

if TYPE_CHECKING:
    import grpc

    from ...core.node.net.traffic import Traffic

log = logging.getLogger("delian.device.agent.split_desk")

#: How long an edge may take to let a device in: it fetches the round's blobs and compiles first.
OPEN_S = 60.0
#: How long an answer may take after that.
DUE_S = 60.0
#: What the first exchanges are put on top of.
NOMINAL = LinkProfile(1.25e6, 1.25e6, 0.02)

#: What a field of an answer raises that is none.
_SENSELESS = (KeyError, TypeError, ValueError, OverflowError)

#: Asks the training process: (fields of the job, body) -> its answer.
Ask = Callable[[Mapping[str, Any], bytes], Awaitable[frames.Frame]]


class NotTakenError(DelianError):
    """The edge has not let the device in; nothing has been trained."""


class SplitDesk:
    """Trains with the device's present home.

    homes: with their addresses. machine: the device's, which knows its present home. traffic:
    of the process.
    """

    def __init__(
        self,
        who: Who,
        homes: Sequence[HomeAddress],
        machine: Callable[[], Any],
        traffic: Traffic | None = None,
    ) -> None:
        self._who, self._homes, self._machine, self._traffic = who, homes, machine, traffic
        self.link = MeasuredLink(NOMINAL)
        self._piece: int | None = None

    def _home(self) -> tuple[Node, str] | None:
        """The edge; None: it is the coordinator, or is reached by MQTT alone."""
        node: Node = self._machine().state.home_node
        found = (home.grpc for home in self._homes if home.node == node and home.grpc)
        target = next(found, "")
        return (node, target) if target and node.number else None

    def asked(self, program: RunProgram) -> dict[str, Any] | None:
        """What the job says of it; None: the device trains by itself."""
        task = program.task
        wanted = program.program == "client_update" and task is not None and task.split
        if not wanted or self._home() is None:
            return None
        if not self.link.exchanges:
            return {}  # it is taken for what the plan says
        link = self.link.profile
        measured = {"up": link.up, "down": link.down, "latency_s": link.latency_s}
        return measured if self._piece is None else {**measured, "piece": self._piece}

    async def exchange(
        self, ask: Ask, frame: frames.Frame, bundle: bytes
    ) -> tuple[frames.Frame, bytes]:
        """All turns, from the first one on: the last answer, and the training's name.

        frame: the first turn; the training process may have been taken over by its program. Raises
        NotTakenError, Stopped, FrameError.
        """
        home = self._home()
        if home is None:
            raise NotTakenError("the device has no edge now")
        name = os.urandom(RUN_BYTES)
        head = frame.head
        try:
            piece, steps = int(head["piece"]), int(head["steps"])
            opening = SubgraphOpen(
                bundle=bundle,
                program=SPLIT_STEP,
                cut=bytes.fromhex(str(head["cut"])),
                tier=1,
                training=SubgraphTraining(
                    run=name,
                    steps=steps,
                    examples=int(head["examples"]),
                    sharing=SUBGRAPH_COPIES,
                ),
            )
        except _SENSELESS as error:
            raise frames.FrameError(f"a training that makes no sense: {error}") from None
        asker = TrainingAsker(opening, self.link)
        upstream = self._upstream(home, asker)
        upstream.start()
        began = False
        try:
            while "turn" in frame.head:
                reply = await self._turn(asker, frame, DUE_S if began else OPEN_S)
                began = True
                frame = await ask({"program": "split_turn"}, reply)
        except SplitLostError as error:
            if not began:
                raise NotTakenError(error.message) from None
            raise Stopped(PROGRAM_FAILED, f"the training with {home[0]} is lost: {error}") from None
        finally:
            asker.finish()
            await upstream.close()
        self._piece, link = piece, self.link.profile
        log.info(
            "trained with %s",
            home[0],
            extra={
                "steps": steps,
                "piece": piece,
                "up_mbit_s": round(link.up * 8e-6, 3),
                "down_mbit_s": round(link.down * 8e-6, 3),
                "latency_ms": round(link.latency_s * 1e3, 3),
                "streams": asker.streams,
            },
        )
        merged = {**head, **frame.head}
        return frames.Frame({k: v for k, v in merged.items() if k != "turn"}, frame.body), name

    async def _turn(self, asker: TrainingAsker, frame: frames.Frame, due_s: float) -> bytes:
        """The encoded reply to a turn. Raises SplitLostError, FrameError."""
        head = frame.head
        try:
            tensors = SubgraphRequest.FromString(bytes(frame.body)[int(head["vector"]) :]).inputs
            turn, phase = int(head["turn"]), int(head["phase"])
            most = min(max(int(head["reply_max"]), 0), MESSAGE_BYTES_MAX)
            SubgraphRequest(sequence=turn, phase=phase)  # what the fields hold
        except (*_SENSELESS, DecodeError) as error:
            raise frames.FrameError(f"a turn that makes no sense: {error}") from None
        came = await asker.ask_for(turn, phase, tensors, most, due_s)
        return await asyncio.to_thread(SubgraphReply(outputs=came).SerializeToString)

    def _upstream(self, home: tuple[Node, str], asker: TrainingAsker) -> Upstream:
        own = self._who.identity

        def credentials() -> grpc.ChannelCredentials:
            assert own is not None
            return channel_credentials(own.material())

        shown = None if own is None else credentials
        who = self._who
        return Upstream(who.node, [home], asker, shown, who.federation, self._traffic)
