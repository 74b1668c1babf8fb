"""The public verbs from outside a compiled function."""

from __future__ import annotations

import dataclasses
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ParamSpec, get_args, get_type_hints

import numpy as np
import pytest
from delian.core.common.errors import DelianError, ProgramError
from delian.core.compiler import api
from delian.core.compiler.ir import DType, TensorType

X = np.array([1.0, -2.0, 3.0], np.float32)


def reference(f, **options):
    return api.compile(f, backend="reference", **options)


@pytest.fixture
def debugging():
    api.debug()
    yield
    api.debug(False)


def test_compile_works_as_decorator_with_and_without_options():
    @api.compile(backend="reference")
    def f(x):
        return x * 2

    assert f.__name__ == "f"
    np.testing.assert_array_equal(f(X), X * 2)
    assert isinstance(api.compile(lambda x: x), api.Compiled)


def test_a_program_is_made_once_for_each_kind_of_argument():
    f = reference(lambda x, n: x * n)
    f(X, 2.0), f(X + 1, 3.0)
    assert len(f._entries) == 1
    f(X, 2), f(X[:2], 2.0), f(X.astype(np.float64), 2.0)
    assert len(f._entries) == 4


def test_python_numbers_are_weak_arguments():
    f = reference(lambda x, s: x * s)
    assert f(X, 0.1).dtype == np.float32
    assert f(X, np.float64(0.1)).dtype == np.float64


def test_other_leaves_are_static():
    f = reference(lambda x, how, table: x.sum() if how == "sum" else x * len(table))
    assert f(X, "sum", ()) == 2
    np.testing.assert_array_equal(f(X, "scale", ("a", "b")), X * 2)


def test_static_values_are_compiled_in():
    f = reference(lambda x, n: x[:n])
    assert f(X, api.Static(2)).shape == (2,)
    assert f(X, api.Static(1)).shape == (1,)


def test_functions_are_arguments():
    f = reference(lambda g, x: g(g(x)))
    np.testing.assert_array_equal(f(np.negative, X), X)


def test_what_cannot_be_hashed_cannot_be_static():
    f = reference(lambda x, options: x)
    with pytest.raises(DelianError, match="hashable"):
        f(X, api.Static([1]))


def test_arrays_that_the_compiler_has_not_are_refused_by_name():
    with pytest.raises(ProgramError, match=r"`x` is an array of longdouble|float128"):
        reference(lambda x: x)(X.astype(np.longdouble))


def test_modules_are_frozen_trees():
    @api.module
    class Scale:
        factor: Any
        name: str = api.static_field(default="s")

        def __call__(self, x):
            return x * self.factor

    scale = Scale(X)
    with pytest.raises(dataclasses.FrozenInstanceError):
        scale.factor = 2
    grown = reference(lambda m, x: Scale(m(x), m.name + "!"))(scale, X)
    assert isinstance(grown, Scale)
    np.testing.assert_array_equal(grown.factor, X * X)
    assert grown.name == "s!"


def test_derivatives_work_outside():
    f = lambda x: np.sum(x**3)  # noqa: E731
    np.testing.assert_allclose(api.grad(f)(X), 3 * X**2)
    value, gradient = api.value_and_grad(f)(X)
    assert value == np.sum(X**3)
    np.testing.assert_allclose(gradient, 3 * X**2)
    _, tangent = api.jvp(f, (X,), (np.ones_like(X),))
    np.testing.assert_allclose(tangent, np.sum(3 * X**2))
    np.testing.assert_allclose(api.grad(lambda x: np.sum(api.grad(f)(x)))(X), 6 * X)


def test_a_pullback_works_outside():
    value, pullback = api.vjp(lambda x, y: (x * y, y), X, X + 1)
    np.testing.assert_array_equal(value[0], X * (X + 1))
    dx, dy = pullback((np.ones(3, np.float32), np.zeros(3, np.float32)))
    np.testing.assert_array_equal(dx, X + 1)
    np.testing.assert_array_equal(dy, X)
    np.testing.assert_array_equal(pullback((X, X))[1], X * X + X)


