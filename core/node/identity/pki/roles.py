"""Roles and their permissions.

This file owns the answer, for calls, topics and messages; what it does not allow is refused.

- `CALLS`: which role may make which call, at which tier's server. A test reads the services from
  the contract and fails while one of their calls has no row.
- `TOPICS`: what which role may publish and read over MQTT. Brokers' access lists are made from it,
  and a test holds every topic of the transport against it.
- `MESSAGES`: which messages a tier may send to which. The machines check the same, and more: what a
  peer may say *now*. This table keeps the rest from ever reaching them.
- `PASSES_ON`: the nodes for which a node may bring the renewal of a certificate to the next one.

`Guard` applies the first table to a peer, after the questions that come before it: is the peer of
this federation, is its certificate still good, is it on the deny list. TLS asks some of them when a
connection is made; a connection may live for months, so the guard asks them at each call, and
servers of long streams ask it again while they last (`Guard.refusal`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from ....protocol.ports import Node, Tier
from ..authority.deny_list import DenyList
from .certificates import ADMINS, OPERATORS, PeerIdentity, Role

_LINK, _ENROLMENT = "/delian.wire.Link/", "/delian.wire.Enrolment/"
_IDENTITY, _OPERATOR = "/delian.wire.Identity/", "/delian.wire.Operator/"
_SUBGRAPHS, _AUTHORITY = "/delian.wire.Subgraphs/", "/delian.wire.Authority/"

DEVICE, EDGE, CLOUD = Role.DEVICE, Role.EDGE, Role.CLOUD
_NODES_BELOW = frozenset({DEVICE, EDGE})
_ENROLLED = frozenset({DEVICE, EDGE, CLOUD, *OPERATORS})
_VIEWERS, _RUNNERS = frozenset(OPERATORS), ADMINS | {Role.RUNNER}
#: An owner, for the nodes of the own site; the service looks at the site.
_OWNERS = ADMINS | {Role.OWNER}
_ANYBODY = frozenset(Role)
_DEVICES = frozenset({DEVICE})
_COORDINATOR = frozenset({CLOUD})
#: Issuing authorities, at the root authority (`may_ask_authority`).
_ISSUERS = frozenset({Role.AUTHORITY})

#: The server: a tier, or `Role.AUTHORITY`.
Here: TypeAlias = Tier | Role

#: (server, call) -> the roles that may make it.
CALLS: Mapping[tuple[Here, str], frozenset[Role]] = {
    # An edge serves devices, and nothing else.
    (Tier.EDGE, _LINK + "Connect"): _DEVICES,
    (Tier.EDGE, _LINK + "Push"): _DEVICES,
    (Tier.EDGE, _LINK + "Pull"): _DEVICES,
    # The coordinator serves edges, and devices at its own edge 0.
    (Tier.CLOUD, _LINK + "Connect"): _NODES_BELOW,
    (Tier.CLOUD, _LINK + "Push"): _NODES_BELOW,
    (Tier.CLOUD, _LINK + "Pull"): _NODES_BELOW,
    # Parts of programs run for the tier below; the coordinator is a home to devices as well.
    (Tier.EDGE, _SUBGRAPHS + "Run"): _DEVICES,
    (Tier.CLOUD, _SUBGRAPHS + "Run"): _NODES_BELOW,
    (Tier.CLOUD, _IDENTITY + "Renew"): _NODES_BELOW,
    (Tier.CLOUD, _IDENTITY + "Denied"): _ENROLLED,
    (Tier.CLOUD, _IDENTITY + "Log"): _ENROLLED,
    # What a viewer sees: no weights of models.
    (Tier.CLOUD, _OPERATOR + "ListRuns"): _VIEWERS,
    (Tier.CLOUD, _OPERATOR + "GetRun"): _VIEWERS,
    (Tier.CLOUD, _OPERATOR + "WatchRun"): _VIEWERS,
    (Tier.CLOUD, _OPERATOR + "ListNodes"): _VIEWERS,
    (Tier.CLOUD, _OPERATOR + "GetNode"): _VIEWERS,
    (Tier.CLOUD, _OPERATOR + "ListModels"): _VIEWERS,
    (Tier.CLOUD, _OPERATOR + "GetModel"): _VIEWERS,
    (Tier.CLOUD, _OPERATOR + "Audit"): _VIEWERS,
    (Tier.CLOUD, _OPERATOR + "Submit"): _RUNNERS,
    (Tier.CLOUD, _OPERATOR + "ControlRun"): _RUNNERS,
    (Tier.CLOUD, _OPERATOR + "CloneRun"): _RUNNERS,
    (Tier.CLOUD, _OPERATOR + "PutBlob"): _RUNNERS,
    (Tier.CLOUD, _OPERATOR + "GetBlob"): _RUNNERS,
    (Tier.CLOUD, _OPERATOR + "DrainNode"): _OWNERS,
    (Tier.CLOUD, _OPERATOR + "RevokeNode"): _OWNERS,
    (Tier.CLOUD, _OPERATOR + "CreateToken"): _OWNERS,
    (Tier.CLOUD, _OPERATOR + "Promote"): ADMINS,
    (Tier.CLOUD, _OPERATOR + "Rollback"): ADMINS,
    # The authority. On a port of its own, where callers show no certificate: the token decides.
    (Role.AUTHORITY, _ENROLMENT + "Enrol"): _ANYBODY,
    # The coordinator brings the nodes' renewals, and its own.
    (Role.AUTHORITY, _IDENTITY + "Renew"): _COORDINATOR,
    (Role.AUTHORITY, _IDENTITY + "Denied"): frozenset({CLOUD, *OPERATORS}) | _ISSUERS,
    (Role.AUTHORITY, _IDENTITY + "Log"): frozenset({CLOUD, *OPERATORS}),
    (Role.AUTHORITY, _AUTHORITY + "Announce"): _COORDINATOR,
    (Role.AUTHORITY, _AUTHORITY + "Recall"): _COORDINATOR,
    (Role.AUTHORITY, _AUTHORITY + "Nodes"): _COORDINATOR,
    (Role.AUTHORITY, _AUTHORITY + "CreateToken"): _OWNERS,
    (Role.AUTHORITY, _AUTHORITY + "Revoke"): _OWNERS | _ISSUERS,  # issuers: their own nodes
    (Role.AUTHORITY, _AUTHORITY + "Audit"): _VIEWERS,
    (Role.AUTHORITY, _AUTHORITY + "Register"): _ISSUERS,
    (Role.AUTHORITY, _AUTHORITY + "Append"): _ISSUERS,
}

#: Calls of operators that change nothing by themselves. The coordinator records all others, with
#: the caller and the outcome (`cloud.service.call_records`). Only a recorded call uses a blob that
#: was put.
READS = frozenset(
    _OPERATOR + call
    for call in (
        "ListRuns",
        "GetRun",
        "WatchRun",
        "ListNodes",
        "GetNode",
        "ListModels",
        "GetModel",
        "Audit",
        "GetBlob",
        "PutBlob",
    )
)


def may_call(role: Role, here: Here, call: str) -> bool:
    """Whether a role may make a call ("/delian.wire.Link/Connect") at a server, `here`."""
    return role in CALLS.get((here, call), ())


def may_ask_authority(peer: PeerIdentity, authority: int) -> bool:
    """Whether a holder may use the service `Authority` of the authority of that number.

    0: the root. The coordinator may use that of each, operators that of the authority that issued
    their certificates, issuing authorities the root's.
    """
    if peer.tier is Role.AUTHORITY:
        return authority == 0 and peer.number > 0
    return peer.tier not in OPERATORS or peer.authority == authority


# ---------------------------------------------------------------- topics


@dataclass(frozen=True, slots=True)
class TopicRule:
    """What one role may do with the topics that match a filter."""

    role: Role
    filter: str
    """Below `delian/v1/{federation}/`; `{me}` is the holder's common name, `+` any one level."""
    publish: bool = False
    read: bool = False
    #: Whether the broker may keep what is published. Brokers have no limit on how many topics one
    #: client fills, so only homes, one topic a node, are retained.
    retain: bool = False


