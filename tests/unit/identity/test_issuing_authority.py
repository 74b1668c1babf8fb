"""An issuing authority from its request to its end: what the root delegates and logs, and what it
refuses.
"""

from __future__ import annotations

import time

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from delian.core.node.identity.authority.authority import Authority, issue_to
from delian.core.node.identity.authority.authority_book import (
    BACKDATE_S,
    CERTIFICATES_MAX,
    Revoked,
    TooMany,
)
from delian.core.node.identity.authority.authority_folder import CERTIFICATE, KEY, superior_of
from delian.core.node.identity.authority.delegation import (
    NODES,
    REQUEST,
    ROLES,
    accept_authority,
    request_authority,
)
from delian.core.node.identity.authority.deny_list import NODES_MAX
from delian.core.node.identity.authority.superior import Away
from delian.core.node.identity.enrolment.renewal_messages import (
    make_answer,
    make_ask,
    read_answer,
    read_ask,
)
from delian.core.node.identity.log.log_entries import leaf_of, read_entry
from delian.core.node.identity.pki.certificates import (
    AUTHORITIES_MAX,
    NUMBER_BITS,
    IdentityError,
    Role,
    TlsMaterial,
    certificate_request,
    identity_of,
    load_certificate,
    new_key,
    node_name,
)
from delian.core.node.identity.pki.chain import Chain, chain_of_pem
from delian.core.node.identity.pki.identity_folder import IdentityFolder, check_reply
from delian.core.node.identity.pki.intermediate import facts_of
from delian.core.node.identity.pki.local_identity import (
    authority_identity,
    broker_files,
    operator_identity,
)
from delian.core.node.identity.pki.signing import CertificateIdentity
from delian.core.node.net.grpc.grpc_guard import claim, claimed
from delian.core.node.net.mqtt import topics
from delian.core.node.storage.codec import address, node_of
from delian.core.privacy.secagg.member_identity import CERTIFICATE_BYTES_MAX
from delian.core.protocol.ports import Node, Tier
from delian.core.wire.enrolment_pb2 import EnrolReply
from delian.core.wire.link_pb2 import Address
from support.issuers import DAY_S, Rogue

FIRST = (1 << NUMBER_BITS) + 1  # of authority 1


class Above:
    """The root in the same process, as an issuing authority asks it."""

    def __init__(self, root):
        self.root, self.here, self.appended = root, True, []

    def append(self, chain):
        if not self.here:
            raise Away("the root does not answer")
        self.root.append(chain)
        self.appended.append(chain)

    def revoke(self, name, why):
        return self.root.revoke(name, why)

    def denied(self):
        return self.root.denied()


def delegated(root, folder, site="north", **more):
    """An issuing authority, made by the three steps."""
    request = request_authority(folder, root.federation, site)
    accept_authority(folder, root.delegate(request, site, **more), root.fingerprint)
    return Authority(folder, Above(root))


@pytest.fixture
def north(authority, tmp_path):
    return delegated(authority, tmp_path / "north", domains=["north.example"])


def thief(root, authority):
    """Who has the key of an issuing authority."""
    return Rogue(root.certificate, authority.certificate, authority._ca.key)


def stolen(root, authority, role, number, **more):
    chain, _ = thief(root, authority).sign(role, number, **more)
    return chain.der


# ---------------------------------------------------------------- the ceremony


def test_an_organisation_gets_an_authority_by_request_delegation_and_acceptance(
    authority, tmp_path
):
    folder = tmp_path / "north"
    request = request_authority(folder, "farm", "north")
    assert request_authority(folder, "farm", "north") is not None  # the same key asks again
    assert (folder / KEY).stat().st_mode & 0o777 == 0o600
    with pytest.raises(IdentityError, match="no certificate yet"):
        Authority(folder)
    answer = authority.delegate(request, "north", ["north.example"])
    shown = authority.fingerprint.replace(":", "").lower()
    facts = accept_authority(folder, answer, shown)
    assert (facts.number, facts.site, facts.domains) == (1, "north", ("north.example",))
    opened = Authority(folder, Above(authority))
    assert (opened.number, opened.site, opened.federation) == (1, "north", "farm")
    assert superior_of(folder) == opened.root == authority.certificate
    assert superior_of(authority.folder) is None and authority.root == authority.certificate
    [known] = authority.delegations()
    assert (known.number, known.site, known.nodes) == (1, "north", NODES)
    entry = read_entry(authority.log.file.entries(0, 9)[-1])
    assert entry.name == "CA of authority-1"


