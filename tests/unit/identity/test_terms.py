"""The federation's terms: whose signature they need, and when newer ones replace a device's."""

from __future__ import annotations

import math
import time

import pytest
from delian.core.node.identity.artifacts.artifact_keys import OnlineFolder, RootFolder
from delian.core.node.identity.artifacts.manifest import raw, verify_keys
from delian.core.node.identity.authority import terms as t
from delian.core.node.identity.authority.authority import Authority
from delian.core.node.identity.authority.founding import (
    add_online_key,
    publish,
    root_folder,
    terms_of,
)
from delian.core.node.identity.pki.certificates import IdentityError, Role
from delian.core.node.identity.pki.identity_folder import IdentityFolder
from delian.core.node.identity.pki.local_identity import operator_identity
from delian.core.wire.enrolment_pb2 import FederationTerms, SignedTerms


@pytest.fixture
def authority(tmp_path):
    made = Authority.create(tmp_path / "ca", "farm")
    publish(made, fresh=True)
    return made


def signed_by(authority, **changes):
    """Terms of the farm, a version above those published."""
    before = terms_of(authority)
    following = t.made("farm", before, now_s=before.version + 1, **changes)
    return t.signed(authority.sign, following)


class TestASignature:
    def test_the_published_terms_hold(self, authority):
        held = t.verify(t.published(authority.folder), authority.key, "farm")
        assert held.cohort_min == t.COHORT_MIN_DEFAULT and held.masks_required
        assert held.artifact_root == raw(RootFolder(root_folder(authority)).public)

    def test_terms_of_another_ca_are_refused(self, authority, tmp_path):
        other = Authority.create(tmp_path / "other", "farm")
        with pytest.raises(t.TermsError, match="not signed by its CA"):
            t.verify(t.published(other.folder), authority.key, "farm")

    @pytest.mark.parametrize("field", ["cohort_min", "artifact_root", "masks_required"])
    def test_changed_terms_are_refused(self, authority, field):
        message = SignedTerms.FromString(t.published(authority.folder))
        inner = FederationTerms.FromString(message.terms)
        changes = {"cohort_min": 3, "artifact_root": bytes(32), "masks_required": False}
        setattr(inner, field, changes[field])
        message.terms = inner.SerializeToString(deterministic=True)
        with pytest.raises(t.TermsError, match="not signed by its CA"):
            t.verify(message.SerializeToString(), authority.key, "farm")

    def test_a_certificate_s_signature_is_none_of_terms(self, authority):
        """The domain keeps the CA's statements apart."""
        content = terms_of(authority).SerializeToString(deterministic=True)
        message = SignedTerms(terms=content, signature=authority.sign(content))
        with pytest.raises(t.TermsError, match="not signed by its CA"):
            t.verify(message.SerializeToString(), authority.key, "farm")

    def test_terms_of_another_federation_are_refused(self, authority):
        with pytest.raises(t.TermsError, match="of the federation farm"):
            t.verify(t.published(authority.folder), authority.key, "garden")

    @pytest.mark.parametrize("content", [b"", b"\xff" * 40, bytes(t.TERMS_BYTES_MAX + 1)])
    def test_what_is_no_terms_is_refused(self, authority, content):
        with pytest.raises(t.TermsError):
            t.verify(content, authority.key, "farm")

    def test_bytes_with_unknown_fields_are_refused_also_when_signed(self, authority):
        content = terms_of(authority).SerializeToString(deterministic=True) + b"\xf8\x07\x01"
        signature = authority.sign(b"delian/federation-terms/v1" + content)
        with pytest.raises(t.TermsError, match="not encoded"):
            t.verify(
                SignedTerms(terms=content, signature=signature).SerializeToString(),
                authority.key,
                "farm",
            )

    @pytest.mark.parametrize(
        "changes",
        [
            {"cohort_min": 2},
            {"cohort_min": 1001},
            {"corrupt": 1.0},
            {"corrupt": -0.1},
            {"quorum": 1},
        ],
    )
    def test_a_ca_signs_no_terms_that_no_device_takes(self, authority, changes):
        with pytest.raises(t.TermsError):
            publish(authority, **changes)


