"""A certificate of an issuing authority counts for its own numbers, site and roles alone, over TLS
and without; what a stolen key of one signs beyond that is refused.
"""

from __future__ import annotations

import asyncio
import ipaddress
import ssl

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from delian.core.node.identity.authority.authority import Authority, issue_to
from delian.core.node.identity.authority.deny_list import (
    FOR_GOOD,
    DenyList,
    read_entries,
    sign_list,
    verify_head,
)
from delian.core.node.identity.log.log_entries import entry_of, read_entry
from delian.core.node.identity.pki import certificates as c
from delian.core.node.identity.pki import tls_contexts
from delian.core.node.identity.pki.certificates import (
    AUTHORITIES_MAX,
    NUMBER_BITS,
    IdentityError,
    Role,
    authority_of,
    identity_of,
    subject_of,
)
from delian.core.node.identity.pki.chain import Chain, chain_of_pem, read_chain
from delian.core.node.identity.pki.intermediate import (
    BYTES_MAX,
    DOMAINS_MAX,
    facts_of,
    read_issuing,
)
from delian.core.node.identity.pki.root_certificate import root_certificate
from delian.core.node.identity.pki.signing import CertificateIdentity
from delian.core.privacy.secagg.member_identity import CERTIFICATE_BYTES_MAX
from delian.core.protocol.ports import CLOUD, Node, Tier
from support.identity_fixtures import server_context
from support.issuers import DAY_S, rogue

BASE = 3 << NUMBER_BITS  # numbers of authority 3 are above
TEXT = b"what is signed"


@pytest.fixture
def north(authority):
    return rogue(authority)


def test_a_certificate_of_an_issuing_authority_counts_with_it_and_not_alone(authority, north):
    chain, _ = north.sign(Role.DEVICE, BASE + 7)
    assert read_chain(chain.der) == chain
    peer = read_chain(chain.der).verify(authority.certificate)
    assert (peer.common_name, peer.site, peer.authority) == (f"device-{BASE + 7}", "north", 3)
    assert peer.node == Node(Tier.DEVICE, BASE + 7)
    with pytest.raises(IdentityError, match="not signed by"):
        Chain(chain.leaf).verify(authority.certificate)


def test_a_certificate_of_the_root_travels_as_it_always_has(authority):
    issued = issue_to(authority, Role.DEVICE, 5)[1]
    leaf = x509.load_pem_x509_certificate(issued.chain)
    chain = chain_of_pem(issued.chain)
    assert chain.der == leaf.public_bytes(Encoding.DER) and chain.issuing is None
    assert read_chain(chain.der).verify(authority.certificate).authority == 0


def test_neither_the_root_nor_another_authority_names_an_authority_s_holders(
    authority, north, tmp_path
):
    with pytest.raises(IdentityError, match="no holder that authority 0 may name"):
        issue_to(authority, Role.DEVICE, BASE + 7)
    chain, _ = rogue(authority, 4).sign(Role.DEVICE, BASE + 7)
    with pytest.raises(IdentityError, match="no holder that authority 4 may name"):
        chain.verify(authority.certificate)
    other = Authority.create(tmp_path / "other", "farm")
    with pytest.raises(IdentityError, match="not signed by"):
        north.sign(Role.DEVICE, BASE + 7)[0].verify(other.certificate)


@pytest.mark.parametrize(
    ("role", "number"),
    [
        (Role.DEVICE, 7),
        (Role.DEVICE, BASE - 1),
        (Role.DEVICE, BASE + (1 << NUMBER_BITS)),
        (Role.EDGE, 0),
        (Role.CLOUD, 0),
        (Role.CLOUD, BASE),
        (Role.CLOUD, BASE + 1),
        (Role.ADMIN, BASE + 1),
        (Role.OPERATOR, BASE + 1),
        (Role.RUNNER, BASE + 1),
        (Role.VIEWER, BASE + 1),
        (Role.AUTHORITY, 0),
        (Role.AUTHORITY, 4),
        (Role.AUTHORITY, BASE),
    ],
)
def test_an_issuing_authority_names_only_its_own_numbers_and_roles(authority, north, role, number):
    chain, _ = north.sign(role, number)
    for check in (identity_of, lambda leaf: Chain(leaf, north.certificate).verify(north.root)):
        with pytest.raises(IdentityError, match="no holder that authority 3 may name"):
            check(chain.leaf)


