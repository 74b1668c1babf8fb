"""The personal model from Python and over its socket, also while it is being replaced."""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
import socket
import stat
import struct
import subprocess
import sys
import threading

import delian as dl
import numpy as np
import pytest
from delian.core.common.errors import DelianError
from delian.core.learning.runtime import Runtime
from delian.core.node.sandbox import frames, landlock, seccomp
from delian.device.agent.personal_model import Judgement, NoModelError, PersonalStore
from delian.device.serving import inference
from delian.device.serving.inference import InferenceServer, PersonalModel, ask

X = np.random.default_rng(5).normal(size=(5, 4)).astype(np.float32)


def serve_model(store: PersonalStore, blobs, scale: float) -> np.ndarray:
    """Puts a model in place; gives it."""
    model = (blobs.made.weights * np.float32(scale)).astype("<f4")
    store.prepare()
    store.draft.write_bytes(model.tobytes())
    judgement = Judgement(1.0, 0.5, 0.5, 0.5, 5.0, 0.5)
    assert store.offer(blobs.path(blobs.bundle), blobs.bundle, judgement)
    return model


@pytest.fixture
def store(tmp_path) -> PersonalStore:
    return PersonalStore(tmp_path / "personal")


def expected(blobs, model: np.ndarray, x: np.ndarray) -> np.ndarray:
    runtime = Runtime(blobs.made, "reference")
    padded = np.concatenate([x, np.zeros((len(x) % 2, 4), np.float32)])
    pairs = [runtime.infer(model, padded[i : i + 2]) for i in range(0, len(padded), 2)]
    return np.concatenate(pairs)[: len(x)]


def test_a_batch_of_any_length_is_answered(store, blobs):
    with pytest.raises(NoModelError, match="no personal model"):
        PersonalModel(store.folder, "reference")
    model = serve_model(store, blobs, 1.0)
    served = dl.device.PersonalModel(store.folder, "reference")
    np.testing.assert_allclose(served.predict(X), expected(blobs, model, X), rtol=1e-6)
    assert served.predict(X[:0]).shape == (0, 3)
    np.testing.assert_array_equal(served.predict(X[:, :, None]), served.predict(X))
    assert served.predict(X.astype(np.float64)[:1]).shape == (1, 3)
    for wrong in (X[:, :3], np.array(1.0), np.array([["a"] * 4])):
        with pytest.raises(DelianError):
            served.predict(wrong)


def test_a_new_model_is_taken_up_and_one_that_cannot_be_loaded_is_not(store, blobs):
    serve_model(store, blobs, 1.0)
    served = PersonalModel(store.folder, "reference")
    second = serve_model(store, blobs, 2.0)
    np.testing.assert_allclose(served.predict(X), expected(blobs, second, X), rtol=1e-6)
    store.draft.write_bytes(b"12345678")  # of another length than its bundle's models
    assert store.offer(blobs.path(blobs.bundle), blobs.bundle, Judgement(1, 0.5, 1, 1, 1, 0.5))
    np.testing.assert_allclose(served.predict(X), expected(blobs, second, X), rtol=1e-6)
    anew = PersonalModel(store.folder, "reference")
    np.testing.assert_allclose(anew.predict(X), expected(blobs, second, X), rtol=1e-6)


@pytest.mark.parametrize("times", [1, 2])
def test_a_model_that_is_replaced_while_it_is_read_is_read_anew(store, blobs, monkeypatch, times):
    """Once, and the next is about to take its place; twice, and another lies where it lay."""
    serve_model(store, blobs, 1.0)
    load, newer = inference.bundles.load, []

    def slowly(path):
        if not newer:
            newer.extend(serve_model(store, blobs, 2.0 + i) for i in range(times))
            if times == 1:
                shutil.rmtree(store.folder / "a")
        return load(path)

    monkeypatch.setattr(inference.bundles, "load", slowly)
    served = PersonalModel(store.folder, "reference")
    assert served._loaded.slot.digest == hashlib.sha256(newer[-1].tobytes()).hexdigest()
    np.testing.assert_allclose(served.predict(X), expected(blobs, newer[-1], X), rtol=1e-6)