#: What a node says to an upper node (`core.node.net.mqtt.topics.Kind`).
_UPWARDS = ("birth", "death", "envelope", "part")

#: core/node/net/mqtt/topics.py says what the topics are. {lower}/{name}/{up|down}/{kind}/{upper}
TOPICS: tuple[TopicRule, ...] = (
    # A device publishes below its own name, and reads where its upper nodes are.
    *(TopicRule(DEVICE, f"device/{{me}}/up/{kind}/+", publish=True) for kind in _UPWARDS),
    TopicRule(DEVICE, "device/{me}/down/+/+", read=True),
    TopicRule(DEVICE, "edge/+/up/home", read=True),
    TopicRule(DEVICE, "cloud/+/up/home", read=True),
    # An edge does so too; to devices it is the upper node, in what ends in its name.
    *(TopicRule(EDGE, f"edge/{{me}}/up/{kind}/+", publish=True) for kind in _UPWARDS),
    TopicRule(EDGE, "edge/{me}/down/+/+", read=True),
    TopicRule(EDGE, "cloud/+/up/home", read=True),
    TopicRule(EDGE, "edge/{me}/up/home", publish=True, retain=True),
    TopicRule(EDGE, "edge/{me}/up/home", read=True),
    TopicRule(EDGE, "device/+/up/+/{me}", read=True),
    TopicRule(EDGE, "device/+/down/+/{me}", publish=True),
    # The cloud, which is edge 0 as well.
    TopicRule(CLOUD, "cloud/{me}/up/home", publish=True, retain=True),
    TopicRule(CLOUD, "cloud/{me}/up/home", read=True),
    TopicRule(CLOUD, "device/+/up/+/{me}", read=True),
    TopicRule(CLOUD, "device/+/down/+/{me}", publish=True),
    TopicRule(CLOUD, "edge/+/up/+/{me}", read=True),
    TopicRule(CLOUD, "edge/+/down/+/{me}", publish=True),
)

