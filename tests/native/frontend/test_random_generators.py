"""`np.random.default_rng` in a program draws NumPy's numbers."""

import delian as dl
import numpy as np
import pytest
from delian.core.common.errors import ProgramError
from delian.core.compiler.frontend.definitions import np_generators, np_ziggurats

SEEDS = (0, 7, 2**32 - 1, 2**40 + 3, 2**63 - 1)


def same(found, wanted):
    """Equal to the bit, of the same classes and element types."""
    assert type(found) is type(wanted)
    if isinstance(wanted, tuple):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            same(one, other)
        return
    assert getattr(found, "dtype", None) == getattr(wanted, "dtype", None)
    np.testing.assert_array_equal(found, wanted, strict=True)


def words(seed):
    rng = np.random.default_rng(seed)
    return rng.random((3, 4)), rng.random(), rng.random(0), rng.uniform()


def whole(seed):
    rng = np.random.default_rng(seed)
    return (
        *(rng.integers(10, size=7), rng.integers(5, 2**40, size=3), rng.integers(100)),
        *(rng.integers(-3, 3, endpoint=True), rng.integers(0, 2**32, size=3)),
        *(rng.integers(-(2**63), 2**63 - 1, size=2, endpoint=True), rng.integers(4, 5)),
        rng.integers(3 * 2**29, size=40),
    )


def ziggurats(seed):
    rng = np.random.default_rng(seed)
    return (
        *(rng.standard_normal(3_000), rng.standard_normal(), rng.normal()),
        *(rng.standard_exponential(3_000), rng.standard_exponential(), rng.exponential()),
    )


def orders(seed):
    rng = np.random.default_rng(seed)
    x, rows = np.arange(10.0), np.arange(12).reshape(4, 3)
    rng.shuffle(x)
    rng.shuffle(rows)
    grid = np.arange(6).reshape(3, 2)
    return x, rows, rng.permutation(7), rng.permutation(grid), rng.permutation(grid, axis=1)


def choices(seed):
    rng = np.random.default_rng(seed)
    return (
        *(rng.choice(5), rng.choice(5, 3), rng.choice(np.array([1.5, 2.5, 3.5]), 4)),
        *(rng.choice(8, 5, replace=False), rng.choice(8, (2, 2), replace=False, shuffle=False)),
        *(rng.choice(3, 6, p=[0.2, 0.5, 0.3]), rng.choice(3, p=np.array([0.2, 0.5, 0.3]))),
        *(rng.choice([4, 5, 6]), rng.choice(np.arange(6).reshape(2, 3), 2, axis=1)),
    )


def philox(seed):
    rng = np.random.Generator(np.random.Philox(seed))
    return rng.random(9), rng.integers(7, size=5), rng.standard_normal(5)


def made_of_bits(seed):
    return np.random.Generator(np.random.PCG64(seed)).random(3)


@pytest.mark.parametrize("program", [words, whole, ziggurats, orders, choices, philox])
def test_a_seeded_program_gives_numpys_numbers(program):
    compiled = dl.compile(program)
    for seed in SEEDS:
        same(compiled(seed), program(seed))


@pytest.mark.parametrize("program", [words, whole, orders, made_of_bits])
def test_the_reference_gives_them_too(program):
    same(dl.compile(program, backend="reference")(11), program(11))


def test_a_known_seed_and_large_populations():
    def known():
        rng = np.random.default_rng(42)
        wide = np.random.default_rng(2**127 + 2**70 + 5), np.random.default_rng(2**64 - 1)
        return (
            *(rng.random(3), rng.choice(20_000, 2_000, replace=False), rng.choice(20_000, 9)),
            *(wide[0].random(), wide[1].random()),
        )

    same(dl.compile(known)(), known())


def test_draws_in_branches_and_loops_follow_one_another():
    def walk(seed, steps):
        rng = np.random.default_rng(seed)
        place, heads = 0, 0
        for _ in range(steps):
            if rng.random() < 0.5:
                place += rng.integers(3)
                heads += 1
            else:
                place -= rng.integers(1, 7)
        return place, heads, rng.random()

    compiled = dl.compile(walk)
    for seed in SEEDS:
        same(compiled(seed, 200), walk(seed, 200))


def test_a_draw_in_the_test_of_a_loop():
    def waits(seed):
        rng, flips, sixes = np.random.default_rng(seed), 0, 0
        while rng.random() > 0.1:
            flips += 1
        for _ in range(5):
            while rng.integers(6) != 5:
                sixes += 1
        return flips, sixes, rng.random()

    compiled = dl.compile(waits)
    for seed in SEEDS:
        same(compiled(seed), waits(seed))


def test_what_is_scaled_is_numpys_up_to_rounding():
    def scaled(seed, loc, scale):
        rng = np.random.default_rng(seed)
        return (
            *(rng.uniform(-2.0, 5.0, (2, 3)), rng.normal(3.0, 2.0, 5), rng.exponential(2.5, 5)),
            *(rng.normal(loc, scale), rng.uniform(loc, loc + scale), rng.random()),
        )

    loc, scale = np.arange(4.0), np.arange(1.0, 5.0)
    found, wanted = dl.compile(scaled)(9, loc, scale), scaled(9, loc, scale)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-15, atol=1e-15)
    assert found[-1] == wanted[-1]


