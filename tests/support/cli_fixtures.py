"""The `delian` command called in this process, and a coordinator that lets nodes in beside it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import sys
import threading

import pytest
from delian.cli import main as command


@pytest.fixture
def delian(monkeypatch, capsys, tmp_path):
    """Calls the command in an empty folder, without anybody's settings; gives (exit code, stdout,
    stderr), and JSON instead of stdout where `--json` is among the arguments and stdout is one
    object.
    """
    import os

    for name in list(os.environ):
        if name.startswith("DELIAN_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)

    def parsed(out):
        try:
            return json.loads(out)
        except ValueError:
            if out.count("\n") > 1:
                return out  # an object in each line
            raise

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["delian", *map(str, arguments)])
        code, root = 0, logging.getLogger()
        handlers, level = list(root.handlers), root.level
        try:
            command.main()
        except SystemExit as end:
            code = end.code or 0
        finally:  # a daemon's log would outlive the stream that it writes to
            root.handlers[:] = handlers
            root.setLevel(level)
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return code, parsed(out) if "--json" in arguments and out else out, err

    return call


@pytest.fixture
def coordinator():
    """Serves enrolment and identity of a CA's folder from a thread: gives both ports."""
    import grpc
    from delian.cloud.authority import enrolment as e
    from delian.cloud.authority.issuing import Issuing
    from delian.cloud.authority.local_authority import LocalAuthority
    from delian.cloud.service.identity_service import IdentityService
    from delian.core.node.identity.authority.authority import Authority, issue_to
    from delian.core.node.identity.authority.tokens import TokenBook
    from delian.core.node.identity.pki.certificates import Role, TlsMaterial, server_credentials
    from delian.core.node.identity.pki.identity_folder import HomeAddress
    from delian.core.node.identity.pki.roles import Guard
    from delian.core.protocol.ports import CLOUD, Tier
    from delian.core.wire import enrolment_pb2_grpc

    from support.file_registry import FileRegistry

    async def serve(folder, ready, clock):
        authority = Authority(folder)

        def made(role):
            key, issued = issue_to(authority, role, 0, ["127.0.0.1"])
            return TlsMaterial(key, issued.chain, authority.pem)

        material = made(Role.AUTHORITY)
        links = grpc.aio.server()
        port = links.add_secure_port("127.0.0.1:0", server_credentials(made(Role.CLOUD)))
        registry = FileRegistry(folder, lambda _: [HomeAddress(CLOUD, f"127.0.0.1:{port}")])
        issuing = Issuing(authority, registry, clock=clock)
        local = LocalAuthority(authority, issuing, lambda: material)
        guard = Guard(authority.federation, Tier.CLOUD, authority.denied, clock)
        identity = IdentityService(local, guard, local.page, local.log_page, clock=clock)
        enrolment_pb2_grpc.add_IdentityServicer_to_server(identity, links)
        await links.start()
        tokens = TokenBook(folder, authority.lock)
        service = e.EnrolmentService(issuing, tokens)
        server, enrolment = await e.serve_enrolment("127.0.0.1:0", material, service)
        end = asyncio.Event()
        ready(port, enrolment, asyncio.get_running_loop(), end)
        await end.wait()
        await server.stop(None)
        await links.stop(None)

    @contextlib.contextmanager
    def run(folder, clock=None):
        import time

        told, facts = threading.Event(), []

        def ready(*found):
            facts.extend(found)
            told.set()

        thread = threading.Thread(
            target=lambda: asyncio.run(serve(folder, ready, clock or time.time))
        )
        thread.start()
        try:
            assert told.wait(120)
            yield facts[0], facts[1]
        finally:
            if facts:
                facts[2].call_soon_threadsafe(facts[3].set)
            thread.join(120)

    return run