def test_a_key_without_a_certificate_or_facts_is_made_once(tmp_path):
    folder = tmp_path / "north"
    first = x509.load_pem_x509_csr(request_authority(folder, "farm", "north"))
    (folder / REQUEST).unlink()
    again = x509.load_pem_x509_csr(request_authority(folder, "farm", "north"))
    assert first.public_key() == again.public_key()
    (folder / KEY).unlink()  # as after a crash between the two files
    assert request_authority(folder, "farm", "north")
    for federation, site in (("barn", "north"), ("farm", "south")):
        with pytest.raises(IdentityError, match="holds another authority"):
            request_authority(folder, federation, site)


def test_a_root_s_folder_asks_for_no_authority(authority):
    with pytest.raises(IdentityError, match="holds another authority"):
        request_authority(authority.folder, "farm", "north")


def test_an_answer_that_does_not_fit_is_not_taken(authority, tmp_path):
    folder, other = tmp_path / "north", Authority.create(tmp_path / "other", "farm")
    request = request_authority(folder, "farm", "north")
    good = authority.delegate(request, "north")
    mine = good[: good.index(b"-----END") + 26]
    strange = request_authority(tmp_path / "strange", "farm", "north")
    cases = [
        (good, other.fingerprint, "not the one that was given"),
        (good, "", "not the one that was given"),
        (other.delegate(request, "north"), authority.fingerprint, "not the one that was given"),
        (mine + other.pem, other.fingerprint, "not signed by"),
        (authority.delegate(request, "south"), authority.fingerprint, "for the site south"),
        (authority.delegate(strange, "north"), authority.fingerprint, "for another key"),
        (authority.pem + authority.pem, authority.fingerprint, "no issuing authority's|limits"),
        (authority.pem, authority.fingerprint, "has 1 certificates"),
        (b"x", authority.fingerprint, "no PEM|certificates"),
        (good * 20, authority.fingerprint, "too large"),
    ]
    for answer, fingerprint, message in cases:
        with pytest.raises(IdentityError, match=message):
            accept_authority(folder, answer, fingerprint)
        assert not (folder / CERTIFICATE).exists()
    accept_authority(folder, good, authority.fingerprint)
    again = other.delegate(request, "north")
    with pytest.raises(IdentityError, match="of another root"):
        accept_authority(folder, again, other.fingerprint)


def test_a_ca_certificate_is_renewed_under_its_number(authority, north):
    request = (north.folder / REQUEST).read_bytes()
    later = authority.delegate(request, "north", ["new.example"], number=1, nodes=NODES + 1)
    device = issue_to(north, Role.DEVICE, FIRST)[1].chain
    assert accept_authority(north.folder, later, authority.fingerprint).number == 1
    renewed = Authority(north.folder, Above(authority))
    assert renewed.certificate != north.certificate
    assert [d.domains for d in authority.delegations()] == [("new.example",)]
    # What the certificate before has signed counts on, and is renewed under the new one.
    shown = chain_of_pem(device).verify(authority.certificate)
    again = renewed.renew(certificate_request(new_key()), shown, device)
    assert chain_of_pem(again.chain).issuing == renewed.certificate
    another = authority.delegate(request, "north")
    with pytest.raises(IdentityError, match="authority-2's"):
        accept_authority(north.folder, another, authority.fingerprint)
    for number, site in ((1, "south"), (7, "north")):
        with pytest.raises(IdentityError, match="was not delegated to the site"):
            authority.delegate(request, site, number=number)
    with pytest.raises(IdentityError, match="cannot be delegated"):
        authority.delegate(request, "north", number=1, nodes=NODES)


