"""What a case is: a program and its arguments; the program in f64; what transforms make of it."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from delian.core.compiler.ir import Array, Block, Builder, DType, Function, ListType, TensorType

#: Draws an argument of a type.
Draw: TypeAlias = Callable[[np.random.Generator, TensorType], Array]


@dataclass(frozen=True)
class Case:
    """A random program.

    draws: arguments that are not drawn as usual, by their number.
    """

    name: str
    build: Callable[[], Function]
    draws: tuple[tuple[int, Draw], ...] = ()

    def arguments(
        self, types: Sequence[TensorType], attempt: int = 0, special: tuple[float, ...] = ()
    ) -> list[Array]:
        """Arguments of these types; other ones at each attempt. special: of so many numbers alone
        are floats drawn, so that many are equal.
        """
        rng = np.random.default_rng([zlib.crc32(self.name.encode()), attempt])
        own = dict(self.draws)
        made = [own.get(i, usual)(rng, type_) for i, type_ in enumerate(types)]
        if special:
            with np.errstate(over="ignore"):
                made = [
                    np.asarray(rng.choice(special, a.shape)).astype(a.dtype)
                    if t.dtype.is_float
                    else a
                    for a, t in zip(made, types, strict=True)
                ]
        return made


def usual(rng: np.random.Generator, type_: TensorType) -> Array:
    """Floats about 1, small integers, and bools."""
    made: Array
    if type_.dtype.is_float:
        made = np.asarray(rng.uniform(-2, 2, type_.shape)).astype(type_.dtype.numpy)
    elif type_.dtype is DType.BOOL:
        made = np.asarray(rng.integers(0, 2, type_.shape)).astype(np.bool_)
    else:
        low = 0 if type_.dtype.is_unsigned else -3
        made = np.asarray(rng.integers(low, 6, type_.shape)).astype(type_.dtype.numpy)
    return made


def in_f64(function: Function) -> Function:
    """The same program, f32 replaced by f64 throughout."""
    return Function(
        function.name,
        _wide_block(function.body),
        function.param_names,
        function.result_names,
        function.donated,
    )


def _wide_block(block: Block) -> Block:
    b = Builder([_wide(p.type) for p in block.params])
    mapping = dict(zip(block.params, b.params, strict=True))
    for op in block.ops:
        operands = [mapping[v] for v in op.operands]
        attrs = {key: _wide(value) for key, value in op.attrs.items()}
        made = b.emit(op.name, operands, attrs, [_wide_block(r) for r in op.regions])
        mapping.update(zip(op.results, made, strict=True))
    return b.finish([mapping[r] for r in block.results])


def _wide(x: Any) -> Any:
    """A type, or an attribute of an operation, with f64 for f32."""
    if isinstance(x, DType):
        return DType.F64 if x is DType.F32 else x
    if isinstance(x, TensorType):
        return TensorType(_wide(x.dtype), x.shape)
    if isinstance(x, ListType):
        return ListType(_wide(x.element), x.lanes)
    return x.astype(np.float64) if isinstance(x, np.ndarray) and x.dtype == np.float32 else x


def fitted(arguments: Sequence[Array], function: Function) -> list[Array]:
    """The arguments in the types of a function, which may be wider ones."""
    types: Sequence[Any] = function.param_types
    return [a.astype(t.dtype.numpy) for a, t in zip(arguments, types, strict=True)]


def as_function(name: str, block: Block, donated: Sequence[int] = ()) -> Function:
    params = tuple(f"a{i}" for i in range(len(block.params)))
    results = tuple(f"r{i}" for i in range(len(block.results)))
    return Function(name, block, params, results, frozenset(donated))


def transformed(r: random.Random, block: Block, small: bool = True) -> Block:
    """The block, or a derivative of it, or it over lanes, perhaps simplified."""
    from delian.core.compiler.passes.simplify import simplify
    from delian.core.compiler.transforms.jvp import jvp
    from delian.core.compiler.transforms.vjp import vjp
    from delian.core.compiler.transforms.vmap import vmap

    def moving(made: Block) -> list[int]:
        return [i for i, p in enumerate(made.params) if p.dtype.is_float]

    ways: list[tuple[str, ...]] = [(), ("vjp",), ("vjp",), ("vjp",), ("jvp",), ("vmap",)]
    if small:
        ways += [("vjp", "vjp"), ("jvp", "vjp"), ("vjp", "vmap"), ("vmap", "vjp"), ("vjp", "jvp")]
    way, lanes = r.choice(ways), r.choice([2, 3, 4])
    flags = [r.random() < 0.7 for _ in range(4 * len(block.params) + 64)]
    for verb in way:
        if verb == "vmap":
            block, _ = vmap(block, [*flags[: len(block.params)]], lanes)
        elif moving(block):
            block = (vjp if verb == "vjp" else jvp)(block, moving(block))
            block = simplify(block)
    return simplify(block) if r.random() < 0.8 else block


def donations(r: random.Random, block: Block) -> list[int]:
    """Parameters whose memory results may take: some of those of which a result has the type."""
    types: list[Any] = [v.type for v in block.results]
    if r.random() < 0.6:
        return []
    return [i for i, p in enumerate(block.params) if p.type in types and r.random() < 0.5]