def test_derivatives_compile():
    f = reference(api.value_and_grad(lambda x, y: np.sum(x * y), argnums=(0, 1)))
    _, (dx, dy) = f(X, X + 1)
    np.testing.assert_array_equal(dx, X + 1)
    np.testing.assert_array_equal(dy, X)


def test_debug_runs_plain_python(debugging):
    seen = []

    @api.compile
    def f(x, n):
        seen.append(type(x))
        return [x] * n

    assert len(f(X, api.Static(2))) == 2
    assert seen == [np.ndarray]


def test_donated_arguments_are_noted_on_the_program():
    f = api.compile(lambda a, b, c: (a, b, c), donate=(1,))
    traced = f.trace({"x": X, "y": X}, (X, X), X)
    assert traced.function.donated == {2, 3}


def test_programs_can_be_traced_for_types():
    traced = reference(lambda x, y: x @ y).trace(
        TensorType(DType.F32, (2, 3)), TensorType(DType.F32, (3, 4))
    )
    assert traced.function.result_types == (TensorType(DType.F32, (2, 4)),)


def test_rebinding_a_global_compiles_anew(monkeypatch):
    f = reference(uses_a_global)
    assert f(np.float32(1)) == 3
    monkeypatch.setitem(globals(), "A_GLOBAL", 5.0)
    assert f(np.float32(1)) == 6


A_GLOBAL = 2.0


def uses_a_global(x):
    return x + A_GLOBAL


def test_threads_share_a_compiled_function():
    f = reference(lambda x: np.sum(np.sin(x)))
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(f, [X * k for k in range(32)]))
    np.testing.assert_allclose(results, [np.sum(np.sin(X * k)) for k in range(32)], atol=1e-6)


def test_arguments_of_another_structure_are_refused():
    traced = reference(lambda p: p["a"]).trace({"a": X})
    with pytest.raises(DelianError, match="structure"):
        traced.arguments({"b": X})


def test_arguments_may_be_given_by_name():
    f = reference(lambda x, scale, shift=1.0: x * scale + shift)
    np.testing.assert_array_equal(f(X, shift=2.0, scale=3.0), X * 3 + 2)
    g = api.grad(lambda x, scale: np.sum(x * scale))
    np.testing.assert_array_equal(g(X, scale=X), X)
    with pytest.raises(DelianError, match="missing a required argument"):
        f(X, shift=2.0)


def test_methods_compile():
    @api.module
    class Scale:
        factor: Any

        @api.compile(backend="reference")
        def apply(self, x):
            return x * self.factor

    np.testing.assert_array_equal(Scale(X).apply(X), X * X)
    f = reference(lambda m, x: m.apply(x) + 1)
    np.testing.assert_array_equal(f(Scale(X), X), X * X + 1)


def test_one_and_true_are_different_static_values():
    f = reference(lambda x, n: x * n if isinstance(n, bool) else x + n)
    np.testing.assert_array_equal(f(X, api.Static(1)), X + 1)
    np.testing.assert_array_equal(f(X, api.Static(True)), X)
    np.testing.assert_array_equal(f(X, api.Static((1,)[0])), X + 1)


