"""A federation of real daemons for a module's tests, on one event loop."""

import asyncio
import contextlib

import pytest
from support.peers.system_world import SystemWorld


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A coordinator and an edge in this process."""
    with playing(tmp_path_factory.mktemp("inside")) as made:
        yield made


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    """The same as processes of their own."""
    with playing(tmp_path_factory.mktemp("outside"), outside=True) as made:
        yield made


@contextlib.contextmanager
def playing(folder, **more):
    with asyncio.Runner() as runner:
        made = SystemWorld(folder, runner, **more)
        try:
            runner.run(made.start())
            yield made
        finally:
            runner.run(made.close())
