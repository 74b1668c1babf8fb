"""A loop whose body is captured once as a CUDA graph and replayed.

A replay costs one launch for all of a round's kernels, where Python would launch each. The graph
reads and writes buffers that stay: what the loop is given is copied in before its first round, and
what it gives is copied out after its last, so a loop of few rounds on large tensors gains little.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

#: Rounds run before the capture, so that libraries have chosen their kernels and made their
#: workspaces.
_WARM_UP = 2


class GraphedLoop:
    """`for`: (lo, hi, consts..., carries...) -> carries. Not for several threads at once."""

    def __init__(self, body: Callable[..., tuple[Any, ...]], consts: int) -> None:
        self.__name__ = "graphed_loop"  # fx asks a function for its name
        self.__module__ = __name__
        self._body, self._consts = body, consts
        self._graph: Any = None
        self._buffers: list[Any] = []

    def __call__(self, lo: Any, hi: Any, *args: Any) -> tuple[Any, ...]:
        trips = int(hi - lo)
        if trips <= 0:
            return args[self._consts :]
        given = (lo, *args)
        if self._graph is None:
            self._capture(given)
        for buffer, value in zip(self._buffers, given, strict=True):
            buffer.copy_(value)
        for _ in range(trips):
            self._graph.replay()
        # The next call overwrites the buffers.
        return tuple([b.clone() for b in self._buffers[1 + self._consts :]])

    def _round(self) -> None:
        index, carries = self._buffers[0], self._buffers[1 + self._consts :]
        made = self._body(*self._buffers)
        # All are computed before any is written: one carry's next value may be another's buffer.
        fresh = [m.clone() if _shares(m, self._buffers) else m for m in made]
        for buffer, value in zip(carries, fresh, strict=True):
            buffer.copy_(value)
        index.add_(1)

    def _capture(self, given: Sequence[Any]) -> None:
        self._buffers = [torch.empty_like(v, memory_format=torch.contiguous_format) for v in given]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UP):
                for buffer, value in zip(self._buffers, given, strict=True):
                    buffer.copy_(value)
                self._round()
        torch.cuda.current_stream().wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._round()


def _shares(tensor: Any, buffers: Sequence[Any]) -> bool:
    """Whether a tensor's memory is that of a buffer."""
    start = tensor.untyped_storage().data_ptr()
    return any(start == b.untyped_storage().data_ptr() for b in buffers)
