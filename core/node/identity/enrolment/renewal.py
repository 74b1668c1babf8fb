"""Renewing a certificate before it ends, for as long as a node runs.

A certificate is renewed when two thirds of its life are over (RFC 7030 leaves the time to the
client; two thirds is what ACME clients do). With 30 days that leaves ten days of tries to a node
whose coordinator is away. The moment is spread over a tenth of the life, so that a fleet that
joined in one afternoon does not renew in one. After a failure the pauses double, up to an hour.

A refusal is not a failure of the network: a revoked node receives it, logs it and stops asking.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ....protocol.ports import Rng
from ....wire.enrolment_pb2 import EnrolReply
from ....wire.link_pb2 import RenewalAnswer, RenewalAsk
from ..pki import certificates
from ..pki.identity_folder import IdentityFolder, NodeFacts
from .joining import CALL_S, REPLY_BYTES_MAX, refused
from .renewal_messages import make_ask, read_answer

if TYPE_CHECKING:
    from ....protocol.ports import Node

log = logging.getLogger("delian.identity")

RETRY_S, RETRY_S_MAX = 60, 3600
SPREAD = 10  # renewals are spread over one part in so many of what is left
LOOK_AGAIN_S = 6 * 3600  # timers do not count the time that a machine sleeps

#: Asks for a certificate, with a PKCS #10 request (PEM) for the new key.
Renew = Callable[[bytes], Awaitable[EnrolReply]]


class RenewalRefused(certificates.IdentityError):
    """The authority does not renew this certificate: it was revoked, or has ended."""


@dataclass(frozen=True, slots=True)
class RenewalPolicy:
    """When to try. Seconds."""

    retry_s: int = RETRY_S
    retry_s_max: int = RETRY_S_MAX
    spread: int = SPREAD

    def first(self, facts: NodeFacts, chance: float) -> float:
        """Unix time of the first try. chance: in [0, 1), fixed for a certificate."""
        left = max(0, facts.not_after - facts.renew_at)
        return facts.renew_at + chance * left / self.spread

    def pause(self, failures: int) -> int:
        """Seconds to wait after the `failures`-th failure in a row, from 1."""
        assert failures >= 1
        return int(min(self.retry_s << min(failures - 1, 16), self.retry_s_max))


class Renewer:
    """Keeps the identity in a folder alive.

    renew: makes the call (`renew_call`). renewed: called with each new certificate, so that links
    reconnect with it. chance: spreads nodes over time.
    """

    def __init__(
        self,
        folder: IdentityFolder,
        renew: Renew,
        renewed: Callable[[certificates.PeerIdentity], None],
        rng: Rng,
        *,
        policy: RenewalPolicy | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._folder = folder
        self._renew = renew
        self._renewed = renewed
        self._rng = rng
        self._policy = policy or RenewalPolicy()
        self._clock = clock
        self._now = asyncio.Event()
        self.failures = 0  # in a row

    def soon(self) -> None:
        """Try at once: an operator asked, or the clock was set."""
        self._now.set()

    def again(self) -> None:
        """Try at once if the last try failed: there is a connection again."""
        if self.failures:
            self._now.set()

    async def run(self) -> None:
        """Until it is cancelled, or the coordinator refuses for good: raises RenewalRefused."""
        while True:
            facts = await asyncio.to_thread(self._folder.facts)
            chance = self._rng.unit("renewal", facts.number, facts.not_after)
            due = self._policy.first(facts, chance)
            if not await self._wait(due - self._clock()):
                continue
            while not await self.once():
                await self._wait(self._policy.pause(self.failures))

    async def once(self) -> bool:
        """One try. False: it failed, and may go better later. Raises RenewalRefused."""
        try:
            facts = await asyncio.to_thread(self._folder.facts)
            if facts.not_after < self._clock():
                raise RenewalRefused("the certificate has ended", "join again with a new token")
            key = await asyncio.to_thread(self._folder.pending_key)
            reply = await self._renew(certificates.certificate_request(key))
            identity = await asyncio.to_thread(self._folder.accept, key, reply)
        except RenewalRefused as refusal:
            log.error("renewal refused", extra={"why": refusal.message})
            raise
        except (certificates.IdentityError, OSError, TimeoutError) as error:
            self.failures += 1
            log.warning("renewal failed", extra={"why": str(error), "failures": self.failures})
            return False
        self.failures = 0
        log.info("certificate renewed", extra={"not_after": identity.not_after})
        self._renewed(identity)
        return True

    async def _wait(self, seconds: float) -> bool:
        """Whether the time has come. False: look again, since clocks are set and machines sleep."""
        self._now.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(max(0.0, seconds), LOOK_AGAIN_S)):
                await self._now.wait()
            return True
        return seconds <= LOOK_AGAIN_S


async def renew_call(
    address: str,
    node: Node | None,
    material: certificates.TlsMaterial,
    request: bytes,
    timeout_s: float = CALL_S,
) -> EnrolReply:
    """Asks the server at "host:port" for a new certificate.

    node: the cloud, which passes the ask on; None: the authority itself. material: what the node
    has now. request: PKCS #10, PEM. Raises RenewalRefused and IdentityError.
    """
    import grpc

    from ....wire import enrolment_pb2_grpc

    federation = material.identity().federation
    options = [
        *(
            certificates.authority_options(federation)
            if node is None
            else certificates.channel_options(federation, node)
        ),
        ("grpc.max_receive_message_length", REPLY_BYTES_MAX),
    ]
    ask = await asyncio.to_thread(make_ask, material, request)
    async with grpc.aio.secure_channel(
        address, certificates.channel_credentials(material), options=options
    ) as channel:
        stub = enrolment_pb2_grpc.IdentityStub(channel)
        try:
            answer = await stub.Renew(ask, timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            told = refused(error, "renew the certificate")
            if error.code() in (
                grpc.StatusCode.PERMISSION_DENIED,
                grpc.StatusCode.UNAUTHENTICATED,
            ):
                raise RenewalRefused(told.message, "join again with a new token") from None
            raise told from None
    return await asyncio.to_thread(reply_of, answer, ask, material)


def reply_of(
    answer: RenewalAnswer, ask: RenewalAsk, material: certificates.TlsMaterial
) -> EnrolReply:
    """The reply that an answer carries.

    Raises RenewalRefused where the authority has refused under its signature, and IdentityError
    where the answer proves nothing.
    """
    reply, refusal = read_answer(answer, ask, certificates.load_certificate(material.authority))
    if reply is None:
        raise RenewalRefused(f"the authority says: {refusal}", "join again with a new token")
    return reply
