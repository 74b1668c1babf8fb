"""The federation's terms on their way to a device: a coordinator passes them on, and no more."""

from __future__ import annotations

import pytest
from delian.cloud.service.trust import check_terms
from delian.core.node.identity.authority import terms as t
from delian.core.node.identity.authority.authority import Authority
from delian.core.node.identity.authority.founding import publish, terms_of
from delian.core.node.identity.pki.certificates import IdentityError
from delian.core.wire.operator_pb2 import PlanMessage
from system.cloud import test_enrolment as _bench

within = _bench.within


def test_a_device_gets_the_terms_with_its_certificate(tmp_path):
    async def scenario(world):
        publish(world.authority, cohort_min=12, fresh=True)
        await world.join("one", world.token())
        assert world.of("one").terms() == terms_of(world.authority)

    within(tmp_path, scenario)


@pytest.mark.parametrize("forged", ["changed", "another CA", "none"])
def test_with_forged_terms_or_none_it_does_not_join(tmp_path, forged):
    async def scenario(world):
        publish(world.authority, cohort_min=12, fresh=True)
        path = world.authority.folder / t.FILE
        if forged == "another CA":
            other = Authority.create(tmp_path / "other", "farm")
            path.write_bytes(t.published(other.folder))
        elif forged == "changed":
            content = bytearray(path.read_bytes())
            content[20] ^= 1
            path.write_bytes(content)
        else:
            path.unlink()
        with pytest.raises(IdentityError, match="terms"):
            await world.join("one", world.token())
        assert not world.of("one").exists()

    within(tmp_path, scenario)


def test_a_renewal_brings_tighter_terms_and_keeps_looser_ones_for_the_owner(tmp_path):
    async def scenario(world):
        publish(world.authority, cohort_min=12, fresh=True)
        await world.join("one", world.token())
        own = world.of("one")
        for asked, counts in ((20, 20), (5, 20)):
            publish(world.authority, cohort_min=asked)
            key = own.pending_key()
            reply = await _bench.renew_call(
                world.links,
                _bench.CLOUD,
                own.material(),
                _bench.certificate_request(key),
                10,
            )
            own.accept(key, reply)
            assert own.terms().cohort_min == counts
        assert own.terms(t.OFFERED_FILE).cohort_min == 5

    within(tmp_path, scenario)


def test_a_device_that_joined_before_there_were_terms_gets_them_when_it_renews(tmp_path):
    async def scenario(world):
        await world.join("one", world.token())
        own = world.of("one")
        (own.folder / t.FILE).unlink()
        assert own.terms() is None
        key = own.pending_key()
        request = _bench.certificate_request(key)
        reply = await _bench.renew_call(world.links, _bench.CLOUD, own.material(), request, 10)
        own.accept(key, reply)
        assert own.terms() == terms_of(world.authority)

    within(tmp_path, scenario)


class TestAPlan:
    @pytest.fixture
    def authority(self, tmp_path):
        made = Authority.create(tmp_path / "ca", "farm")
        publish(made, fresh=True)
        return made

    def test_below_the_terms_the_coordinator_refuses_it(self, authority):
        plan = PlanMessage()
        with pytest.raises(t.TermsError, match="require masks"):
            check_terms(terms_of(authority), plan)
        plan.secure.cohort_min, plan.secure.corrupt = 9, 0.1
        with pytest.raises(t.TermsError, match="ask for 10"):
            check_terms(terms_of(authority), plan)
        plan.secure.cohort_min = 10
        check_terms(terms_of(authority), plan)

    def test_without_certificates_there_are_no_terms(self):
        check_terms(None, PlanMessage())