@pytest.mark.parametrize("role", [Role.DEVICE, Role.EDGE, Role.OWNER, Role.AUTHORITY])
def test_its_holders_are_of_its_site_always(authority, north, role):
    number = 3 if role is Role.AUTHORITY else BASE + 1
    assert north.sign(role, number)[0].verify(authority.certificate).site == "north"
    for site in ("", "south"):
        with pytest.raises(IdentityError, match="not of the site north"):
            north.sign(role, number, site=site)[0].verify(authority.certificate)


@pytest.mark.parametrize(
    "name",
    [
        subject_of("farm", "delian CA"),
        subject_of("farm", "Delian CA 3", "north"),
        subject_of("farm", "delian  CA 3", "north"),
        subject_of("farm", "delian CA 3 ", "north"),
        subject_of("farm", "delian CA 03", "north"),
        subject_of("farm", "delian CA 4", "north"),
        subject_of("farm", "delian CA 4096", "north"),
        subject_of("farm", "delian CA 3", "south"),
        subject_of("farm", "delian CA 3"),
        subject_of("farm", "delian CA", "north"),
        subject_of("other", "delian CA 3", "north"),
        x509.Name([]),
    ],
)
def test_a_leaf_that_claims_another_issuer_counts_nowhere(authority, north, name):
    """TLS compares names without regard to case and spaces: these must not pass for the root's."""
    for role, number in ((Role.DEVICE, 7), (Role.ADMIN, 1), (Role.DEVICE, BASE + 7)):
        chain, _ = north.sign(role, number, issuer=name)
        with pytest.raises(IdentityError):
            chain.verify(authority.certificate)


def test_only_a_ca_certificate_of_the_root_can_be_in_between(authority, north, material):
    key = c.load_key((holder := material()).key)
    leaf = chain_of_pem(holder.certificate).leaf
    forged, _ = north.sign(Role.DEVICE, BASE + 7, signer=key, issuer=leaf.subject)
    with pytest.raises(IdentityError, match="no issuing authority's"):
        Chain(forged.leaf, leaf).verify(authority.certificate)
    # An issuing authority makes no further CA, neither of its own name nor of another's.
    for subject in (subject_of("farm", "delian CA 5", "north"), north.certificate.subject):
        below, own = north.sign(Role.DEVICE, BASE, ca=True, subject=subject)
        made, _ = north.sign(Role.DEVICE, BASE + 7, signer=own, issuer=subject)
        with pytest.raises(IdentityError):
            Chain(made.leaf, below.leaf).verify(authority.certificate)
    with pytest.raises(IdentityError):
        Chain(north.certificate, None).verify(authority.certificate)


def test_both_certificates_must_be_valid_at_the_time(authority):
    short = rogue(authority, days=2)
    chain, _ = short.sign(Role.DEVICE, BASE + 7, days=30)
    ends = facts_of(short.certificate).not_after
    assert chain.ends_s == ends and chain.verify(authority.certificate, ends - 60)
    with pytest.raises(IdentityError, match="ended on"):
        chain.verify(authority.certificate, ends + 60)
    with pytest.raises(IdentityError, match="begins on"):
        chain.verify(authority.certificate, ends - 10 * DAY_S)


