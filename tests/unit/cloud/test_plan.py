"""What a plan on the wire becomes, and how one that cannot be kept is refused."""

from __future__ import annotations

import pytest
from delian.cloud.protocol.run_plan import PlanError, RunPlan, change
from delian.core.learning.plan import SELECTED_MAX, Evaluation
from delian.core.protocol.ports import SECOND
from delian.core.wire.admission_pb2 import Requirements, RetryWindow
from delian.core.wire.blob_pb2 import BlobRef
from delian.core.wire.operator_pb2 import BUFFERED, PlanMessage
from delian.core.wire.round_pb2 import RingPlan
from delian.core.wire.secure_pb2 import HelperKey, SecurePlan


def message(**changes):
    fields = {
        "rounds": 3,
        "cohort": 10,
        "bundle": BlobRef(digest=b"b" * 32, size=100),
        "weights": BlobRef(digest=b"w" * 32, size=12),
        "ring": RingPlan(clip=1.0, clients_max=100, bits=32, dimension=3),
        **changes,
    }
    return PlanMessage(**fields)


def read(**changes):
    return RunPlan.from_message(1, message(**changes))


def test_what_is_absent_has_the_contract_s_defaults():
    plan = read()
    assert plan.round.mode == "synchronous" and not plan.buffered
    assert (plan.over_selection, plan.selected, plan.round.pool_min) == (1.3, 13, None)
    assert (plan.reports_min, plan.round.attempts_max) == (1, 5)
    assert (plan.timeout_ns, plan.margin_ns) == (300 * SECOND, 30 * SECOND)
    assert (plan.wait_ns, plan.rest_ns) == (120 * SECOND, 0)
    assert plan.after_task_ms is None and plan.requirements == Requirements()
    assert plan.evaluation == Evaluation()
    assert plan.evaluation_cohort == 10 and plan.metrics.clients_max == 13


def test_a_margin_is_a_tenth_of_the_round_that_is_given():
    assert read(timeout_ms=50_000).margin_ns == 5 * SECOND


def test_a_buffered_plan_keeps_twice_its_buffer_at_work():
    plan = read(mode=BUFFERED, cohort=0, buffer=20)
    assert plan.buffered and (plan.buffer, plan.concurrency, plan.round.staleness_max) == (
        20,
        40,
        20,
    )
    assert plan.selected == 40 and plan.evaluation_selected == 20