def test_parameters_are_doubles_as_numpys_are():
    def narrow(seed, loc):
        rng = np.random.default_rng(seed)
        return (
            *(
                rng.uniform(np.float32(0.1), np.float32(0.7)),
                rng.normal(np.float32(3), np.float32(2)),
            ),
            *(
                rng.exponential(np.float32(2)),
                rng.normal(loc, np.float32(0.5)),
                rng.normal([1, 2], 1),
            ),
            *(rng.choice(3, 8, p=np.array([0.2, 0.5, 0.3], np.float32)), rng.uniform([0, 1], 2)),
            rng.normal(loc, size=(2, 3)),
        )

    loc = np.arange(3, dtype=np.float32)
    found, wanted = dl.compile(narrow)(3, loc), narrow(3, loc)
    for one, other in zip(found, wanted, strict=True):
        assert type(one) is type(other) and np.shape(one) == np.shape(other)
        assert getattr(one, "dtype", None) == getattr(other, "dtype", None)
        np.testing.assert_allclose(one, other, rtol=1e-15, atol=1e-15)


def test_draws_are_constants_to_derivatives_and_go_row_by_row_under_vmap():
    def loss(w, seed):
        rng = np.random.default_rng(seed)
        return np.sum((w * rng.normal(size=w.shape) - rng.integers(3)) ** 2)

    w, rng = np.arange(1.0, 6.0), np.random.default_rng(3)
    noise, shift = rng.normal(size=5), rng.integers(3)
    slope = dl.compile(dl.grad(loss))(w, 3)
    np.testing.assert_allclose(slope, 2 * (w * noise - shift) * noise, rtol=1e-12)
    rows = dl.compile(dl.vmap(lambda s: np.random.default_rng(s).random(3)))(np.arange(4))
    same(rows, np.stack([np.random.default_rng(s).random(3) for s in range(4)]))


def test_a_generator_is_of_numpys_classes():
    def classes(seed):
        rng = np.random.default_rng(seed)
        bits = rng.bit_generator
        return (
            *(isinstance(rng, np.random.Generator), type(rng) is np.random.Generator),
            *(isinstance(bits, np.random.PCG64), isinstance(bits, np.random.Philox)),
            *(isinstance(rng, dict), hasattr(rng, "poisson"), hasattr(rng, "no_such")),
        )

    assert dl.compile(classes)(1) == classes(1)


@pytest.mark.parametrize(
    "program",
    [
        lambda n: np.random.default_rng(-n).random(),
        lambda n: np.random.default_rng(1).integers(n, 3),
        lambda n: np.random.default_rng(1).integers(n, 2, endpoint=True),
        lambda n: np.random.default_rng(1).uniform(n, 1.0),
        lambda n: np.random.default_rng(1).normal(0.0, -n),
        lambda n: np.random.default_rng(1).choice(2, p=np.array([0.5, 0.1]) * n),
    ],
)
def test_numpys_errors_are_raised(program):
    with pytest.raises(ValueError) as wanted:
        program(3)
    with pytest.raises(ValueError) as found:
        dl.compile(program)(3)
    assert str(found.value).partition("\n")[0] == str(wanted.value)


OUTSIDE = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("program", "says"),
    [
        (lambda n: np.random.default_rng().random() + n, "without a seed"),
        (lambda n: np.random.default_rng([1, 2]).random() + n, "whole number"),
        (lambda n: np.random.default_rng(n).poisson(3), "poisson"),
        (lambda n: np.random.default_rng(n), "a random generator is a result"),
        (lambda n: (n, np.random.PCG64(n)), "a random generator is a result"),
        (lambda n: np.random.default_rng(n).random(dtype=np.float32), "float64"),
        (lambda n: np.random.default_rng(n).integers(3, dtype=np.int8), "int64"),
        (lambda n: np.random.default_rng(n).integers([3, 4]), "two whole numbers"),
        (lambda n: np.random.default_rng(n).integers(1.5, 3, size=2), "two whole numbers"),
        (lambda n: np.random.default_rng(2**128).random() + n, "at most 128 bits"),
        (lambda n: np.random.default_rng(n).permutation(5.0), "a whole number or an array"),
        (lambda n: np.random.default_rng(n).choice(5.0), "a whole number or an array"),
        (lambda n: np.random.default_rng(n).choice(np.zeros(0)), "a cannot be empty"),
        (lambda n: np.random.default_rng(n).normal(np.zeros(3), size=1), "not compatible"),
        (lambda n: np.random.default_rng(n).shuffle([1, 2]), "takes an array"),
        (lambda n: np.random.default_rng(n).choice(3, 2, replace=False, p=[1, 0, 0]), "`p`"),
        (lambda n: np.random.default_rng(n).random(()), "leave `size` out"),
        (lambda n: OUTSIDE.random() + n, "np.random.random"),
        (lambda n: np.random.rand() + n, "np.random.rand"),
    ],
)
def test_other_draws_are_refused_at_the_users_line(program, says):
    with pytest.raises(ProgramError, match=says) as fault:
        dl.compile(program)(3)
    assert "np_generators" not in str(fault.value)


@pytest.mark.parametrize(
    ("tables", "end", "bits"),
    [
        (np_ziggurats.normal_tables, np_ziggurats.NORMAL_TAIL, 52),
        (np_ziggurats.exponential_tables, np_ziggurats.EXPONENTIAL_TAIL, 53),
    ],
)
def test_the_measured_tables_are_a_ziggurat(tables, end, bits):
    accepts, widths, heights = tables()
    ends = widths * 2.0**bits
    assert ends[-1] == end and np.all(np.diff(ends[1:]) > 0) and np.all(np.diff(heights) < 0)
    np.testing.assert_allclose(accepts[2:], ends[1:-1] / ends[2:] * 2.0**bits, rtol=1e-13)
    # All layers are of one area: width times the difference of heights.
    areas = ends[2:] * (heights[1:-1] - heights[2:])
    np.testing.assert_allclose(areas, areas[0], rtol=1e-9)


def test_every_draw_of_numpys_is_inlined_or_refused():
    known = set(np_generators.METHODS.split()) | {"bit_generator"}
    assert known <= {n for n in dir(np.random.Generator) if not n.startswith("_")}
