"""A CA in a temporary folder, and certificates of it for whoever is asked for."""

from __future__ import annotations

import ssl

import pytest
from delian.core.node.identity.authority.authority import Authority, issue_to
from delian.core.node.identity.pki.certificates import Role, TlsFiles, TlsMaterial


@pytest.fixture
def authority(tmp_path):
    return Authority.create(tmp_path / "ca", "farm")


@pytest.fixture
def material(authority):
    """Makes the TLS material of a holder."""

    def make(role=Role.DEVICE, number=5, addresses=()):
        key, issued = issue_to(authority, role, number, addresses)
        return TlsMaterial(key, issued.chain, authority.pem)

    return make


def server_context(files: TlsFiles) -> ssl.SSLContext:
    """A server of TLS 1.3 that requires a client's certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_REQUIRED
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(files.certificate, files.key)
    context.load_verify_locations(files.authority)
    return context