_PREFIX = "delian/v1"


def filter_of(rule: TopicRule, federation: str, me: str) -> str:
    """A rule's filter for one holder, as MQTT has it."""
    return f"{_PREFIX}/{federation}/{rule.filter.replace('{me}', me)}"


# ---------------------------------------------------------------- messages

#: What transports say to one another, and parts of programs where they travel in envelopes.
_TRANSPORT = frozenset({"offer", "want", "goodbye", "subgraph"})
#: Of secure aggregation: from devices through edges to the cloud, and back.
_SESSION_UP = frozenset({"key_bundle", "sealed_shares", "consent", "unmask_shares"})
_SESSION_DOWN = frozenset({"cohort", "delivery", "survivors", "unmask_request"})

#: (sender's tier, receiver's tier) -> fields of Envelope.message that it may send.
MESSAGES: Mapping[tuple[Tier, Tier], frozenset[str]] = {
    (Tier.DEVICE, Tier.EDGE): _TRANSPORT
    | {"check_in", "fetch_blob", "upload", "failure"}
    | _SESSION_UP
    | {"renewal_ask", "denied_ask"},
    (Tier.EDGE, Tier.DEVICE): _TRANSPORT
    | {"accept", "reject", "task", "blob", "upload_ack", "round_closed"}
    | _SESSION_DOWN
    | {"renewal_answer", "denied_page"},
    (Tier.EDGE, Tier.CLOUD): _TRANSPORT
    | {"edge_hello", "fetch_blob", "edge_progress", "edge_sum", "help_sum"}
    | _SESSION_UP
    | {"renewal_ask", "denied_ask"},
    (Tier.CLOUD, Tier.EDGE): _TRANSPORT
    | {"pace", "edge_task", "blob", "flush", "edge_sum_ack", "round_closed", "help_request"}
    | _SESSION_DOWN
    | {"renewal_answer", "denied_page"},
}

#: A tier that asks for a renewal -> the tiers for whose nodes it may pass one on. For itself every
#: node may ask; that the named node has asked at all is proved by its own key
#: (`renewal_messages.py`).
PASSES_ON: Mapping[Tier, frozenset[Tier]] = {
    Tier.EDGE: frozenset({Tier.DEVICE}),
    Tier.CLOUD: frozenset({Tier.DEVICE, Tier.EDGE}),
}


def may_send(sender: Tier, to: Tier, field: str) -> bool:
    """Whether a node of one tier may send a message (its field of Envelope) to one of another."""
    return field in MESSAGES.get((sender, to), ())


def may_ask_for(sender: Node, node: Node) -> bool:
    """Whether a renewal that `sender` brings may be one for `node`."""
    return sender == node or node.tier in PASSES_ON.get(sender.tier, ())


def may_send_blob(sender: Tier, to: Tier) -> bool:
    """Whether a node may send a blob: the cloud to edges, an edge to devices."""
    return may_send(sender, to, "blob")


# ---------------------------------------------------------------- the guard


class Guard:
    """Says of each call whether this server answers it.

    denied: gives the newest deny list that is known here; called often, so it must be quick.
    authority: the number of the authority that serves; the root: 0.
    """

    def __init__(
        self,
        federation: str,
        here: Here,
        denied: Callable[[], DenyList] = DenyList,
        clock: Callable[[], float] = time.time,
        authority: int = 0,
    ) -> None:
        self.federation = federation
        self.here = here
        self._authority = authority
        self._denied = denied
        self._clock = clock

    def __call__(self, peer: PeerIdentity | None, call: str) -> bool:
        """Whether the peer (None: it showed no certificate) may make the call."""
        return self.refusal(peer, call) is None

    def refusal(self, peer: PeerIdentity | None, call: str) -> str | None:
        """Why not; None: it may. The reasons are few and fixed, for logs and counters."""
        if peer is not None and (reason := self.distrust(peer)) is not None:
            return reason
        role = Role.NOBODY if peer is None else peer.tier
        ours = peer is None or may_ask_authority(peer, self._authority)
        if call.startswith(_AUTHORITY) and not ours:
            return "another authority's"
        return None if may_call(role, self.here, call) else "not allowed"

    def distrust(self, peer: PeerIdentity) -> str | None:
        """Why a peer is not trusted at all (any more); None: it is."""
        if peer.federation != self.federation:
            return "other federation"
        if peer.not_after < self._clock():
            return "certificate expired"
        if self._denied().denies(peer):
            return "revoked"
        return None
