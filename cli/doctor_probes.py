"""What `delian doctor` asks over the network: the coordinator, the other homes, the broker.

Clocks are compared by an answer that TLS has authenticated: `Identity.Denied` has the coordinator's
time, and the measured difference is certain to half the time that the call took. A clock that is so
wrong that TLS fails shows in the certificate that the server offers.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.common.errors import DelianError
from .doctor_checks import Finding, identity_folder, ok, warning, wrong
from .settings import Config

if TYPE_CHECKING:
    from ..core.node.identity.pki.certificates import TlsMaterial

REACH_S = 5.0
SKEW_WARNING_S = 30.0
SKEW_WRONG_S = 300.0
ECHO_S = 1.0  # how long a message that the broker must not pass on is waited for


def homes_of(config: Config, role: str) -> list[tuple[str, str, int, str]]:
    """Where a role connects.

    (tier, host:port, number, broker's URL), as configured or as enrolment said. Raises DelianError.
    """
    from ..core.node.identity.pki.identity_folder import IdentityFolder
    from ..core.node.service.hosting import parse_home

    if role == "operator":
        return [("cloud", config.operator.coordinator, 0, "")]
    if role == "edge" and config.edge.coordinator:
        return [("cloud", config.edge.coordinator, 0, "")]
    if role == "device" and config.device.homes:
        found = [parse_home(text) for text in config.device.homes]
        # A device calls the coordinator edge 0.
        return [
            ("edge" if h.node.number else "cloud", h.grpc, h.node.number, h.mqtt) for h in found
        ]
    own = IdentityFolder(identity_folder(config, role))
    if not own.exists():
        return []
    return [(h.node.tier.value, h.grpc, h.node.number, h.mqtt) for h in own.facts().homes]


async def probe(config: Config, role: str) -> list[Finding]:
    """All that a role needs of the network."""
    from ..core.node.identity.pki.identity_folder import IdentityFolder

    findings: list[Finding] = []
    if role == "authority":
        if above := config.authority.superior:
            findings.append(await reach("authority to root", above))
        return findings
    if role == "cloud" and config.cloud.authority:
        findings.append(await reach("cloud to authority", config.cloud.authority))
    section = getattr(config, role)
    own = IdentityFolder(identity_folder(config, role))
    try:
        material = own.material() if own.exists() and not section.insecure else None
        homes = homes_of(config, role) if role != "cloud" else []
    except DelianError:
        return findings  # the identity's own check reports it
    brokers: dict[str, Path | None] = {}
    for tier, grpc, number, mqtt in homes:
        name = f"{role} to {tier if tier == 'cloud' else f'{tier}-{number}'}"
        if grpc:
            findings.append(await reach(name, grpc))
            if findings[-1].todo == "" and tier == "cloud" and material is not None:
                findings += [f async for f in ask_coordinator(name, grpc, material)]
        if mqtt:
            brokers[mqtt] = getattr(section, "broker_authority", None)
    configured = getattr(section, "broker", None)
    if configured is not None and configured.url:
        brokers[configured.url] = configured.authority
    for url, authority in brokers.items():
        files = own.files() if material is not None else None
        findings += await ask_broker(f"{role} broker", url, files, authority)
    return findings


async def reach(name: str, address: str) -> Finding:
    """Whether something answers at host:port."""
    host, _, port = address.rpartition(":")
    try:
        _, writer = await asyncio.wait_for(
            asyncio.open_connection(host.strip("[]"), int(port)), REACH_S
        )
    except TimeoutError:
        return wrong(name, f"{address} does not answer", "does a firewall drop the packets?")
    except OSError as error:
        why = error.strerror or str(error)
        return wrong(name, f"cannot reach {address}: {why}", "is it running, is the address right?")
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return ok(name, f"{address} answers")


async def ask_coordinator(name: str, address: str, material: TlsMaterial) -> AsyncIterator[Finding]:
    """Whether the coordinator knows us, we it, and both the time."""
    import grpc

    from ..core.node.identity.enrolment.kept_deny_list import TIME_METADATA
    from ..core.node.identity.pki.certificates import channel_credentials, channel_options
    from ..core.protocol.ports import CLOUD
    from ..core.wire import enrolment_pb2_grpc, link_pb2

    options = channel_options(material.identity().federation, CLOUD)
    credentials = channel_credentials(material)
    async with grpc.aio.secure_channel(address, credentials, options=options) as channel:
        call = enrolment_pb2_grpc.IdentityStub(channel).Denied(
            link_pb2.DeniedAsk(), timeout=REACH_S
        )
        began, asked = time.monotonic(), time.time()
        try:
            await call
        except grpc.aio.AioRpcError as error:
            detail = (error.details() or error.code().name)[:200]
            if error.code() is grpc.StatusCode.PERMISSION_DENIED:
                yield wrong(f"{name} trust", f"the coordinator refuses us: {detail}", "join again")
                return
            why = await _offered(address, material)
            yield why or wrong(f"{name} trust", detail, "look at the coordinator's log")
            return
        took = time.monotonic() - began
        metadata = dict(await call.trailing_metadata() or ())
    yield ok(f"{name} trust", "it knows us, we know it")
    told = str(metadata.get(TIME_METADATA, ""))
    if told.isdigit():
        yield skew_finding(int(told) / 1000 - (asked + took / 2), took / 2)


def skew_finding(skew_s: float, uncertain_s: float) -> Finding:
    """What a difference of clocks means. skew_s: how far the coordinator's is ahead of ours."""
    ahead = "behind" if skew_s > 0 else "ahead of"
    text = f"{abs(skew_s):.1f} s {ahead} the coordinator's (within {uncertain_s:.1f} s)"
    todo = "set it by NTP: certificates and deadlines depend on it"
    if abs(skew_s) - uncertain_s > SKEW_WRONG_S:
        return wrong("clock", text, todo)
    if abs(skew_s) - uncertain_s > SKEW_WARNING_S:
        return warning("clock", text, todo)
    return ok("clock", text)


async def _offered(address: str, material: TlsMaterial) -> Finding | None:
    """What is wrong with the certificate that a server offers, as far as one can see."""
    from ..core.node.identity.enrolment.joining import shown_certificate
    from ..core.node.identity.pki import certificates as c

    try:
        shown = await shown_certificate(address, REACH_S)
        c.check_issued(shown, c.load_certificate(material.authority))
        c.check_time(shown)
        identity = c.identity_of(shown)
    except DelianError as error:
        return wrong("coordinator", f"{address}: {error.message}", error.hint or "is it ours?")
    if identity.tier is not c.Role.CLOUD:
        return wrong("coordinator", f"{identity.common_name} answers at {address}", "wrong address")
    return None


# ---------------------------------------------------------------- the broker


async def ask_broker(name: str, url: str, files: object, authority: Path | None) -> list[Finding]:
    """Whether the broker accepts us, supports MQTT 5, and enforces the access list.

    It must not forward what we publish on a topic that only others may write.
    """
    import aiomqtt

    from ..core.node.identity.pki import certificates as c
    from ..core.node.identity.pki.tls_contexts import client_context
    from ..core.node.net.mqtt.mqtt_client import BrokerAddress

    try:
        address = BrokerAddress.parse(url)
        context = None
        if isinstance(files, c.TlsFiles) and address.tls:
            context = client_context(files, authority)
        elif address.tls:
            return [wrong(name, f"{url} wants a certificate and there is none", "delian join -")]
        me = c.identity_of(files.read().certificate) if isinstance(files, c.TlsFiles) else None
    except DelianError as error:
        return [wrong(name, error.message, error.hint)]
    client = aiomqtt.Client(
        address.host,
        address.port,
        protocol=aiomqtt.ProtocolVersion.V5,
        tls_context=context,
        timeout=REACH_S,
        identifier=f"delian-doctor-{time.time_ns():x}",
    )
    try:
        async with client:
            findings = [ok(name, f"{url} accepts us and supports MQTT 5")]
            if me is not None and me.node is not None and context is not None:
                findings.append(await _ask_rules(name, client, me))
            return findings
    except (aiomqtt.MqttError, OSError) as error:
        todo = "is it running, does it support MQTT 5, does it trust the federation's CA?"
        return [wrong(name, f"{url}: {error}", todo)]


async def _ask_rules(name: str, client: object, me: object) -> Finding:
    import aiomqtt

    from ..core.node.identity.pki.certificates import PeerIdentity

    assert isinstance(client, aiomqtt.Client) and isinstance(me, PeerIdentity)
    base = f"delian/v1/{me.federation}/device/{me.common_name}-doctor"
    topic = f"{base}/down/envelope/edge-0-doctor"
    # No node has this name: a client that may read or write here may do so anywhere.
    try:
        await client.subscribe(f"{base}/down/+/+", qos=1)
        await client.publish(topic, b"delian doctor", qos=1)
        async with asyncio.timeout(ECHO_S):
            async for message in client.messages:
                if message.topic.value == topic:
                    return wrong(
                        f"{name} rules",
                        "it lets us publish and subscribe under a name that is not ours",
                        "give it the list of `delian broker acl`, and the certificate's common "
                        "name as user name",
                    )
    except (TimeoutError, aiomqtt.MqttError):
        pass
    return ok(f"{name} rules", "it keeps to the access list")


def run(config: Config, roles: list[str]) -> Iterator[Finding]:
    """All probes of the roles, one after the other."""

    async def everything() -> list[Finding]:
        return [finding for role in roles for finding in await probe(config, role)]

    yield from asyncio.run(everything())