def test_windows_and_requirements_are_kept():
    plan = read(after_task=RetryWindow(min_ms=5, max_ms=9), requirements=Requirements(idle=True))
    assert plan.after_task_ms == (5, 9) and plan.requirements.idle


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("name", {"name": "x" * 129}),
        ("mode", {"mode": 7}),
        ("rounds", {"rounds": 0}),
        ("rounds", {"rounds": 2_000_000}),
        ("cohort", {"cohort": 0}),
        ("cohort", {"cohort": SELECTED_MAX + 1}),
        ("bundle", {"bundle": BlobRef(digest=b"short", size=1)}),
        ("bundle", {"bundle": BlobRef(digest=b"b" * 32)}),
        ("weights", {"weights": BlobRef(digest=b"w" * 32, size=2**33)}),
        ("weights", {"weights": BlobRef(digest=b"w" * 32, size=16)}),
        ("frozen", {"frozen": [BlobRef(digest=b"short", size=1)]}),
        ("frozen", {"frozen": [BlobRef(digest=b"f" * 32)]}),
        ("frozen", {"frozen": [BlobRef(digest=b"f" * 32, size=2**33)]}),
        ("frozen", {"frozen": [BlobRef(digest=b"f" * 32, size=1)] * 1025}),
        ("ring", {"ring": RingPlan(clip=1.0, clients_max=100, bits=7, dimension=3)}),
        ("ring", {"ring": RingPlan(clip=-1.0, clients_max=100, bits=32, dimension=3)}),
        ("ring", {"ring": RingPlan(clip=1.0, clients_max=2**32 - 1, bits=32, dimension=3)}),
        ("ring.clients_max", {"cohort": 90}),
        ("ring.clients_max", {"mode": BUFFERED, "buffer": 60}),
        ("over_selection", {"over_selection": 0.5}),
        ("over_selection", {"over_selection": float("nan")}),
        ("over_selection", {"over_selection": float("inf")}),
        ("reports_min", {"reports_min": 11}),
        ("attempts_max", {"attempts_max": 5_000}),
        ("timeout_ms", {"timeout_ms": 1}),
        ("timeout_ms", {"timeout_ms": 2**32 - 1}),
        ("margin_ms", {"timeout_ms": 100, "margin_ms": 100}),
        ("wait_ms", {"wait_ms": 2**32 - 1}),
        ("rest_ms", {"rest_ms": 200_000}),
        ("pool_min", {"pool_min": 200_000}),
        ("evaluation_every", {"evaluation_every": 2_000_000}),
        ("evaluation_cohort", {"evaluation_every": 1, "evaluation_cohort": 100_000}),
        ("patience", {"patience": 1}),
        ("improvement_min", {"evaluation_every": 1, "improvement_min": 1.0}),
        ("improvement_min", {"evaluation_every": 1, "improvement_min": float("nan")}),
        ("buffer", {"mode": BUFFERED, "cohort": 0}),
        ("concurrency", {"mode": BUFFERED, "buffer": 20, "concurrency": 10}),
        ("staleness_max", {"mode": BUFFERED, "buffer": 20, "staleness_max": 2_000}),
        ("labels", {"labels": {str(i): "" for i in range(65)}}),
        ("labels", {"labels": {"x": "y" * 2_000}}),
    ],
)
def test_what_cannot_be_kept_is_refused_by_its_field(field, changes):
    with pytest.raises(PlanError) as caught:
        read(**changes)
    assert caught.value.field == field and str(caught.value).startswith(f"plan.{field}: ")


@pytest.mark.parametrize("run", [0, 2**31])
def test_a_number_beyond_what_tickets_hold_is_refused(run):
    with pytest.raises(PlanError, match=r"plan\.run"):
        RunPlan.from_message(run, message())


def lists_of(message, path=""):
    """The fields of a message, and of those within it, that are lists and no maps."""
    for field in message.fields:
        of = field.message_type
        if field.is_repeated:
            if of is None or not of.GetOptions().map_entry:
                yield path + field.name
        elif of is not None:
            yield from lists_of(of, f"{path}{field.name}.")


def test_lists_of_a_clones_plan_are_those_that_it_is_given():
    lists = {"own_metrics", "secure.helpers", "frozen"}
    assert set(lists_of(PlanMessage.DESCRIPTOR)) == lists
    parts = [BlobRef(digest=bytes([n]) * 32, size=n) for n in (1, 2)]
    plan = PlanMessage(own_metrics=["f1", "top_2"], labels={"site": "farm"}, frozen=parts)
    plan.secure.helpers.add(edge=1)
    other = BlobRef(digest=bytes(32))
    for changes, metrics, edges, frozen in (
        (PlanMessage(rounds=3, labels={"by": "me"}), ["f1", "top_2"], [1], parts),
        (PlanMessage(own_metrics=["f1"]), ["f1"], [1], parts),
        (PlanMessage(secure=SecurePlan(helpers=[HelperKey(edge=2)])), ["f1", "top_2"], [2], parts),
        (PlanMessage(bundle=other), [], [1], []),
        (PlanMessage(bundle=other, own_metrics=["mcc"]), ["mcc"], [1], []),
        (PlanMessage(bundle=other, frozen=parts[1:]), [], [1], parts[1:]),
        (PlanMessage(frozen=parts[1:]), ["f1", "top_2"], [1], parts[1:]),
    ):
        made = PlanMessage()
        made.CopyFrom(plan)
        change(made, changes)
        assert (list(made.own_metrics), [h.edge for h in made.secure.helpers]) == (metrics, edges)
        assert list(made.frozen) == frozen
        assert made.labels["site"] == "farm" and made.rounds == changes.rounds
