"""Sites whose rows are at hand: each adds up its own rows, and the sums go under masks.

The sessions are those of devices and coordinator (`federation.secure_sum`), without a network: what
is asked and what is answered is what a federation of daemons would give, to the bit.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from ...core.common.errors import DelianError
from ...core.privacy.mechanisms.ring import RingPlan
from ...core.privacy.secagg.secure_errors import SecureError
from ...core.protocol.ports import Vector
from ...core.statistics.answer import Answer
from ...core.statistics.question import (
    Kept,
    Question,
    Step,
    parse_question,
    parse_step,
    question_bytes,
    step_bytes,
)
from ...core.statistics.site_table import Table
from ...core.statistics.sums import StatisticsError, SumPlan, Totals
from ..federation.secure_sum import COHORT_MIN, secure_sum


class LocalSites:
    """Tables that stand for sites.

    Args:
        tables: what `Table.of` takes, one a site.
        masked: whether sums are masked, as between daemons; False: they are added up as they are.
        seed: of the simulated keys.
        silent: gives the sites, by number, whose sums never come in a step, by the step's number
            from 0; they have exchanged keys, and drop out.

    Raises:
        StatisticsError: fewer than three sites under masks.
    """

    def __init__(
        self,
        tables: Sequence[Any],
        *,
        masked: bool = True,
        seed: int = 0,
        silent: Callable[[int], Collection[int]] = lambda step: (),
    ) -> None:
        self.tables = [Table.of(each) for each in tables]
        if len(self.tables) < (COHORT_MIN if masked else 1):
            raise StatisticsError(
                f"{len(self.tables)} sites under masks",
                f"at least {COHORT_MIN}: a sum of fewer would say what one site has; or say"
                " masked=False",
            )
        self.masked, self.seed, self.silent = masked, seed, silent
        self.steps = 0
        """Steps that were asked so far."""

    def answer(self, question: Question, on_step: Callable[[Step], None] | None = None) -> Answer:
        """Asks all steps of a question. Raises StatisticsError where it has no answer."""
        # As between daemons: sites see what arrived, and nothing that it was made of.
        asked = parse_question(question_bytes(question))
        kept: list[Kept] = [{} for _ in self.tables]
        asking = question.ask()
        totals: Totals | None = None
        while True:
            try:
                step = next(asking) if totals is None else asking.send(totals)
            except StopIteration as end:
                answer: Answer = end.value
                return answer
            if on_step is not None:
                on_step(step)
            totals = self._total(asked, step, kept)

    def _total(self, question: Question, step: Step, kept: Sequence[Kept]) -> Totals:
        number, self.steps = self.steps, self.steps + 1
        arrived = parse_step(step_bytes(step))
        plan = SumPlan(arrived.sums, len(self.tables))
        silent = set(self.silent(number))
        vectors, faults = {}, []
        for site, table in enumerate(self.tables, 1):
            try:
                measured = question.measure(table, arrived, kept[site - 1])
                vectors[site] = np.append(plan.encode(measured), np.uint32(1))
            except DelianError as fault:
                faults.append(fault)
        if not vectors or (faults and len(vectors) < COHORT_MIN):
            raise StatisticsError(
                f"{len(faults)} of {len(self.tables)} sites cannot answer: {faults[0].message}",
                faults[0].hint,
            )
        total: Vector | None
        if not self.masked:
            added = [v for site, v in vectors.items() if site - 1 not in silent]
            total = np.add.reduce(added, dtype=np.uint32) if added else None
        else:
            total = self._masked(vectors, plan, number, {s + 1 for s in silent})
        if total is None:
            raise StatisticsError("no site has answered a step")
        return plan.decode(total[:-1], int(total[-1]))

    def _masked(self, vectors: Any, plan: SumPlan, number: int, silent: Collection[int]) -> Any:
        ring = RingPlan(clip=1.0, clients_max=len(self.tables), dimension=plan.dimension)
        try:
            return secure_sum(vectors, ring, self.seed, number + 1, silent)
        except SecureError as fault:
            raise StatisticsError(
                f"too few sites have answered a step: {fault.message}", "ask again once they are up"
            ) from None
