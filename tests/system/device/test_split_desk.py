"""Answers of a training process that has been taken over by its program, to the agent's desk."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from delian.core.node.identity.pki.identity_folder import HomeAddress
from delian.core.node.sandbox.frames import Frame, FrameError
from delian.core.node.service.hosting import Who
from delian.core.protocol.ports import Node, Tier
from delian.device.agent.split_desk import SplitDesk

ABSENT = object()
EDGE = Node(Tier.EDGE, 3)
WHOLE = {
    **{"piece": 0, "steps": 2, "examples": 9, "cut": "00"},
    **{"vector": 0, "turn": 1, "phase": 0, "reply_max": 64},
}


SENSELESS = [
    *((name, None) for name in WHOLE if name != "cut"),
    *((name, "x") for name in WHOLE),
    *((name, float("inf")) for name in WHOLE if name != "cut"),
    *((name, -1) for name in ("steps", "examples", "turn", "phase")),
    *((name, 2**70) for name in ("steps", "examples", "turn", "phase")),
    *((name, ABSENT) for name in WHOLE if name != "turn"),
]


@pytest.mark.parametrize(("name", "value"), SENSELESS)
def test_a_senseless_answer_ends_the_task(name: str, value: object) -> None:
    head = {n: v for n, v in {**WHOLE, name: value}.items() if v is not ABSENT}

    async def ask(job: object, body: bytes) -> Frame:
        raise AssertionError("nothing more is asked")

    async def exchange() -> None:
        home = HomeAddress(EDGE, grpc="127.0.0.1:1")
        machine = SimpleNamespace(state=SimpleNamespace(home_node=EDGE))
        desk = SplitDesk(Who(Node(Tier.DEVICE, 1), "farm"), [home], lambda: machine)
        await desk.exchange(ask, Frame(head, b""), bytes(32))

    with pytest.raises(FrameError, match="no sense"):
        asyncio.run(exchange())
