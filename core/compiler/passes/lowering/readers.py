"""Which operations make and read the values of a block, and which values memory holds."""

from __future__ import annotations

from typing import Any

from ...ir import Block, Op, Value
from ..schedule.block_steps import REDUCTIONS, is_elementwise
from ..schedule.views import VIEWS


class Readers:
    """The makers and readers of a block's values.

    `late`: elementwise operations that read a value in another loop than the one that makes it,
    where they read it together with one that is spread out.
    """

    def __init__(self, block: Block, late: frozenset[str] = frozenset()) -> None:
        self.block = block
        self.late = late
        self.made = {r: op for op in block.ops for r in op.results}
        self.users: dict[Value, list[Op]] = {}
        for op in block.ops:
            for v in dict.fromkeys(op.operands):
                self.users.setdefault(v, []).append(op)

    def of(self, value: Value) -> list[Op]:
        """The operations that read a value."""
        return self.users.get(value, [])

    def number(self, value: Value) -> Any:
        """The number that a tensor repeats, if it is known."""
        op = self.made.get(value)
        while op is not None and op.name in ("broadcast", "reshape"):
            op = self.made.get(op.operands[0])
        if op is None or op.name != "constant" or op.attrs["value"].size != 1:
            return None
        return op.attrs["value"].item()

    def is_stored(self, value: Value) -> bool:
        """Whether a value is in memory anyway, as a reduction or other code uses it."""
        op = self.made.get(value)
        if op is None or self.number(value) is not None:
            return True
        if op.name in VIEWS:
            return self.is_stored(op.operands[0])
        return not is_elementwise(op) or self._is_read_whole(value)

    def _is_read_whole(self, value: Value) -> bool:
        for user in self.of(value):
            if user.name in VIEWS:
                if self._is_read_whole(user.result):
                    return True
                continue
            if (self._is_late(user) or not is_elementwise(user)) and user.name not in REDUCTIONS:
                return True
        return value in self.block.results

    def _is_late(self, user: Op) -> bool:
        makers = (self.made.get(v) for v in user.operands)
        return user.name in self.late and any(m and m.name == "broadcast" for m in makers)
