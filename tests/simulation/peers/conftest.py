"""A federation in memory for a module's tests, in virtual time."""

import asyncio

import pytest

for _needed in ("sqlalchemy", "grpc", "aiomqtt"):
    pytest.importorskip(_needed)

from support.peers.memory_world import MemoryWorld  # noqa: E402
from support.virtual_time import VirtualLoop  # noqa: E402


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        made = MemoryWorld(tmp_path_factory.mktemp("memory"), runner)
        try:
            runner.run(made.start())
            yield made
        finally:
            runner.run(made.close())
