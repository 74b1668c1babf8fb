"""A token for many nodes needs a second admin, once, and nothing about it can be changed."""

from __future__ import annotations

import dataclasses
import json
import time

import pytest
from delian.core.node.identity.authority import approvals
from delian.core.node.identity.authority.approvals import Approval, TokenLimits, Wanted, allow
from delian.core.node.identity.authority.authority import Authority
from delian.core.node.identity.pki.certificates import IdentityError, Role
from delian.core.node.identity.pki.identity_folder import IdentityFolder
from delian.core.node.identity.pki.local_identity import operator_identity

NOW = time.time()
DAY_S = 24 * 3600


@pytest.fixture
def farm(tmp_path):
    """A CA, its limits, and operators by their role and name."""

    class Farm:
        authority = Authority.create(tmp_path / "ca", "farm")
        limits = TokenLimits(authority.folder, authority.lock, 20)

        def operator(self, name, role=Role.ADMIN, authority=None, site=""):
            own = IdentityFolder(tmp_path / name)
            operator_identity(authority or self.authority, own.folder, role, site)
            return own.material()

        def ask(
            self,
            caller,
            approval=b"",
            role=Role.DEVICE,
            uses=500,
            valid_s=3600,
            now_s=NOW,
            site="",
        ):
            who = caller.identity()
            asked = (role, uses, valid_s, approvals.site_for(who, site))
            allow(self.limits, self.authority, who, asked, approval, now_s)

    return Farm()


@pytest.fixture
def alice(farm):
    return farm.operator("alice")


@pytest.fixture
def bob(farm):
    return farm.operator("bob")


def wanted_by(material, uses=500):
    return Approval(Wanted.new(material.identity(), Role.DEVICE, uses, 3600, NOW))


def test_another_admin_s_approval_is_taken_once(farm, alice, bob):
    content = wanted_by(alice).approve(bob, NOW).content()
    assert Approval.parse(content).content() == content
    farm.ask(alice, content)
    with pytest.raises(IdentityError, match="used before"):
        farm.ask(alice, content)
    farm.limits = TokenLimits(farm.authority.folder, farm.authority.lock, 20)  # after a restart
    with pytest.raises(IdentityError, match="used before"):
        farm.ask(alice, content)


def test_nobody_approves_what_he_asks_for(farm, alice, bob):
    with pytest.raises(IdentityError, match="cannot approve it"):
        wanted_by(alice).approve(alice, NOW)
    # Nor by a file of his own making that names another one.
    posing = dataclasses.replace(wanted_by(alice).wanted, requester="admin-2")
    forged = Approval(posing).approve(alice, NOW)
    with pytest.raises(IdentityError, match="the approval is for admin-2"):
        farm.ask(alice, forged.content())
    forged = Approval(wanted_by(alice).wanted, forged.certificate, forged.signature)
    with pytest.raises(IdentityError, match="signature does not hold"):
        farm.ask(alice, forged.content())


def test_the_request_itself_is_no_approval(farm, alice):
    with pytest.raises(IdentityError, match="not approved"):
        farm.ask(alice, wanted_by(alice).content())


@pytest.mark.parametrize(
    "change",
    [
        {"uses": 501},
        {"valid_s": 7200},
        {"tier": "edge"},
        {"requester": "admin-3"},
        {"nonce": "00" * 16},
        {"expires": int(NOW) + 5 * 3600},
        {"federation": "barn"},
    ],
)
def test_a_changed_approval_does_not_hold(farm, alice, bob, change):
    signed = wanted_by(alice).approve(bob, NOW)
    changed = dataclasses.replace(signed, wanted=dataclasses.replace(signed.wanted, **change))
    with pytest.raises(IdentityError, match="signature does not hold"):
        farm.ask(alice, changed.content())


def test_an_approval_is_for_the_token_that_it_names_and_its_requester(farm, alice, bob):
    content = wanted_by(alice).approve(bob, NOW).content()
    for change in ({"uses": 600}, {"valid_s": 60}, {"role": Role.EDGE}):
        with pytest.raises(IdentityError, match="for another token"):
            farm.ask(alice, content, **change)
    with pytest.raises(IdentityError, match="for admin-1"):
        farm.ask(farm.operator("carol"), content)
    farm.ask(alice, content)  # none of these has used it up


@pytest.mark.parametrize("role", [Role.VIEWER, Role.RUNNER])
def test_only_admins_approve(farm, alice, role):
    other = farm.operator("other", role)
    with pytest.raises(IdentityError, match="is no admin"):
        wanted_by(alice).approve(other, NOW)


def test_a_revoked_or_foreign_approver_counts_for_nothing(farm, alice, bob, tmp_path):
    content = wanted_by(alice).approve(bob, NOW).content()
    farm.authority.revoke("admin-2")
    with pytest.raises(IdentityError, match="not trusted: revoked"):
        farm.ask(alice, content)
    other = Authority.create(tmp_path / "other", "farm")
    farm.operator("x", authority=other)
    mallory = farm.operator("mallory", authority=other)
    with pytest.raises(IdentityError, match="not signed by this federation's CA"):
        farm.ask(alice, wanted_by(alice).approve(mallory, NOW).content())


