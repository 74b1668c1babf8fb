"""The tests of `test_authority_cli` that need a process, a socket or a clock."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("sqlalchemy")
from delian.cloud.store.database import Database


@pytest.fixture
def cloud(tmp_path, delian):
    """A coordinator's state with a CA and a store."""
    state = tmp_path / "cloud"
    assert delian("ca", "init", state / "ca", "--federation", "farm")[0] == 0

    async def make():
        await (await Database.open(state / "delian.db")).close()

    asyncio.run(make())
    return state


def test_an_authority_that_is_not_there_is_told(tmp_path, delian, cloud):
    operator = tmp_path / "operator"
    assert delian("ca", "issue", "operator", operator, "--ca", cloud / "ca")[0] == 0
    for command in (("token",), ("fleet", "revoke", "device-1")):
        code, _, err = delian(*command, "--authority", "127.0.0.1:9", "--identity", operator)
        assert code == 3 and "the authority at 127.0.0.1:9 does not answer" in err
        assert "delian authority run" in err
