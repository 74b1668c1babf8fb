"""Only tests in `system/` and `house/` may start a process, use a socket or wait for the clock.

A test elsewhere that does so fails, and the message names what it did. A C compiler may run: the
compiler is what tests in `native/` are about.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import selectors
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

try:
    import grpc.aio as grpc_aio
except ImportError:  # tests that need it are skipped
    grpc_aio = None

with contextlib.suppress(ImportError):
    # When it is imported, it looks for IPv6 by a socket: here, and not within some test.
    importlib.import_module("urllib3")

FREE = ("system", "house")
_COMPILERS = {"cc", "c++", "gcc", "g++", "clang", "zig"}
_SERVING = ("server", "insecure_channel", "secure_channel")

#: What the test that runs now did; None while no test runs that is guarded.
_seen: list[str] | None = None


def _folder(item: pytest.Item) -> str:
    return item.path.relative_to(Path(__file__).parents[1]).parts[0]


def _did(what: str) -> None:
    if _seen is not None:
        _seen.append(what)


def _compiles(command: Any) -> bool:
    words = [command] if isinstance(command, (str, bytes)) else list(command)
    texts = [os.fsdecode(word) for word in words]
    # Compilers are found under names with a machine's type and a version: x86_64-linux-gnu-gcc-12.
    name = Path(texts[0]).name
    return "ziglang" in texts or bool(_COMPILERS & {name, *name.split("-")})


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if _seen is None:
        return
    if event in ("socket.bind", "socket.connect"):
        _did(f"{event} {arguments[1]!r}")
    elif event == "subprocess.Popen" and not _compiles(arguments[1] or arguments[0]):
        _did(f"started {arguments[1]!r}")
    elif event in ("os.fork", "os.forkpty", "os.posix_spawn"):
        _did(event)


def _watch_clock() -> None:
    """Python 3.11 raises no audit event for sleep; an event loop sleeps in its selector."""
    sleep, select = time.sleep, selectors.DefaultSelector.select

    def guarded_sleep(seconds: float) -> None:
        # subprocess polls for the end of a compiler.
        if seconds > 0 and sys._getframe(1).f_globals.get("__name__") != "subprocess":
            _did(f"time.sleep({seconds})")
        sleep(seconds)

    def guarded_select(self: Any, timeout: float | None = None) -> Any:
        ready = select(self, timeout)
        if not ready and timeout is not None and timeout > 0:
            _did(f"waited for {timeout:.3g} s in an event loop")
        return ready

    time.sleep = guarded_sleep
    selectors.DefaultSelector.select = guarded_select  # type: ignore[method-assign]


def _watch_grpc() -> None:
    """GRPC opens its sockets in C, where no audit event is raised."""

    def guarded(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def made(*arguments: Any, **more: Any) -> Any:
            _did(f"{name}()")
            return call(*arguments, **more)

        return made

    for place in ("grpc", "grpc.aio") if grpc_aio else ():
        module = sys.modules[place]
        for name in _SERVING:
            setattr(module, name, guarded(f"{place}.{name}", getattr(module, name)))


sys.addaudithook(_audit)
_watch_clock()
_watch_grpc()


@pytest.hookimpl(tryfirst=True)
def pytest_itemcollected(item: pytest.Item) -> None:
    if _folder(item) == "system":
        item.add_marker("system")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    global _seen
    _seen = None if _folder(item) in FREE else []
    try:
        return (yield)
    finally:
        _seen = None


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    result = yield
    if _seen:
        pytest.fail(f"belongs into tests/system: it {'; '.join(_seen[:5])}", pytrace=False)
    return result
