"""A TCP relay that holds a connection once so many bytes have gone up on it, until it is opened.

    with Gate("127.0.0.1:7451", 40_000) as gate:
        ...                          # dial gate.address
        gate.wait(1)                 # one connection is held: its node is where the test wants it
        gate.open()

What a test does between the two happens while the node waits, however fast the machine is.
"""

from __future__ import annotations

import contextlib
import socket
import threading

BLOCK_BYTES = 4_096
WAIT_S = 300.0


class Gate:
    """The relay. target: "host:port". up_bytes: of a connection, before it is held."""

    def __init__(self, target: str, up_bytes: int) -> None:
        host, _, port = target.rpartition(":")
        self._target, self._up_bytes = (host, int(port)), up_bytes
        self._changed = threading.Condition()
        self._held, self._open = 0, False
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Gate:
        threading.Thread(target=self._accept, name="gate", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.open()
        for one in (self._listener, *self._sockets):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def wait(self, connections: int) -> None:
        """Until so many connections are held."""
        with self._changed:
            held = self._changed.wait_for(lambda: self._held >= connections, WAIT_S)
            assert held, f"{self._held} of {connections} connections came so far"

    def open(self) -> None:
        """Holds nothing any more."""
        with self._changed:
            self._open = True
            self._changed.notify_all()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # the listener is closed at the end
            while True:
                below, _ = self._listener.accept()
                above = socket.socket()
                self._sockets += [below, above]
                for ways in ((below, above, True), (above, below, False)):
                    threading.Thread(target=self._relay, args=ways, daemon=True).start()

    def _relay(self, source: socket.socket, sink: socket.socket, up: bool) -> None:
        carried = 0
        try:
            if up:
                sink.connect(self._target)
            while block := source.recv(BLOCK_BYTES):
                if up and carried <= self._up_bytes < carried + len(block):
                    self._hold()
                carried += len(block)
                sink.sendall(block)
        except OSError:
            pass  # one end has gone: so goes the other
        for one in (source, sink):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def _hold(self) -> None:
        with self._changed:
            if not self._open:
                self._held += 1
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._open)
