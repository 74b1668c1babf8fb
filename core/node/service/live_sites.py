"""A live federation as the sites of questions: each step is a run of one round of its own.

The coordinator's part is what it is for a round of training: it tasks the sites, has the masks
taken out of the sum, and keeps the sum. It does not know the method.
"""

from __future__ import annotations

import json
import secrets
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ...common.errors import DelianError
from ...privacy.secagg.limits import COHORT_MIN
from ...statistics import asking
from ...statistics.answer import Answer
from ...statistics.question import Question, Step, step_bytes
from ...statistics.request import Request
from ...statistics.sums import StatisticsError, SumPlan, Totals
from ...wire import link_pb2, operator_pb2

if TYPE_CHECKING:
    from ...wire.blob_pb2 import BlobRef
    from .operator_client import Client

#: What manifests of questions are versions of.
LINE = "questions"
#: States of devices that may answer soon.
_THERE = ("ready", "working", "idle")
_NODES_AT_ONCE = 1_000
_REQUEST_ID_BYTES = 16
#: Of a question's table and condition in the record of calls.
_LABEL_CHARS_MAX = 200
#: How long a step waits for sites that are not there, in ms.
_WAIT_MS = 10_000
#: When sites come back after a step, in ms.
_AGAIN_MS = (50, 200)


@dataclass(frozen=True)
class Terms:
    """How a question is asked of a federation."""

    sites: int | None = None
    """Sites that are asked. None: all devices that are there."""
    sites_min: int | None = None
    """Fewer sites in a sum fail the step. None: two thirds of those asked, and 3 at least."""
    timeout_s: float = 120.0
    """For one step."""
    masked: bool = True
    """Whether sums are masked; most sites refuse a question that is not."""
    corrupt: float = 0.2
    """The share of sites that may work together with the coordinator."""
    dropout: float = 0.3
    """The share of sites that may drop out of a step."""
    attempts: int = 3
    """Attempts at a step."""


class LiveSites:
    """The sites of a federation, by its coordinator.

    client: the coordinator, as its operator. on_refusal: called with what sites answered in place
    of a step's numbers: reasons and how many sites gave each.
    """

    def __init__(
        self,
        client: Client,
        terms: Terms | None = None,
        on_refusal: Callable[[dict[str, int]], None] = lambda reasons: None,
    ) -> None:
        self.terms = terms or Terms()
        self._client, self._on_refusal = client, on_refusal
        self.count = self.terms.sites or self._there()
        self._refusals: Counter[str] = Counter()
        self._last = self.count  # sites in the last step's sum
        self.runs: list[int] = []
        """The runs of the steps so far."""
        least = COHORT_MIN if self.terms.masked else 1
        if self.count < least:
            raise StatisticsError(
                f"{self.count} sites are there, and a masked sum needs {least} at least",
                "start more sites: delian fleet ls",
            )

    def answer(
        self,
        question: Question | Request,
        on_step: Callable[[Step], None] | None = None,
    ) -> Answer:
        """Asks all steps of a question. Raises DelianError where it has no answer.

        on_step: called before each step.
        """
        request = question if isinstance(question, Request) else Request(question)
        asked = self._client.put(request.to_bytes())
        self._refusals = Counter()
        found = asking.answer(
            request,
            lambda step: self._total(request, asked, step),
            self.count,
            corrupt=self.terms.corrupt,
            on_step=on_step,
        )
        return asking.with_refusals(found, self._refusals, self.count)

    def _there(self) -> int:
        after, found = 0, 0
        while True:
            wanted = operator_pb2.FleetRequest(
                tier=link_pb2.NODE_DEVICE, limit=_NODES_AT_ONCE, after=after
            )
            nodes = self._client.call("ListNodes", wanted).nodes
            found += sum(node.state in _THERE for node in nodes)
            if len(nodes) < _NODES_AT_ONCE:
                return found
            after = nodes[-1].node.number

    def _total(self, request: Request, asked: BlobRef, step: Step) -> Totals:
        sums = SumPlan(step.sums, self.count, request.noise)
        plan = self._plan(request, asked, self._client.put(step_bytes(step)), sums)
        submitted = operator_pb2.SubmitRequest(
            plan=plan, request_id=secrets.token_bytes(_REQUEST_ID_BYTES)
        )
        run = self._client.call_again("Submit", submitted).run
        self.runs.append(run)
        ended = self._until_over(run)
        content = self._client.get(ended.weights)
        total = np.frombuffer(content, "<u4").astype(np.uint32)
        if total.shape != (sums.dimension + 1,):
            raise DelianError(f"run {run} gave {len(content)} bytes, which are no sum", "ask again")
        # A site that is gone is not waited for in each step; one that is back takes part.
        self._last = int(total[-1])
        return sums.decode(total[:-1], self._last)

    def _plan(
        self, request: Request, asked: BlobRef, step: BlobRef, sums: SumPlan
    ) -> operator_pb2.PlanMessage:
        terms = self.terms
        least = terms.sites_min or max(COHORT_MIN if terms.masked else 1, -(-2 * self.count // 3))
        plan = operator_pb2.PlanMessage(
            name="question",
            rounds=1,
            cohort=self.count,
            bundle=asked,
            weights=step,
            ring=sums.ring.message(),
            over_selection=1.0,
            reports_min=min(least, self.count),
            attempts_max=terms.attempts,
            timeout_ms=int(terms.timeout_s * 1000),
            wait_ms=_WAIT_MS,
            pool_min=self._last,
        )
        plan.after_task.min_ms, plan.after_task.max_ms = _AGAIN_MS
        plan.labels["question"] = request.question.method
        plan.labels["table"] = request.rows.table[:_LABEL_CHARS_MAX]
        plan.labels["where"] = request.rows.where[:_LABEL_CHARS_MAX]
        if terms.masked:
            self._mask(plan)
        if self._client.artifacts is not None and (self._client.artifacts / "key.pem").exists():
            from ..identity.artifacts.artifact_keys import OnlineFolder, sign_plan

            plan.manifest = sign_plan(OnlineFolder(self._client.artifacts), plan, LINE)
        return plan

    def _mask(self, plan: operator_pb2.PlanMessage) -> None:
        """Masks that keep to the federation's terms."""
        secure, federation = plan.secure, self._client.terms
        secure.suite, secure.cohort_min = 1, min(max(COHORT_MIN, plan.reports_min), self.count)
        secure.corrupt, secure.dropout = self.terms.corrupt, self.terms.dropout
        if federation is not None:
            secure.cohort_min = max(secure.cohort_min, federation.cohort_min)
            secure.corrupt = max(secure.corrupt, federation.corrupt)

    def _until_over(self, run: int) -> Any:
        """Waits for the run's end; raises DelianError where it gave no sum."""
        why, refused = "", {}
        for event in self._client.stream("WatchRun", operator_pb2.WatchRequest(run=run)):
            facts = json.loads(event.facts)
            if event.kind == "round":
                refused = dict(facts.get("refused") or {})
                if refused:
                    self._on_refusal(refused)
                    self._refusals |= Counter({n.replace("_", " "): c for n, c in refused.items()})
            if event.kind == "phase":
                why = facts.get("why") or why
        ended = self._client.call("GetRun", operator_pb2.RunRequest(run=run))
        if ended.phase != "done":
            said = ", ".join(f"{name.replace('_', ' ')} {n}" for name, n in sorted(refused.items()))
            raise StatisticsError(
                f"the question was not answered: {why or ended.phase}"
                + (f" ({said})" if said else ""),
                "sites say why in their logs: delian device questions",
            )
        return ended
