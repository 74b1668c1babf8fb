"""Which stages go together, and in which order: one table, with the reason of each refusal.

A row says that some stages are refused before, with or without others. Stages are named by their
groups: all rules in the mean's place are one. docs/algorithms.md shows the table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ...common.errors import DelianError
from . import robust
from .stages import Stage

STAGES_MAX = 16
AGGREGATES = ("mean", "fedbuff", "rule")
_DEVICES_OWN = "top_k clip rotate quantise moving_clip random_k"


class ChainError(DelianError):
    """Stages that do not go together: `first` and `second` by their groups, and `how`."""

    def __init__(self, first: str, second: str, how: str, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.first, self.second, self.how = first, second, how


@dataclass(frozen=True, slots=True)
class Refusal:
    """A row of the table: stages that do not go together."""

    first: tuple[str, ...]
    """Groups of stages that are refused."""
    how: str
    """"before", "with" or "without"."""
    second: tuple[str, ...]
    """Any stage of these groups."""
    why: str
    """The reason."""
    only: Callable[[Any, Any], bool] | None = None
    """The row holds for pairs of stages for which this is true; None: for all."""
    when: str = ""
    """`only` in words."""


def _row(
    rule: str, why: str, when: str = "", only: Callable[[Any, Any], bool] | None = None
) -> Refusal:
    """rule: "noise before clip", with groups between blanks on either side."""
    words = rule.split()
    how = next(word for word in words if word in ("before", "with", "without"))
    at = words.index(how)
    return Refusal(tuple(words[:at]), how, tuple(words[at + 1 :]), why, only, when)


_UNBOUNDED = "an update that may be of any length has no bounded sensitivity: no noise hides it"
REFUSALS: tuple[Refusal, ...] = (
    # A wrong order.
    _row("noise before clip", _UNBOUNDED),
    _row(
        "noise before quantise",
        "noise on f32 shows in the last bits what it was added to (Mironov 2012): it is whole steps"
        " of the ring",
    ),
    _row(
        "noise before moving_clip",
        "the accountant counts noise as it was drawn, and the clip would shorten it",
    ),
    _row(
        "noise before random_k",
        "noise is planned for the coordinates that travel, and what does not needs none",
    ),
    _row(
        "clip before top_k",
        "top_k adds what it remembered to the update, and nothing would bound the two together",
    ),
    _row(
        "rotate before clip",
        "the bound is on the update itself, and a rotation keeps its length only up to rounding",
    ),
    _row(
        "quantise before top_k clip rotate",
        "they work on real numbers, and the ring's steps follow from the clip",
    ),
    _row(
        "moving_clip random_k before quantise",
        "a program knows neither the round's clip nor its choice: the device finishes what the"
        " program has rounded",
    ),
    _row(
        "random_k before moving_clip",
        "the length of the coordinates that travel is not the update's",
    ),
    _row(
        f"mask before {_DEVICES_OWN}",
        "masks cancel only if what was masked is added up as it was: cut, round or drop some of it"
        " afterwards, and they are destroyed",
    ),
    _row(
        f"mean fedbuff rule before {_DEVICES_OWN} mask",
        "of many updates one is left, and this is done to each device's own",
    ),
    _row(
        "mean fedbuff rule before noise",
        "a mean is no longer whole steps of the ring: the coordinator adds noise to the sum",
    ),
    _row(
        f"server before {_DEVICES_OWN} noise mask mean fedbuff rule",
        "the server's optimiser comes last: it makes the next model, and nothing is done to that",
    ),
    # What never goes together.
    _row(
        "top_k with mask",
        "each device sends other coordinates, and masks cancel only where all send the same, as"
        " with random_k",
    ),
    _row(
        "top_k with noise",
        "the choice of coordinates depends on a device's data, and noise on them does not hide it",
    ),
    _row("top_k with rotate", "a rotation spreads over all coordinates what top_k chose few of"),
    _row(
        "top_k with random_k moving_clip",
        "top_k forgets what it has said, and of that some would not arrive",
    ),
    _row(
        "top_k with fedbuff rule",
        "most coordinates are zero for not being sent, and only the mean of a round makes up for"
        " that",
    ),
    _row(
        "noise with fedbuff",
        "noise is for rounds: in a buffered run a device's updates are not counted by models",
    ),
    _row(
        "noise with rule",
        "a promise is counted for one sum a round, and behind masks a rule reads several",
    ),
    _row(
        "rule with fedbuff",
        "updates of several ages cannot be compared: a buffered run has the weighted mean only",
    ),
    _row(
        "moving_clip random_k with fedbuff",
        "waves of different rounds are added up, each with a clip or a choice of its own",
    ),
    _row(
        "moving_clip random_k with rule",
        "a rule compares whole updates under one clip: use the mean",
    ),
    _row(
        "rule with mask",
        "masked updates show only sums, so a rule reads the means of cohorts, and needs"
        f" {robust.COHORTS_MIN} of them (cohorts={robust.COHORTS_MIN})",
        f"fewer than {robust.COHORTS_MIN} cohorts",
        lambda rule, mask: mask.cohorts < robust.COHORTS_MIN,
    ),
    _row(
        "noise with mask",
        "the noise of a run is counted for one sum a round, so rounds are of one cohort",
        "more than one cohort",
        lambda noise, mask: mask.cohorts > 1,
    ),
    _row(
        "mask with fedbuff",
        "only rounds are cut into cohorts",
        "more than one cohort",
        lambda mask, fedbuff: mask.cohorts > 1,
    ),
    _row(
        "mask with mean rule",
        "helpers are for devices that need not wait for each other: for a buffered run",
        "helpers",
        lambda mask, aggregate: mask.helpers > 0,
    ),
    # What is missing.
    _row("noise without clip", _UNBOUNDED),
    _row(
        "noise without mask",
        "noise is for masked sums: else edges and the coordinator read updates that hardly have it",
    ),
    _row(
        "mask without quantise",
        "masks cancel in whole numbers modulo a power of two, and f32 is no ring",
    ),
    _row(
        "top_k clip rotate moving_clip random_k noise mean fedbuff rule without quantise",
        "devices send whole steps of a ring, which add up exactly and in any order",
    ),
    _row(
        "quantise without clip",
        "how many steps a ring has room for follows from the longest update",
    ),
    _row("server without mean fedbuff rule", "there is no mean to follow"),
    _row(
        f"{_DEVICES_OWN} noise mask without mean fedbuff rule", "nothing makes one update of many"
    ),
)
#: Two stages of one group, or two that leave one update of many.
TWICE = {
    "clip": "the shorter of the two is the clip of both",
    "noise": "the accountant counts one noise a sum; ask for a smaller epsilon",
    "mask": "updates that are masked cannot be masked for another sum",
    **dict.fromkeys(AGGREGATES, "one has left one update of many, and there is nothing to add up"),
}
_TWICE_ELSE = "the second would undo what the first has kept count of"


def check(given: Sequence[Stage]) -> None:
    """Checks that stages go together in this order.

    Raises:
        ChainError: they do not; it names the two stages and the reason.
    """
    if len(given) > STAGES_MAX:
        raise DelianError(f"a chain of {len(given)} stages", f"at most {STAGES_MAX}")
    if not given:
        raise DelianError("a chain of no stages", "the shortest: clip(1.0) | quantise() | mean()")
    for i, second in enumerate(given):
        for first in given[:i]:
            groups = (first.group, second.group)
            if groups[0] == groups[1] or ("mean" in groups and set(groups) <= set(AGGREGATES)):
                why = TWICE.get(groups[0], _TWICE_ELSE)
                raise _refused(first, second, "and", why, "leave one of them out")
    check_rows(REFUSALS, given)


def check_rows(rows: Sequence[Refusal], given: Sequence[Stage]) -> None:
    """Raises ChainError for stages that one of these rows refuses."""
    for row in rows:
        _check_row(row, given)


def _check_row(row: Refusal, given: Sequence[Stage]) -> None:
    firsts = [(i, s) for i, s in enumerate(given) if s.group in row.first]
    seconds = [(i, s) for i, s in enumerate(given) if s.group in row.second]
    if row.how == "without":
        if firsts and not seconds:
            wanted = row.second[0]
            message = f"{firsts[0][1].name} without {wanted}: {row.why}"
            raise ChainError(firsts[0][1].group, wanted, row.how, message, f"add {wanted}")
        return
    for i, first in firsts:
        for j, second in seconds:
            wrong = i < j if row.how == "before" else True
            if wrong and (row.only is None or row.only(first, second)):
                before = row.how == "before"
                hint = f"put {second.name} first" if before else "leave one of them out"
                if row.only is not None:
                    hint = f"not with {row.when}, or one of them left out"
                raise _refused(first, second, row.how, row.why, hint)


def _refused(first: Stage, second: Stage, how: str, why: str, hint: str) -> ChainError:
    message = f"{first.name} {how} {second.name}: {why}"
    return ChainError(first.group, second.group, how, message, hint)


def markdown() -> str:
    """`REFUSALS` as the table of docs/algorithms.md."""
    lines = ["| refused | why |", "|---|---|"]
    for row in REFUSALS:
        condition = f" ({row.when})" if row.when else ""
        first, second = (", ".join(f"`{n}`" for n in names) for names in (row.first, row.second))
        lines.append(f"| {first} {row.how} {second}{condition} | {row.why} |")
    for group, why in {**TWICE, "any other": _TWICE_ELSE}.items():
        name = group if group == "any other" else f"`{group}`"
        lines.append(f"| {name} twice | {why} |")
    return "\n".join(lines) + "\n"
