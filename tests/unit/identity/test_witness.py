"""Witnesses of the certificate log, and the authority that collects their signatures."""

from __future__ import annotations

import asyncio
import shutil

import pytest
from delian.core.node.identity.authority import terms
from delian.core.node.identity.authority.authority import Authority, issue_to
from delian.core.node.identity.log.log_copy import FORK_FILE
from delian.core.node.identity.log.log_entries import (
    LogError,
    LogFork,
    cosigned,
    read_head,
    verify_head,
)
from delian.core.node.identity.log.witness import Witness
from delian.core.node.identity.log.witnessing import Witnessing
from delian.core.node.identity.pki.certificates import IdentityError, Role
from delian.core.wire.log_pb2 import Checkpoint, CosignAsk, LogUpdate

NOW = 1_900_000_000


@pytest.fixture
def witness(authority, tmp_path):
    made = Witness.create(tmp_path / "witness")
    assert made.add(authority.pem) == "farm"
    return made


@pytest.fixture
def twin(authority, tmp_path):
    """The CA's folder as it was, opened elsewhere: it shows another log from now on."""
    shutil.copytree(authority.folder, tmp_path / "twin")
    return Authority(tmp_path / "twin")


def grow(authority, *numbers):
    for number in numbers:
        issue_to(authority, Role.DEVICE, number)


def ask_of(authority, old_size, now=NOW):
    return CosignAsk(update=authority.log.update(old_size, now))


def check_signed(reply, witness, authority, now=NOW):
    made = Checkpoint()
    made.CopyFrom(authority.log.checkpoint(now))
    made.cosignatures.append(reply.cosignature)
    assert verify_head(made, authority.certificate, "farm", [witness.public], 1)


# ---------------------------------------------------------------- the witness


def test_a_witness_signs_heads_that_continue_the_last_one_also_after_a_restart(authority, witness):
    grow(authority, 1, 2)
    reply = witness.cosign(ask_of(authority, 0))
    check_signed(reply, witness, authority)
    assert reply.size == 2
    grow(authority, 3)
    again = Witness(witness.folder)
    check_signed(again.cosign(ask_of(authority, 2)), witness, authority)
    check_signed(again.cosign(ask_of(authority, 3)), witness, authority)  # the reply was lost
    assert again.federations()["farm"] == read_head(authority.log.checkpoint(NOW).head)


def test_a_proof_that_starts_elsewhere_gets_the_size_and_no_signature(authority, witness):
    grow(authority, 1, 2)
    witness.cosign(ask_of(authority, 0))
    grow(authority, 3)
    for old_size in (0, 1, 3):
        reply = witness.cosign(ask_of(authority, old_size))
        assert reply.size == 2 and not reply.HasField("cosignature")
    assert witness.federations()["farm"].size == 2


@pytest.mark.parametrize("numbers", [(8,), (8, 9), (8, 9, 10)])
def test_a_witness_signs_no_second_log(authority, twin, witness, numbers):
    grow(authority, 1)
    grow(twin, *numbers)
    witness.cosign(ask_of(authority, 0))
    with pytest.raises(LogFork):
        witness.cosign(ask_of(twin, 1))
    own = witness.folder / "federations" / "farm"
    assert (own / FORK_FILE).exists()
    grow(authority, 2)
    check_signed(Witness(witness.folder).cosign(ask_of(authority, 1)), witness, authority)


def test_a_smaller_log_gets_no_signature(authority, witness):
    grow(authority, 1, 2, 3)
    smaller = authority.log.checkpoint(NOW)
    grow(authority, 4)
    witness.cosign(ask_of(authority, 0))
    reply = witness.cosign(CosignAsk(update=LogUpdate(old_size=4, checkpoint=smaller)))
    assert not reply.HasField("cosignature") and reply.size == 4


def test_the_head_is_on_the_disk_before_its_signature_leaves(authority, witness, monkeypatch):
    from delian.core.node.identity.log import witness as w

    def full(path, content, mode=0o644):
        raise IdentityError("no space left")

    monkeypatch.setattr(w, "write_file", full)
    with pytest.raises(IdentityError, match="no space"):
        witness.cosign(ask_of(authority, 0))


