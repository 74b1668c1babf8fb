"""The brokers' access lists, made from the table of permissions.

The table is in `core/node/identity/pki/roles.py`. What it does not allow is denied.
"""

from __future__ import annotations

from collections.abc import Iterable

from ....protocol.ports import CLOUD, EDGES_MAX, Node, Tier
from ...identity.pki.certificates import Role, check_federation
from ...identity.pki.roles import TOPICS, TopicRule, filter_of
from .topics import name_of


def mosquitto(federation: str, edges: Iterable[int]) -> str:
    """An `acl_file` for mosquitto. edges: the numbers that edges have or will have."""
    check_federation(federation)
    numbers = sorted(set(edges))
    assert all(number > 0 for number in numbers) and len(numbers) <= EDGES_MAX
    lines = [f"# Federation {federation}; written by `delian broker acl`."]
    lines += [
        f"pattern {_access(rule)} {filter_of(rule, federation, '%u')}"
        for rule in _rules(Role.DEVICE)
    ]
    for node in (CLOUD, *(Node(Tier.EDGE, number) for number in numbers)):
        name = name_of(node)
        lines += ["", f"user {name}"]
        lines += [
            f"topic {_access(rule)} {filter_of(rule, federation, name)}"
            for rule in _rules(Role(node.tier.value))
        ]
    return "\n".join(lines) + "\n"


def emqx(federation: str) -> str:
    """An `acl.conf` for EMQX.

    Its listener must take the certificate's common name as the user name (`peer_cert_as_username =
    cn`), and `authorization.no_match` should be `deny`.
    """
    check_federation(federation)
    lines = [f"%% Federation {federation}; written by `delian broker acl`."]
    for role in (Role.DEVICE, Role.EDGE, Role.CLOUD):
        who = f'{{username, {{re, "^{role.value}-[0-9]+$"}}}}'
        for rule in _rules(role):
            action = {"read": "subscribe", "write": "publish", "readwrite": "all"}[_access(rule)]
            if rule.publish and not rule.retain:
                assert not rule.read  # of a rule for both, EMQX would read less too
                action = "{publish, [{retain, false}]}"
            text = filter_of(rule, federation, "${username}")
            lines.append(f'{{allow, {who}, {action}, ["{text}"]}}.')
    lines.append("{deny, all}.")
    return "\n".join(lines) + "\n"


def _rules(role: Role) -> list[TopicRule]:
    return [rule for rule in TOPICS if rule.role is role]


def _access(rule: TopicRule) -> str:
    """As mosquitto calls it."""
    return {(True, True): "readwrite", (True, False): "read"}.get(
        (rule.read, rule.publish), "write"
    )
