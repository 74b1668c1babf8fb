"""Products with frozen weights in few bits, against NumPy's of the numbers that they stand for."""

from __future__ import annotations

import shutil
from functools import partial

import delian as dl
import numpy as np
import pytest
from delian.core.common.errors import DelianError
from delian.core.compiler import api
from delian.core.compiler.backends.native.program import compile_native
from delian.core.compiler.backends.native.toolchain.toolchain import find
from delian.core.compiler.frontend import trace

RNG = np.random.default_rng(25)
#: Rows of x, inputs, outputs: with none, one or some numbers beside whole vectors, panels, groups.
SIZES = [(48, 96, 80), (37, 1001, 131), (1, 700, 333), (300, 64, 65)]


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def pulled(x, weight, g):
    """A number whose derivative by x is g weight^T."""
    return np.sum((x @ weight) * g)


def arena_bytes(run: api.Compiled) -> int:
    return next(iter(run._entries.values())).run.report.arena_bytes


def close(got: np.ndarray, want: np.ndarray) -> None:
    """Within what sums of so many terms in f32 round."""
    np.testing.assert_allclose(got, want, rtol=0, atol=3e-6 * np.abs(want).max())


@pytest.mark.parametrize("kind", ["bf16", "i8", "i4"])
@pytest.mark.parametrize("m, k, n", SIZES)
def test_products_and_gradients_are_those_of_the_numbers(kind, m, k, n) -> None:
    weight = dl.quantise_weight(normal(k, n), kind)
    numbers = weight.expanded().astype(np.float64)
    x, g = normal(m, k), normal(m, n)
    product, by_x = api.compile(lambda x, w, g: (x @ w, api.grad(pulled)(x, w, g)))(x, weight, g)
    close(product, x @ numbers)
    close(by_x, g @ numbers.T)


@pytest.mark.parametrize("kind", ["bf16", "i8", "i4"])
def test_the_transposed_weight_has_the_same_codes(kind) -> None:
    table = normal(333, 70)
    weight = dl.quantise_weight(table.T, kind).T
    numbers = weight.expanded()
    assert weight.shape == (333, 70) and weight.T.shape == (70, 333) and weight.ndim == 2
    x, tokens = normal(5, 70), RNG.integers(0, 333, (4, 9))
    close(api.compile(lambda x, w: x @ w.T)(x, weight), x @ numbers.T)
    found = api.compile(lambda w, t: w[t])(weight, tokens)
    np.testing.assert_array_equal(found, numbers[tokens])
    np.testing.assert_array_equal(weight[tokens], found)


@pytest.mark.parametrize(("kind", "bound"), [("bf16", 2**-8), ("i8", 1 / 254), ("i4", 1 / 8)])
def test_numbers_are_as_near_as_their_kind_says(kind, bound) -> None:
    w = normal(192, 40)
    w[:, 7] = 0
    w[64:128, 3] *= 1e-3
    numbers = dl.quantise_weight(w, kind).expanded()
    near = np.abs(w) if kind == "bf16" else np.abs(w).max(axis=0, keepdims=True)
    if kind == "i4":
        near = np.abs(w).reshape(3, 64, 40).max(axis=1).repeat(64, axis=0)
    assert (np.abs(numbers - w) <= bound * near * (1 + 1e-5)).all()
    assert not numbers[:, 7].any()


@pytest.mark.parametrize("kind", ["bf16", "i8", "i4"])
def test_no_weight_is_stored_in_f32_forwards_or_backwards(kind) -> None:
    """Two layers of 4 MiB each in f32, which forward and backward products read."""
    weights = [dl.quantise_weight(normal(1024, 1024), kind) for _ in range(2)]
    x = normal(32, 1024)

    def loss(x, weights):
        for w in weights:
            x = np.tanh(x @ w)
        return np.sum(x * x)

    for function in (loss, api.grad(loss)):
        run = api.compile(function)
        run(x, weights)
        # The activations, and a few panels of one weight: 128 columns, up to 1,024 steps.
        assert arena_bytes(run) <= 6 * x.nbytes + 4 * 128 * 1024


