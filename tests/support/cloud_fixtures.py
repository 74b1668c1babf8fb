"""A store for the tests: SQLite in a folder, or a PostgreSQL cluster of their own."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest


def _binaries() -> Path | None:
    found = shutil.which("initdb")
    folders = [Path(found).parent] if found else sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    return next((f for f in reversed(folders) if (f / "pg_ctl").exists()), None)


def _as_nobody(command: list[str], folder: Path) -> None:
    """PostgreSQL refuses to run as root."""
    options = {"user": "nobody", "group": "nogroup", "extra_groups": []} if not os.getuid() else {}
    environment = {"LC_ALL": "C", "PATH": os.defpath, "HOME": str(folder)}
    subprocess.run(
        command,
        check=True,
        timeout=300,
        cwd=folder,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.STDOUT,
        **options,
    )


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The URL of a PostgreSQL server, up to the database's name. Skips where there is none."""
    pytest.importorskip("asyncpg")
    binaries = _binaries()
    if binaries is None:
        pytest.skip("PostgreSQL is not installed")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    folder = Path(tempfile.mkdtemp(prefix="delian-pg-"))
    folder.chmod(0o777)
    data = folder / "data"
    started = False
    try:
        _as_nobody(
            [str(binaries / "initdb"), "-D", str(data), "-U", "delian", "-A", "trust"], folder
        )
        options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={folder}"
        control = [str(binaries / "pg_ctl"), "-D", str(data), "-w"]
        _as_nobody([*control, "-l", str(folder / "log"), "-o", options, "start"], folder)
        started = True
        yield f"postgresql://delian@127.0.0.1:{port}/"
    finally:
        if started:
            _as_nobody([*control, "-m", "immediate", "stop"], folder)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def postgres_url(postgres: str) -> str:
    """A new, empty database."""
    import asyncio
    import secrets

    import asyncpg

    name = f"t{secrets.token_hex(6)}"

    async def make() -> None:
        connection = await asyncpg.connect(f"{postgres}postgres")
        try:
            await connection.execute(f"CREATE DATABASE {name}")
        finally:
            await connection.close()

    asyncio.run(make())
    return f"{postgres}{name}"


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str | Path:
    """What `Database.open` takes: each test runs on both."""
    if request.param == "sqlite":
        return tmp_path / "store.db"
    return request.getfixturevalue("postgres_url")


@pytest.fixture(scope="session")
def bundle():
    """A small classification, trained by FedAvg."""
    from delian.core.compiler.ir import DType, TensorType
    from delian.core.learning import Classification, FedAvg, Samples, SampleSet
    from delian.core.learning.build.bundle_builder import build
    from delian.core.learning.nn import Mlp, sgd

    rows = SampleSet(np.zeros((6, 4), np.float32), np.zeros(6, np.int32), np.array(4), np.array(2))
    return build(
        Classification("small", lambda key: Mlp.init(key, 4, (3,), 2), Samples(2, 1.0)),
        FedAvg(local=sgd(0.1), server=sgd(1.0), personal_steps=1, epochs=1),
        rows,
        example=TensorType(DType.F32, (2, 4)),
        clip=1.0,
        clients_max=8,
        weight_max=6.0,
        seed=1,
    )