def test_many_ask_while_models_are_replaced_and_each_answer_is_of_one_model(store, blobs, tmp_path):
    scales = [1.0, -1.0, 3.0, 0.5]
    models = [(blobs.made.weights * np.float32(s)).astype("<f4") for s in scales]
    answers = [expected(blobs, m, X) for m in models]
    serve_model(store, blobs, scales[0])
    path = tmp_path / "s"
    seen: list[int] = []
    faults: list[Exception] = []
    stop = threading.Event()

    def asker() -> None:
        while not stop.is_set():
            try:
                _, logits = ask(path, {"op": "predict"}, X)
                fits = [
                    i for i, a in enumerate(answers) if np.allclose(a, logits, rtol=1e-4, atol=1e-5)
                ]
                seen.append(fits[0] if fits else -1)
            except DelianError as error:
                faults.append(error)

    async def scene() -> None:
        server = InferenceServer(store.folder, path, "reference")
        await server.start()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        askers = [threading.Thread(target=asker) for _ in range(3)]
        for one in askers:
            one.start()
        for i, scale in enumerate(scales):
            await asyncio.to_thread(serve_model, store, blobs, scale)
            while not seen or seen[-1] != i:
                await asyncio.sleep(0.01)
        stop.set()
        for one in askers:
            await asyncio.to_thread(one.join)
        await server.close()
        await server.close()

    asyncio.run(asyncio.wait_for(scene(), 300))
    assert not faults
    assert -1 not in seen, "an answer of no model, or of two"
    assert set(seen) == set(range(len(scales)))
    assert not path.exists()


def raw(path, content: bytes) -> dict:
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(120)
        link.connect(str(path))
        link.sendall(content)
        link.shutdown(socket.SHUT_WR)
        with link.makefile("rb") as stream:
            frame = frames.read(stream, 1 << 20)
            return {} if frame is None else dict(frame.head)


def test_requests_that_are_wrong_are_refused_and_the_server_goes_on(store, blobs, tmp_path):
    path = tmp_path / "s"

    async def scene() -> None:
        server = InferenceServer(store.folder, path, "reference")
        await server.start()

        async def refused(head: dict, array=None) -> str:
            with pytest.raises(DelianError) as caught:
                await asyncio.to_thread(ask, path, head, array)
            return caught.value.message

        assert "no personal model" in await refused({"op": "status"})
        serve_model(store, blobs, 1.0)
        assert "no operation 'shell'" in await refused({"op": "shell"})
        assert "batch of [5, 3]" in await refused({"op": "predict"}, X[:, :3])
        assert "dtype" in await refused({"op": "predict"})
        assert "dtype" in await refused({"op": "predict"}, X.astype(np.complex64))
        huge = struct.pack("<IQ", 2, 1 << 60) + b"{}"
        assert "a frame of" in (await asyncio.to_thread(raw, path, huge))["error"]
        for head in ([1], "x", {"op": "predict", "dtype": "<f4", "shape": [10**9, 10**9]}):
            said = json.dumps(head).encode()
            frame = struct.pack("<IQ", len(said), 0) + said
            assert (await asyncio.to_thread(raw, path, frame))["ok"] is False
        assert await asyncio.to_thread(raw, path, b"abc") == {
            "ok": False,
            "error": "the stream ended within a frame",
            "hint": "",
        }
        said, logits = await asyncio.to_thread(ask, path, {"op": "predict"}, X)
        assert logits.shape == (5, 3)
        status, _ = await asyncio.to_thread(ask, path, {"op": "status"})
        assert status["model"] == said["model"]
        with pytest.raises(DelianError, match="another server answers"):
            await InferenceServer(store.folder, path).start()
        await server.close()

    asyncio.run(asyncio.wait_for(scene(), 300))
    path.write_text("a file")
    with pytest.raises(DelianError, match="is no socket"):
        asyncio.run(InferenceServer(store.folder, path).start())