class TestADevicesCopy:
    def take(self, folder, authority, content):
        return t.take(folder, content, authority.key, "farm")

    @pytest.fixture
    def folder(self, authority, tmp_path):
        own = tmp_path / "identity"
        own.mkdir()
        assert self.take(own, authority, t.published(authority.folder)) is t.Change.TAKEN
        return own

    def held(self, folder, authority):
        return t.held(folder, authority.key, "farm")

    @pytest.mark.parametrize("changes", [{"cohort_min": 20}, {"corrupt": 0.2}])
    def test_tighter_ones_replace_it(self, folder, authority, changes):
        assert self.take(folder, authority, signed_by(authority, **changes)) is t.Change.TAKEN
        ((name, value),) = changes.items()
        assert getattr(self.held(folder, authority), name) == value

    @pytest.mark.parametrize(
        "changes",
        [
            {"cohort_min": 3},
            {"corrupt": 0.0},
            {"masks_required": False},
            {"artifact_root": bytes(32)},
            {"artifact_root": b""},
            {"cohort_min": 20, "artifact_root": bytes(32)},
        ],
    )
    def test_looser_ones_wait_for_the_owner(self, folder, authority, changes):
        before = self.held(folder, authority)
        assert self.take(folder, authority, signed_by(authority, **changes)) is t.Change.LOOSER
        assert self.held(folder, authority) == before
        assert t.held(folder, authority.key, "farm", t.OFFERED_FILE) is not None

    def test_looser_ones_are_taken_where_no_owner_decides(self, folder, authority):
        content = signed_by(authority, cohort_min=3)
        change = t.take(folder, content, authority.key, "farm", owned=False)
        assert change is t.Change.TAKEN and self.held(folder, authority).cohort_min == 3

    def test_older_ones_change_nothing(self, folder, authority):
        older = t.published(authority.folder)
        assert self.take(folder, authority, signed_by(authority, cohort_min=20)) is t.Change.TAKEN
        assert self.take(folder, authority, older) is t.Change.NOTHING
        assert self.held(folder, authority).cohort_min == 20

    def test_forged_ones_change_nothing(self, folder, authority, tmp_path):
        other = Authority.create(tmp_path / "other", "farm")
        before = self.held(folder, authority)
        with pytest.raises(t.TermsError):
            self.take(folder, authority, signed_by_other(other, before))
        assert self.held(folder, authority) == before

    def test_a_changed_file_is_an_error_and_not_the_absence_of_terms(self, folder, authority):
        (folder / t.FILE).write_bytes(b"nothing")
        with pytest.raises(IdentityError):
            self.held(folder, authority)

    def test_the_owner_accepts_what_waits(self, authority, tmp_path):
        operator_identity(authority, tmp_path / "own")
        own = IdentityFolder(tmp_path / "own")
        content = signed_by(authority, cohort_min=3)
        own.take_terms(content, authority.pem, "farm")
        assert own.terms().cohort_min == t.COHORT_MIN_DEFAULT
        assert own.accept_terms().cohort_min == own.terms().cohort_min == 3
        with pytest.raises(IdentityError, match="no other terms"):
            own.accept_terms()


class TestWitnesses:
    """Keys A, B, C; before: two of A and B."""

    A, B, C = bytes([1]) * 32, bytes([2]) * 32, bytes([3]) * 32

    def terms(self, witnesses, quorum, log_required=True):
        return t.made(
            "farm", now_s=1, witnesses=witnesses, quorum=quorum, log_required=log_required
        )

    def test_a_new_federation_requires_the_log_and_an_older_one_keeps_its_terms(self):
        made = t.made("farm", now_s=1)
        assert made.log_required and made.quorum == 0 and not made.witnesses
        older = t.made("farm", now_s=1, log_required=False)
        assert not t.made("farm", older, now_s=2, cohort_min=20).log_required

    def test_they_are_named_once_each_in_one_order(self):
        assert list(self.terms([self.C, self.A, self.C], 2).witnesses) == [self.A, self.C]
        for witnesses, quorum in [
            ([self.A], 2),
            ([b"short"], 0),
            ([bytes([n]) * 32 for n in range(17)], 1),
        ]:
            with pytest.raises(t.TermsError):
                self.terms(witnesses, quorum)

    @pytest.mark.parametrize(
        ("witnesses", "quorum", "looser"),
        [
            ([A, B], 2, False),
            ([A, B], 1, True),
            ([A, B, C], 2, True),  # C and one of the two are enough
            ([A, B, C], 3, False),
            ([A, C], 2, True),
            ([A], 1, True),
            ([], 0, True),
        ],
    )
    def test_terms_are_looser_if_fewer_known_witnesses_must_have_signed(
        self, witnesses, quorum, looser
    ):
        before = self.terms([self.A, self.B], 2)
        assert t.is_looser(self.terms(witnesses, quorum), before) is looser

    def test_the_first_witnesses_and_the_first_log_are_tighter(self):
        before = self.terms([], 0, log_required=False)
        assert not t.is_looser(self.terms([self.A], 1), before)
        assert t.is_looser(before, self.terms([], 0))


