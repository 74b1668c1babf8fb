"""A site stands in a certificate because the CA wrote it there, and only where one belongs."""

from __future__ import annotations

import pytest
from delian.core.node.identity.authority.authority import Authority
from delian.core.node.identity.authority.tokens import TokenBook
from delian.core.node.identity.enrolment.joining import check_labels
from delian.core.node.identity.pki.certificates import (
    IdentityError,
    Role,
    certificate_request,
    identity_of,
    new_key,
)
from delian.core.node.identity.pki.local_identity import operator_identity

REQUEST = certificate_request(new_key())


@pytest.fixture
def authority(tmp_path):
    return Authority.create(tmp_path / "ca", "farm")


@pytest.mark.parametrize("role", [Role.DEVICE, Role.EDGE, Role.OWNER])
def test_the_site_stands_in_the_certificate_and_stays_when_it_is_renewed(authority, role):
    issued = authority.issue(REQUEST, role, 1, site="north-clinic")
    assert issued.identity.site == identity_of(issued.chain).site == "north-clinic"
    again = authority.renew(certificate_request(new_key()), issued.identity, issued.chain)
    assert again.identity.site == "north-clinic"


def test_a_node_has_no_site_unless_the_ca_says_so(authority):
    assert authority.issue(REQUEST, Role.DEVICE, 1).identity.site == ""


@pytest.mark.parametrize("role", [Role.CLOUD, Role.VIEWER, Role.RUNNER, Role.ADMIN])
def test_other_roles_have_no_site(authority, role):
    with pytest.raises(IdentityError, match="names 1 sites"):
        authority.issue(REQUEST, role, 0 if role is Role.CLOUD else 1, site="north")


@pytest.mark.parametrize("site", ["North", "a b", "-", "x" * 64, "a/b", "\n"])
def test_what_names_no_site_is_refused(authority, tmp_path, site):
    with pytest.raises(IdentityError, match="cannot name a site"):
        authority.issue(REQUEST, Role.DEVICE, 1, site=site)
    with pytest.raises(IdentityError, match="cannot name a site"):
        TokenBook(tmp_path).create(Role.DEVICE, "farm", "a:1", authority.root_public, site=site)


def test_an_owner_has_a_site_and_no_other_operator_has_one(authority, tmp_path):
    with pytest.raises(IdentityError, match="an owner has a site"):
        operator_identity(authority, tmp_path / "one", Role.OWNER)
    with pytest.raises(IdentityError, match="an owner has a site"):
        operator_identity(authority, tmp_path / "two", Role.ADMIN, "north")
    with pytest.raises(IdentityError, match="names 0 sites"):
        authority.issue(REQUEST, Role.OWNER, 1)


def test_a_token_says_the_site_also_after_a_restart_and_to_a_key_that_asks_again(
    authority, tmp_path
):
    book = TokenBook(tmp_path)
    token, _ = book.create(Role.DEVICE, "farm", "a:1", authority.root_public, site="north")
    assert book.redeem(token, Role.DEVICE, b"key").site == "north"
    book = TokenBook(tmp_path)
    assert book.redeem(token, Role.DEVICE, b"key").site == "north"


def test_a_node_does_not_name_its_site():
    with pytest.raises(IdentityError, match="does not name its site"):
        check_labels({"site": "north"})
