"""An edge that helps to unmask: it opens the seeds that devices have sealed for it.

The coordinator gets the sum of a whole batch's masks. `core.privacy.secagg.helper` has the security
argument.

Which seeds it has opened is in its state, and durable before the sum leaves. The seeds are not:
they are in the request, which the coordinator repeats until it has its answer, and the masks' keys
are in the program that adds them up. After a restart what was being added up is asked for again.
"""

from __future__ import annotations

from ...core.privacy.mechanisms.ring import RingPlan, packed
from ...core.privacy.secagg.helper import Answer, Helper
from ...core.privacy.secagg.logged import ForkError, accept
from ...core.privacy.secagg.secure_errors import SecureError
from ...core.protocol import ports
from ...core.protocol.machine import Output, Part
from ...core.wire import helper_pb2
from ...core.wire.journal_pb2 import DeniedVersion
from ...core.wire.log_pb2 import LogUpdate
from .edge_state import EdgePolicy, EdgeState, Helping

#: Orders about which certificates it may count.
NOTICES = (DeniedVersion, LogUpdate)


class MaskHelper(Part[EdgeState]):
    """What an edge does that holds the masks' keys of a run."""

    def __init__(
        self, state: EdgeState, out: Output, policy: EdgePolicy, helper: Helper | None
    ) -> None:
        super().__init__(state, out)
        self.policy = policy
        #: Opens seeds and signs for it; None: the edge does not help.
        self.helper = helper

    def keep_denied(self, order: DeniedVersion) -> None:
        self.state.denied_version, self.state.denied_issued_s = order.version, order.issued_s

    def keep_log(self, update: LogUpdate) -> None:
        assert self.helper is not None
        ledger, helper = self.state.ledger, self.helper
        try:
            ledger.log = accept(ledger.log, update, helper.identity, helper.rules)
        except SecureError as fault:
            self._note(fault)

    def _knows_too_little(self) -> bool:
        """Whether the deny list is too old to say which devices of a batch are revoked."""
        age_ns = self.now - self.state.denied_issued_s * ports.SECOND
        return 0 < self.policy.denied_age_ns < age_ns

    def _note(self, fault: SecureError) -> None:
        self.record("log_refused", reason=fault.reason)
        if isinstance(fault, ForkError):
            signed = fault.known.signed
            self.record(
                "log_fork",
                why=fault.message,
                known=b"" if signed is None else signed.SerializeToString(deterministic=True),
                offered=fault.offered.SerializeToString(deterministic=True),
            )

    def help(self, message: helper_pb2.HelpRequest) -> None:
        state = self.state
        assert self.helper is not None
        if self._knows_too_little():
            answer = Answer(helper_pb2.OLD_DENY_LIST)
        else:
            answer = self.helper.answer(message, state.ledger)
        if answer.fault is not None:
            self._note(answer.fault)
        if answer.refusal != helper_pb2.HELP_GIVEN:
            reason = helper_pb2.HelpRefusal.Name(answer.refusal).lower()
            self.record("help_refused", run=message.run, batch=message.batch, reason=reason)
            self.send(
                ports.CLOUD,
                helper_pb2.HelpSum(
                    run=message.run,
                    batch=message.batch,
                    edge=state.edge,
                    refusal=answer.refusal,
                    bad=answer.bad,
                    log_size=state.ledger.log.size,
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
        self.emit(ports.RunProgram(state.tickets, "masks", (), arguments))

    def give(
        self, ticket: int, outcome: ports.Outcome | ports.NewModel | ports.ProgramStopped
    ) -> None:
        batch = self.state.helping.pop(ticket)
        if not isinstance(outcome, ports.Outcome) or outcome.vector is None:
            return  # there was no memory, say; it is asked for again
        content = packed(outcome.vector, RingPlan.of(batch.ring))
        state = self.state
        message = helper_pb2.HelpSum(
            run=batch.run, batch=batch.batch, edge=state.edge, log_size=state.ledger.log.size
        )
        size = ports.wire_size(message, len(content))
        message.sum = content
        self.send(ports.CLOUD, message, size)
        self.record("helped", run=batch.run, batch=batch.batch)
