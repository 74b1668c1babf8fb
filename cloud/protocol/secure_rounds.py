"""The coordinator's part in secure aggregation: each attempt's session, its steps and their times.

    keys     until all tasked devices have sent keys; then each gets the list of members
    shares   until all members have sent shares; then each gets the neighbours that it masks for
    masks    the devices train and mask; the round goes on as any other until the sums are in
    unmask   the devices in the sums sign their list, and send the shares that remove the masks

Keys and shares go on while devices train, so they cost a round no time unless a device is silent.
A step waits for all, but when all but the plan's share of silent devices have answered, only
as long again as that took; and at most for its part of the round. A device that has not answered
then is out: a Cohort without leaves answers its next message. After the sums are in, no device can
be left out for being slow; silent devices are asked again until their time is over.

`core.privacy.secagg.server` has the session itself, and says why it cannot go on (SecureError).
Messages go to a device through the edge of its last message.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from google.protobuf.message import Message

from ...core.privacy.secagg import transcript
from ...core.privacy.secagg.cohort import layout
from ...core.privacy.secagg.secure_errors import SecureError
from ...core.privacy.secagg.server import Phase, ServerSession
from ...core.protocol.machine import Output, Part
from ...core.protocol.ports import SECOND, Node, Tier
from ...core.wire.round_pb2 import RoundClosed, Task
from ...core.wire.secure_pb2 import Cohort, Consent, KeyBundle, SealedShares, UnmaskShares
from .coordinator_state import Attempt, RunState, SessionBook
from .run_context import RunContext, ring_of

#: Parts of a round's time: what keys and shares may take at most, and unmasking after the sums.
KEYS_PART, SHARES_PART, UNMASK_PART = 4, 4, 2
#: Part of the silence that a session bears that is kept for unmasking.
KEPT_PART = 4
#: The least that the last few are waited for when all others have answered.
GRACE_NS = 2 * SECOND
#: Bytes that are sent at once, and when more follow: a link's queue is finite, and a Cohort of a
#: thousand has 130 KiB. Messages that come meanwhile are answered anyway.
PUSH_BYTES, PUSH_EVERY_NS = 2**20, SECOND // 20


class Sessions(Part[RunState]):
    """The sessions of one run's attempts."""

    def __init__(self, state: RunState, out: Output, context: RunContext) -> None:
        super().__init__(state, out)
        self.context = context
        self.plan = context.plan

    def _of(self, attempt: Attempt) -> ServerSession:
        identity = self.context.identity
        assert identity is not None, "a coordinator without one refuses the plan"
        return ServerSession(attempt.book.server, identity, self.context.log)

    # ------------------------------------------------ steps

    def begin(self, attempt: Attempt, task: Task) -> None:
        """Opens the session of a new attempt whose devices will get this task."""
        attempt.session = SessionBook()
        self._of(attempt).begin(task, attempt.selected())
        self._wait(attempt, KEYS_PART)

    def resume(self, attempt: Attempt) -> None:
        """Goes on after a restart: what was sent may be lost."""
        book = attempt.session
        if book is None:
            return
        book.tries, book.untold = 0, []
        if book.server.phase is Phase.UNMASKING:
            self._push_again(attempt)
        elif book.server.phase is not Phase.MASKS:
            self._set_timer(attempt, book.step_ends_ns)

    def take(self, attempt: Attempt, edge: int, message: Any) -> bool:
        """Takes a device's message and answers it; gives whether the masks can be removed now.

        Raises SecureError when the session cannot go on.
        """
        session, book = self._of(attempt), attempt.book
        device = message.device
        if not session.has_part(device):
            self._dismiss(attempt, edge, message)
            return False
        told: set[int] = set()
        counts = True
        if isinstance(message, KeyBundle):
            counts = session.add_bundle(message)
        elif isinstance(message, SealedShares):
            counts = session.add_shares(message)
            self._mark(attempt, edge, device, counts)
        elif isinstance(message, Consent):
            requests = session.add_consent(message)
            told = set(requests)
            for ready, request in requests.items():
                self._send(self._edge_of(attempt, ready), request)
        else:
            assert isinstance(message, UnmaskShares)
            counts = session.add_unmask(message)
            self._mark(attempt, edge, device, counts)
            if not session.is_ready and not session.missing():
                raise SecureError("few", session.explain())  # all have said what they can
        if counts:
            book.heard[device] = edge
        if self._go_on(attempt):
            return False
        if device not in told:
            answer = session.answer(device)
            if answer is not None:
                self._send(edge, answer)
        return self.is_ready(attempt)

    @staticmethod
    def _mark(attempt: Attempt, edge: int, device: int, counts: bool) -> None:
        """Notes a device whose shares count and came through an edge that did not task it."""
        share, strayed = attempt.shares.get(edge), attempt.book.strayed
        if counts and (share is None or device not in share.devices) and device not in strayed:
            strayed.append(device)

    def is_ready(self, attempt: Attempt) -> bool:
        """Whether the sum can be opened, and no program is doing that yet."""
        return self._of(attempt).is_ready and not attempt.book.ticket

    def _go_on(self, attempt: Attempt) -> bool:
        """Closes a step that all devices have taken, or shortens it; gives whether it closed."""
        session, book = self._of(attempt), attempt.book
        phase, missing = book.server.phase, len(session.missing())
        if phase not in (Phase.KEYS, Phase.SHARES):
            return False
        if not missing:
            self._close(attempt)
            return True
        asked = len(book.server.asked if phase is Phase.KEYS else book.server.members)
        plan = self.plan.secure
        assert plan is not None
        if missing <= plan.dropout * asked:
            began = book.ended_ns[-1] if book.ended_ns else attempt.opened_ns
            now = self.now
            ends = now + max(GRACE_NS, now - began)
            if ends < book.step_ends_ns:
                book.step_ends_ns = ends
                if not book.untold:
                    self._set_timer(attempt, ends)
        return False

    def step(self, attempt: Attempt) -> None:
        """The step's timer has fired: goes on without missing devices, or asks them again.

        Raises SecureError when the session cannot go on.
        """
        book = attempt.book
        if book.untold and not book.ticket:
            self._push_rest(attempt)
        if book.server.phase is Phase.MASKS or book.ticket or book.untold:
            return
        if book.server.phase is Phase.UNMASKING and self.now < book.step_ends_ns:
            self._push_again(attempt)
        elif self.now >= book.step_ends_ns:
            self._close(attempt)

    def _close(self, attempt: Attempt) -> None:
        session, book = self._of(attempt), attempt.book
        if book.server.phase is Phase.UNMASKING:
            raise SecureError("few", session.explain())
        book.ended_ns.append(self.now)
        asked = len(book.server.members or book.server.asked)
        if book.server.phase is Phase.KEYS:
            told = list(session.close_keys())
            self._wait(attempt, SHARES_PART)
        else:
            self.cancel_timer(timer_of(attempt))
            told = list(session.close_shares())
        self._push(attempt, told)
        self._note(attempt, asked, len(told))

    def is_early(self, attempt: Attempt) -> bool:
        """Whether no device can have masked an update yet."""
        book = attempt.session
        return book is not None and book.server.phase in (Phase.NEW, Phase.KEYS, Phase.SHARES)

    def outsiders(self, attempt: Attempt, devices: Iterable[int]) -> list[int]:
        """Devices of a sum that have no part in the session: their masks cannot be removed."""
        if attempt.session is None or attempt.book.server.phase is not Phase.MASKS:
            return []
        session = self._of(attempt)
        return sorted(d for d in devices if not session.has_part(d))

    def spoilers(self, attempt: Attempt) -> list[int]:
        """Members whose shares no other member can open."""
        if attempt.book.server.phase is not Phase.UNMASKING:
            return []
        homes = {d: edge for edge, share in attempt.shares.items() for d in share.devices}
        for device in attempt.book.strayed:
            homes.pop(device, None)
        return self._of(attempt).spoilers(homes)

    def survivors(self, attempt: Attempt) -> None:
        """The sums are in: asks the devices in them to sign that.

        Raises SecureError when the masks of so few cannot be removed.
        """
        session, book = self._of(attempt), attempt.book
        if book.server.phase is not Phase.MASKS:
            raise SecureError("few", session.explain())
        book.ended_ns.append(self.now)
        told = session.survivors(attempt.unused)
        book.tries = 0
        book.step_ends_ns = self.now + self.plan.timeout_ns // UNMASK_PART
        self._repeat(attempt)
        self._push(attempt, list(told))
        self._note(attempt, _count(book.server.sharers), len(told))

    def program(self, attempt: Attempt) -> tuple[Any, ...]:
        """Arguments of `unmask`: the sum, keys of masks, their suite, and the ring plan for noise.

        Raises SecureError when the devices' shares do not fit.
        """
        plan = self.plan
        assert plan.secure is not None and attempt.total is not None
        keys = self._of(attempt).keys()
        self.cancel_timer(timer_of(attempt))
        ring = ring_of(self.plan, self.state, attempt)
        noised = (ring,) if ring.central else ()
        return attempt.total, keys, plan.secure.suite, *noised

    def end(self, attempt: Attempt, why: str = "") -> None:
        """Drops the session, sends its devices RoundClosed, and records the result.

        why: the reason of a failure.
        """
        book = attempt.session
        if book is None:
            return
        session, server = self._of(attempt), book.server
        if server.phase in (Phase.MASKS, Phase.UNMASKING):
            for device in server.members:
                if session.has_part(device):
                    over = _closed(server.session, device)
                    self._send(self._edge_of(attempt, device), over)
        self.cancel_timer(timer_of(attempt))
        self._record(attempt, why)
        attempt.session = None

    def _note(self, attempt: Attempt, asked: int, devices: int) -> None:
        """Records the step that begins, with how many devices, and how many were silent."""
        self.record(
            "session_step",
            run=self.plan.run,
            round=attempt.round,
            attempt=attempt.attempt,
            phase=attempt.book.server.phase.value,
            devices=devices,
            silent=asked - devices,
        )

    def _record(self, attempt: Attempt, why: str) -> None:
        book, now = attempt.book, self.now
        server = book.server
        times = [attempt.opened_ns, *book.ended_ns, now]
        steps = zip(("keys", "shares", "masks", "unmask"), times, times[1:], strict=False)
        self.record(
            "session",
            run=self.plan.run,
            round=attempt.round,
            attempt=attempt.attempt,
            why=why,
            asked=len(server.asked),
            members=len(server.members),
            shared=_count(server.sharers),
            summed=_count(server.survivors),
            unmasked=len(server.unmasks),
            refused=dict(sorted(server.refused.items())),
            seconds={name: (end - begin) / SECOND for name, begin, end in steps},
        )

    # ------------------------------------------------ what the run asks

    def target(self, attempt: Attempt, wanted: int) -> int:
        """Updates that are enough to release the other devices.

        A released device is a dropout for its neighbours, and so is one that drops out soon after:
        a quarter of the dropouts that the plan allows is kept for those.
        """
        book = attempt.session
        if book is None:
            return wanted
        server = book.server
        if server.session is None or server.phase is not Phase.MASKS:
            return len(server.asked) + 1  # no device can have masked yet
        place = layout(server.session, server.leaves, transcript.numbers(server.members))
        sharers = _count(server.sharers)
        if place.graph.complete:
            spare = sharers - 1 - place.threshold
        else:
            spare = int(server.session.dropout * place.members) - (place.members - sharers)
        kept = max(1, -(-spare // KEPT_PART))
        return max(wanted, sharers - max(0, spare - kept))

    # ------------------------------------------------ messages

    def _push(self, attempt: Attempt, devices: Sequence[int]) -> None:
        """Sends devices their next message: `PUSH_BYTES` at once, the others a moment later.

        A message is made when it is sent, since those of a thousand are many MiB.
        """
        session, room, told = self._of(attempt), PUSH_BYTES, 0
        for device in devices:
            if room <= 0:
                break
            told += 1
            message = session.answer(device)
            if message is not None:
                room -= message.ByteSize()
                self._send(self._edge_of(attempt, device), message)
        attempt.book.untold = list(devices[told:])
        if attempt.book.untold:
            self._set_timer(attempt, self.now + PUSH_EVERY_NS)

    def _push_rest(self, attempt: Attempt) -> None:
        book = attempt.book
        self._push(attempt, book.untold)
        if book.untold or book.server.phase is Phase.MASKS:
            return
        if book.server.phase is Phase.UNMASKING:
            self._repeat(attempt)
        else:
            self._set_timer(attempt, book.step_ends_ns)

    def _push_again(self, attempt: Attempt) -> None:
        self._repeat(attempt)
        self._push(attempt, self._of(attempt).missing())

    def _repeat(self, attempt: Attempt) -> None:
        book = attempt.book
        book.tries += 1
        pause = self.context.backoff.pause(book.tries)
        self._set_timer(attempt, min(self.now + pause, book.step_ends_ns))

    def _edge_of(self, attempt: Attempt, device: int) -> int:
        """The edge of the device's last message, else the edge that tasked it."""
        heard = attempt.book.heard.get(device)
        if heard is not None:
            return heard
        return next(e for e, share in attempt.shares.items() if device in share.devices)

    def _send(self, edge: int, message: Message) -> None:
        self.send(Node(Tier.EDGE, edge), message)

    def _dismiss(self, attempt: Attempt, edge: int, message: Any) -> None:
        """Notifies a device that the session goes on without it."""
        if attempt.book.server.phase is Phase.UNMASKING:
            self._send(edge, _closed(message, message.device))
            return
        no_cohort = Cohort(
            run=message.run, round=message.round, attempt=message.attempt, device=message.device
        )
        self._send(edge, no_cohort)

    # ------------------------------------------------ time

    def _wait(self, attempt: Attempt, part: int) -> None:
        ends = self.now + self.plan.timeout_ns // part
        attempt.book.step_ends_ns = ends
        self._set_timer(attempt, ends)

    def _set_timer(self, attempt: Attempt, at: int) -> None:
        self.set_timer(timer_of(attempt), at)


def turned_away(message: Any) -> RoundClosed:
    """The answer to a message of a session that is over."""
    return _closed(message, message.device)


def timer_of(attempt: Attempt) -> str:
    """The name of the timer of an attempt's session."""
    return f"session/{attempt.round}/{attempt.attempt}"


def _closed(attempt: Any, device: int) -> RoundClosed:
    return RoundClosed(run=attempt.run, round=attempt.round, attempt=attempt.attempt, device=device)


def _count(bitmap: bytes) -> int:
    return sum(byte.bit_count() for byte in bitmap)
