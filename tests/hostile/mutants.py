"""Errors of the kinds that kernels have, each planted in one place: a run must find them all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from delian.core.compiler import primitives as ops
from delian.core.compiler.backends.native.kernels import depthwise, kernels
from delian.core.compiler.primitives import attributes
from delian.core.compiler.primitives.attributes import ATTRIBUTES, Ints

from . import geometry


@dataclass(frozen=True)
class Mutant:
    """One error.

    Attributes:
        name: what is wrong.
        old, new: a text of a header and what replaces it, or both empty.
        where: changes the compiler while a run goes on; None for an error in a header alone.
        primitives: those whose programs show it.
    """

    name: str
    primitives: tuple[str, ...]
    old: str = ""
    new: str = ""
    where: Callable[[], Any] | None = None

    def text(self, text: str) -> str:
        """The C with the error, if it has the header."""
        return text.replace(self.old, self.new) if self.old else text


_TAPS = """  if (start <= -window || start >= size) return (dl_range){0, 0};
  return (dl_range){start < 0 ? -start : 0, size - start < window ? size - start : window};
"""
_WRAPPING_TAPS = """  const int64_t from = start < 0 ? -start : 0;
  const int64_t to = size - start < window ? size - start : window;
  return (dl_range){from, to > from ? to : from};
"""


@contextmanager
def _without_bounds() -> Iterator[None]:
    """Strides and padding of any 63 bits pass the verifier."""
    wide = {
        key: replace(kind, high=2**63 - 1)
        for key, kind in ATTRIBUTES.items()
        if isinstance(kind, Ints) and key in ("strides", "padding")
    }
    rules, ends = ops._RULES, (geometry.STRIDE_MAX, geometry.PADDING_MAX)
    ops._RULES = {
        name: (rule, keys, tuple((k, wide.get(k, kind)) for k, kind in kinds), *rest)
        for name, (rule, keys, kinds, *rest) in rules.items()
    }
    geometry.STRIDE_MAX, geometry.PADDING_MAX = 2**62 + 1, 2**63 - 1
    try:
        yield
    finally:
        ops._RULES = rules
        geometry.STRIDE_MAX, geometry.PADDING_MAX = ends


@contextmanager
def _replaced(module: Any, name: str, made: Callable[[Any], Any]) -> Iterator[None]:
    before = getattr(module, name)
    setattr(module, name, made(before))
    try:
        yield
    finally:
        setattr(module, name, before)


MUTANTS = (
    Mutant(
        "a stride beyond 2^62 wraps the start of a window around",
        ("grouped_conv", "grouped_conv_weight_grad"),
        _TAPS,
        _WRAPPING_TAPS,
        where=_without_bounds,
    ),
    Mutant(
        "rows of an image's frame lie one number too far apart",
        ("conv",),
        "d->ow, d->sh * width * d->c, d->sw * d->c",
        "d->ow, d->sh * width * d->c + 1, d->sw * d->c",
    ),
    Mutant(
        "indices are not clamped",
        ("take", "put_add", "take_along", "put_along_add", "dynamic_slice", "dynamic_update"),
        "{ return i < 0 ? 0 : i >= size ? size - 1 : i; }",
        "{ return i; }",
    ),
    Mutant(
        "the tail of a vector loop is copied as a whole vector",
        ("conv",),
        "for (; i + DL_LANES <= count; i += DL_LANES) dl_store(to + i, dl_load(from + i));",
        "for (; i < count; i += DL_LANES) dl_store(to + i, dl_load(from + i));",
    ),
    Mutant(
        "products ask for working memory without the last panel",
        ("dot",),
        where=lambda: _replaced(
            kernels, "_product_scratch", lambda f: lambda m, n, k: max(f(m, n, k) - 32 * k, 1)
        ),
    ),
    Mutant(
        "a weight in few bits is expanded one column beyond its panel",
        ("dot",),
        "s->expand(s->context, to, width, s->row + k0, k, s->column + n0, columns);",
        "s->expand(s->context, to, width, s->row + k0, k, s->column + n0, columns + 1);",
    ),
    Mutant(
        "the block in which a weight in few bits is turned has rows too few",
        ("dot",),
        "float DL_ALIGN block[DL_NR * DL_BLOCK];",
        "float DL_ALIGN block[(DL_NR - 1) * DL_BLOCK];",
    ),
    Mutant(
        "depthwise convolutions of few channels ask for the image's memory alone",
        ("grouped_conv",),
        where=lambda: _replaced(
            depthwise, "scratch_bytes", lambda f: lambda call: f(call) * 3 // 8 // 64 * 64
        ),
    ),
    Mutant(
        "an integer is divided by zero",
        ("floordiv", "mod"),
        "if (b == 0) return 0;",
        "",
    ),
    Mutant(
        "the last block of a transposed matrix is one column off",
        ("transpose", "dot", "conv_input_grad"),
        "j + 8 <= columns ? j : columns - 8",
        "j + 8 <= columns ? j : columns - 7",
    ),
    Mutant(
        "lanes of a list are taken where there are none",
        ("list_take",),
        "at[i] < 0 ? 0 : at[i] >= lanes ? lanes - 1 : at[i]",
        "at[i] < 0 ? 0 : at[i] > lanes ? lanes - 1 : at[i]",
    ),
    Mutant(
        "a float is made an integer that cannot hold it",
        ("convert",),
        "return x >= (T)-0x1p63 && x < (T)0x1p63 ? (int64_t)x : INT64_MIN;",
        "return (int64_t)x;",
    ),
)
assert attributes.SIZE_MAX == geometry.SIZE_MAX
assert isinstance(ATTRIBUTES, MappingProxyType)