def test_numbers_are_reserved_for_an_authority_so_the_deny_list_has_room(authority, tmp_path):
    request = request_authority(tmp_path / "north", "farm", "north")
    most = NODES_MAX // ROLES
    for nodes in (0, -1, most + 1):
        with pytest.raises(IdentityError, match="cannot be delegated"):
            authority.delegate(request, "north", nodes=nodes or -1)
    authority.delegate(request, "north", nodes=most)
    left = NODES_MAX - most * ROLES
    authority.give_number(Role.DEVICE, left)
    with pytest.raises(IdentityError, match="given out or delegated"):
        authority.give_number(Role.DEVICE, left + 1)
    with pytest.raises(IdentityError, match="cannot be delegated"):
        authority.delegate(request, "south", nodes=1)


def test_a_number_is_never_delegated_twice_not_even_after_a_restore(authority, tmp_path):
    request = request_authority(tmp_path / "north", "farm", "north")
    authority.delegate(request, "north")
    (authority.folder / "authorities.jsonl").unlink()
    (authority.folder / "issued.jsonl").unlink()
    restored = Authority(authority.folder)
    assert restored.delegations() == []
    chain = restored.delegate(request, "north")
    assert facts_of(load_certificate(chain)).number == 2
    restored.delegate(request, "north", number=1)  # known by the log alone
    assert [d.number for d in restored.delegations()] == [1, 2]


def test_numbers_of_authorities_end(authority, tmp_path):
    from delian.core.node.identity.authority.delegation import Delegation

    request = request_authority(tmp_path / "north", "farm", "north")
    with authority.lock.held():
        authority._delegations.add(Delegation(AUTHORITIES_MAX, "north", (), 1, 0))
    with pytest.raises(IdentityError, match="no more"):
        authority.delegate(request, "north")


# ---------------------------------------------------------------- what it issues


def test_its_holders_have_its_numbers_and_site_and_are_in_the_root_s_log(authority, north):
    above = north._superior
    for role in (Role.DEVICE, Role.EDGE, Role.OWNER):
        number = north.last_number(role) + 1
        assert number == FIRST
        north.give_number(role, number)
        issued = issue_to(north, role, number)[1]
        assert (issued.identity.site, issued.identity.authority) == ("north", 1)
        chain = chain_of_pem(issued.chain)
        assert chain.verify(authority.certificate) == issued.identity
        assert authority.log.place(leaf_of(chain.leaf)) is not None
        assert above.appended[-1] == chain.der
    assert [north.last_number(role) - FIRST for role in (Role.DEVICE, Role.ADMIN)] == [0, -1]
    assert north.restored()["device"] == FIRST + 10_000
    assert authority.last_number(Role.DEVICE) == 0
    assert Authority(authority.folder).last_number(Role.DEVICE) == 0


def test_without_the_root_nothing_is_issued_and_nothing_is_kept(authority, north):
    north._superior.here = False
    size = authority.log.file.size()
    with pytest.raises(Away, match="does not answer"):
        issue_to(north, Role.DEVICE, FIRST)
    assert north.issued() == [] and authority.log.file.size() == size
    alone = Authority(north.folder)  # as a command that reads the folder has it
    for use in (
        lambda: issue_to(alone, Role.DEVICE, FIRST),
        lambda: alone.revoke("authority-1"),
    ):
        with pytest.raises(Away, match="without its root"):
            use()
    with pytest.raises(IdentityError, match="none above it"):
        Authority(authority.folder, north._superior)


@pytest.mark.parametrize(
    ("role", "number"),
    [(Role.DEVICE, 7), (Role.CLOUD, 0), (Role.ADMIN, FIRST), (Role.AUTHORITY, 0)],
)
def test_it_cannot_be_asked_for_another_s_holder(authority, north, role, number):
    size = authority.log.file.size()
    with pytest.raises(IdentityError, match="no holder that authority 1 may name"):
        issue_to(north, role, number)
    assert authority.log.file.size() == size and north.issued() == []


