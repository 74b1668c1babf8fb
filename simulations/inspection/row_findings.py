"""What is wrong with the rows of any data: labels, duplicates, and how rows lie on devices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ...core.common.nouns import counted
from ...core.learning.data.federated_data import DeviceData, FederatedData
from ...core.learning.data.fit import row_hashes
from .finding import Finding, Level, listed

#: How many times more rows the most frequent label has than the rarest, to be imbalanced, and the
#: share of all rows that it has.
_TIMES, _SHARE = 10, 0.8
#: Rows of a label that are few.
_FEW = 10
#: How many times more rows the largest device has than the median one.
_UNEVEN = 20
#: Deviations from the mean that are far.
_FAR = 10.0
#: Share of different rows below which equal ones are no wonder.
_COARSE = 0.4
#: Share of rows that may be equal without a word.
_EQUAL = 0.001


def findings_of(data: FederatedData, unit_is_window: bool = False) -> Iterator[Finding]:
    """What is wrong with the rows. unit_is_window: rows share parts by design."""
    devices = [each for each in data.devices if isinstance(each, DeviceData)]
    if len(devices) < len(data.devices):
        return
    single = all(each.y.ndim == 1 for each in devices)
    if data.card.numbers:
        yield from _numbers(devices)
    elif single:
        yield from _labels(data, devices)
    if single or data.card.numbers:
        yield from _duplicates(data, devices, unit_is_window)
    sizes = np.array(data.card.examples)
    if sizes.max() > _UNEVEN * np.median(sizes):
        yield Finding(
            "warning",
            "uneven",
            f"the largest device has {int(sizes.max()):,} {data.card.unit}, the median one"
            f" {np.median(sizes):g}: a round's mean is mostly its, and all take its memory",
            "data.min_examples leaves out small ones; name another column with data.device",
        )


def _labels(data: FederatedData, devices: list[DeviceData]) -> Iterator[Finding]:
    names = data.card.label_names
    counts = np.array(data.card.label_counts)
    totals = counts.sum(axis=0)
    present = totals[totals > 0]
    most, least = int(totals.argmax()), int(present.min())
    share = totals[most] / max(totals.sum(), 1)
    if len(present) > 1 and (share > _SHARE or totals[most] > _TIMES * least):
        rarest = names[int(np.flatnonzero(totals == least)[0])]
        yield Finding(
            "warning",
            "imbalance",
            f"{100 * share:.0f}% of the rows have the label `{names[most][:40]}`, and {least:,}"
            f" {'has' if least == 1 else 'have'} `{rarest[:40]}`",
            f"a model that always says `{names[most][:40]}` has {100 * share:.0f}% accuracy:"
            " compare with that, and look at accuracy by class in the report",
        )
    few = [names[k] for k in np.flatnonzero((totals > 0) & (totals < _FEW))]
    if few:
        yield Finding(
            "warning",
            "few_rows",
            f"{listed(few)} {'has' if len(few) == 1 else 'have'} fewer than {_FEW} rows",
            "collect more, or join labels",
        )
    trained = np.zeros(len(totals), np.int64)
    for device in data.training:
        rows = devices[device]
        trained += np.bincount(rows.y[: rows.support], minlength=len(totals))[: len(totals)]
    unseen = [names[k] for k in np.flatnonzero((totals > 0) & (trained == 0))]
    if unseen:
        yield Finding(
            "warning",
            "never_trained",
            f"no device trains on a row of {listed(unseen)}, which some are judged by",
            "deal the rows out otherwise (data.partition), or hold out fewer devices",
        )
    alone = int(((counts > 0).sum(axis=1) == 1).sum())
    if alone and len(present) > 1:
        yield Finding(
            "note",
            "one_label",
            f"{alone} of {counted(len(devices), 'device has', 'devices have')} rows of one label"
            " alone",
            "personalized models of these learn to say it always",
        )


def _numbers(devices: list[DeviceData]) -> Iterator[Finding]:
    y = np.concatenate([d.y[: d.examples].reshape(d.examples, -1) for d in devices])
    deviation = y.std(axis=0, dtype=np.float64)
    if (deviation == 0).any():
        yield Finding("wrong", "constant_target", "all rows have the same number to learn")
        return
    far = (np.abs(y - y.mean(axis=0, dtype=np.float64)) > _FAR * deviation).any(axis=1)
    if far.any():
        worst = float(np.abs(y[far]).max())
        yield Finding(
            "warning",
            "outliers",
            f"{counted(int(far.sum()), 'number to learn is', 'numbers to learn are')} more than"
            f" {_FAR:g} deviations from the mean, up to {worst:.4g}",
            "the squared error is theirs: mend them, or learn the logarithm",
        )


def _duplicates(data: FederatedData, devices: list[DeviceData], windows: bool) -> Iterator[Finding]:
    """Rows that are equal, in what is learnt as well, by their hashes."""
    parts: dict[str, list[Any]] = {"hash": [], "device": [], "query": []}
    for k, device in enumerate(devices):
        n = device.examples
        parts["hash"].append(row_hashes(device.x[:n], device.y[:n]))
        parts["device"].append(np.full(n, k))
        parts["query"].append(np.arange(n) >= device.support)
    hashes, owner, query = (np.concatenate(parts[name]) for name in ("hash", "device", "query"))
    total = len(hashes)
    out = np.isin(owner, sorted(data.held_out))
    judged, trained = query | out, ~query & ~out
    shared = judged & np.isin(hashes, hashes[trained])
    different = len(np.unique(hashes))
    coarse = different < _COARSE * total
    if shared.sum() > _EQUAL * total:
        text = (
            f"{int(shared.sum()):,} of {int(judged.sum()):,} rows that judge are equal to rows that"
            " are trained on"
        )
        hint = (
            "their figures show what was learnt by heart: leave out duplicates before dealing out"
        )
        level: Level = "warning" if windows else "wrong"
        if coarse:
            level, hint = "note", "features of few values make equal rows; or the file is doubled"
            text += f": there are {different:,} different rows among {total:,}"
        yield Finding(level, "duplicates", text, hint)
    if coarse:
        return
    order = np.lexsort((owner, hashes))
    same = hashes[order][1:] == hashes[order][:-1]
    apart = same & (owner[order][1:] != owner[order][:-1])
    if apart.sum() > _EQUAL * total:
        yield Finding(
            "warning",
            "duplicates_across",
            counted(int(apart.sum()), "row is", "rows are") + " on another device as well",
            "where devices are people or sites, see how the file was joined",
        )
    within = int(same.sum() - apart.sum())
    if within > _EQUAL * total and not shared.any():
        yield Finding(
            "note",
            "duplicates_within",
            counted(within, "row is", "rows are") + " equal to others of a device",
        )
