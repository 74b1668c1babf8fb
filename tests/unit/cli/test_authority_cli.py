"""`delian authority`, and what `delian doctor` says of where the CA's key is."""

from __future__ import annotations

import asyncio

import pytest
from delian.cli import doctor_checks
from delian.cli.settings import Config

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


def test_a_ca_is_moved_and_everything_that_needs_the_key_is_told_where_it_went(
    tmp_path, delian, cloud
):
    target = tmp_path / "authority"
    code, told, _ = delian("authority", "migrate", cloud, target, "--json")
    assert code == 0 and told["federation"] == "farm" and told["nodes"] == 0
    assert not list(cloud.rglob("ca.key")) and (target / "ca" / "ca.key").exists()
    code, _, err = delian("ca", "show", cloud / "ca")
    assert code == 2 and "is moved to another folder" in err
    assert delian("ca", "show", target / "ca", "--json")[1]["fingerprint"] == told["fingerprint"]
    code, out, _ = delian("authority", "migrate", cloud, target)
    assert code == 0 and "next" in out, "it may be repeated"


def test_a_move_without_a_ca_is_refused(tmp_path, delian):
    code, _, err = delian("authority", "migrate", tmp_path / "cloud", tmp_path / "authority")
    assert code == 2 and "holds no CA" in err


def test_a_coordinator_s_token_is_made_where_the_key_is_and_by_no_call(tmp_path, delian, cloud):
    at = "authority.example:7444"
    code, told, _ = delian(
        *("token", "--ca", cloud / "ca", "--tier", "cloud", "--address", at, "--json"),
        *("--node-address", "coordinator.example"),
    )
    assert code == 0 and told["tier"] == "cloud" and told["address"] == at
    code, _, err = delian("token", "--tier", "cloud", "--authority", "127.0.0.1:1")
    assert code == 2 and "is not made by a call" in err


@pytest.mark.parametrize(
    ("here", "named", "state", "words"),
    [
        (True, "", "warning", "masks do not hold against its operator"),
        (True, "authority.example:7445", "wrong", "is here though"),
        (False, "authority.example:7445", "ok", "authority.example:7445"),
        (False, "", "wrong", "no authority named"),
    ],
)
def test_doctor_says_whether_the_key_is_apart(tmp_path, cloud, here, named, state, words):
    folder = cloud if here else tmp_path / "empty"
    config = Config.model_validate({"cloud": {"state": folder, "authority": named}})
    found = doctor_checks.check_key_is_elsewhere(config)
    assert found.state == state and words in found.text
