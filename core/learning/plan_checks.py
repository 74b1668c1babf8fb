"""Which settings of a plan go together. A refusal names the setting to change.

What one value may be is not decided here: its field says so (`plan`).
"""

from __future__ import annotations

from dataclasses import MISSING

from ..privacy.secagg.limits import BATCH_MAX, COHORT_MIN, MEMBERS_MAX
from ..privacy.secagg.params import parameters
from ..privacy.secagg.secure_errors import SecureError
from .plan import COHORTS_MAX, SELECTED_MAX, Devices, Plan
from .plan_settings import PlanError, settings

#: Why nothing reads a setting (`Key.when`).
_UNREAD = {
    "buffered": 'only a buffered run reads it (round.mode = "buffered")',
    "by_rule": "only a rule reads it (round.rule)",
    "masked": "only masked rounds read it (privacy.aggregation = secure)",
    "noised": "only noise reads it (privacy.noise)",
    "evaluates": "only a federated evaluation reads it (evaluation.federated = true)",
}
#: The setting to change where two stages of the chain do not go together: that of the first stage,
#: but for these.
_OF_TWO = {
    ("noise", "with", "fedbuff"): "round.mode",
    ("noise", "with", "mask"): "privacy.cohorts",
    ("noise", "without", "mask"): "privacy.aggregation",
    ("mask", "with", "mean"): "privacy.helpers",
    ("mask", "with", "rule"): "privacy.helpers",
}
_OF_STAGE = {"mask": "privacy.cohorts"}


def check(plan: Plan) -> None:
    """Rejects settings that conflict: PlanError names the setting to change."""
    _check_read(plan)
    _check_round(plan)
    _check_noise(plan)
    _check_chain(plan)
    if plan.evaluates:
        _check_evaluation(plan)
    if plan.masked:
        _check_masks(plan)
    if plan.by_rule:
        _check_rule(plan)


def _check_read(plan: Plan) -> None:
    """A setting that nothing reads is a mistake."""
    for path, setting in settings().items():
        when = setting.key.when
        default = None if setting.default is MISSING else setting.default
        if when and setting.of(plan) != default and not getattr(plan, when):
            raise PlanError(path, _UNREAD[when])


def _check_round(plan: Plan) -> None:
    round = plan.round
    if not plan.cohort:
        raise PlanError(f"round.{'buffer' if plan.buffered else 'cohort'}", "0", Devices.words())
    if plan.buffered and plan.concurrency < plan.buffer:
        raise PlanError(
            "round.concurrency",
            f"{plan.concurrency} devices at work never have {plan.buffer} updates at once"
            " (round.buffer)",
        )
    if plan.selected > SELECTED_MAX:
        raise PlanError(
            f"round.{'concurrency' if plan.buffered else 'cohort'}",
            f"{plan.selected} devices are selected",
            f"at most {SELECTED_MAX}",
        )
    if plan.reports_min > plan.cohort and round.reports_min > plan.cohort:
        raise PlanError(
            "round.reports_min",
            f"{round.reports_min} reports of a round of {plan.cohort} devices",
            f"from 1 to {plan.cohort}",
        )
    if plan.margin_ms >= round.timeout_ms:
        raise PlanError("round.margin_ms", f"{plan.margin_ms}", f"below {round.timeout_ms}")
    if round.rest_ms > round.wait_ms:
        raise PlanError("round.rest_ms", f"{round.rest_ms}", f"from 0 to {round.wait_ms}")


def _check_noise(plan: Plan) -> None:
    """Whether there can be noise, where it is asked for."""
    if not plan.noised:
        return
    if plan.privacy.epsilon is None:
        raise PlanError("privacy.noise", "how much noise? Set privacy.epsilon")
    if plan.evaluates:
        raise PlanError(
            "evaluation.every",
            "evaluations have no noise, and this run has some",
            "leave it at 0; in a scenario evaluation.federated = false",
        )
    planned = plan.round.reports_min
    if not plan.central and plan.masked and plan.cohort_min < planned:
        raise PlanError(
            "privacy.cohort_min",
            f"sums of {plan.cohort_min} devices, where the noise is planned for {planned}"
            " (round.reports_min)",
            f"set it to {planned}: devices refuse smaller sums than that",
        )


