"""An edge that helps: it opens the seeds that devices have sealed for it, and gives the coordinator
the sum of a whole batch's masks. `core.secagg.helper` has what it promises, and to whom.

Which seeds it has opened is in its state, and durable before the sum leaves. The seeds are not:
they are in the request, which the coordinator repeats until it has its answer, and the masks' keys
are in the program that adds them up. After a restart what was being added up is asked for again.
"""

from __future__ import annotations

from ..core.machine import Machine
from ..core.ports import CLOUD, NewModel, Outcome, ProgramStopped, RunProgram, wire_size
from ..core.privacy.ring import RingPlan, packed
from ..core.secagg.helper import Helper
from ..core.wire.helper_pb2 import HELP_GIVEN, HelpRefusal, HelpRequest, HelpSum
from .state import HELPING_MAX, EdgePolicy, EdgeState, Helping
from .table import Trigger

_T = Trigger


class HelperMachine(Machine[EdgeState]):
    """The rows of a helper. `EdgeMachine` is the rest of the edge."""

    policy: EdgePolicy
    helper: Helper | None

    # ------------------------------------------------ reading events

    def _read_help(self, message: HelpRequest) -> Trigger:
        asked = (message.run, message.batch)
        busy = self.state.helping.values()
        if self.helper is None or asked in [(one.run, one.batch) for one in busy]:
            return _T.STALE
        # More are asked for again when these are done.
        return _T.HELP if len(busy) < HELPING_MAX else _T.STALE

    def _read_masks(
        self, ticket: int, outcome: Outcome | NewModel | ProgramStopped
    ) -> tuple[Trigger, object]:
        known = self.state.helping.get(ticket)
        return (_T.STALE, None) if known is None else (_T.HELPED, (ticket, outcome))

    # ------------------------------------------------ actions

    def help(self, message: HelpRequest) -> None:
        state = self.state
        assert self.helper is not None
        answer = self.helper.answer(message, state.ledger)
        if answer.refusal != HELP_GIVEN:
            reason = HelpRefusal.Name(answer.refusal).lower()
            self.record("help_refused", run=message.run, batch=message.batch, reason=reason)
            self.send(
                CLOUD,
                HelpSum(
                    run=message.run,
                    batch=message.batch,
                    edge=state.edge,
                    refusal=answer.refusal,
                    bad=answer.bad,
                ),
            )
            return
        assert answer.ring is not None
        busy = sum(RingPlan.of(one.ring).nbytes for one in state.helping.values())
        if busy + answer.ring.nbytes > self.policy.sum_bytes_max:
            return  # it is asked for again
        state.tickets += 1
        plan = answer.ring.message()
        state.helping[state.tickets] = Helping(message.run, message.batch, plan)
        arguments = (list(answer.keys), answer.ring.length, answer.suite)
        self.emit(RunProgram(state.tickets, "masks", (), arguments))

    def give(self, subject: tuple[int, Outcome | NewModel | ProgramStopped]) -> None:
        ticket, outcome = subject
        batch = self.state.helping.pop(ticket)
        if not isinstance(outcome, Outcome) or outcome.vector is None:
            return  # there was no memory, say; it is asked for again
        content = packed(outcome.vector, RingPlan.of(batch.ring))
        message = HelpSum(run=batch.run, batch=batch.batch, edge=self.state.edge)
        size = wire_size(message, len(content))
        message.sum = content
        self.send(CLOUD, message, size)
        self.record("helped", run=batch.run, batch=batch.batch)
