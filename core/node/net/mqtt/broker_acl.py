"""The brokers' access lists, made from the one table of who may say what where
(`core/node/identity/pki/roles.py`). What the table does not allow is denied.

A broker that authenticates by certificate has the common name as the user name: `device-5`.

mosquitto knows no roles. A `pattern` line holds for every user, with `%u` for the name: so devices,
the many, are patterns. Edges and the coordinator, the few, are listed by name beforehand: a name is
of no use to who has no certificate for it. A device's patterns hold for an edge as well: below
`device/edge-3`, where nobody listens (a topic whose parts contradict each other is refused), and
for reading homes, which are no secret.

EMQX tells roles apart by the name, so its list needs no names. It also lets clients have no message
retained but homes (`{retain, false}`, from EMQX 5.1.1 on). mosquitto 2 has no such rule: there only
`memory_limit` bounds what a client has retained (`core/node/net/mqtt/broker.py`).
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
