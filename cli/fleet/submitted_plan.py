"""The plan that `delian run submit` submits: of a scenario, or of a bundle and `--plan` alone.

What a scenario leaves open is decided here for a fleet, which is not the scenario's: how many
devices there are, and when they come back, is the fleet's affair; updates are masked; the smallest
sum is that of the federation's terms; the last model is judged by all devices, each of which then
has a model of its own.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...core.common.errors import DelianError
from ..output import echo

if TYPE_CHECKING:
    from ...core.learning.bundle import Bundle
    from ...core.wire.enrolment_pb2 import FederationTerms
    from ...core.wire.operator_pb2 import PlanMessage
    from ...simulations.runs.result import Event


def prepare(
    scenario: str | None,
    bundle: Path | None,
    model: Path | None,
    settings: Sequence[str],
    data: Path | None,
    plain: bool,
) -> tuple[PlanMessage, Bundle]:
    """A plan without its blobs, and the bundle with its weights. Raises DelianError."""
    from ...core.wire.operator_pb2 import PlanMessage

    if (scenario is None) == (bundle is None):
        raise DelianError(
            "what should be trained?", "name a scenario, or give --bundle FILE: one of the two"
        )
    if bundle is not None:
        from ...core.learning.bundle import load

        if model is not None or settings or data is not None:
            raise DelianError("--model, --set and --data belong to a scenario", "leave them out")
        built = load(bundle)
        if not built.weights.size:
            raise DelianError(f"{bundle} has no weights to begin from", "export one that has")
        if built.manifest.frozen and not built.frozen:
            raise DelianError(f"{bundle} lacks its frozen leaves", "export one that has them")
        message = PlanMessage(name=bundle.stem[:128])
    else:
        assert scenario is not None
        message, built = _of_scenario(scenario, model, settings, data, plain)
    manifest = built.manifest
    kept, top = message.ring.kept, message.ring.top  # of the run, and not of the programs
    message.ring.CopyFrom(manifest.ring.message())
    message.ring.kept, message.ring.top = kept, top
    message.own_metrics[:] = manifest.metrics
    message.split = bool(manifest.split)
    message.labels["task"], message.labels["algorithm"] = manifest.task, manifest.algorithm
    return message, built


def mask(message: PlanMessage, plain: bool, helpers: Sequence[int]) -> None:
    """Masks the run's updates unless that is not wanted. Raises DelianError.

    The scenario's values stay, except for the helpers: a fleet has its own edges.
    """
    from ...core.learning.plan import Privacy

    if message.secure.helpers and not helpers and not plain:
        raise DelianError(
            "which edges help?", "name each by --helper; a scenario only says how many"
        )
    if plain and helpers:
        raise DelianError("--plain and --helper", "helpers unmask what is masked; leave one out")
    if message.secure.helpers:
        message.secure.ClearField("helpers")
    if plain:
        message.ClearField("secure")
        echo("warning: --plain: edges and the coordinator can read every update", err=True)
    elif not message.HasField("secure"):
        message.secure.suite, message.secure.cohort_min = Privacy.suite, smallest_sum(message)
        message.secure.corrupt, message.secure.dropout = Privacy.corrupt, Privacy.dropout
    for edge in helpers:
        message.secure.helpers.add(edge=edge)


def smallest_sum(message: PlanMessage) -> int:
    """Devices in a sum, at least, where neither the scenario nor the terms say more."""
    from ...core.privacy.secagg.limits import COHORT_MIN

    # Devices refuse sums of fewer devices than their noise is planned for.
    noised = message.HasField("privacy") and not message.ring.central
    return max(COHORT_MIN, message.reports_min if noised else 0)


def evaluate_at_end(message: PlanMessage, built: Bundle, settings: Sequence[str]) -> None:
    """Has devices judge the last model, all of them: each then has a personalized model.

    Not where the plan says when to evaluate, or has noise, which no evaluation has.

    Args:
        settings: what the user says of the plan.
    """
    from ...core.learning.plan import OVER_SELECTION
    from ...core.privacy.secagg.limits import MEMBERS_MAX

    said = {setting.partition("=")[0].strip() for setting in settings}
    if message.evaluation_every or said & {"evaluation_every", "evaluate_every"}:
        return
    if message.HasField("privacy") or not {"evaluate", "personalise"} <= set(built.programs):
        return
    message.evaluation_every = message.rounds
    if not message.evaluation_cohort:
        # A session has room for so many; a round asks those that are there.
        message.evaluation_cohort = int(MEMBERS_MAX / (message.over_selection or OVER_SELECTION))


def check_rollback(message: PlanMessage, built: Bundle) -> None:
    """Raises DelianError for a rollback by an accuracy that the model does not have."""
    if built.manifest.learns_numbers and message.rollback_accuracy:
        raise DelianError(
            "rollback_accuracy: the model learns numbers, whose errors fall as it gets better",
            "--plan rollback_worse=0.2 goes by the squared error",
        )


def keep_to_terms(
    message: PlanMessage, settings: Sequence[str], terms: FederationTerms | None
) -> bool:
    """Raises a masked plan's floors to the federation's terms and sets the user's fields.

    The coordinator checks the result. Returns whether devices require a signed bundle. Raises
    DelianError.
    """
    if terms is not None and message.HasField("secure"):
        secure = message.secure
        if secure.cohort_min < terms.cohort_min:
            secure.cohort_min = terms.cohort_min
            text = f"sums of {terms.cohort_min} or more devices, as the federation's terms ask"
            echo(text, err=True)
        secure.corrupt = max(secure.corrupt, terms.corrupt)
    change(message, settings)
    return terms is not None and (message.HasField("secure") or bool(terms.artifact_root))


def _noted(event: Event) -> None:
    """Says on stderr what should be known before the rounds begin."""
    from ...simulations.runs.result import Notice

    if isinstance(event, Notice):
        echo(f"warning: {event.text}", err=True)


def _of_scenario(
    source: str, model: Path | None, settings: Sequence[str], data: Path | None, plain: bool
) -> tuple[PlanMessage, Bundle]:
    from dataclasses import replace

    from ...core.wire.blob_pb2 import BlobRef
    from ...simulations.runs.stage import stage_of
    from ...simulations.scenario.datasets import named_data, scenario_for
    from ...simulations.scenario.scenario_file import override

    named, data = named_data(source, data)
    chosen = scenario_for(named, data)
    if model is not None:
        settings = [
            'model={name="python"}',
            f"model.file={json.dumps(str(model.absolute()))}",
            *settings,
        ]
    composed = chosen.chain is not None or any(s.startswith("chain=") for s in settings)
    if plain and not composed:
        settings = ['privacy.aggregation="plain"', *settings]
    chosen = override(chosen, settings)
    stage = stage_of(chosen, None, data, "reference", _noted, processes=1)
    plan = stage.plan(stage.runtime.ring, masked=not plain)
    message = plan.message(BlobRef(), BlobRef(), chosen.seed)
    message.name = chosen.name
    # How many devices there are is the fleet's own affair, and when they come back as well.
    asked = chosen.round.model_fields_set
    if "pool_min" not in asked:
        message.ClearField("pool_min")
    if "rest_ms" not in asked:
        message.ClearField("rest_ms")
    if message.HasField("secure") and chosen.privacy.cohort_min is None:
        message.secure.cohort_min = smallest_sum(message)
    message.labels["scenario"] = chosen.name
    return message, replace(stage.bundle, weights=stage.first)


def change(plan: PlanMessage, settings: Sequence[str]) -> None:
    """Sets fields of a plan by `key=value`; of messages in it by `requirements.powered=true`.

    Raises DelianError for what is no field, or no value of it.
    """
    import difflib
    import tomllib
    import warnings

    from google.protobuf.json_format import ParseDict, ParseError

    from ...core.learning.plan_settings import RenamedWarning, renamed

    for setting in settings:
        key, equals, text = setting.partition("=")
        key = key.strip()
        if key in renamed():
            now = renamed()[key].wire
            warnings.warn(f"--plan {setting}: `{key}` is now `{now}`", RenamedWarning, stacklevel=2)
            key = now
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except (tomllib.TOMLDecodeError, KeyError, RecursionError):
            value = text
        nested: Any = value
        for part in reversed(key.split(".")):
            nested = {part: nested}
        try:
            if not equals:
                raise ParseError("this is not key=value")
            first = key.partition(".")[0]
            if first not in plan.DESCRIPTOR.fields_by_name:
                raise ParseError(f"there is no field `{first}`")
            ParseDict(nested, plan)
        except ParseError as fault:
            names = [field.name for field in plan.DESCRIPTOR.fields]
            near = difflib.get_close_matches(key, names, 1)
            hint = f"did you mean `{near[0]}`? " if near and near[0] != key else ""
            hint += f"the fields are {', '.join(names)}"
            raise DelianError(f"--plan {setting}: {fault}", hint) from None