class TestNumbersThatMustBeKnown:
    def test_an_int_that_makes_a_shape_gives_a_program_for_each_value(self):
        made = reference(lambda x, n: np.zeros((n, 2)) + x)
        for n in (3, 4, 3):
            assert np.array_equal(made(1.5, n), np.zeros((n, 2)) + 1.5)
        assert len(made._entries) == 2

    def test_a_float_beside_it_stays_a_number_of_the_program(self):
        made = reference(lambda x, n: np.linspace(0.0, x, n))
        assert [made(x, 3)[-1] for x in (1.0, 2.0)] == [1.0, 2.0]
        assert len(made._entries) == 1

    def test_floats_are_known_where_ints_are_not_enough(self):
        made = reference(lambda low, high, step: np.arange(low, high, step))
        assert np.array_equal(made(0.0, 1.0, 0.25), np.arange(0.0, 1.0, 0.25))
        assert np.array_equal(made(0.0, -1.0, -0.5), np.arange(0.0, -1.0, -0.5))

    def test_signs_of_zeros_and_types_make_programs_of_their_own(self):
        made = reference(lambda x, n: np.copysign(np.ones(int(n)), x))
        with np.errstate(all="ignore"):
            assert [made(x, 1.0)[0] for x in (0.0, -0.0)] == [1.0, -1.0]
        counted = reference(lambda n: np.ones(n + 2).sum() + (n is True))
        assert (counted(True), counted(1)) == (4.0, 3.0)

    def test_numbers_that_need_not_be_known_are_not(self):
        made = reference(lambda x, n: x * n)
        assert [made(2.0, n) for n in (3, 4)] == [6.0, 8.0]
        assert len(made._entries) == 1

    def test_gradients_beside_a_number_that_must_be_known(self):
        slope = api.grad(lambda x, n: np.sum(np.zeros(n) + x * n))
        assert [slope(2.0, n) for n in (3, 4)] == [9.0, 16.0]

    def test_an_array_is_never_taken_as_known(self):
        with pytest.raises(ProgramError, match="DL107: a shape must be known"):
            reference(lambda n: np.zeros(n))(np.array(3))

    def test_what_else_cannot_be_compiled_is_told_of_the_program_with_known_numbers(self):
        with pytest.raises(ProgramError, match="no norm 'other'"):
            reference(lambda n: np.linalg.norm(np.zeros(n), "other"))(3)

    def test_so_many_programs_are_kept_with_a_warning(self, monkeypatch):
        monkeypatch.setattr(api, "VALUES_MAX", 3)
        made = reference(lambda n: np.zeros(n))
        assert [made(n).size for n in (1, 2)] == [1, 2]
        with pytest.warns(RuntimeWarning, match="3 values of a number"):
            made(3)
        assert [made(n).size for n in (4, 1, 4, 2)] == [4, 1, 4, 2]
        assert len(made._entries) == 3


MASKED = np.ma.array([1.0, 2.0], mask=[True, False])


class Matrix(np.ndarray):
    def __mul__(self, other):
        return self @ other


MATRIX = np.eye(2).view(Matrix)


@pytest.mark.parametrize("other", [MASKED, MATRIX], ids=["masked", "matrix"])
def test_arrays_with_operators_of_their_own_are_refused_as_arguments(other):
    """A masked array leaves elements out, and `*` of matrices is their product."""
    doubled = api.compile(lambda x: x * 2.0)
    doubled(np.asarray(other))
    with pytest.raises(DelianError, match=r"the argument `x` is a `(MaskedArray|Matrix)`"):
        doubled(other)


def product_with_a_matrix_from_outside(x):
    return x * MATRIX


def test_arrays_with_operators_of_their_own_are_refused_from_outside():
    with pytest.raises(DelianError, match="a `Matrix` is an array with operators of its own"):
        api.compile(product_with_a_matrix_from_outside)(np.ones((2, 2)))


def test_a_memory_map_is_an_array_like_any_other(tmp_path):
    mapped = np.memmap(tmp_path / "x", np.float64, "w+", shape=3)
    mapped[:] = (1.0, 2.0, 3.0)
    assert api.compile(lambda x: x * 2.0)(mapped).tolist() == [2.0, 4.0, 6.0]


def test_the_old_name_of_static_field_warns():
    import delian as dl

    with pytest.warns(DeprecationWarning, match=r"dl\.static_field"):

        @dl.module
        class Scaled:
            weight: Any
            factor: int = dl.static(default=2)

    assert dl.tree.flatten(Scaled(X))[1].paths() is not None
    np.testing.assert_array_equal(api.compile(lambda m: m.weight * m.factor)(Scaled(X)), X * 2)


def test_wrapped_functions_keep_their_parameters_for_type_checkers():
    for verb in (api.grad, api.value_and_grad, api.jacfwd, api.jacrev, api.hessian, api.vmap):
        hints = get_type_hints(verb)
        given, made = (get_args(hints[name])[0] for name in ("f", "return"))
        assert isinstance(given, ParamSpec) and given is made, verb
