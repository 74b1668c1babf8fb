"""Runs the parts of a program in one process: for tests, the simulator, and where no tier is left.

What crosses is encoded and decoded as it is over a link, so a narrow wire costs the same digits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...common.errors import DelianError
from ...compiler.backends import Backend, Executable, compile_module
from ...compiler.ir import Array
from ...compiler.passes.number_profiles import Profile
from .cut import DEVICE
from .program_split import Message, Part, Parts
from .wire_formats import Encoded, decode, encode


class Tiers:
    """Compiled parts, called as the whole program is. Raises DelianError in compilation."""

    def __init__(
        self, parts: Parts, backend: Backend = "native", profile: Profile = "fast"
    ) -> None:
        self.parts = parts
        functions = {p.program.name: p.program for p in parts.parts}
        self._programs: Mapping[str, Executable] = (
            compile_module(functions, backend, profile) if functions else {}
        )

    def __call__(self, resident: Sequence[Array], inputs: Sequence[Array]) -> tuple[Array, ...]:
        """The whole's results in its order, the new values of what tiers own among them.

        Args:
            resident, inputs: in the order of `parts.resident` and `parts.inputs`.

        Raises DelianError when there are too many or too few, or one does not fit.
        """
        parts = self.parts
        if len(resident) != len(parts.resident) or len(inputs) != len(parts.inputs):
            raise DelianError(
                f"{parts.name} takes {len(parts.resident)} resident arrays and"
                f" {len(parts.inputs)} inputs, not {len(resident)} and {len(inputs)}"
            )
        held = dict(zip(parts.resident, resident, strict=True))
        # By tier, what it has by value's number; as it came, where it came.
        have: list[dict[int, Array]] = [{} for _ in range(parts.top + 1)]
        came: list[dict[int, Encoded]] = [{} for _ in range(parts.top + 1)]
        have[DEVICE].update(zip([p.value for p in parts.inputs], inputs, strict=True))
        renewed: dict[int, Array] = {}
        for step in parts.steps:
            if isinstance(step, Message):
                _send(step, have, came)
            else:
                self._run(step, held, have[step.tier], renewed)
        return tuple(
            renewed.get(parts.updates[k], held[parts.updates[k]])
            if k in parts.updates
            else have[DEVICE][value]
            for k, value in enumerate(parts.results)
        )

    def _run(
        self,
        part: Part,
        held: Mapping[int, Array],
        have: dict[int, Array],
        renewed: dict[int, Array],
    ) -> None:
        args = [held[i] for i in part.resident] + [have[p.value] for p in part.inputs]
        made = self._programs[part.program.name](*args)
        count = len(part.outputs)
        have.update(zip([p.value for p in part.outputs], made[:count], strict=True))
        renewed.update(zip(part.updates, made[count:], strict=True))


def _send(
    message: Message, have: Sequence[dict[int, Array]], came: Sequence[dict[int, Encoded]]
) -> None:
    sender, receiver = message.sender, message.receiver
    for port in message.ports:
        encoded = came[sender].get(port.value)
        if encoded is None:
            encoded = encode(have[sender][port.value], port.wire)
        came[receiver][port.value] = encoded
        have[receiver][port.value] = decode(encoded, port.type)


def run(
    parts: Parts,
    resident: Sequence[Array],
    inputs: Sequence[Array],
    backend: Backend = "reference",
    profile: Profile = "fast",
) -> tuple[Array, ...]:
    """Runs parts once, as `Tiers` does."""
    return Tiers(parts, backend, profile)(resident, inputs)
