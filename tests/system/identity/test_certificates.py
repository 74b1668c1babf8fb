"""Who a certificate names, and that nothing else is taken for one."""

from __future__ import annotations

import asyncio
import datetime
import socket
import ssl
import subprocess
import sys
import threading
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID
from delian.core.common.errors import DelianError
from delian.core.node.identity.pki import certificates as c
from delian.core.node.identity.pki import tls_contexts
from delian.core.node.identity.pki.certificates import (
    IdentityError,
    PeerIdentity,
    Role,
    identity_of,
)
from delian.core.node.identity.pki.chain import Chain, chain_of_pem
from delian.core.protocol.ports import CLOUD, Node, Tier
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.identity_fixtures import server_context

NOW = datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC)


def certificate(common="device-5", uris=("delian://farm/device/5",), ca=False, basic=True):
    """A certificate that names whom one likes, as if the root had issued it."""
    key = c.new_key()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(c.subject_of("farm", c.ca_name(0)))
        .public_key(key.public_key())
        .serial_number(77)
        .not_valid_before(NOW)
        .not_valid_after(NOW + datetime.timedelta(days=1))
    )
    if basic:
        builder = builder.add_extension(x509.BasicConstraints(ca, None), critical=True)
    names = [x509.UniformResourceIdentifier(uri) for uri in uris]
    names = names or [x509.DNSName("device-5")]
    builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(key, hashes.SHA256())


def der(made):
    return made.public_bytes(serialization.Encoding.DER)


def test_a_certificate_names_its_holder_in_pem_and_der():
    made = certificate()
    begins = int(NOW.timestamp())
    expected = PeerIdentity("farm", Role.DEVICE, 5, 77, begins + 86400, "device-5", begins)
    assert identity_of(der(made)) == expected
    assert identity_of(made.public_bytes(serialization.Encoding.PEM)) == expected
    assert expected.node == Node(Tier.DEVICE, 5) and expected.uri == "delian://farm/device/5"


def test_a_certificate_whose_key_is_no_point_of_the_curve_is_none():
    made = certificate()
    form = serialization.PublicFormat.UncompressedPoint
    point = made.public_key().public_bytes(serialization.Encoding.X962, form)
    changed = der(made).replace(point, point[:-1] + bytes([point[-1] ^ 1]))
    with pytest.raises(IdentityError, match=r"no X\.509 certificate"):
        c.load_certificate(changed)


def test_an_operator_is_no_node():
    made = identity_of(certificate("operator-1", ["delian://farm/operator/1"]))
    assert made.tier is Role.OPERATOR and made.node is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"uris": []}, "names 0 holders"),
        ({"uris": ["delian://farm/device/5", "delian://farm/cloud/0"]}, "names 2 holders"),
        ({"uris": ["https://farm/device/5"]}, "names no node"),
        ({"uris": ["delian://farm/device/05"]}, "names no node"),
        ({"uris": ["delian://farm/device/5/"]}, "names no node"),
        ({"uris": ["delian://farm/device/5\n"]}, "names no node"),
        ({"uris": ["delian://farm/device/-5"]}, "names no node"),
        ({"uris": ["delian://farm/nobody/5"]}, "names no node"),
        ({"uris": ["delian://FARM/device/5"]}, "names no node"),
        ({"uris": ["delian://farm/device/9999999999999999999"]}, "too large"),
        ({"common": "cloud-0"}, "common name"),
        ({"ca": True}, "CA's"),
        ({"basic": False}, "none of Delian's"),
    ],
)
def test_a_certificate_that_does_not_name_exactly_one_node_is_refused(arguments, message):
    with pytest.raises(IdentityError, match=message):
        identity_of(certificate(**arguments))


@pytest.mark.parametrize("content", [b"", b"x", b"-----BEGIN CERTIFICATE-----\n", b"\x30" * 20_000])
def test_what_is_no_certificate_is_refused(content):
    with pytest.raises(IdentityError):
        identity_of(content)


