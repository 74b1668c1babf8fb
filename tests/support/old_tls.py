"""Handshakes of TLS 1.3 and 1.2 against gRPC's server, and of its client against a server of 1.2.
Run by test_certificates.py in a process of its own; prints how each ended.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
from delian.core.node.identity.pki import certificates as c
from delian.core.protocol.ports import Node, Tier

WAIT_S = 20.0
folder = Path(sys.argv[1])


def files(name):
    return c.TlsFiles(folder / f"{name}.key", folder / f"{name}.pem", folder / "ca.pem")


def handshake(port, version):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.minimum_version = context.maximum_version = version
    context.load_cert_chain(files("device").certificate, files("device").key)
    context.set_alpn_protocols(["h2"])
    try:
        with (
            socket.create_connection(("127.0.0.1", port), WAIT_S) as raw,
            context.wrap_socket(raw) as tls,
        ):
            return tls.version()
    except (ssl.SSLError, ConnectionError):
        return "refused"


server = grpc.server(ThreadPoolExecutor(1))
port = server.add_secure_port("127.0.0.1:0", c.server_credentials(files("edge").read()))
server.start()
print(handshake(port, ssl.TLSVersion.TLSv1_3))
print(handshake(port, ssl.TLSVersion.TLSv1_2))
server.stop(0).wait()

old = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_2
old.load_cert_chain(files("edge").certificate, files("edge").key)
old.set_alpn_protocols(["h2"])
listener = socket.create_server(("127.0.0.1", 0))
agreed = []


def serve():
    raw, _ = listener.accept()
    raw.settimeout(WAIT_S)
    try:
        with old.wrap_socket(raw, server_side=True) as tls:
            agreed.append(tls.version())
    except OSError:
        raw.close()


thread = threading.Thread(target=serve, daemon=True)
thread.start()
options = list(c.channel_options("farm", Node(Tier.EDGE, 1)))
target = f"127.0.0.1:{listener.getsockname()[1]}"
with grpc.secure_channel(target, c.channel_credentials(files("device").read()), options) as channel:
    with contextlib.suppress(grpc.RpcError):
        channel.unary_unary("/a/b")(b"", timeout=WAIT_S)
    thread.join(WAIT_S)
print(agreed[0] if agreed else "no-call")