def test_it_gives_no_address_that_is_not_its_own(north):
    for host in ("10.0.0.1", "::1", "cloud.example", "xnorth.example"):
        with pytest.raises(IdentityError, match="gives no certificate for the address"):
            issue_to(north, Role.EDGE, FIRST, [host])
        with pytest.raises(IdentityError, match="gives no certificate for the address"):
            north.issue_server(certificate_request(new_key()), [host])
    with pytest.raises(IdentityError, match="hands out"):
        issue_to(north, Role.EDGE, FIRST, ["cloud-0.farm.delian.internal"])
    with pytest.raises(IdentityError, match="of the site north alone"):
        issue_to(north, Role.DEVICE, FIRST, site="south")
    issued = issue_to(north, Role.EDGE, FIRST, ["edge.north.example"])[1]
    leaf = chain_of_pem(issued.chain).leaf
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    hosts = [f"edge-{FIRST}.a1.farm.delian.internal", "edge.north.example"]
    assert names.get_values_for_type(x509.DNSName) == hosts


def test_a_broker_and_an_owner_and_its_own_server_are_made_beside_the_key(
    authority, north, tmp_path
):
    broker_files(north, tmp_path / "broker", ["broker.north.example"])
    assert (tmp_path / "broker" / "ca.pem").read_bytes() == authority.pem
    entries = authority.log.file.entries(0, 99)
    assert (read_entry(entries[-1]).name, read_entry(entries[-1]).authority) == ("server", 1)
    owner = operator_identity(north, tmp_path / "owner", Role.OWNER)
    assert (owner.common_name, owner.site) == (f"owner-{FIRST}", "north")
    with pytest.raises(IdentityError):
        operator_identity(north, tmp_path / "admin", Role.ADMIN)
    own, made = authority_identity(north)
    assert made and own.identity().common_name == "authority-1"
    assert own.material().authority == authority.pem
    assert not authority_identity(north)[1]
    shown = north.visitor()
    visit = chain_of_pem(shown.certificate)
    assert visit.verify(authority.certificate).common_name == "authority-1"
    assert authority.log.place(leaf_of(visit.leaf)) is None


def test_a_device_takes_a_reply_of_its_authority_and_renews_there_alone(authority, north, tmp_path):
    key = new_key()
    issued = north.issue(certificate_request(key), Role.DEVICE, FIRST)
    reply = EnrolReply(
        federation="farm",
        certificate=issued.chain,
        authority=north.root_pem,
        node=Address(tier=1, number=FIRST),
        renew_after_s=60,
    )
    assert check_reply(key, reply, authority.key).common_name == f"device-{FIRST}"
    folder = IdentityFolder(tmp_path / "device")
    folder.accept(key, reply)
    ask = make_ask(folder.material(), certificate_request(new_key()))
    asked = read_ask(ask, authority.certificate)
    assert asked.identity.number == FIRST
    renewed = north.renew(asked.request, asked.identity, asked.certificate)
    assert renewed.identity.number == FIRST
    with pytest.raises(IdentityError, match="authority 1 renews"):
        authority.renew(asked.request, asked.identity, asked.certificate)
    root_s, north_s = (authority_identity(one)[0].material() for one in (authority, north))
    answer = make_answer(north_s, asked, None, "no")
    assert read_answer(answer, ask, authority.certificate) == (None, "no")
    # Another authority's refusal ends no node: neither the root's nor a neighbour's.
    south = authority_identity(delegated(authority, tmp_path / "south", "south"))[0].material()
    for other in (root_s, south):
        forged = make_answer(other, asked, None, "revoked")
        with pytest.raises(IdentityError, match="not signed by the authority"):
            read_answer(forged, ask, authority.certificate)


