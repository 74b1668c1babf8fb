"""What `delian run submit` submits of a scenario: what the fleet decides, and not the scenario."""

from __future__ import annotations

import pytest
from delian.cli.fleet.submitted_plan import evaluate_at_end, keep_to_terms, mask, prepare
from delian.cloud.protocol.run_plan import RunPlan
from delian.core.common.errors import DelianError
from delian.core.wire.enrolment_pb2 import FederationTerms


def submitted(*settings, plain=False, plan=(), terms=None):
    """The plan of the digits scenario as it goes to a coordinator."""
    message, built = prepare("digits", None, None, settings, None, plain)
    mask(message, plain, [])
    keep_to_terms(message, plan, terms)
    evaluate_at_end(message, built, plan)
    message.bundle.size = message.weights.size = 4 * message.ring.dimension
    message.bundle.digest = message.weights.digest = b"d" * 32
    return message, RunPlan.from_message(1, message)


def test_the_smallest_sum_is_the_federation_s_and_not_half_the_scenario_s_round():
    assert submitted()[1].reports_min == 3
    terms = FederationTerms(cohort_min=5, corrupt=0.2)
    assert submitted(terms=terms)[1].reports_min == 5
    assert submitted("privacy.cohort_min=6")[1].reports_min == 6


def test_all_devices_evaluate_the_last_model():
    message, plan = submitted()
    assert message.evaluation_every == message.rounds == 30
    assert plan.evaluation_selected == 1000 and plan.evaluation_min == 3


def test_a_plan_that_says_when_to_evaluate_is_left_alone():
    message, plan = submitted(plan=["evaluation_every=7"])
    assert (message.evaluation_every, plan.evaluation_cohort) == (7, 12)
    assert not submitted(plan=["evaluation_every=0"])[1].evaluates
    assert submitted(plan=["evaluation_cohort=5"])[0].evaluation_cohort == 5


def test_a_run_with_noise_has_no_evaluation():
    noise = ('privacy.noise="central"', "privacy.epsilon=8")
    assert not submitted(*noise)[1].evaluates


def test_noise_that_drowns_the_signal_is_said_at_submission(capsys):
    noise = ["privacy.noise=distributed", "privacy.epsilon=8"]
    for settings, warned in ((noise, True), ([], False)):
        prepare("digits", None, None, settings, None, False)
        assert ("warning: " in capsys.readouterr().err) == warned


def test_a_plain_run_may_be_as_small_as_one_likes():
    message, plan = submitted("round.cohort=2", plain=True)
    assert not message.HasField("secure") and plan.cohort == 2
    with pytest.raises(DelianError, match="masks need 3"):
        submitted("round.cohort=2")