GOOD = der(certificate())


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.integers(0, 255)), min_size=1, max_size=4),
    st.integers(0, len(GOOD)),
)
def test_a_damaged_certificate_gives_an_identity_or_a_delian_error(changes, length):
    damaged = bytearray(GOOD)
    for place, value in changes:
        damaged[place] = value
    for content in (bytes(damaged), bytes(damaged[:length])):
        try:
            found = identity_of(content)
        except DelianError:
            continue
        assert isinstance(found, PeerIdentity) and found.number >= 0


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=400))
def test_noise_is_never_a_request_or_a_key(noise):
    pem = b"-----BEGIN CERTIFICATE REQUEST-----\n" + noise
    for read, content in ((c.requested_key, pem), (c.load_key, noise), (c.identity_of, noise)):
        with pytest.raises(DelianError):
            read(content)


def test_a_request_must_be_signed_by_the_key_that_it_is_for():
    key = c.new_key()
    request = c.certificate_request(key)
    assert c.public_bytes(c.requested_key(request)) == c.public_bytes(key.public_key())
    csr = x509.load_pem_x509_csr(request).public_bytes(serialization.Encoding.DER)
    stolen = csr[:-4] + bytes(b ^ 1 for b in csr[-4:])
    body = ssl.DER_cert_to_PEM_cert(stolen).replace("CERTIFICATE-", "CERTIFICATE REQUEST-")
    with pytest.raises(IdentityError, match="not signed by its own key"):
        c.requested_key(body.encode())


def test_only_p_256_keys_are_taken():
    for key in (rsa.generate_private_key(65537, 2048), ec.generate_private_key(ec.SECP384R1())):
        name = x509.Name([])
        builder = x509.CertificateSigningRequestBuilder().subject_name(name)
        csr = builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        with pytest.raises(IdentityError, match="not a P-256 key"):
            c.requested_key(csr)
        pem = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        with pytest.raises(IdentityError, match="not a P-256 key"):
            c.load_key(pem)


def test_a_certificate_without_tls_is_checked_against_the_ca_and_the_time(authority, material):
    shown = chain_of_pem(material().certificate)
    now = shown.ends_s - 60
    assert shown.verify(authority.certificate, now).common_name == "device-5"
    with pytest.raises(IdentityError, match=r"ended on .* UTC\n  hint: this machine's clock"):
        shown.verify(authority.certificate, now + 120)
    with pytest.raises(IdentityError, match="begins on"):
        shown.verify(authority.certificate, now - 40 * 86400)
    with pytest.raises(IdentityError, match="not signed by this federation's CA"):
        Chain(certificate()).verify(authority.certificate)


@pytest.mark.parametrize("address", ["", "a b", "-x", "x-.de", "*.example", "a..b", "x" * 64])
def test_what_is_no_address_stands_in_no_certificate(address):
    with pytest.raises(IdentityError, match="neither a host name nor an IP address"):
        c.general_name(address)


def test_the_key_is_in_no_repr(material):
    assert "PRIVATE KEY" not in repr(material())


# ---------------------------------------------------------------- TLS


async def call(server_credentials, channel_credentials, node=CLOUD):
    """One call over gRPC; gives what the server saw of the peer."""

    async def handler(request, context):
        try:
            peer = c.identity_of_context(context.auth_context())
        except IdentityError as error:
            return str(error).encode()
        return (peer.common_name if peer else "nobody").encode()

    server = grpc.aio.server()
    method = grpc.unary_unary_rpc_method_handler(handler)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("test.T", {"Call": method}),)
    )
    port = server.add_secure_port("127.0.0.1:0", server_credentials)
    await server.start()
    options = c.channel_options("farm", node)
    try:
        async with grpc.aio.secure_channel(
            f"127.0.0.1:{port}", channel_credentials, options=options
        ) as channel:
            return (await channel.unary_unary("/test.T/Call")(b"", timeout=60)).decode()
    finally:
        await server.stop(None)


@pytest.mark.parametrize("dynamic", [False, True])
def test_grpc_peers_know_one_another_by_their_certificates(material, dynamic):
    cloud, device = material(Role.CLOUD, 0), material()
    server = c.server_credentials((lambda: cloud) if dynamic else cloud)
    assert asyncio.run(call(server, c.channel_credentials(device))) == "device-5"