def test_a_loop_over_stacked_blocks_expands_one_panel_at_a_time() -> None:
    stacked = [dl.quantise_weight(normal(256, 256), "i4") for _ in range(6)]
    codes = np.stack([w.codes for w in stacked])
    scales = np.stack([w.scales for w in stacked])

    def loss(x, codes, scales):
        for k in range(codes.shape[0]):
            w = dl.QuantisedWeight(codes[k], scales[k], "i4", (256, 256))
            x = np.tanh(x @ w)
        return np.sum(x * x)

    def plain(x, numbers):
        for k in range(numbers.shape[0]):
            x = np.tanh(x @ numbers[k])
        return np.sum(x * x)

    x = normal(8, 256)
    run = api.compile(api.grad(loss))
    got = run(x, codes, scales)
    want = api.compile(api.grad(plain))(x, np.stack([w.expanded() for w in stacked]))
    close(got, want)
    assert arena_bytes(run) < 256 * 256 * 4 + 20 * x.nbytes


def test_a_weight_that_a_loop_reads_is_not_expanded_before_it() -> None:
    weight = dl.quantise_weight(normal(512, 512), "i8")

    def walk(x, w):
        for _ in range(12):
            x = np.tanh(x @ w * 0.04)
        return x

    run = api.compile(walk)
    x = normal(4, 512)
    close(run(x, weight), walk(x, weight.expanded()))
    assert arena_bytes(run) < 512 * 512 * 4


def test_several_threads_give_the_same_bits() -> None:
    weight, x = dl.quantise_weight(normal(500, 900), "i4"), normal(200, 500)
    product = partial(api.compile, lambda x, w: np.maximum(x @ w, 0) @ w.T)
    np.testing.assert_array_equal(product(threads=1)(x, weight), product(threads=3)(x, weight))


