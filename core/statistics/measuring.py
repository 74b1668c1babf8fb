"""A site's part of a step: it reads its rows, adds them up, adds its noise, and encodes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ..privacy.mechanisms import wide_noise
from ..privacy.mechanisms.noise import KEY_BYTES
from .question import Kept, Question, Step
from .request import Request
from .site_table import Table
from .sums import StatisticsError, Sum, SumPlan


def vector_of(
    request: Request, step: Step, plan: SumPlan, table: Table, kept: Kept, key: bytes
) -> npt.NDArray[np.uint32]:
    """What a site sends before masks, u32[plan.dimension + 1]; the last element counts the site.

    Args:
        request: the question.
        step: its step, which may be hostile.
        plan: of the step's sums.
        table: the site's rows.
        kept: what the site keeps for the question.
        key: 32 secret bytes for the noise of this step alone.

    Raises:
        StatisticsError: the rows or the step do not fit the question.
    """
    try:
        with np.errstate(all="ignore"):  # what is not finite is refused below
            measured = dict(request.question.measure(table, step, kept))
    except (ArithmeticError, LookupError, TypeError, ValueError, AttributeError) as error:
        # A method checks the step; what it has missed costs the site nothing else.
        raise StatisticsError(f"a step that makes no sense at a site: {error}") from None
    if request.noise:
        measured = _noised(request, step, measured, key, table.floor)
    return np.append(plan.encode(measured), np.uint32(1))


def with_noise(question: Question, step: Step, noise: float) -> Step:
    """The step with room for the noise: its sums have the lattice's bits. Raises StatisticsError.

    noise: as in `Request`.
    """
    if not noise:
        return step
    found = _sensitivities(question, step)
    sums = tuple(
        Sum(s.name, s.shape, s.before, max(s.after, wide_noise.lattice(noise, found[s.name])))
        for s in step.sums
    )
    return Step(step.name, sums, step.arrays)


def _noised(
    request: Request, step: Step, measured: dict[str, Any], key: bytes, floor: int
) -> dict[str, Any]:
    """The numbers with the site's noise. Raises StatisticsError.

    floor: the owner's. Where it is above the question's, a row may change as many times more.
    """
    if len(key) != KEY_BYTES:
        raise StatisticsError("a site has no secret for its noise")
    more = max(floor / (request.question.cell_floor() or 1), 1.0)
    found = _sensitivities(request.question, step, more)
    flat = []
    for each in step.sums:
        if each.after < wide_noise.lattice(request.noise, found[each.name]):
            raise StatisticsError(f"`{each.name}` has no room for the noise's lattice")
        # In units of what one row changes: all sums together then have the length one.
        flat.append(np.asarray(measured[each.name], np.float64).reshape(-1) / found[each.name])
    values = np.concatenate(flat)
    wide_noise.add(values, request.noise, 1.0, key)
    out, place = {}, 0
    for each in step.sums:
        part = values[place : place + each.size] * found[each.name]
        out[each.name] = part.reshape(each.shape)
        place += each.size
    return out


def _sensitivities(question: Question, step: Step, more: float = 1.0) -> Mapping[str, float]:
    """Of all sums of a step, so that one row changes their quotients by one in all, as powers of 2.

    Multiplying by a power of two moves no number off its lattice.
    """
    given = question.sensitivities(step)
    root = math.sqrt(len(step.sums))
    found = {s.name: given.get(s.name, math.nan) * root * more for s in step.sums}
    if not all(math.isfinite(v) and v > 0 for v in found.values()):
        raise StatisticsError(f"`{question.method}` has no bound on what one row changes")
    return {name: 2.0 ** math.ceil(math.log2(v)) for name, v in found.items()}