@pytest.mark.parametrize("change", ["twice", "swapped", "root", "zero", "cut", "text", "three"])
def test_a_chain_is_two_certificates_and_nothing_else(authority, north, change):
    chain, _ = north.sign(Role.DEVICE, BASE + 7)
    leaf, issuing = (one.public_bytes(Encoding.DER) for one in (chain.leaf, north.certificate))
    root = authority.certificate.public_bytes(Encoding.DER)
    content = {
        "twice": leaf + leaf,
        "swapped": issuing + leaf,
        "root": leaf + root,
        "zero": leaf + issuing + b"\0",
        "cut": (leaf + issuing)[:-1],
        "text": chain.pem,
        "three": leaf + issuing + root,
    }[change]
    with pytest.raises(IdentityError):
        read_chain(content).verify(authority.certificate)
    with pytest.raises(IdentityError):
        read_chain(content + bytes(20_000))


def test_a_file_has_the_root_at_its_end_or_not_at_all(authority, north):
    chain, _ = north.sign(Role.DEVICE, BASE + 7)
    root = authority.pem
    assert chain_of_pem(chain.pem) == chain_of_pem(chain.pem + root) == chain
    leaf = chain.leaf.public_bytes(Encoding.PEM)
    assert chain_of_pem(leaf + root) == Chain(chain.leaf)
    for wrong in (b"", leaf + root + chain.pem, chain.pem + leaf + root, b"x"):
        with pytest.raises(IdentityError):
            chain_of_pem(wrong)


# ---------------------------------------------------------------- the issuing authority's own


def test_the_ca_certificate_says_what_its_authority_may_issue(authority):
    made = rogue(authority, 4095, "north", ["Clinic.Example"])
    facts = read_issuing(made.certificate, authority.certificate)
    assert (facts.federation, facts.number, facts.site) == ("farm", 4095, "north")
    assert facts.domains == ("clinic.example",)
    hosts = ("clinic.example", "broker.clinic.example", "edge-1.a4095.farm.delian.internal")
    assert all(facts.allows_host(host) for host in hosts)
    others = ("xclinic.example", "example", "cloud-0.farm.delian.internal", "a40955.farm.delian")
    assert not any(facts.allows_host(host) for host in others)
    constraints = made.certificate.extensions.get_extension_for_class(x509.NameConstraints)
    assert constraints.critical


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"number": 0}, "no issuing authority's number"),
        ({"number": AUTHORITIES_MAX + 1}, "no issuing authority's number"),
        ({"site": ""}, "cannot name a site"),
        ({"site": "North"}, "cannot name a site"),
        ({"domains": ["delian.internal"]}, "only authorities hand out"),
        ({"domains": ["a4.farm.delian.internal"]}, "only authorities hand out"),
        ({"domains": ["10.0.0.1"]}, "an address, not a domain"),
        ({"domains": [f"d{i}.example" for i in range(DOMAINS_MAX + 1)]}, "domains; at most"),
        ({"domains": [".".join(["a" * 63] * 3)] * 4}, "bytes; at most"),
    ],
)
def test_what_the_root_does_not_delegate(authority, arguments, message):
    with pytest.raises(IdentityError, match=message):
        rogue(authority, **arguments)


def test_a_root_of_an_older_delian_delegates_nothing(authority, monkeypatch):
    old = x509.BasicConstraints(ca=True, path_length=0)
    monkeypatch.setattr(x509, "BasicConstraints", lambda ca, path_length: old)
    authority.certificate = root_certificate(authority._ca.key, "farm", 100 * DAY_S)
    monkeypatch.undo()
    with pytest.raises(IdentityError, match="allows no issuing authority"):
        rogue(authority)


def test_a_chain_fits_where_certificates_travel(tmp_path):
    """The longest names and domains that are allowed, and the largest number."""
    name = "f" * 63
    root = Authority.create(tmp_path / "ca", name)
    from delian.core.node.identity.pki.intermediate import issuing_certificate

    key = c.new_key()
    widest = (root._ca.key, root.certificate), key.public_key(), name, 4095, "s" * 63
    domains = [("d" * 63) + ".example"]
    made = issuing_certificate(*widest, domains, life_s=DAY_S, now_s=2_000_000_000)
    size = len(made.public_bytes(Encoding.DER))
    leaf = issue_to(root, Role.DEVICE, (1 << 40) - 1, site="s" * 63)[1].chain
    whole = size + len(chain_of_pem(leaf).der)
    assert size <= BYTES_MAX and whole + 100 <= CERTIFICATE_BYTES_MAX


