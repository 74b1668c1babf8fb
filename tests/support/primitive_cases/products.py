"""Cases of `dot`, the convolutions, dense and in groups, and random bits."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
from delian.core.compiler.ir import Array

from .base import INTS, Case, numbers, wrapped


def products() -> Iterator[Case]:
    for label, a, b, subscripts, axes in (
        ("matrix", (2, 3), (3, 4), "ij,jk->ik", ((1,), (0,), (), ())),
        ("vector", (3,), (3,), "i,i->", ((0,), (0,), (), ())),
        ("outer", (2,), (3,), "i,j->ij", ((), (), (), ())),
        ("left-transposed", (3, 2), (3, 4), "ji,jk->ik", ((0,), (0,), (), ())),
        ("right-transposed", (2, 3), (4, 3), "ij,kj->ik", ((1,), (1,), (), ())),
        ("batch", (5, 2, 3), (5, 3, 4), "bij,bjk->bik", ((2,), (1,), (0,), (0,))),
        ("batch-last", (2, 3, 5), (5, 4, 3), "ijb,bkj->bik", ((1,), (2,), (2,), (0,))),
        ("two", (2, 3, 4), (4, 5, 3), "ijk,klj->il", ((1, 2), (2, 0), (), ())),
        ("two-batch", (2, 3, 4), (3, 2, 4), "abi,bai->ab", ((2,), (2,), (0, 1), (1, 0))),
        ("all", (2, 3, 4, 5), (5, 3, 4, 2), "abcd,dbce->bcae", ((3,), (0,), (1, 2), (1, 2))),
        ("empty-inner", (2, 0), (0, 3), "ij,jk->ik", ((1,), (0,), (), ())),
        ("empty-outer", (0, 2), (2, 3), "ij,jk->ik", ((1,), (0,), (), ())),
        ("scalar", (), (2,), ",i->i", ((), (), (), ())),
    ):
        keys = ("contract_a", "contract_b", "batch_a", "batch_b")
        attrs = dict(zip(keys, axes, strict=True))
        args = (numbers(f"{label}a", a), numbers(f"{label}b", b))
        oracle = lambda x, y, s=subscripts: np.einsum(s, x, y)  # noqa: E731
        yield Case("dot", label, args, oracle, attrs, smooth=(0, 1))
    plain = {"contract_a": (1,), "contract_b": (0,), "batch_a": (), "batch_b": ()}
    for size in (17, 70):
        args = (numbers("tile", (size, size + 1)), numbers("tile2", (size + 1, size - 1)))
        yield Case("dot", f"tile{size}", args, lambda x, y: np.einsum("ij,jk", x, y), plain)
    for dtype in INTS:
        info = np.iinfo(dtype)
        big = np.array([[info.max, 2], [info.min, 3]], dtype)
        oracle = lambda x, y: x.astype(object) @ y.astype(object)  # noqa: E731
        exact = lambda x, y, dtype=dtype, oracle=oracle: wrapped(int, dtype)(oracle(x, y))  # noqa: E731
        yield Case("dot", np.dtype(dtype).name, (big, big), exact, plain)


#: label, batch, input size, kernel size, channels in and out, strides, padding.
CONVOLUTIONS = (
    ("valid", 2, (5, 4), (3, 2), (2, 3), (1, 1), ((0, 0), (0, 0))),
    ("same", 1, (4, 5), (3, 3), (1, 2), (1, 1), ((1, 1), (1, 1))),
    ("strided", 2, (6, 7), (3, 2), (2, 1), (2, 3), ((0, 1), (1, 0))),
    ("leftover", 1, (6, 6), (2, 2), (1, 1), (3, 3), ((0, 0), (0, 0))),
    ("pointwise", 2, (3, 3), (1, 1), (3, 2), (1, 1), ((0, 0), (0, 0))),
    ("whole", 1, (3, 2), (3, 2), (2, 2), (1, 1), ((0, 0), (0, 0))),
    ("wide", 1, (2, 2), (3, 3), (1, 1), (1, 1), ((2, 2), (2, 2))),
    ("no-images", 0, (3, 3), (2, 2), (1, 2), (1, 1), ((0, 0), (0, 0))),
    ("channels", 1, (4, 4), (3, 3), (9, 17), (1, 1), ((1, 1), (1, 1))),
)


def convolutions() -> Iterator[Case]:
    for label, n, size, kernel, (c, o), strides, padding in CONVOLUTIONS:
        rows = zip(size, kernel, strides, padding, strict=True)
        out = tuple((h + sum(p) - k) // s + 1 for h, k, s, p in rows)
        x, k = numbers(f"{label}x", (n, *size, c)), numbers(f"{label}k", (*kernel, c, o))
        y = numbers(f"{label}y", (n, *out, o))
        attrs = {"strides": strides, "padding": padding}
        terms = list(_terms(size, kernel, out, strides, padding))

        def conv(x: Array, k: Array, terms: Any = terms, shape: Any = y.shape) -> Array:
            result = np.zeros(shape)
            for (p, q), (i, j), (u, v) in terms:
                result[:, p, q] += np.einsum("nc,co->no", x[:, u, v], k[i, j])
            return result

        def to_x(y: Array, k: Array, terms: Any = terms, shape: Any = x.shape) -> Array:
            result = np.zeros(shape)
            for (p, q), (i, j), (u, v) in terms:
                result[:, u, v] += np.einsum("no,co->nc", y[:, p, q], k[i, j])
            return result

        def to_k(x: Array, y: Array, terms: Any = terms, shape: Any = k.shape) -> Array:
            result = np.zeros(shape)
            for (p, q), (i, j), (u, v) in terms:
                result[i, j] += np.einsum("nc,no->co", x[:, u, v], y[:, p, q])
            return result

        yield Case("conv", label, (x, k), conv, attrs, smooth=(0, 1))
        wide = {**attrs, "input_size": size}
        yield Case("conv_input_grad", label, (y, k), to_x, wide, smooth=(0, 1))
        tall = {**attrs, "kernel_size": kernel}
        yield Case("conv_weight_grad", label, (x, y), to_k, tall, smooth=(0, 1))


#: label, batch, input size, kernel size, groups, channels in and out of each, strides, padding.
GROUPED = (
    ("depthwise", 2, (4, 5), (3, 3), 3, (1, 1), (1, 1), ((1, 1), (1, 1))),
    ("depthwise-wide", 1, (5, 4), (3, 3), 19, (1, 1), (2, 2), ((0, 1), (1, 1))),
    ("depthwise-large", 1, (3, 7), (1, 5), 17, (1, 1), (1, 2), ((0, 0), (2, 2))),
    ("multiplied", 1, (4, 3), (2, 2), 2, (1, 3), (1, 2), ((0, 1), (1, 0))),
    ("groups", 2, (4, 4), (3, 2), 3, (2, 4), (2, 1), ((1, 1), (0, 1))),
    ("one-group", 1, (3, 3), (2, 2), 1, (2, 3), (1, 1), ((0, 0), (1, 1))),
    ("no-images-in-groups", 0, (3, 3), (2, 2), 2, (1, 1), (1, 1), ((0, 0), (0, 0))),
)


def grouped_convolutions() -> Iterator[Case]:
    for label, n, size, kernel, groups, (c, o), strides, padding in GROUPED:
        rows = zip(size, kernel, strides, padding, strict=True)
        out = tuple((h + sum(p) - k) // s + 1 for h, k, s, p in rows)
        x = numbers(f"{label}x", (n, *size, groups * c))
        k = numbers(f"{label}k", (*kernel, c, groups * o))
        y = numbers(f"{label}y", (n, *out, groups * o))
        attrs = {"strides": strides, "padding": padding, "groups": groups}
        terms = list(_terms(size, kernel, out, strides, padding))

        def conv(x: Array, k: Array, terms: Any = terms, y: Any = y, g: int = groups) -> Array:
            result = np.zeros((*y.shape[:3], g, y.shape[3] // g))
            x, k = _parted(x, g), _parted(k, g)
            for (p, q), (i, j), (u, v) in terms:
                result[:, p, q] += np.einsum("ngc,cgo->ngo", x[:, u, v], k[i, j])
            return result.reshape(y.shape)

        def to_x(y: Array, k: Array, terms: Any = terms, x: Any = x, g: int = groups) -> Array:
            result = np.zeros((*x.shape[:3], g, x.shape[3] // g))
            y, k = _parted(y, g), _parted(k, g)
            for (p, q), (i, j), (u, v) in terms:
                result[:, u, v] += np.einsum("ngo,cgo->ngc", y[:, p, q], k[i, j])
            return result.reshape(x.shape)

        def to_k(x: Array, y: Array, terms: Any = terms, k: Any = k, g: int = groups) -> Array:
            result = np.zeros((*k.shape[:3], g, k.shape[3] // g))
            x, y = _parted(x, g), _parted(y, g)
            for (p, q), (i, j), (u, v) in terms:
                result[i, j] += np.einsum("ngc,ngo->cgo", x[:, u, v], y[:, p, q])
            return result.reshape(k.shape)

        yield Case("grouped_conv", label, (x, k), conv, attrs, smooth=(0, 1))
        wide = {**attrs, "input_size": size}
        yield Case("grouped_conv_input_grad", label, (y, k), to_x, wide, smooth=(0, 1))
        tall = {**attrs, "kernel_size": kernel}
        yield Case("grouped_conv_weight_grad", label, (x, y), to_k, tall, smooth=(0, 1))


def _parted(x: Array, groups: int) -> Array:
    return x.reshape(*x.shape[:3], groups, x.shape[3] // groups)


def _terms(size: Any, kernel: Any, out: Any, strides: Any, padding: Any) -> Iterator[Any]:
    """Which element of the output, the kernel and the input meet: all products of the form."""
    for p, q, i, j in product(range(out[0]), range(out[1]), range(kernel[0]), range(kernel[1])):
        u, v = p * strides[0] + i - padding[0][0], q * strides[1] + j - padding[1][0]
        if 0 <= u < size[0] and 0 <= v < size[1]:
            yield (p, q), (i, j), (u, v)


def quantised() -> Iterator[Case]:
    """Bytes: full and odd tiles of pixels and outputs, strides, the largest sums."""
    for label, (n, h, w), c, (kh, kw), o, strides in (
        ("one-pixel", (1, 1, 1), 8, (1, 1), 5, (1, 1)),
        ("dense", (10, 1, 1), 36, (1, 1), 70, (1, 1)),
        ("taps", (2, 6, 5), 4, (3, 2), 17, (1, 1)),
        ("strides", (1, 7, 6), 12, (3, 3), 64, (2, 3)),
    ):
        generator = np.random.default_rng(len(label))
        x = generator.integers(0, 256, (n, h, w, c)).astype(np.uint8)
        k = generator.integers(0, 256, (kh, kw, c // 4, o, 4)).astype(np.uint8)
        x[0], k[..., 0, :] = 255, 128  # the largest magnitudes
        sh, sw = strides
        out = ((h - kh) // sh + 1, (w - kw) // sw + 1)

        def conv(x: Array, k: Array, out: Any = out, steps: Any = strides) -> Array:
            signed = k.astype(np.int64) - 256 * (k > 127)
            y = np.zeros((x.shape[0], *out, k.shape[3]), np.int64)
            for p, q in np.ndindex(*out):
                for i, j, g, t in np.ndindex(*k.shape[:3], 4):
                    seen = x[:, p * steps[0] + i, q * steps[1] + j, 4 * g + t].astype(np.int64)
                    y[:, p, q] += seen[:, None] * signed[i, j, g, :, t]
            return y

        yield Case("quantised_conv", label, (x, k), conv, {"strides": strides})


def random_bits() -> Iterator[Case]:
    """The vectors of the paper's own library (Random123, kat_vectors: threefry2x32, 20 rounds)."""
    ones = 0xFFFFFFFF
    for label, key, counter, bits in (
        ("zeros", (0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ("ones", (ones, ones), (ones, ones), (0x1CB996FC, 0xBB002BE7)),
        ("pi", (0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
    ):
        args = tuple(np.array(v, np.uint32) for v in (*key, *counter))
        yield Case("threefry", label, args, lambda *_, bits=bits: bits)
        many = (*args[:2], *(np.full((2, 3), c) for c in args[2:]))
        yield Case(
            "threefry",
            f"{label}-2d",
            many,
            lambda *_, bits=bits: tuple(np.full((2, 3), b) for b in bits),
        )
