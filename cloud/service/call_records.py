"""The record of what operators ask for and what came of it.

A call that may change something (all but `roles.READS`) is an entry "call" of the signed chain
(`cloud.service.audit`) before it has an effect, and an entry "outcome" before it is answered: an
effect without a record cannot be, and nothing is acknowledged whose outcome is not durable. A call
without an outcome is one during which the coordinator ended. A call that the table of roles refuses
never comes here: it is counted and logged by the door (`core.node.net.grpc.grpc_guard`).
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from google.protobuf.message import Message

from ...core.common.errors import DelianError
from ...core.node.identity.pki.certificates import (
    IdentityError,
    PeerIdentity,
    Role,
    identity_of_context,
)
from ...core.node.net.grpc.grpc_guard import CLAIM
from ...core.node.storage.codec import node_of
from ...core.wire import link_pb2
from . import audit
from .audit_log import AuditLog

T = TypeVar("T")

#: Of one fact about a call: a name or number.
FACT_CHARS_MAX = 128


@dataclass(frozen=True, slots=True)
class Caller:
    """An operator."""

    name: str
    role: Role
    serial: int = 0
    """Of the certificate; zero where there are none."""
    #: None where there are no certificates.
    identity: PeerIdentity | None = None


def caller_of(context: Any) -> Caller:
    """The caller of a request."""
    try:
        identity = identity_of_context(context.auth_context())
    except IdentityError:
        return Caller("", Role.NOBODY)
    if identity is not None:
        return Caller(identity.common_name, identity.tier, identity.serial, identity)
    name = next((str(v) for k, v in context.invocation_metadata() or () if k == CLAIM), "")
    role = name.rpartition("-")[0]
    return Caller(name, Role(role) if role in list(Role) else Role.NOBODY)


def own_site(context: Any) -> str | None:
    """The site whose nodes a caller sees and decides about; None: all."""
    identity = caller_of(context).identity
    return identity.site if identity is not None and identity.tier is Role.OWNER else None


def _node(request: Any) -> str:
    node = node_of(request.node)
    return f"{node.tier.value}-{node.number}"


#: Labels of a question's steps (`core.node.service.live_sites`).
_ASKED = ("question", "table", "where")
#: What the record has of a request, in addition to its digest.
_FACTS: Mapping[str, Callable[[Any], Mapping[str, object]]] = {
    "Submit": lambda r: {
        "name": r.plan.name,
        "rounds": r.plan.rounds,
        "bundle": r.plan.bundle.digest.hex(),
        "secure": r.plan.HasField("secure"),
        **{name: r.plan.labels[name] for name in _ASKED if name in r.plan.labels},
    },
    "CloneRun": lambda r: {"run": r.run, "from_newest": r.from_newest},
    "ControlRun": lambda r: {"run": r.run, "action": r.action},
    "DrainNode": lambda r: {"node": _node(r), "undo": r.undo},
    "RevokeNode": lambda r: {"node": _node(r)},
    "Revoke": lambda r: {"name": r.name, "why": r.why},
    "CreateToken": lambda r: {
        "tier": node_of(link_pb2.Address(tier=r.tier)).tier.value,
        "uses": r.uses or 1,
        "valid_s": r.valid_s,
        "site": r.site,
        "approval": hashlib.sha256(r.approval).hexdigest() if r.approval else "",
    },
    "Promote": lambda r: {"model": f"{r.model.run}/{r.model.round}", "alias": r.alias},
    "Rollback": lambda r: {"alias": r.alias},
}
#: What it says of an answer.
_RESULTS: Mapping[str, Callable[[Any], Mapping[str, object]]] = {
    "Submit": lambda a: {"run": a.run},
    "CloneRun": lambda a: {"run": a.run},
}


class CallRecord:
    """Records calls. log: None: nothing is recorded, as in tests without a store."""

    def __init__(self, log: AuditLog | None) -> None:
        self._log = log

    async def during(
        self, caller: Caller, method: str, request: Message, work: Callable[[], Awaitable[T]]
    ) -> T:
        """Does `work` between the two entries.

        Raises what it raises, and StoreError: before `work` began, or when its outcome could not be
        recorded.
        """
        log = self._log
        if log is None:
            return await work()
        told = {
            "by": caller.name,
            "role": caller.role.value,
            "serial": f"{caller.serial:x}",
            "method": method,
            "request": hashlib.sha256(request.SerializeToString(deterministic=True)).hexdigest(),
            "facts": _shown(_FACTS[method], request),
        }
        call = await log.append(lambda at: audit.call_entry(told, *at, self._now_ms()))
        why, answer = "", None
        try:
            answer = await work()
            return answer
        except DelianError as fault:
            why = fault.message
            raise
        except TimeoutError:
            why = "the coordinator is too busy; the order may still be followed"
            raise
        except Exception as fault:
            why = type(fault).__name__
            raise
        finally:
            if why or answer is not None:  # not when it is cancelled: the process ends
                facts = {} if why else _shown(_RESULTS.get(method, lambda a: {}), answer)
                done = {"call": call, "ok": not why, "why": why, "facts": facts}
                await log.append(lambda at: audit.outcome_entry(done, *at, self._now_ms()))

    def _now_ms(self) -> int:
        return int(time.time() * 1000)


def _shown(facts: Callable[[Any], Mapping[str, object]], message: Any) -> dict[str, str]:
    try:
        found = facts(message)
    except DelianError as fault:  # a node or tier that cannot be
        found = {"malformed": fault.message}
    return {name: str(value)[:FACT_CHARS_MAX] for name, value in found.items()}
