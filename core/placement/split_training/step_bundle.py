"""A bundle of a step of training that can be cut.

What both sides of split training derive their parts from.

    manifest.json      the task's name; the model's leaves by name, type and shape; how many of the
                       program's parameters tiers own; what must be together, and what may not go up
    programs/step.ir   (model..., state..., x, y, weight) -> (loss, model'..., state'...)

It is a file as a bundle is (`core.learning.bundle`: hashed, limited, verified), and its content
hash names it. It has no weights. Each side receives the weights of its own part: the device with a
round, the upper tier from its operator. So a device's copy holds nothing of the upper part.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...common.errors import DelianError
from ...common.files import write_whole
from ...compiler import tree
from ...compiler.ir import Array, DType, TensorType
from ...compiler.ir_codec import decode_function, encode_function
from ...compiler.verify import Limits
from ...learning.bundle import Leaf, manifest_bytes, pack, read, unpack
from ...learning.nn.optim import Optimizer
from ...learning.task import Task
from ..cut.cut import DEVICE, TIERS_MAX, Cut
from ..cut.owned_weights import kept_below
from ..cut.program_split import Parts
from ..cut.training_step import TrainingStep, step_of, step_parts

KIND, PROGRAM = "step", "step"
_PART = f"programs/{PROGRAM}.ir"
#: Of x, y and weight.
INPUTS = 3


@dataclass(frozen=True)
class StepBundle:
    """A step, with its task's name and its model's leaves in order."""

    task: str
    leaves: tuple[Leaf, ...]
    step: TrainingStep

    @classmethod
    def of(
        cls,
        task: Task,
        optimizer: Optimizer,
        model: Any,
        x: TensorType,
        y: TensorType,
        *,
        labels_stay: bool = False,
    ) -> StepBundle:
        """The step of a task on batches x, y, as `training.step_of` makes it.

        x never leaves the device, and y does not where labels stay. Raises as that does.
        """
        step = kept_below(step_of(task, optimizer, model, x, y, stays=labels_stay, name=PROGRAM))
        names = list(tree.flatten(model)[1].paths())
        params = step.function.body.params[: step.leaves]
        leaves = tuple(Leaf.of(n, p.tensor) for n, p in zip(names, params, strict=True))
        return cls(task.name, leaves, step)

    # ------------------------------------------------ as a file

    def content_hash(self) -> str:
        """SHA-256, in hexadecimal, of the manifest with its program's hash."""
        return hashlib.sha256(manifest_bytes(self._body(), self._parts())).hexdigest()

    def to_bytes(self) -> bytes:
        return pack(self._body(), self._parts())

    def save(self, path: Path) -> None:
        """Writes a temporary file and moves it to the path."""
        write_whole(Path(path), self.to_bytes())

    def _parts(self) -> dict[str, bytes]:
        return {_PART: encode_function(self.step.function)}

    def _body(self) -> dict[str, Any]:
        return {
            "kind": KIND,
            "task": self.task,
            "leaves": [{"name": x.name, "dtype": x.dtype, "shape": x.shape} for x in self.leaves],
            "states": self.step.states,
            "ties": self.step.ties,
            "ceilings": sorted(self.step.ceilings.items()),
        }

    @classmethod
    def load(cls, path: Path) -> StepBundle:
        """Reads a file. Raises DelianError, naming it."""
        return cls.parse(read(Path(path)), str(path))

    @classmethod
    def parse(cls, data: bytes, where: str = "step") -> StepBundle:
        """Reads a file's bytes. Raises DelianError for anything but a whole and honest step."""
        body, parts = unpack(data, where)
        if body.get("kind") != KIND or _PART not in parts:
            raise DelianError(f"{where}: not a bundle of a step", "make one with StepBundle.of")
        function = decode_function(parts[_PART], Limits())
        try:
            leaves = tuple(
                Leaf(str(x["name"]), str(x["dtype"]), tuple(int(d) for d in x["shape"]))
                for x in body["leaves"]
            )
            step = TrainingStep(
                function=function,
                leaves=len(leaves),
                states=int(body["states"]),
                ties=tuple((int(a), int(b)) for a, b in body["ties"]),
                ceilings={int(v): int(tier) for v, tier in body["ceilings"]},
            )
            made = cls(str(body["task"]), leaves, step)
        except (KeyError, TypeError, ValueError) as error:
            raise DelianError(f"{where}: the manifest is incomplete: {error}") from error
        made._check(where)
        return made

    def _check(self, where: str) -> None:
        """Raises DelianError where the manifest says what the program is not."""
        step, body = self.step, self.step.function.body
        owned = step.leaves + step.states
        count = len(body.params) + sum(len(op.results) for op in body.ops)
        types = [p.type for p in body.params if isinstance(p.type, TensorType)]
        fits = (
            step.states >= 0
            and len(body.params) == len(types) == owned + INPUTS
            and all(t.dtype is DType.F32 for t in types[:owned])
            and [r.type for r in body.results[1:]] == types[:owned]
            and all(x == Leaf.of(x.name, t) for x, t in zip(self.leaves, types, strict=False))
            and all(0 <= n < len(body.ops) for pair in step.ties for n in pair)
            and all(
                0 <= v < count and DEVICE <= tier < TIERS_MAX for v, tier in step.ceilings.items()
            )
        )
        if not fits:
            raise DelianError(f"{where}: its manifest and its program do not fit together")

    # ------------------------------------------------ what is made of it

    def parts(self, cut: Cut) -> Parts:
        """Raises CutError for a cut that the step cannot be cut by."""
        return step_parts(self.step, cut)

    def owned_by(self, parts: Parts, above: bool) -> tuple[int, ...]:
        """The numbers of the model's leaves that are above the device, or that it has."""
        homes = parts.homes
        return tuple(
            i for i in range(self.step.leaves) if (homes.get(i, DEVICE) != DEVICE) is above
        )

    def started(self, parts: Parts, above: bool, leaves: Mapping[int, Array]) -> dict[int, Array]:
        """What a side owns when it begins: its leaves, and zeros for the optimiser's state.

        leaves: by number, those of `owned_by` and no others. Raises DelianError for others.
        """
        wanted, params = self.owned_by(parts, above), self.step.function.body.params
        if sorted(leaves) != list(wanted):
            raise DelianError(f"weights {sorted(leaves)} for a part that has {list(wanted)}")
        made: dict[int, Array] = {}
        for i in (i for i, home in parts.homes.items() if (home != DEVICE) is above):
            shape = params[i].tensor.shape
            if i >= self.step.leaves:
                made[i] = np.zeros(shape, np.float32)
                continue
            leaf = np.array(leaves[i], np.float32)
            if leaf.shape != shape:
                raise DelianError(f"{self.leaves[i].name} has {shape}, not {leaf.shape}")
            made[i] = leaf
        return made