def test_too_many_connections_are_turned_away(store, blobs, tmp_path, monkeypatch):
    monkeypatch.setattr(inference, "CONNECTIONS_MAX", 2)
    serve_model(store, blobs, 1.0)
    path = tmp_path / "s"

    async def scene() -> None:
        server = InferenceServer(store.folder, path, "reference")
        await server.start()
        held = [await asyncio.open_unix_connection(path) for _ in range(2)]
        while len(server._connections) < 2:
            await asyncio.sleep(0.01)
        with pytest.raises(DelianError, match="too many connections"):
            await asyncio.to_thread(ask, path, {"op": "status"})
        for _, writer in held:
            writer.close()
        while server._connections:
            await asyncio.sleep(0.01)
        assert (await asyncio.to_thread(ask, path, {"op": "status"}))[0]["ok"]
        await server.close()

    asyncio.run(asyncio.wait_for(scene(), 300))


def test_a_server_that_closes_without_listening_is_still_heard(tmp_path):
    path = tmp_path / "s"

    def refuse(server: socket.socket) -> None:
        link, _ = server.accept()
        link.recv(1)
        link.sendall(frames.pack({"ok": False, "error": "not today"}))
        link.close()

    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        refusing = threading.Thread(target=refuse, args=(server,))
        refusing.start()
        with pytest.raises(DelianError, match="not today"):
            ask(path, {"op": "predict"}, np.zeros((1 << 20, 4), np.float32))
        refusing.join()


#: The server's process, which says when it listens.
SERVING = """
import sys
from delian.device.serving import inference

start = inference.InferenceServer.start

async def said(self):
    await start(self)
    print("it listens", flush=True)

inference.InferenceServer.start = said
sys.exit(inference.main())
"""


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_the_server_is_a_process_that_ends_when_told(store, blobs, tmp_path, backend, monkeypatch):
    """It compiles behind its walls, into the workers' part of the cache."""
    monkeypatch.setenv("DELIAN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("DELIAN_CACHE_PART", "workers")
    serve_model(store, blobs, 1.0)
    path = tmp_path / "s"
    command = [sys.executable, "-c", SERVING, str(store.folder), str(path), "--backend", backend]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "it listens\n"
            assert ask(path, {"op": "predict"}, X)[1].shape == (5, 3)
            process.terminate()
            assert process.wait(120) == 0
        finally:
            process.kill()  # else a failure would wait for it without end
    made = list((tmp_path / "cache").rglob("*.so"))
    assert [p.parent.parent.name for p in made] == ["workers"] * (backend == "native")


def test_the_server_reads_no_file_of_the_device_but_its_models(tmp_path, monkeypatch):
    if not landlock.abi():
        pytest.skip("this kernel has no landlock")
    monkeypatch.setenv("DELIAN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("DELIAN_CACHE_PART", "workers")
    for name in ("personal", "identity"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    code = """
import sys
from pathlib import Path
from delian.device.serving.inference import _confine
root = Path(sys.argv[1])
_confine(root / "personal", ())
print((root / "personal" / "file").read_text())
for attempt in (
    (root / "identity" / "file").read_text,
    (root / "personal" / "file").unlink,
    (root / "cache" / "x.so").touch,
    (root / "cache" / "workers" / "x").touch,
):
    try:
        attempt()
        print("possible")
    except PermissionError:
        print("refused")
"""
    command = [sys.executable, "-P", "-c", code, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    assert done.stdout.split() == ["personal", "refused", "refused", "refused", "possible"]


def test_the_server_opens_no_socket_but_accepts_on_its_own(tmp_path, monkeypatch):
    if seccomp.machine() is None or not seccomp.is_here():
        pytest.skip("this kernel has no seccomp, or its system calls are not known")
    monkeypatch.setenv("DELIAN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("DELIAN_CACHE_PART", "workers")
    (tmp_path / "personal").mkdir()
    code = """
import os, socket, sys
from pathlib import Path
from delian.device.serving.inference import _confine
root = Path(sys.argv[1])
inner, outer = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
inner.bind(str(root / "s"))
inner.listen()
outer.connect(str(root / "s"))
_confine(root / "personal", ())
inner.accept()
print("accepted")
for attempt in (
    lambda: socket.socket(socket.AF_INET),
    lambda: socket.socket(socket.AF_UNIX),
    lambda: outer.connect(str(root / "s")),
    lambda: socket.socketpair(),
    lambda: os.pidfd_open(os.getppid()),
):
    try:
        attempt()
        print("possible")
    except PermissionError:
        print("refused")
"""
    command = [sys.executable, "-P", "-c", code, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    assert done.stdout.split() == ["accepted", *["refused"] * 5]
