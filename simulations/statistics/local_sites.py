"""Sites whose rows are at hand: each adds up its own rows, and the sums go under masks.

The sessions are those of devices and coordinator (`federation.secure_sum`), without a network: what
is asked and what is answered is what a federation of daemons would give, to the bit.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...core.common.errors import DelianError
from ...core.privacy.mechanisms.noise import KEY_BYTES
from ...core.privacy.secagg.secure_errors import SecureError
from ...core.protocol.ports import Vector
from ...core.statistics import asking
from ...core.statistics.answer import Answer
from ...core.statistics.measuring import vector_of
from ...core.statistics.question import Kept, Question, Step, parse_step, step_bytes
from ...core.statistics.request import Request
from ...core.statistics.site_table import Table
from ...core.statistics.sql.rows_data import Offered, Reader, wanted
from ...core.statistics.sums import StatisticsError, SumPlan, Totals
from ..federation.secure_sum import COHORT_MIN, secure_sum

#: Memory for the tables of one site.
_BYTES_MAX = 1 << 32
#: What a site's only table is called where the question names none.
TABLE = "data"


class LocalSites:
    """Tables that stand for sites.

    Args:
        sites: one a site: the path of a CSV, TSV or Parquet file, a data frame, a dict of arrays, a
            `Table`, or several of these as a dict by table name.
        masked: whether sums are masked, as between daemons; False: they are added up as they are.
        seed: of the simulated keys.
        silent: gives the sites, by number, whose sums never come in a step, by the step's number
            from 0; they have exchanged keys, and drop out.

    Raises:
        StatisticsError: fewer than three sites under masks.
    """

    def __init__(
        self,
        sites: Sequence[Any],
        *,
        masked: bool = True,
        seed: int = 0,
        silent: Callable[[int], Collection[int]] = lambda step: (),
    ) -> None:
        self.sites = [_offered(site) for site in sites]
        if len(self.sites) < (COHORT_MIN if masked else 1):
            raise StatisticsError(
                f"{len(self.sites)} sites under masks",
                f"at least {COHORT_MIN}: a sum of fewer would say what one site has; or say"
                " masked=False",
            )
        self.masked, self.seed, self.silent = masked, seed, silent
        self.steps = 0
        """Steps that were asked so far."""

    def answer(
        self,
        question: Question | Request,
        on_step: Callable[[Step], None] | None = None,
    ) -> Answer:
        """Asks all steps of a question. Raises StatisticsError where it has no answer.

        on_step: called before each step.
        """
        request = question if isinstance(question, Request) else Request(question)
        # As between daemons: sites see what arrived, and nothing that it was made of.
        arrived = Request.parse(request.to_bytes())
        tables = [_rows(site, arrived) for site in self.sites]
        kept: list[Kept] = [{} for _ in self.sites]
        refusals: Counter[str] = Counter()
        found = asking.answer(
            request,
            lambda step: self._total(arrived, step, tables, kept, refusals),
            len(self.sites),
            on_step=on_step,
        )
        return asking.with_refusals(found, refusals, len(self.sites))

    def _total(
        self,
        request: Request,
        step: Step,
        tables: Sequence[Table | DelianError],
        kept: Sequence[Kept],
        refusals: Counter[str],
    ) -> Totals:
        number, self.steps = self.steps, self.steps + 1
        arrived = parse_step(step_bytes(step))
        plan = SumPlan(arrived.sums, len(self.sites), request.noise)
        silent = set(self.silent(number))
        vectors, faults = {}, []
        for site, table in enumerate(tables):
            try:
                if isinstance(table, DelianError):
                    raise table
                key = os.urandom(KEY_BYTES) if request.noise else b""
                vectors[site + 1] = vector_of(request, arrived, plan, table, kept[site], key)
            except DelianError as fault:
                faults.append(fault)
        refusals |= Counter(fault.message for fault in faults)
        if not vectors or (faults and len(vectors) < COHORT_MIN):
            raise StatisticsError(
                f"{len(faults)} of {len(self.sites)} sites cannot answer: {faults[0].message}",
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
        try:
            return secure_sum(vectors, plan.ring, self.seed, number + 1, silent)
        except SecureError as fault:
            raise StatisticsError(
                f"too few sites have answered a step: {fault.message}", "ask again once they are up"
            ) from None


def _offered(site: Any) -> dict[str, Offered]:
    """A site's tables by name. Raises StatisticsError for what is none."""
    several = isinstance(site, Mapping) and all(
        isinstance(v, str | Path | Table | Mapping) or hasattr(v, "columns") for v in site.values()
    )
    if several and site:
        return {str(name): _one(given) for name, given in site.items()}
    return {TABLE: _one(site)}


def _one(given: Any) -> Offered:
    if isinstance(given, str | Path):
        return Offered(str(Path(given).expanduser().absolute()))
    return Offered(table=Table.of(given))


def _rows(site: Mapping[str, Offered], request: Request) -> Table | DelianError:
    """A site's rows of a question, or why there are none."""
    offered = dict(site)
    if list(offered) == [TABLE] and request.rows.table.isidentifier():
        offered = {request.rows.table: offered[TABLE]}  # whatever its only table is called
    try:
        columns = request.question.columns()
        reader = Reader(wanted(request.rows, columns, offered), offered)
        reader.load(_BYTES_MAX)
        return reader.rows(columns).table
    except DelianError as fault:
        return fault
