"""What is signed on a renewal that others carry, and what is believed of it."""

from __future__ import annotations

import dataclasses

import pytest
from delian.core.node.identity.authority.authority import Authority
from delian.core.node.identity.enrolment import renewal_messages
from delian.core.node.identity.pki.certificates import (
    IdentityError,
    Role,
    TlsMaterial,
    certificate_request,
    key_pem,
    load_certificate,
    new_key,
    requested_key,
)
from delian.core.node.storage.codec import address
from delian.core.protocol.ports import Node, Tier
from delian.core.wire.enrolment_pb2 import EnrolReply
from delian.core.wire.link_pb2 import RenewalAnswer, RenewalAsk, RenewalClaim, RenewalResult

DEVICE, OTHER = Node(Tier.DEVICE, 5), Node(Tier.DEVICE, 6)


@pytest.fixture
def root(authority):
    return load_certificate(authority.pem)


@pytest.fixture
def cloud(material):
    return material(Role.AUTHORITY, 0)


def ask_of(material):
    return renewal_messages.make_ask(material, certificate_request(new_key()))


def changed(ask, material=None, **fields):
    """The claim with other fields; signed anew by `material`, or with the signature that it had."""
    claim = RenewalClaim.FromString(ask.claim)
    for name, value in fields.items():
        if name == "node":
            claim.node.CopyFrom(address(value))
        else:
            setattr(claim, name, value)
    made = RenewalAsk(claim=claim.SerializeToString(), signature=ask.signature)
    if material is not None:
        made.signature = renewal_messages._sign(material, renewal_messages._CLAIM + made.claim)
    return made


def test_the_coordinator_reads_who_asks_and_for_which_key(material, root):
    own = material()
    ask = ask_of(own)
    asked = renewal_messages.read_ask(ask, root)
    assert (
        asked.node == DEVICE == renewal_messages.claimed(ask) and asked.identity == own.identity()
    )
    assert asked.claim_hash == renewal_messages.hash_of(ask) and requested_key(asked.request)


@pytest.mark.parametrize("what", ["another key", "another node", "no signature", "another's"])
def test_who_does_not_hold_the_present_key_cannot_ask_in_a_node_s_name(what, material, root):
    own, thief = material(), material(Role.EDGE, 3)
    ask = ask_of(own)
    forged = {
        # An edge that has seen a device's certificate, which is no secret, and signs by its own.
        "another key": changed(ask, thief, request=certificate_request(new_key())),
        "another node": changed(ask_of(thief), thief, node=DEVICE),
        "no signature": RenewalAsk(claim=ask.claim),
        # The key under the node's own signature is exchanged.
        "another's": changed(ask, request=certificate_request(new_key())),
    }[what]
    with pytest.raises(IdentityError):
        renewal_messages.read_ask(forged, root)


def test_a_certificate_of_another_ca_is_none(material, tmp_path):
    other = Authority.create(tmp_path / "other", "farm")
    with pytest.raises(IdentityError, match="not signed by this federation's CA"):
        renewal_messages.read_ask(ask_of(material()), other.certificate)


def test_an_operator_does_not_ask_over_links(material):
    with pytest.raises(IdentityError, match="operator"):
        ask_of(material(Role.OPERATOR, 1))


@pytest.mark.parametrize(
    "ask",
    [
        RenewalAsk(),
        RenewalAsk(claim=b"\xff" * 40),
        RenewalAsk(claim=b"x" * (renewal_messages.CLAIM_BYTES_MAX + 1)),
        RenewalAsk(claim=RenewalClaim(request=b"x").SerializeToString()),
    ],
)
def test_a_claim_that_is_none_is_refused(ask, root):
    with pytest.raises(IdentityError):
        renewal_messages.read_ask(ask, root)


@pytest.mark.parametrize(
    "fields", [{"request": b"x" * 8193}, {"certificate": b"x" * 4097}, {"certificate": b""}]
)
def test_a_part_of_a_claim_that_is_too_large_or_missing_is_refused(fields, material, root):
    own = material()
    with pytest.raises(IdentityError):
        renewal_messages.read_ask(changed(ask_of(own), own, **fields), root)


