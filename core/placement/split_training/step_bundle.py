"""A bundle of a step of training that can be cut.

What both sides of split training derive their parts from.

    manifest.json      the task's name; the model's leaves by name, type and shape, of frozen ones
                       the hash too; how many of the program's parameters tiers own; what must be
                       together, and what may not go up
    programs/step.ir   (model..., state..., frozen..., x, y, weight)
                       -> (loss, model'..., state'...)

It is a file as a bundle is (`core.learning.bundle`: hashed, limited, verified), and its content
hash names it. It has no weights. Each side receives the weights of its own part: the device with a
round, the upper tier from its operator. So a device's copy holds nothing of the upper part.

A frozen leaf is a blob by itself (`core.learning.frozen`), so that a side fetches those that its
part reads and no others, once, whatever the number of steps and rounds. Where the cut moves it
fetches those that it has not had yet.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
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
from ...learning.frozen import FrozenPart, bytes_of, part_of
from ...learning.leaf_roles import leaf_names, matches
from ...learning.nn.optim import Optimizer
from ...learning.task import Task
from ..cut.cut import DEVICE, TIERS_MAX, Cut
from ..cut.owned_weights import kept_below
from ..cut.program_split import Parts
from ..cut.training_step import INPUTS, TrainingStep, frozen_patterns, step_of, step_parts

KIND, PROGRAM = "step", "step"
_PART = f"programs/{PROGRAM}.ir"
_DIGEST = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True)
class StepBundle:
    """A step, with its task's name and its model's leaves in order."""

    task: str
    leaves: tuple[Leaf, ...]
    """Those that are trained."""
    step: TrainingStep
    frozen: tuple[Leaf, ...] = ()
    """Those that are not."""
    frozen_parts: tuple[FrozenPart, ...] = ()
    """Their blobs, one for each; empty where other hashes vouch for them, as in a run's bundle."""

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
        frozen: Sequence[str] | None = None,
    ) -> StepBundle:
        """The step of a task on batches x, y, as `training_step.step_of` makes it.

        x never leaves the device, and y does not where labels stay. frozen: patterns of leaves that
        are not trained; None: of a model with adapters all but these. Frozen leaves are arrays
        here, so that they have hashes. Raises as `step_of` does.
        """
        patterns = frozen_patterns(model, frozen)
        step = kept_below(
            step_of(task, optimizer, model, x, y, stays=labels_stay, name=PROGRAM, frozen=patterns)
        )
        names, every = leaf_names(model), tree.leaves(model)
        marks = matches(patterns, names)
        params = iter(step.function.body.params)
        trained = [name for name, held in zip(names, marks, strict=True) if not held]
        leaves = tuple([Leaf.of(name, next(params).tensor) for name in trained])
        held = [(n, np.asarray(a)) for n, a, mark in zip(names, every, marks, strict=True) if mark]
        kept = tuple(Leaf.of(name, TensorType.of(array)) for name, array in held)
        parts = tuple(part_of(x, array) for x, (_, array) in zip(kept, held, strict=True))
        return cls(task.name, leaves, step, kept, parts)

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
        body = {
            "kind": KIND,
            "task": self.task,
            "leaves": [_leaf_body(x) for x in self.leaves],
            "states": self.step.states,
            "ties": self.step.ties,
            "ceilings": sorted(self.step.ceilings.items()),
        }
        if self.frozen:
            digests = [{"digest": part.digest} for part in self.frozen_parts]
            held = zip(self.frozen, digests or [{}] * len(self.frozen), strict=True)
            body["frozen"] = [{**_leaf_body(x), **digest} for x, digest in held]
        return body

    @classmethod
    def load(cls, path: Path) -> StepBundle:
        """Reads a file. Raises DelianError, naming it."""
        return cls.parse(read(Path(path)), str(path))

    @classmethod
    def parse(cls, data: bytes, where: str = "step") -> StepBundle:
        """Reads a file's bytes. Raises DelianError for anything but a whole and honest step."""
        unpacked = unpack(data, where)
        body, parts = unpacked.body, unpacked.parts
        if body.get("kind") != KIND or _PART not in parts:
            raise DelianError(f"{where}: not a bundle of a step", "make one with StepBundle.of")
        function = decode_function(parts[_PART], Limits())
        try:
            leaves = tuple(map(_leaf_from, body["leaves"]))
            held = body.get("frozen", [])
            frozen = tuple(map(_leaf_from, held))
            step = TrainingStep(
                function=function,
                leaves=len(leaves),
                states=int(body["states"]),
                ties=tuple((int(a), int(b)) for a, b in body["ties"]),
                ceilings={int(v): int(tier) for v, tier in body["ceilings"]},
                frozen=len(frozen),
            )
            blobs = tuple(
                FrozenPart(str(x["digest"]), bytes_of(leaf))
                for x, leaf in zip(held, frozen, strict=True)
            )
            made = cls(str(body["task"]), leaves, step, frozen, blobs)
        except (KeyError, TypeError, ValueError) as error:
            raise DelianError(f"{where}: the manifest is incomplete: {error}") from error
        made.check(where)
        return made

    def check(self, where: str) -> None:
        """Raises DelianError where the manifest says what the program is not."""
        step, body = self.step, self.step.function.body
        owned = step.leaves + step.states
        held = owned + step.frozen
        names = [x.name for x in (*self.leaves, *self.frozen)]
        count = len(body.params) + sum(len(op.results) for op in body.ops)
        types = [p.type for p in body.params if isinstance(p.type, TensorType)]
        fits = (
            step.states >= 0
            and len(body.params) == len(types) == held + INPUTS
            and all(t.dtype is DType.F32 for t in types[:owned])
            and [r.type for r in body.results[1:]] == types[:owned]
            and all(x == Leaf.of(x.name, t) for x, t in zip(self.leaves, types, strict=False))
            and all(
                x == Leaf.of(x.name, t) for x, t in zip(self.frozen, types[owned:held], strict=True)
            )
            and len(set(names)) == len(names)
            and all(_DIGEST.fullmatch(part.digest) for part in self.frozen_parts)
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
        """The numbers of the trained leaves that are above the device, or that it has."""
        homes = parts.homes
        return tuple(
            i for i in range(self.step.leaves) if (homes.get(i, DEVICE) != DEVICE) is above
        )

    def frozen_of(self, parts: Parts, above: bool) -> tuple[int, ...]:
        """The places in `frozen` of the leaves that a side's parts read."""
        first = self.step.leaves + self.step.states
        read = chain(*(p.resident for p in parts.parts if (p.tier != DEVICE) is above))
        return tuple(sorted({i - first for i in read if i >= first}))

    def held(self, parts: Parts, above: bool, frozen: Mapping[str, Array]) -> dict[int, Array]:
        """A side's frozen leaves by parameter.

        frozen: by name, those of `frozen_of` at least. Raises DelianError for one that is missing,
        or is not the one that the bundle names.
        """
        first = self.step.leaves + self.step.states
        made = {}
        for k in self.frozen_of(parts, above):
            leaf = self.frozen[k]
            if leaf.name not in frozen:
                raise DelianError(
                    f"the frozen leaf `{leaf.name}` is missing, which this side's part reads",
                    f"its SHA-256 is {self.frozen_parts[k].digest}" if self.frozen_parts else "",
                )
            array = np.asarray(frozen[leaf.name])
            if self.frozen_parts and part_of(leaf, array) != self.frozen_parts[k]:
                raise DelianError(
                    f"the frozen leaf `{leaf.name}` is not the one that the step names",
                    "it is of another base model: fetch it by its hash, or make the step again",
                )
            made[first + k] = array
        return made

    def divided(self, model: Any) -> tuple[dict[int, Array], dict[str, Array]]:
        """A model's trained leaves by number, and its frozen ones by name.

        Raises DelianError for a model of other leaves.
        """
        every = dict(zip(leaf_names(model), tree.leaves(model), strict=True))
        wanted = {x.name for x in (*self.leaves, *self.frozen)}
        if wanted != set(every):
            other = sorted(wanted.symmetric_difference(every))[0]
            raise DelianError(f"the model is not the step's: `{other}` is in one of them alone")
        own = {i: np.asarray(every[x.name]) for i, x in enumerate(self.leaves)}
        return own, {x.name: np.asarray(every[x.name]) for x in self.frozen}

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


def _leaf_body(leaf: Leaf) -> dict[str, Any]:
    return {"name": leaf.name, "dtype": leaf.dtype, "shape": leaf.shape}


def _leaf_from(body: Mapping[str, Any]) -> Leaf:
    return Leaf(str(body["name"]), str(body["dtype"]), tuple(int(d) for d in body["shape"]))
