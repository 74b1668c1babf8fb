"""What a broker that follows the table of topics lets a peer do; the tests' model of a broker."""

from __future__ import annotations

from collections.abc import Callable

from delian.core.node.identity.pki.certificates import PeerIdentity
from delian.core.node.identity.pki.roles import TOPICS, TopicRule, filter_of


def may_publish(peer: PeerIdentity | None, topic: str) -> bool:
    """Whether a peer may publish to a topic."""
    return "+" not in topic and _allowed(peer, topic, lambda rule: rule.publish)


def may_read(peer: PeerIdentity | None, topic_filter: str) -> bool:
    """Whether a peer may subscribe to a filter: everything that it matches must be allowed."""
    return _allowed(peer, topic_filter, lambda rule: rule.read)


def _allowed(peer: PeerIdentity | None, asked: str, right: Callable[[TopicRule], bool]) -> bool:
    if peer is None:
        return False
    return any(
        right(rule) and _covers(filter_of(rule, peer.federation, peer.common_name), asked)
        for rule in TOPICS
        if rule.role is peer.tier
    )


def _covers(allowed: str, asked: str) -> bool:
    ours, theirs = allowed.split("/"), asked.split("/")
    return len(ours) == len(theirs) and all(
        word != "#" and word != "" and (own == "+" or own == word)
        for own, word in zip(ours, theirs, strict=True)
    )