def test_a_runner_s_signature_made_by_hand_is_refused(farm, alice, monkeypatch):
    runner = farm.operator("runner", Role.RUNNER)
    with monkeypatch.context() as patched:
        patched.setattr(approvals, "ADMINS", {Role.RUNNER})
        content = wanted_by(alice).approve(runner, NOW).content()
    with pytest.raises(IdentityError, match="runner-1 is no admin"):
        farm.ask(alice, content)


def test_an_approval_expires(farm, alice, bob):
    signed = wanted_by(alice).approve(bob, NOW)
    late = NOW + approvals.LIFE_S + 1
    with pytest.raises(IdentityError, match="expired"):
        farm.ask(alice, signed.content(), now_s=late)
    with pytest.raises(IdentityError, match="expired"):
        wanted_by(alice).approve(bob, late)
    for_ever = dataclasses.replace(wanted_by(alice).wanted, expires=int(NOW) + 365 * DAY_S)
    with pytest.raises(IdentityError, match="expired"):
        farm.ask(alice, Approval(for_ever).approve(bob, NOW).content())


@pytest.mark.parametrize(
    ("role", "one", "a_day"), [(Role.DEVICE, 20, 20), (Role.EDGE, 1, approvals.EDGE_USES_A_DAY)]
)
def test_few_uses_need_no_approval_and_their_sum_in_a_day_is_limited(farm, alice, role, one, a_day):
    with pytest.raises(IdentityError, match="needs an approval"):
        farm.ask(alice, role=role, uses=one + 1)
    for _ in range(a_day):
        farm.ask(alice, role=role, uses=1)
    farm.limits = TokenLimits(farm.authority.folder, farm.authority.lock, 20)  # after a restart
    with pytest.raises(IdentityError, match=f"{a_day} were given out"):
        farm.ask(alice, role=role, uses=1)
    farm.ask(alice, role=role, uses=1, now_s=NOW + DAY_S + 1)


def test_many_small_tokens_leave_no_growing_file(farm, alice):
    for day in range(12):
        for _ in range(20):
            farm.ask(alice, uses=1, now_s=NOW + day * (DAY_S + 1))
    lines = (farm.authority.folder / "approvals.jsonl").read_bytes().count(b"\n")
    assert lines < 150


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[]",
        b'{"request": 5}',
        b'{"request": {}}',
        b"[" * 10_000,
        b"x" * (approvals.BYTES_MAX + 1),
        b"\xff",
    ],
)
def test_a_file_that_is_no_request_is_refused(content):
    with pytest.raises(IdentityError, match="no request for a token"):
        Approval.parse(content)


@pytest.mark.parametrize(
    "change",
    [
        {"uses": 0},
        {"uses": True},
        {"uses": 1.5},
        {"uses": 10**9},
        {"valid_s": 10**9},
        {"tier": "cloud"},
        {"nonce": "zz"},
        {"nonce": "00"},
        {"requester": "admin-1\x1b[2K"},
        {"federation": "a b"},
        {"expires": 2**60},
        {"more": 1},
    ],
)
def test_a_request_for_what_no_token_can_be_is_refused(alice, change):
    whole = json.loads(wanted_by(alice).content())
    whole["request"] |= change
    with pytest.raises(IdentityError):
        Approval.parse(json.dumps(whole).encode())


# ---------------------------------------------------------------- sites


def test_an_owner_asks_for_the_own_site_alone(farm):
    owner = farm.operator("owner", Role.OWNER, site="north")
    with pytest.raises(IdentityError, match="owner of the site north, not of south"):
        farm.ask(owner, uses=1, site="south")
    with pytest.raises(IdentityError, match="not of south"):
        Wanted.new(owner.identity(), Role.DEVICE, 500, 3600, NOW, "south")
    assert Wanted.new(owner.identity(), Role.DEVICE, 500, 3600, NOW).site == "north"


def test_what_one_site_gives_out_is_not_taken_from_another(farm, alice):
    north, south = (farm.operator(s, Role.OWNER, site=s) for s in ("north", "south"))
    farm.ask(north, uses=20)
    farm.limits = TokenLimits(farm.authority.folder, farm.authority.lock, 20)  # after a restart
    with pytest.raises(IdentityError, match="20 in a day"):
        farm.ask(north, uses=1)
    farm.ask(south, uses=20)
    farm.ask(alice, uses=20)


def test_an_owner_needs_an_admin_s_approval_and_approves_nothing(farm, alice):
    north, other = (farm.operator(n, Role.OWNER, site="north") for n in ("one", "two"))
    wanted = Approval(Wanted.new(north.identity(), Role.DEVICE, 500, 3600, NOW))
    with pytest.raises(IdentityError, match="no admin"):
        wanted.approve(other, NOW)
    farm.ask(north, wanted.approve(alice, NOW).content())


def test_an_approval_for_one_site_is_none_for_another(farm, alice, bob):
    wanted = Approval(Wanted.new(alice.identity(), Role.DEVICE, 500, 3600, NOW, "north"))
    content = wanted.approve(bob, NOW).content()
    for site in ("", "south"):
        with pytest.raises(IdentityError, match="another token"):
            farm.ask(alice, content, site=site)
    farm.ask(alice, content, site="north")