# ---------------------------------------------------------------- deny list, log, signatures


def test_a_revoked_authority_takes_all_its_holders_along(authority, north):
    denied = DenyList(2, {(Role.AUTHORITY, 3): FOR_GOOD})
    for role, number in ((Role.DEVICE, BASE + 7), (Role.OWNER, BASE + 1), (Role.AUTHORITY, 3)):
        assert denied.denies(north.sign(role, number)[0].verify(authority.certificate))
    assert denied.revoked(Node(Tier.EDGE, BASE + 9))
    for role, number in ((Role.DEVICE, 7), (Role.DEVICE, BASE - 1), (Role.AUTHORITY, 0)):
        assert not denied.voids(role, number, 0)
    assert not denied.voids(Role.EDGE, (4 << NUMBER_BITS) + 1, 0)
    assert not denied.revoked(Node(Tier.DEVICE, BASE + (1 << NUMBER_BITS)))
    signed = sign_list(authority._ca.key, "farm", denied, 10)
    head = verify_head(signed.head, signed.signature, authority.certificate, "farm")
    assert read_entries(head, signed.entries).names == denied.names


def test_the_log_tells_an_authority_s_ca_from_its_server(authority, north):
    ca, server = (
        read_entry(entry_of(made))
        for made in (north.certificate, north.sign(Role.AUTHORITY, 3)[0].leaf)
    )
    assert (ca.name, ca.authority, ca.issues) == ("CA of authority-3", 3, True)
    assert (server.name, server.authority, server.issues) == ("authority-3", 3, False)
    broker, _ = north.sign(Role.DEVICE, 0, uri="", names=[x509.DNSName("a3.farm.delian.internal")])
    entry = read_entry(entry_of(broker.leaf))
    assert (entry.name, entry.authority) == ("server", 3)
    device = read_entry(entry_of(north.sign(Role.DEVICE, BASE + 7)[0].leaf))
    assert (device.name, device.authority) == (f"device-{BASE + 7}", 3)


def test_devices_of_two_organisations_believe_one_another_s_signatures(authority, north, material):
    seven = CertificateIdentity(north.material(Role.DEVICE, BASE + 7))
    listed = {}
    five = CertificateIdentity(material(), denied=lambda: DenyList(1, dict(listed)))
    assert len(seven.certificate) <= CERTIFICATE_BYTES_MAX
    assert five.verify(BASE + 7, seven.certificate, TEXT, seven.sign(TEXT))
    assert seven.verify(5, five.certificate, TEXT, five.sign(TEXT))
    alone = Chain(read_chain(seven.certificate).leaf).der
    assert not five.verify(BASE + 7, alone, TEXT, seven.sign(TEXT))
    listed[Role.AUTHORITY, 4] = FOR_GOOD
    assert five.verify(BASE + 7, seven.certificate, TEXT, seven.sign(TEXT))
    listed[Role.AUTHORITY, 3] = FOR_GOOD
    assert not five.verify(BASE + 7, seven.certificate, TEXT, seven.sign(TEXT))


# ---------------------------------------------------------------- TLS


async def over_grpc(server, client, name):
    """What the server saw of the client, when the client wanted a server of that name."""

    async def handler(request, context):
        try:
            return c.identity_of_context(context.auth_context()).common_name.encode()
        except IdentityError as error:
            return error.message.encode()

    serving = grpc.aio.server()
    method = grpc.unary_unary_rpc_method_handler(handler)
    serving.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("test.T", {"Call": method}),)
    )
    port = serving.add_secure_port("127.0.0.1:0", c.server_credentials(server))
    await serving.start()
    options = (("grpc.ssl_target_name_override", name), ("grpc.default_authority", name))
    credentials = c.channel_credentials(client)
    try:
        async with grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials, options) as channel:
            return (await channel.unary_unary("/test.T/Call")(b"", timeout=60)).decode()
    finally:
        await serving.stop(None)


