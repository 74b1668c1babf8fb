"""A CA in a temporary folder, and certificates of it for whoever is asked for."""

from __future__ import annotations

import pytest
from delian.core.node.identity.authority.authority import Authority, issue_to
from delian.core.node.identity.pki.certificates import Role, TlsMaterial


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