def test_the_longest_chain_fits_a_masked_round(tmp_path):
    root = Authority.create(tmp_path / "ca", "f" * 63)
    site, domain = "s" * 63, "d" * 63 + ".example"
    request = request_authority(tmp_path / "north", root.federation, site)
    answer = root.delegate(request, site, [domain], nodes=NODES_MAX // ROLES)
    accept_authority(tmp_path / "north", answer, root.fingerprint)
    north = Authority(tmp_path / "north", Above(root))
    for role in (Role.DEVICE, Role.EDGE):
        key, issued = issue_to(north, role, FIRST)
        material = TlsMaterial(key, issued.chain, root.pem)
        assert len(CertificateIdentity(material).certificate) <= CERTIFICATE_BYTES_MAX - 40


# ---------------------------------------------------------------- what the root logs


def test_the_root_logs_a_certificate_once(authority, north):
    content = stolen(authority, north, Role.DEVICE, FIRST)
    place = authority.append(content)
    assert authority.append(content) == place
    assert read_entry(authority.log.file.entries(place, 1)[0]).name == f"device-{FIRST}"
    assert authority.log.file.size() == place + 1


@pytest.mark.parametrize(
    ("role", "number", "more", "message"),
    [
        (Role.DEVICE, 7, {}, "no holder"),
        (Role.ADMIN, FIRST, {}, "no holder"),
        (Role.CLOUD, 0, {}, "no holder"),
        (Role.DEVICE, FIRST + NODES, {}, "has 32768 numbers"),
        (Role.DEVICE, FIRST - 1, {}, "has 32768 numbers"),
        (Role.DEVICE, FIRST, {"site": "south"}, "not of the site"),
        (Role.DEVICE, FIRST, {"days": 400}, "lives at most"),
        (Role.DEVICE, FIRST, {"ca": True}, "CA's|malformed|no issuing"),
        (Role.DEVICE, FIRST, {"uri": ""}, "names no holder"),
        (Role.DEVICE, FIRST, {"signer": new_key()}, "not signed by"),
    ],
)
def test_the_root_logs_nothing_that_the_authority_may_not_name(
    authority, north, role, number, more, message
):
    size = authority.log.file.size()
    with pytest.raises(IdentityError, match=message):
        authority.append(stolen(authority, north, role, number, **more))
    assert authority.log.file.size() == size


def test_the_root_logs_nothing_without_its_chain_or_of_its_own(authority, north):
    issued = issue_to(authority, Role.DEVICE, 7)[1]
    alone = chain_of_pem(issue_to(north, Role.DEVICE, FIRST)[1].chain).leaf
    for content in (chain_of_pem(issued.chain).der, Chain(alone).der):
        with pytest.raises(IdentityError, match="of no issuing authority"):
            authority.append(content)
    now = time.time()
    content = stolen(authority, north, Role.DEVICE, FIRST)
    for moment in (now - 2 * BACKDATE_S, now + 31 * DAY_S):
        with pytest.raises(IdentityError, match=r"begins on|ended on"):
            authority.append(content, now_s=moment)


def test_an_authority_that_the_root_did_not_log_has_nothing_logged(authority, north):
    """Whoever had the root's key for a moment made it."""
    from support.issuers import rogue

    hidden = rogue(authority, number=1)
    with pytest.raises(IdentityError, match="was not delegated here"):
        authority.append(hidden.sign(Role.DEVICE, FIRST)[0].der)
    with pytest.raises(IdentityError, match="was not delegated here"):
        authority.append(rogue(authority, 9).sign(Role.AUTHORITY, 9)[0].der)


def test_a_name_has_only_so_many_certificates_in_the_log(authority, north):
    for _ in range(CERTIFICATES_MAX):
        authority.append(stolen(authority, north, Role.AUTHORITY, 1))
    with pytest.raises(TooMany, match="authority-1 has 32"):
        authority.append(stolen(authority, north, Role.AUTHORITY, 1))
    with pytest.raises(TooMany):
        Authority(authority.folder).append(stolen(authority, north, Role.AUTHORITY, 1))
    authority.append(stolen(authority, north, Role.DEVICE, FIRST))


# ---------------------------------------------------------------- revoking


def test_a_revoked_holder_gets_nothing_more_and_is_denied_everywhere(authority, north):
    chain = chain_of_pem(issue_to(north, Role.DEVICE, FIRST)[1].chain)
    with pytest.raises(IdentityError, match="is known here"):
        north.revoke(f"device-{FIRST + 1}")
    with pytest.raises(IdentityError, match="is known here"):
        north.revoke("device-1")
    denied, fresh = north.revoke(f"device-{FIRST}", "stolen")
    assert fresh and denied.revoked(Node(Tier.DEVICE, FIRST))
    with pytest.raises(Revoked):
        issue_to(north, Role.DEVICE, FIRST)
    for content in (chain.der, stolen(authority, north, Role.DEVICE, FIRST)):
        if content != chain.der:
            with pytest.raises(Revoked):
                authority.append(content)
    assert not north.revoke(f"device-{FIRST}")[1]


def test_a_revoked_authority_is_at_its_end(authority, north, tmp_path):
    shown = chain_of_pem(issue_to(north, Role.DEVICE, FIRST)[1].chain)
    south = delegated(authority, tmp_path / "south", "south")
    other = issue_to(south, Role.DEVICE, (2 << NUMBER_BITS) + 1)[1].identity
    denied, fresh = authority.revoke("authority-1", "its key was stolen")
    assert fresh and denied.denies(identity_of(shown.leaf)) and not denied.denies(other)
    size = authority.log.file.size()
    with pytest.raises(Revoked):
        authority.append(stolen(authority, north, Role.DEVICE, FIRST + 1))
    with pytest.raises(Revoked):
        issue_to(north, Role.DEVICE, FIRST + 1)
    with pytest.raises(Revoked):
        authority.delegate((north.folder / REQUEST).read_bytes(), "north", number=1)
    assert authority.log.file.size() == size
    issue_to(south, Role.DEVICE, (2 << NUMBER_BITS) + 2)
    with pytest.raises(IdentityError, match="is known here"):
        authority.revoke("authority-3")
    # The organisation begins again under a new number.
    request = request_authority(tmp_path / "again", "farm", "north")
    assert facts_of(load_certificate(authority.delegate(request, "north"))).number == 3


def test_a_folder_whose_parts_do_not_fit_is_not_opened(authority, north, tmp_path):
    other = Authority.create(tmp_path / "other", "farm")
    (north.folder / "root.pem").write_bytes(other.pem)
    with pytest.raises(IdentityError, match="not signed by"):
        Authority(north.folder)
    (north.folder / "root.pem").write_bytes(authority.pem)
    for name in ("denied.jsonl", "log", "authorities.jsonl"):
        assert not (north.folder / name).exists()
    with pytest.raises(IdentityError, match="the root has it"):
        assert north.log
    with pytest.raises(IdentityError, match="the root does"):
        north.signed()
    pem = authority.certificate.public_bytes(Encoding.PEM)
    (north.folder / CERTIFICATE).write_bytes(pem)
    with pytest.raises(IdentityError, match="not the key of"):
        Authority(north.folder)


@pytest.mark.parametrize(
    "number", [FIRST, (AUTHORITIES_MAX << NUMBER_BITS) + (1 << NUMBER_BITS) - 1]
)
def test_the_numbers_of_issuing_authorities_travel_as_others_do(number):
    """In topics, addresses, claims of callers without TLS, DNS names and JSON (RFC 8259: 2^53)."""
    device, edge = Node(Tier.DEVICE, number), Node(Tier.EDGE, number)
    for node in (device, edge):
        assert topics.node_named(topics.name_of(node)) == node
        assert node_of(address(node)) == node
        assert claimed(claim(node)[0][1], "farm").node == node
    assert all(len(label) <= 63 for label in node_name("farm", edge).split("."))
    assert int(float(number)) == number