class TestACapOnEpsilon:
    def capped(self, epsilon=None, delta=None, before=None):
        return t.made("farm", before, now_s=1.0, epsilon=epsilon, delta=delta)

    def test_there_is_none_unless_one_is_given_and_it_stays_until_it_is_taken_away(self):
        free = self.capped()
        assert (free.epsilon, free.delta) == (0.0, 0.0)
        capped = self.capped(8.0)
        assert (capped.epsilon, capped.delta) == (8.0, 1e-6)
        kept = self.capped(None, 1e-9, capped)
        assert (kept.epsilon, kept.delta) == (8.0, 1e-9)
        assert self.capped(4.0, None, kept).delta == 1e-9
        none = self.capped(0.0, None, kept)
        assert (none.epsilon, none.delta) == (0.0, 0.0)

    @pytest.mark.parametrize(
        ("epsilon", "delta"), [(-1.0, None), (math.inf, None), (math.nan, None), (1.0, 1.0)]
    )
    def test_one_that_is_none_is_refused(self, epsilon, delta):
        with pytest.raises(t.TermsError):
            self.capped(epsilon, delta)

    def test_a_delta_without_an_epsilon_is_refused(self):
        terms = self.capped()
        terms.delta = 1e-6
        with pytest.raises(t.TermsError):
            t.signed(lambda content: b"", terms)

    @pytest.mark.parametrize(
        ("epsilon", "delta", "looser"),
        [
            (8.0, None, False),
            (4.0, None, False),
            (9.0, None, True),
            (0.0, None, True),
            (8.0, 1e-5, True),
            (4.0, 1e-7, False),
        ],
    )
    def test_terms_that_let_updates_tell_more_are_looser(self, epsilon, delta, looser):
        before = self.capped(8.0)
        assert t.is_looser(self.capped(epsilon, delta, before), before) is looser

    def test_the_first_cap_is_tighter(self):
        assert not t.is_looser(self.capped(8.0), self.capped())


def signed_by_other(other, before):
    following = t.made("farm", before, now_s=before.version + 1, cohort_min=30)
    return t.signed(other.sign, following)


class TestARun:
    def held(self, **changes):
        return t.made("farm", now_s=time.time(), **changes)

    @pytest.mark.parametrize("plan", [(False, 0, 0.0), (True, 9, 0.05), (True, 10, 0.04)])
    def test_below_the_terms_it_is_refused(self, plan):
        with pytest.raises(t.TermsError):
            t.check_run(self.held(), *plan)

    def test_with_a_cap_on_epsilon_it_needs_noise_of_its_devices(self):
        capped = self.held(epsilon=8.0)
        with pytest.raises(t.TermsError, match="epsilon at 8"):
            t.check_run(capped, True, 10, 0.05)
        t.check_run(capped, True, 10, 0.05, noised=True)

    def test_that_keeps_to_the_terms_is_taken(self):
        t.check_run(self.held(), True, 10, 0.05)
        t.check_run(self.held(masks_required=False), False, 0, 0.0)


class TestANewFederation:
    def test_the_root_key_signs_each_operator_s_key_and_keeps_the_others(self, authority, tmp_path):
        root = root_folder(authority)
        for number in (1, 2):
            assert add_online_key(tmp_path / f"op{number}", "farm", f"operator-{number}", root)
        signed, _ = OnlineFolder(tmp_path / "op2").keys()
        keys = verify_keys(signed, RootFolder(root).public, time.time())
        assert [key.name for key in keys.keys] == ["operator-1", "operator-2"]
        assert keys.version == 2

    def test_without_the_root_key_a_key_is_made_that_waits_for_it(self, authority, tmp_path):
        assert not add_online_key(tmp_path / "op", "farm", "operator-1", tmp_path / "moved")
        with pytest.raises(IdentityError, match="no list of online keys"):
            OnlineFolder(tmp_path / "op").keys()

    def test_a_ca_older_than_terms_gets_them_with_a_root_key(self, tmp_path):
        old = Authority.create(tmp_path / "ca", "farm")
        (old.folder / t.FILE).unlink()
        assert terms_of(old) is None and not t.published(old.folder)
        held = publish(old, cohort_min=5)
        assert held == terms_of(old) and held.cohort_min == 5 and held.masks_required
        assert held.artifact_root == raw(RootFolder(root_folder(old)).public)

    def test_a_change_keeps_the_root_key_also_when_it_was_moved(self, authority):
        before = terms_of(authority)
        root_folder(authority).rename(authority.folder / "usb")
        held = publish(authority, cohort_min=12)
        assert held.artifact_root == before.artifact_root and held.version > before.version


def test_roles_get_the_terms_with_their_certificate(authority, tmp_path):
    who = operator_identity(authority, tmp_path / "own")
    assert who.tier is Role.ADMIN
    assert IdentityFolder(tmp_path / "own").terms() == terms_of(authority)