def test_a_signature_that_is_too_long_is_refused_before_anything_is_read(material, root):
    ask = RenewalAsk(claim=ask_of(material()).claim, signature=b"x" * 73)
    with pytest.raises(IdentityError, match="too large"):
        renewal_messages.claimed(ask)


# ---------------------------------------------------------------- answers


def answered(ask, cloud, root, reply=None, refusal=""):
    return renewal_messages.make_answer(cloud, renewal_messages.read_ask(ask, root), reply, refusal)


def test_a_node_believes_the_authority_s_reply_and_its_refusal(material, cloud, root):
    ask = ask_of(material())
    reply = EnrolReply(federation="farm", renew_after_s=7)
    assert renewal_messages.read_answer(answered(ask, cloud, root, reply), ask, root) == (reply, "")
    refused = answered(ask, cloud, root, refusal="revoked")
    assert renewal_messages.read_answer(refused, ask, root) == (None, "revoked")
    assert renewal_messages.result_of(refused)[0] == DEVICE


def test_an_answer_for_another_claim_of_the_same_node_is_not_taken(material, cloud, root):
    own = material()
    old, ask = ask_of(own), ask_of(own)
    with pytest.raises(IdentityError, match="another renewal"):
        renewal_messages.read_answer(answered(old, cloud, root, refusal="revoked"), ask, root)


@pytest.mark.parametrize("signer", [(Role.EDGE, 3), (Role.DEVICE, 5), (Role.CLOUD, 0)])
def test_only_the_authority_s_certificate_signs_answers(signer, material, root):
    own = material()
    ask = ask_of(own)
    with pytest.raises(IdentityError, match="not signed by the authority"):
        renewal_messages.read_answer(
            answered(ask, material(*signer), root, refusal="revoked"), ask, root
        )


def test_a_coordinator_of_another_ca_or_with_another_s_key_is_not_believed(
    material, cloud, root, tmp_path
):
    ask = ask_of(material())
    other = Authority.create(tmp_path / "other", "farm")
    key = new_key()
    issued = other.issue(certificate_request(key), Role.AUTHORITY, 0)
    foreign = TlsMaterial(key_pem(key), issued.chain, other.pem)
    stolen = dataclasses.replace(cloud, key=key_pem(new_key()))
    for signer in (foreign, stolen):
        with pytest.raises(IdentityError, match="not signed by"):
            renewal_messages.read_answer(answered(ask, signer, root, refusal="revoked"), ask, root)


def test_a_result_that_was_changed_on_the_way_is_not_believed(material, cloud, root):
    ask = ask_of(material())
    answer = answered(ask, cloud, root, EnrolReply(federation="farm"))
    result = RenewalResult.FromString(answer.result)
    result.reply = EnrolReply(federation="farm", renew_after_s=2**31).SerializeToString()
    answer.result = result.SerializeToString()
    with pytest.raises(IdentityError, match="the answer is not signed"):
        renewal_messages.read_answer(answer, ask, root)


def test_what_is_not_signed_decides_nothing(material, cloud, root):
    ask = ask_of(material())
    later = renewal_messages.not_now(ask, DEVICE, "no way\x1b[31m up")
    with pytest.raises(IdentityError, match=r"was not passed on: no way\[31m up") as told:
        renewal_messages.read_answer(later, ask, root)
    assert type(told.value) is IdentityError
    stripped = answered(ask, cloud, root, refusal="revoked")
    stripped.ClearField("signature")
    with pytest.raises(IdentityError, match="not passed on"):
        renewal_messages.read_answer(stripped, ask, root)


@pytest.mark.parametrize(
    "answer",
    [
        RenewalAnswer(),
        RenewalAnswer(result=b"\xff"),
        RenewalAnswer(result=b"x" * (renewal_messages.RESULT_BYTES_MAX + 1)),
        RenewalAnswer(certificate=b"x" * 4097),
        RenewalAnswer(signature=b"x" * 73),
    ],
)
def test_an_answer_that_is_none_is_refused(answer):
    with pytest.raises(IdentityError):
        renewal_messages.result_of(answer)


def test_a_reply_that_does_not_fit_a_link_is_not_made(material, cloud, root):
    ask = ask_of(material())
    with pytest.raises(IdentityError, match="does not fit"):
        answered(ask, cloud, root, EnrolReply(certificate=b"x" * 50_000))