@pytest.mark.skipif(shutil.which("gcc") is None, reason="its options are GCC's")
@pytest.mark.parametrize("options", ["-mno-avx", "-DDL_PORTABLE"])
def test_narrower_vectors_expand_too(options: str, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("DELIAN_CC", f"gcc {options}")
    monkeypatch.setenv("DELIAN_CACHE", str(tmp_path))
    toolchain = find()
    assert toolchain is not None
    x = normal(7, 70)
    for kind in ("bf16", "i4"):
        weight = dl.quantise_weight(normal(70, 90), kind)
        function = trace(lambda x, w: np.tanh(x @ w) @ w.T, x, weight).function
        program = compile_native({"f": function}, toolchain)["f"]
        args = [x, *(leaf for leaf in (weight.codes, weight.scales) if leaf is not None)]
        numbers = weight.expanded()
        close(program(*args)[0], np.tanh(x @ numbers) @ numbers.T)


@pytest.mark.parametrize("backend", ["reference", "native"])
def test_the_weight_is_a_constant(backend) -> None:
    """Its scales are floats, and have a derivative of zero."""
    weight, x, g = dl.quantise_weight(normal(96, 80), "i8"), normal(8, 96), normal(8, 80)

    def of_scales(scales):
        return pulled(x, dl.QuantisedWeight(weight.codes, scales, "i8", weight.shape), g)

    assert not api.compile(api.grad(of_scales), backend=backend)(weight.scales).any()


def test_second_derivatives_go_through_a_frozen_weight() -> None:
    weight, x = dl.quantise_weight(normal(64, 80), "i8"), normal(4, 64) * 0.1

    def energy(x, w):
        return np.sum(np.tanh(x @ w) ** 2)

    def slope(x, w):
        return np.sum(api.grad(energy)(x, w) ** 2)

    got = api.compile(api.grad(slope))(x, weight)
    close(got, api.compile(api.grad(slope))(x, weight.expanded()))


def test_what_is_no_weight_is_refused() -> None:
    weight = dl.quantise_weight(normal(8, 4))
    for wrong in (normal(3, 4), np.float32(2)):
        with pytest.raises(ValueError, match=r"x @ weight takes x \[..., 8\]"):
            wrong @ weight
    with pytest.raises(DelianError, match="8"):
        api.compile(lambda x, w: x @ w)(normal(3, 4), weight)
    with pytest.raises(ValueError, match="rows are read from a table"):
        weight[np.array([0])]
    for bad, options, text in (
        (normal(8), {}, r"a matrix \[inputs, outputs\], not shape \[8\]"),
        (normal(0, 4), {}, r"not shape \[0, 4\]"),
        (np.ones((4, 4), np.int32), {}, "takes floats, not int32"),
        (np.full((4, 4), np.inf), {}, "not finite"),
        (normal(8, 4), {"kind": "i3"}, "unknown kind 'i3'"),
        (normal(8, 4), {"kind": "i4", "group": 7}, "a group of 7 inputs"),
        (normal(8, 4), {"kind": "i4", "group": "8"}, "a group of 8 inputs"),
    ):
        with pytest.raises(DelianError, match=text):
            dl.quantise_weight(bad, **options)


# -- the cross-entropy over a vocabulary


def whole(hidden, weight, labels):
    return np.mean(dl.ops.cross_entropy(hidden @ weight, labels) ** 2)


def parts(hidden, weight, labels, rows=None):
    return np.mean(dl.ops.vocabulary_cross_entropy(hidden, weight, labels, rows) ** 2)


@pytest.mark.parametrize("rows", [1, 7, 8, 24, 100])
def test_the_vocabulary_in_parts_gives_the_loss_and_both_gradients(rows) -> None:
    hidden, table, labels = normal(4, 6, 20), normal(50, 20), RNG.integers(0, 50, (4, 6))

    def tied(hidden, table, labels):
        return parts(hidden, table.T, labels, rows)

    def full(hidden, table, labels):
        return whole(hidden, table.T, labels)

    got = api.compile(api.value_and_grad(tied, (0, 1)))(hidden, table, labels)
    want = api.compile(api.value_and_grad(full, (0, 1)))(hidden, table, labels)
    assert abs(got[0] - want[0]) < 1e-5 * want[0]
    for a, b in zip(got[1], want[1], strict=True):
        close(a, b)
    assert abs(tied(hidden, table, labels) - want[0]) < 1e-5 * want[0]


@pytest.mark.parametrize("rows", [1, 7, 8, 24, None])
def test_a_frozen_vocabulary_gives_the_loss_and_its_slope(rows) -> None:
    hidden, labels = normal(4, 6, 20), RNG.integers(0, 300, (4, 6))
    head = dl.quantise_weight(normal(20, 300), "i4", 10)
    run = api.compile(api.value_and_grad(lambda h, w, y: parts(h, w, y, rows)))
    got = run(hidden, head, labels)
    want = api.compile(api.value_and_grad(whole))(hidden, head.expanded(), labels)
    assert abs(got[0] - want[0]) < 1e-5 * want[0]
    close(got[1], want[1])
    assert abs(parts(hidden, head, labels, rows) - want[0]) < 1e-5 * want[0]


def test_the_loss_over_a_frozen_vocabulary_has_second_derivatives() -> None:
    hidden, labels, along = normal(9, 20), RNG.integers(0, 300, 9), normal(9, 20)
    head = dl.quantise_weight(normal(20, 300), "i8")

    def slope(loss, h, w):
        return np.sum(api.grad(loss)(h, w, labels) * along)

    got = api.compile(api.grad(lambda h, w: slope(lambda *a: parts(*a, 4), h, w)))(hidden, head)
    want = api.compile(api.grad(lambda h, w: slope(whole, h, w)))(hidden, head.expanded())
    np.testing.assert_allclose(got, want, atol=2e-5 * np.abs(want).max())


def test_no_logits_of_all_tokens_are_kept() -> None:
    tokens, width, symbols = 256, 32, 30_000
    hidden, labels = normal(tokens, width), RNG.integers(0, symbols, tokens)
    table = dl.quantise_weight(normal(width, symbols), "i8")
    run = api.compile(api.value_and_grad(parts))
    got = run(hidden, table, labels)
    want = api.compile(api.value_and_grad(whole))(hidden, table.expanded(), labels)
    close(got[1], want[1])
    assert arena_bytes(run) < tokens * symbols * 4 / 2


def test_shapes_that_do_not_fit_a_vocabulary_are_refused() -> None:
    with pytest.raises(ValueError, match=r"hidden \[..., D\], a weight \[D, V\]"):
        parts(normal(4, 5), normal(6, 50), np.zeros(4, np.int64))
    with pytest.raises(ValueError, match="0 rows a part"):
        parts(normal(4, 5), normal(5, 50), np.zeros(4, np.int64), 0)
