"""A federation in memory for a module's tests, in virtual time."""

import asyncio

import pytest
from support.peers.memory_world import MemoryWorld
from support.virtual_time import VirtualLoop


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        made = MemoryWorld(tmp_path_factory.mktemp("memory"), runner)
        try:
            runner.run(made.start())
            yield made
        finally:
            runner.run(made.close())