def by_grpc(*arguments):
    try:
        return asyncio.run(over_grpc(*arguments))
    except grpc.aio.AioRpcError as error:
        assert error.code() is grpc.StatusCode.UNAVAILABLE, error
        return None


def by_ssl(server, client, name, folder):
    """The same between two contexts of the standard library, in memory."""

    def files(material, place):
        place.mkdir(parents=True, exist_ok=True)
        made = c.TlsFiles(place / "key", place / "certificate", place / "authority")
        made.key.write_bytes(material.key)
        made.certificate.write_bytes(material.certificate)
        made.authority.write_bytes(material.authority)
        return made

    pipes = [(ssl.MemoryBIO(), ssl.MemoryBIO()) for _ in range(2)]
    one = server_context(files(server, folder / "server"))
    other = tls_contexts.client_context(files(client, folder / "client"))
    ends = [
        one.wrap_bio(*pipes[0], server_side=True),
        other.wrap_bio(*pipes[1], server_hostname=name),
    ]
    done = [False, False]
    while not all(done):
        moved = False
        for i in (1, 0):
            if not done[i]:
                try:
                    ends[i].do_handshake()
                    done[i] = True
                except ssl.SSLWantReadError:
                    pass
                except ssl.SSLError:
                    return None
            said = pipes[i][1].read()
            pipes[1 - i][0].write(said)
            moved = moved or bool(said)
        assert moved or all(done)
    try:
        return identity_of(ends[0].getpeercert(binary_form=True)).common_name
    except IdentityError as error:
        return error.message


def dns(*names):
    return [x509.DNSName(name) for name in names]


EDGE = f"edge-{BASE + 1}.a3.farm.delian.internal"


def test_nodes_of_organisations_connect_over_tls(authority, north, material, tmp_path):
    edge = north.material(Role.EDGE, BASE + 1, names=dns(EDGE))
    assert c.node_name("farm", Node(Tier.EDGE, BASE + 1)) == EDGE
    device = north.material(Role.DEVICE, BASE + 7)
    cloud = material(Role.CLOUD, 0)
    for server, client in ((edge, device), (edge, material()), (cloud, device)):
        name = EDGE if server is edge else c.node_name("farm", CLOUD)
        expected = client.identity().common_name
        assert by_grpc(server, client, name) == by_ssl(server, client, name, tmp_path) == expected
    own = north.material(Role.AUTHORITY, 3, names=dns(c.authority_name("farm", 3)))
    assert (
        by_grpc(own, device, "authority-3.a3.farm.delian.internal") == device.identity().common_name
    )


@pytest.mark.parametrize(
    "name",
    [
        "cloud-0.farm.delian.internal",
        "authority-0.farm.delian.internal",
        "edge-1.farm.delian.internal",
        f"edge-{(4 << NUMBER_BITS) + 1}.a4.farm.delian.internal",
        "cloud-0.barn.delian.internal",
        "xa3.farm.delian.internal",
        "broker.example",
        "a3.farm.delian.internal.example",
    ],
)
def test_a_rogue_authority_s_server_passes_for_no_other(authority, north, material, tmp_path, name):
    client = material()
    shown = north.material(Role.EDGE, BASE + 1, names=dns(EDGE, name))
    alone = north.material(Role.EDGE, BASE + 1, names=dns(name))
    wild = north.material(Role.EDGE, BASE + 1, names=dns("*." + name.partition(".")[2]))
    bare = north.material(Role.EDGE, BASE + 1, uri="", common=name)
    for server in (shown, alone, wild, bare):
        assert by_grpc(server, client, name) is None
        assert by_ssl(server, client, name, tmp_path) is None


