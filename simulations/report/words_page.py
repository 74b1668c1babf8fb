"""The words of a report, explained where they are read."""

from __future__ import annotations

from . import page_parts as parts
from .page_parts import escaped
from .report_facts import Report, is_real, measured_by

_WORDS = (
    ("shared model", "The global model that the federation trains; all devices have the same."),
    (
        "personal model",
        "What a device makes of the shared model by fine-tuning on its own rows (personalization).",
    ),
    (
        "judged, evaluated",
        "Computed on a device’s query rows, on which no device trains. A mean over devices counts"
        " each device the same.",
    ),
    ("gain", "How much better the personal model of a device is than the shared one."),
    ("harmed", "Devices whose personal model is worse than the shared one."),
    (
        "newcomers, never trained, held-out devices",
        "Devices that are selected in no round. They show how the model serves new devices.",
    ),
    ("worst tenth", "The tenth of the devices with the lowest accuracy, or the largest error."),
    ("selected", "Devices that a round asks to train: its cohort."),
    ("reported", "Devices whose update is in the round’s sum."),
    ("spare", "Selected as a reserve; the round had enough updates without them."),
    ("late", "Stragglers: they answered after the deadline."),
    ("dropped", "Dropouts: they lost their connection or were switched off."),
    ("refused", "Their update was not a finite number."),
    ("lost", "Late, dropped or refused."),
)
_ERROR = (
    "mean squared error",
    "The mean of the squared errors, in the square of the target’s unit; its root is in the unit.",
)
_VIRTUAL = (
    "virtual time",
    "How long it would take with the scenario’s links and devices; a simulation does not wait.",
)
_PRIVACY = (
    "epsilon, delta",
    "Differential privacy: with or without a device’s updates, the chance of any model differs by a"
    " factor of at most e to the epsilon, but for delta. Less is more private.",
)


def section(report: Report) -> str:
    """The glossary of the page."""
    words = [*_WORDS]
    if measured_by(report).error:
        words.append(_ERROR)
    if not is_real(report):
        words.append(_VIRTUAL)
    if report["summary"].get("privacy"):
        words.append(_PRIVACY)
    rows = "".join(f"<dt>{escaped(word)}</dt><dd>{escaped(told)}</dd>" for word, told in words)
    return parts.section("Words", "What this page means by them.", f'<dl class="words">{rows}</dl>')