def test_the_coordinator_answers_as_edge_0_too_and_no_edge_as_another(material):
    client = c.channel_credentials(material())
    edge0, edge3 = Node(Tier.EDGE, 0), Node(Tier.EDGE, 3)
    cloud = c.server_credentials(material(Role.CLOUD, 0))
    assert asyncio.run(call(cloud, client, edge0)) == "device-5"
    third, fourth = (c.server_credentials(material(Role.EDGE, n, ["127.0.0.1"])) for n in (3, 4))
    assert asyncio.run(call(third, client, edge3)) == "device-5"
    for server in (fourth, c.server_credentials(material(Role.DEVICE, 3))):
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            asyncio.run(call(server, client, edge3))
        assert refusal.value.code() is grpc.StatusCode.UNAVAILABLE


def test_a_peer_without_a_certificate_or_with_another_ca_s_gets_no_connection(
    material, authority, tmp_path
):
    from delian.core.node.identity.authority.authority import Authority, issue_to

    server = c.server_credentials(material(Role.CLOUD, 0))
    other = Authority.create(tmp_path / "other", "farm")
    key, issued = issue_to(other, Role.DEVICE, 5)
    foreign = c.TlsMaterial(key, issued.chain, authority.pem)
    for client in (c.enrolment_credentials(authority.pem), c.channel_credentials(foreign)):
        with pytest.raises(grpc.aio.AioRpcError):
            asyncio.run(call(server, client))


def test_a_call_over_an_older_or_unknown_tls_is_refused(material):
    shown = {"x509_pem_cert": [material().certificate]}
    with pytest.raises(IdentityError, match=r"not TLS 1\.3"):
        c.identity_of_context({"ssl_tls_version": [b"TLSv1.2"], **shown})
    for context in (shown, {"transport_security_type": [b"ssl"]}):
        with pytest.raises(IdentityError, match="does not report the TLS version"):
            c.identity_of_context(context)
    assert c.identity_of_context({"ssl_tls_version": [b"TLSv1.3"], **shown}).number == 5
    assert c.identity_of_context({"transport_security_type": [b"insecure"]}) is None


def test_neither_end_of_grpc_takes_a_handshake_of_tls_1_2(material, authority, tmp_path):
    """In a process of its own: gRPC reads its cipher suites once."""
    for name, made in (("edge", material(Role.EDGE, 1, ["127.0.0.1"])), ("device", material())):
        (tmp_path / f"{name}.key").write_bytes(made.key)
        (tmp_path / f"{name}.pem").write_bytes(made.certificate)
    (tmp_path / "ca.pem").write_bytes(authority.pem)
    program = Path(__file__).parents[2] / "support" / "old_tls.py"
    done = subprocess.run(
        [sys.executable, program, tmp_path], capture_output=True, text=True, timeout=120
    )
    assert done.stdout.split() == ["TLSv1.3", "refused", "no-call"], done.stderr


def test_contexts_speak_tls_1_3_only_and_check_the_host_name(material, tmp_path):
    def files(name, made):
        folder = tmp_path / name
        folder.mkdir()
        paths = c.TlsFiles(folder / "key", folder / "certificate", folder / "authority")
        paths.key.write_bytes(made.key)
        paths.certificate.write_bytes(made.certificate)
        paths.authority.write_bytes(made.authority)
        return paths

    edge = files("edge", material(Role.EDGE, 1, ["localhost", "127.0.0.1"]))
    device = files("device", material())
    listener = socket.create_server(("127.0.0.1", 0))
    server = server_context(edge)
    seen = []

    def serve():
        for _ in range(3):
            raw, _ = listener.accept()
            raw.settimeout(60)
            try:
                with server.wrap_socket(raw, server_side=True) as tls:
                    seen.append(identity_of(tls.getpeercert(binary_form=True)).common_name)
                    tls.sendall(tls.version().encode())
            except ssl.SSLError:
                seen.append("refused")
                raw.close()

    thread = threading.Thread(target=serve)
    thread.start()

    def connect(context, name):
        with (
            socket.create_connection(listener.getsockname(), 10) as raw,
            context.wrap_socket(raw, server_hostname=name) as tls,
        ):
            return tls.recv(10).decode()

    assert connect(tls_contexts.client_context(device), "localhost") == "TLSv1.3"
    with pytest.raises(ssl.SSLCertVerificationError):
        connect(tls_contexts.client_context(device), "elsewhere.example")
    old = tls_contexts.client_context(device)
    old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises((ssl.SSLError, ConnectionError)):
        connect(old, "localhost")
    thread.join(60)
    listener.close()
    assert seen == ["device-5", "refused", "refused"]