def test_only_heads_of_known_federations_and_their_own_ca_are_signed(authority, witness, tmp_path):
    barn = Authority.create(tmp_path / "barn", "barn")
    false = Authority.create(tmp_path / "false", "farm")
    for asked in (ask_of(barn, 0), ask_of(false, 0), CosignAsk()):
        with pytest.raises(LogError):
            witness.cosign(asked)
    assert witness.federations() == {"farm": None}
    with pytest.raises(IdentityError, match="another CA"):
        witness.add(false.pem)
    with pytest.raises(IdentityError):
        witness.add(issue_to(authority, Role.DEVICE, 1)[1].chain)
    assert witness.add(authority.pem) == "farm"


def test_a_witness_is_made_once_and_its_key_is_private(witness):
    with pytest.raises(IdentityError, match="holds a witness"):
        Witness.create(witness.folder)
    assert (witness.folder / "witness.pem").stat().st_mode & 0o777 == 0o600
    with pytest.raises(IdentityError, match="holds no witness"):
        Witness(witness.folder / "none")


# ---------------------------------------------------------------- the authority's side


class Farm:
    """A CA whose terms ask for two of three witnesses."""

    def __init__(self, authority, tmp_path):
        self.ca, self.now, self.down = authority, NOW, set()
        self.witnesses = {}
        for name in ("one", "two", "three"):
            self.witnesses[name] = Witness.create(tmp_path / name)
            self.witnesses[name].add(authority.pem)
        self.ask_for(2)
        asks = {name: self.ask(name) for name in self.witnesses}
        self.witnessing = Witnessing(authority, asks, lambda: self.now)

    def ask_for(self, quorum):
        keys = [w.public for w in self.witnesses.values()]
        named = terms.made("farm", now_s=NOW, witnesses=keys, quorum=quorum)
        terms.publish(self.ca.folder, self.ca.sign, named)
        self.keys = keys

    def ask(self, name):
        async def asked(message):
            if name in self.down:
                raise IdentityError("it does not answer")
            return self.witnesses[name].cosign(message)

        return asked

    def push(self):
        return asyncio.run(self.witnessing.push())


@pytest.fixture
def farm(authority, tmp_path):
    return Farm(authority, tmp_path)


def test_a_head_is_published_when_a_quorum_has_signed_it(farm):
    grow(farm.ca, 1, 2)
    assert farm.push()
    published = farm.ca.log.published(NOW)
    assert verify_head(published, farm.ca.certificate, "farm", farm.keys, 3).size == 2
    assert not farm.push()  # nothing is new
    farm.down = {"one"}
    grow(farm.ca, 3)
    assert farm.push() and len(cosigned(farm.ca.log.published(NOW), farm.keys)) == 2
    farm.down = {"two", "three"}
    grow(farm.ca, 4)
    assert not farm.push() and read_head(farm.ca.log.published(NOW).head).size == 3
    farm.down = set()
    assert farm.push() and read_head(farm.ca.log.published(NOW).head).size == 4


def test_a_head_is_published_again_every_hour(farm):
    assert farm.push()
    farm.now += 3599
    assert not farm.push()
    farm.now += 1
    assert farm.push()
    assert read_head(farm.ca.log.published(farm.now).head).issued_s == farm.now


def test_a_restarted_authority_learns_what_a_witness_has(farm):
    grow(farm.ca, 1, 2)
    assert farm.push()
    grow(farm.ca, 3)
    asks = {name: farm.ask(name) for name in farm.witnesses}
    farm.witnessing = Witnessing(Authority(farm.ca.folder), asks, lambda: NOW)
    assert farm.push()


def test_a_larger_quorum_publishes_the_same_head_again(farm):
    farm.down = {"one"}
    assert farm.push()
    farm.ask_for(3)
    farm.down = set()
    assert farm.push()
    verify_head(farm.ca.log.published(NOW), farm.ca.certificate, "farm", farm.keys, 3)


def test_without_a_quorum_no_witness_is_asked(farm):
    farm.ask_for(0)
    farm.down = set(farm.witnesses)
    assert not farm.push()


# ---------------------------------------------------------------- over gRPC