def _check_chain(plan: Plan) -> None:
    """The stages that the plan asks for must go together (`aggregate.stage_order`)."""
    from .aggregate.stage_order import ChainError  # here, for it takes long to import

    try:
        assert plan.chain.stages
    except ChainError as fault:
        path = _OF_TWO.get((fault.first, fault.how, fault.second)) or _of_stage(fault.first)
        raise PlanError(path, fault.message, fault.hint) from fault


def _of_stage(stage: str) -> str:
    """The setting that a stage is there by."""
    first = (path for path, s in settings().items() if s.key.stage.partition(".")[0] == stage)
    return _OF_STAGE.get(stage) or next(first)


def _check_evaluation(plan: Plan) -> None:
    for name in ("rollback_worse", "rollback_accuracy"):
        if getattr(plan.evaluation, name) and plan.buffered:
            raise PlanError(
                f"evaluation.{name}",
                "rollback is not supported in a buffered run: it has newer models when one is"
                " evaluated",
                f'round.mode = "synchronous", or leave {name} at 0',
            )
    if plan.evaluation_selected > SELECTED_MAX:
        raise PlanError(
            "evaluation.cohort",
            f"{plan.evaluation_selected} devices are selected",
            f"at most {SELECTED_MAX}",
        )


def _check_masks(plan: Plan) -> None:
    """Whether sums are of a size that can be masked."""
    privacy = plan.privacy
    evaluated = (plan.evaluation_cohort, plan.evaluation_selected) if plan.evaluates else ()
    # In a session all tasked devices mask for one another; with helpers only a sum has limits.
    parts = (plan.cohort // plan.cohorts, -(-plan.selected // plan.cohorts))
    sizes = evaluated if privacy.helpers else (*parts, *evaluated)
    least = min((plan.buffer, *evaluated) if privacy.helpers else sizes)
    if least < COHORT_MIN:
        raise PlanError(
            "round.buffer" if plan.round.buffer else "round.cohort",
            f"a sum of {least} devices, and masks need {COHORT_MIN} at least",
            "more devices in a round, or updates without masks: --set privacy.aggregation=plain",
        )
    if least < plan.cohort_min:
        raise PlanError(
            "privacy.cohort_min",
            f"a sum of {least} devices, and the minimum of a sum is {plan.cohort_min}",
            f"from {COHORT_MIN} to {least}, or more devices in a round",
        )
    if privacy.helpers and plan.concurrency > BATCH_MAX:
        raise PlanError(
            "round.concurrency",
            f"{plan.concurrency} devices at once; masks are for at most {BATCH_MAX} in a sum"
            " that helpers unmask",
            f"from {plan.buffer} to {BATCH_MAX}",
        )
    if max(sizes, default=0) > MEMBERS_MAX:
        raise _too_many(plan, max(sizes), max(parts))
    for size in sizes:
        try:
            parameters(size, privacy.corrupt, privacy.dropout)
        except SecureError as fault:
            raise PlanError("privacy.dropout", fault.message, fault.hint) from fault


def _too_many(plan: Plan, largest: int, part: int) -> PlanError:
    path, asked = "round.cohort", COHORTS_MAX * MEMBERS_MAX
    hint = f"bring cohort times over_selection down to {asked}"
    if plan.buffered:
        path, hint = "round.concurrency", f"bring concurrency down to {MEMBERS_MAX}"
    elif part <= MEMBERS_MAX:
        path = "evaluation.cohort"
        hint = f"bring the evaluation's cohort times over_selection down to {MEMBERS_MAX}"
    elif plan.selected <= asked:
        path = "privacy.cohorts"
        hint = f"cut rounds into {-(-plan.selected // MEMBERS_MAX)} cohorts"
    return PlanError(
        path,
        f"{largest} devices in one sum, and masks are for at most {MEMBERS_MAX}",
        f"{hint}, or have updates without masks: --set privacy.aggregation=plain",
    )


def _check_rule(plan: Plan) -> None:
    """A robust rule needs enough to compare: updates or, where they are masked, cohorts' means."""
    from .aggregate import robust

    name, hostile = plan.round.rule, plan.round.hostile
    count, what = (plan.cohorts, "cohorts") if plan.masked else (plan.cohort, "updates")
    if not robust.is_enough(plan.aggregation, hostile, count):
        raise PlanError(
            "round.hostile",
            f"{name} cannot do with {count} {what} of which"
            f" {robust.hostile_of(hostile, count)} may be hostile",
            f"more {what}, or a smaller share",
        )