def test_a_rogue_authority_s_server_passes_for_no_address(authority, north, material, tmp_path):
    """A broker that is dialled by its address is not one of theirs."""
    address = [x509.IPAddress(ipaddress.ip_address("10.0.0.1"))]
    server = north.material(Role.EDGE, BASE + 1, names=address)
    assert by_ssl(server, material(), "10.0.0.1", tmp_path) is None
    good = material(Role.EDGE, 1, ["10.0.0.1"])
    assert by_ssl(good, material(), "10.0.0.1", tmp_path) == "device-5"


def test_a_granted_domain_is_an_authority_s_and_no_other(authority, material, tmp_path):
    south = rogue(authority, 4, "south", ["south.example"])
    number = (4 << NUMBER_BITS) + 1
    for name, passes in (("broker.south.example", True), ("broker.north.example", False)):
        server = south.material(Role.EDGE, number, site="south", names=dns(name))
        for by in (by_grpc(server, material(), name), by_ssl(server, material(), name, tmp_path)):
            assert (by == "device-5") is passes


@pytest.mark.parametrize(
    ("role", "number", "keywords"),
    [
        (Role.ADMIN, 1, {}),
        (Role.ADMIN, BASE + 1, {}),
        (Role.CLOUD, 0, {}),
        (Role.DEVICE, 7, {}),
        (Role.DEVICE, BASE + 7, {"site": "south"}),
        (Role.DEVICE, BASE + 7, {"site": ""}),
        (Role.DEVICE, (4 << NUMBER_BITS) + 7, {}),
        (Role.DEVICE, 7, {"issuer": subject_of("farm", "delian  CA 3", "north")}),
        (Role.ADMIN, 1, {"issuer": subject_of("farm", "Delian CA 3", "north")}),
        (Role.ADMIN, 1, {"issuer": subject_of("FARM", "delian CA 3", "north")}),
    ],
)
def test_a_rogue_authority_s_client_passes_for_no_other(
    authority, north, material, tmp_path, role, number, keywords
):
    cloud, name = material(Role.CLOUD, 0), c.node_name("farm", CLOUD)
    client = north.material(role, number, **keywords)
    for seen in (by_grpc(cloud, client, name), by_ssl(cloud, client, name, tmp_path)):
        assert seen is None or "certificate" in seen or "no holder" in seen, seen


def test_a_ca_below_an_issuing_authority_gets_no_connection(authority, north, material, tmp_path):
    subject = subject_of("farm", "delian CA 3", "north")
    below, own = north.sign(Role.DEVICE, BASE, ca=True, subject=subject, uri="")
    leaf, key = north.sign(Role.DEVICE, BASE + 7, signer=own)
    pem = b"".join(
        one.public_bytes(Encoding.PEM) for one in (leaf.leaf, below.leaf, north.certificate)
    )
    client = c.TlsMaterial(c.key_pem(key), pem + authority.pem, authority.pem)
    cloud, name = material(Role.CLOUD, 0), c.node_name("farm", CLOUD)
    assert by_grpc(cloud, client, name) is None
    assert by_ssl(cloud, client, name, tmp_path) is None


def test_numbers_say_who_issues():
    assert authority_of(Role.DEVICE, BASE + 7) == authority_of(Role.AUTHORITY, 3) == 3
    assert authority_of(Role.DEVICE, BASE - 1) == 2 and authority_of(Role.CLOUD, 0) == 0
    assert (AUTHORITIES_MAX + 1) << NUMBER_BITS == 2**52


def test_names_of_the_subject_are_read_strictly(authority, north):
    twice = x509.Name([*north.certificate.subject, *subject_of("farm", "x").rdns[1]])
    with pytest.raises(IdentityError):
        c.read_ca_name(twice, "farm")
    joined = x509.Name(
        [
            x509.RelativeDistinguishedName(
                [
                    x509.NameAttribute(NameOID.ORGANIZATION_NAME, "farm"),
                    x509.NameAttribute(NameOID.COMMON_NAME, "delian CA"),
                ]
            )
        ]
    )
    with pytest.raises(IdentityError):
        c.read_ca_name(joined, "farm")
    assert c.read_ca_name(north.certificate.subject, "farm") == (3, "north")
