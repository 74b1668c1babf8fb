"""The public verbs: `compile`, `grad`, `value_and_grad`, `vjp`, `jvp`, `module`, `debug`.

They work outside a compiled function, where the derivatives are compiled on first use, and inside
one, where the front end takes them apart; so they nest.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from threading import Lock
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, dataclass_transform, overload

import numpy as np

from ..common.errors import DelianError
from . import debugging, in_place, known_arguments, tree
from .backends import Backend, Executable, compile_function
from .eager_vmap import loop_over_lanes
from .ir import Function, TensorType
from .traced import Kind, Static, Traced, Transform, flatten, has_own_operators, name_of
from .tree import static, static_field, unflatten

if TYPE_CHECKING:
    from .passes.number_profiles import Profile

__all__ = [
    "Compiled",
    "Static",
    "compile",
    "debug",
    "grad",
    "jvp",
    "module",
    "static_field",
    "value_and_grad",
    "vjp",
]

_C = TypeVar("_C", bound=type)
P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


@dataclass_transform(frozen_default=True, eq_default=False, field_specifiers=(static_field, static))
def module(cls: _C) -> _C:
    """Makes a class a module: a frozen dataclass whose fields are arrays or modules, and so a tree.

    A field made with `dl.static_field()` belongs to the structure: a size, a name, a function.
    """
    return dataclass(frozen=True, eq=False)(cls)  # type: ignore[return-value]


def debug(on: bool = True) -> None:
    """Runs compiled functions as plain Python, an operation at a time, for print and pdb.

    A function whose derivative is taken runs twice: as plain Python, and in the derivative's
    program, which NumPy runs, an operation at a time. That leaves calls of `print`, `breakpoint`
    and `pdb.set_trace` out, and assertions about tensors, and warns at the line that makes a NaN
    or an infinity of finite numbers. `DELIAN_DEBUG=1` does the same.
    """
    debugging.on = on


# Compiled functions


@dataclass(slots=True)
class _Entry:
    traced: Traced
    run: Executable
    calls: int = 0
    #: Runs it without Python code in between, once it was called often (`native.direct`).
    direct: Callable[..., Any] | None = None


@dataclass(frozen=True, slots=True)
class _Known:
    """What programs for some types of arguments must know."""

    leaves: tuple[int, ...]
    keys: list[Any] = field(default_factory=list)  # of the programs, the oldest first


#: How many programs for values of numbers are kept, for arguments of the same types.
VALUES_MAX = 64
#: The call of a program with which its calls become direct ones.
_DIRECT_FROM = 16


class Compiled(Generic[P, R_co]):
    """A function that is compiled for each kind of argument that it is called with.

    Arrays and numbers are values of the program; every other leaf of the arguments, and
    `dl.Static(value)`, it is specialised for. So are Python's numbers where the function needs to
    know them while it is compiled, as for a shape: ints and bools first, floats too where that is
    not enough. Globals and closures are read when it is compiled,
    and it is compiled again when what it read from them has changed: a name that was set again, an
    attribute, an item of a list or dict, an element of an array. A call gives what the function
    would give in Python, of the same class: a float, a NumPy scalar, an array.
    """

    #: Whether it runs as plain Python where one debugs.
    _plainly = True
    #: Whether a call may change the caller's arrays in place.
    _changes = True

    def __init__(
        self,
        f: Callable[P, R_co],
        backend: Backend,
        donate: Sequence[int],
        profile: Profile = "fast",
        threads: int | None = None,
        checks: bool = True,
    ) -> None:
        self.__wrapped__ = f
        self.__name__ = name_of(f)
        self.__doc__ = getattr(f, "__doc__", None)
        self.backend: Backend = backend
        self.profile: Profile = profile
        self.threads = threads
        self.checks = checks
        self.donate = tuple(donate)
        self._entries: dict[Any, _Entry] = {}
        self._known: dict[Any, _Known] = {}  # by the types of the arguments
        self._direct: Callable[..., Any] | None = None  # of the entry that was called last
        self._lock = Lock()

    def __get__(self, owner: Any, kind: type | None = None) -> Any:
        """Binds to an instance, as a function in a class does."""
        return self if owner is None else MethodType(self, owner)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Runs it; raises ProgramError when it cannot be compiled for these arguments."""
        if self._direct is not None and not kwargs and not debugging.on:
            result = self._direct(*args)
            if result is not NotImplemented:
                return result  # type: ignore[no-any-return]
        values = _positional(self.__wrapped__, args, kwargs)
        if debugging.on and self._plainly:
            plain = tuple(a.value if isinstance(a, Static) else a for a in values)
            return self.__wrapped__(*plain)  # type: ignore[call-arg]
        leaves, structure = flatten(values)
        entry = self._entry(leaves, structure)
        traced = entry.traced
        entry.calls += 1
        if entry.calls == _DIRECT_FROM and self.backend == "native" and not traced.said:
            entry.direct = _direct(entry, leaves)
        self._direct = entry.direct
        passed = traced.passed(leaves)
        given = [np.asarray(v) for v in passed]
        targets = None
        if traced.changed or traced.filled:
            targets = in_place.Targets(traced, values, passed)
        results = traced.checked(entry.run(*given))
        return traced.as_python(results) if targets is None else targets.written(results)  # type: ignore[no-any-return]

    def trace(self, *args: Any) -> Traced:
        """The program for these arguments, or for arguments of these types."""
        return self._trace(args)

    def _trace(
        self,
        args: Sequence[Any],
        changes: bool = False,
        raises: bool = False,
        looping: bool | None = None,
    ) -> Traced:
        from .frontend import trace

        traced = trace(
            self.__wrapped__,
            *args,
            changes=changes,
            raises=raises,
            checks=self.checks,
            looping=looping,
        )
        f = traced.function
        donated = _donated(traced, self.donate)
        function = Function(f.name, f.body, f.param_names, f.result_names, donated)
        return replace(traced, function=function)

    def _entry(self, leaves: Sequence[Any], structure: Any) -> _Entry:
        # A function may go through a dict in its order.
        types = structure, tuple(structure.orders()), tuple([_key(v) for v in leaves])
        try:
            key = self._key_of(types, leaves)
            found = self._entries.get(key)
        except TypeError as e:
            raise DelianError(
                f"`{self.__name__}` cannot be specialised for its arguments: {e}",
                "an argument that is no array must be hashable: use tuples and frozen dataclasses",
            ) from None
        if found is not None and found.traced.current():
            return found
        with self._lock:
            found = self._entries.get(self._key_of(types, leaves))
            if found is None or not found.traced.current():
                traced = self._program(types, leaves, structure)
                run = compile_function(traced.function, self.backend, self.profile, self.threads)
                found = _Entry(traced, run)
                self._keep(types, leaves, found)
                if traced.filled:
                    each = (entry.traced for entry in self._entries.values())
                    in_place.warn_of_growth(self.__name__, each)
        return found

    def _key_of(self, types: Any, leaves: Sequence[Any]) -> Any:
        known = self._known.get(types)
        return types if known is None else (types, *(Static(leaves[k]) for k in known.leaves))

    def _keep(self, types: Any, leaves: Sequence[Any], entry: _Entry) -> None:
        key = self._key_of(types, leaves)
        if key != types and key not in self._entries:
            values = self._known[types].keys
            values.append(key)
            if len(values) > VALUES_MAX:
                del self._entries[values.pop(0)]
            elif len(values) == VALUES_MAX:
                warnings.warn(
                    f"`{self.__name__}` was compiled for {VALUES_MAX} values of a number that it"
                    " must know while it is compiled, as for a shape; older programs are dropped",
                    RuntimeWarning,
                    stacklevel=4,
                )
        self._entries[key] = entry

    def _program(self, types: Any, leaves: Sequence[Any], structure: Any) -> Traced:
        """The program; where it needs Python's numbers to be known, for these numbers."""
        known = self._known.get(types)

        def attempt(some: tuple[int, ...], looping: bool) -> Traced:
            given = [Static(v) if j in some else v for j, v in enumerate(leaves)]
            return self._trace(unflatten(structure, given), self._changes, True, looping)

        traced, some = known_arguments.made(
            leaves, None if known is None else known.leaves, attempt
        )
        if known is None and some:
            self._known[types] = _Known(some)
        return traced


def _direct(entry: _Entry, leaves: Sequence[Any]) -> Callable[..., Any] | None:
    from .backends.native.direct import direct_call
    from .backends.native.program import NativeProgram

    if not isinstance(entry.run, NativeProgram):
        return None
    return direct_call(entry.traced, entry.run, leaves)


def _positional(f: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """Arguments by name put in their places: a program's parameters have an order."""
    if not kwargs:
        return args
    while isinstance(f, Transform):
        f = f.f
    try:
        bound = inspect.signature(f).bind(*args, **kwargs)
    except TypeError as e:
        raise DelianError(f"`{name_of(f)}`: {e}") from None
    if bound.kwargs:
        given = ", ".join(f"`{k}`" for k in bound.kwargs)
        raise DelianError(
            f"`{name_of(f)}` takes {given} by name alone, which a program cannot",
            "close over the value, or make the parameter positional",
        )
    return bound.args


def _key(leaf: Any) -> Any:
    if isinstance(leaf, np.ndarray):  # Whether a reshape of it is a view depends on its layout.
        return leaf.dtype, leaf.shape, leaf.flags.c_contiguous, has_own_operators(leaf)
    if isinstance(leaf, np.generic):
        return leaf.dtype, None
    if isinstance(leaf, bool | int | float):
        return type(leaf)
    return Static(leaf) if not isinstance(leaf, Static | TensorType) else leaf


def _donated(traced: Traced, donate: Sequence[int]) -> frozenset[int]:
    """Arguments' numbers to parameters' numbers."""
    out: set[int] = set()
    if traced.packs:  # Donating saves memory, and is optional.
        return frozenset()
    leaf = param = 0
    for k, child in enumerate(traced.in_structure.children):
        for _ in range(child.leaves):
            if leaf not in traced.static:
                if k in donate:
                    out.add(param)
                param += 1
            leaf += 1
    return frozenset(out)


@overload
def compile(
    f: Callable[P, R],
    *,
    backend: Backend = ...,
    donate: Sequence[int] = ...,
    profile: Profile = ...,
    threads: int | None = ...,
    checks: bool = ...,
) -> Compiled[P, R]: ...
@overload
def compile(
    f: None = None,
    *,
    backend: Backend = ...,
    donate: Sequence[int] = ...,
    profile: Profile = ...,
    threads: int | None = ...,
    checks: bool = ...,
) -> Callable[[Callable[P, R]], Compiled[P, R]]: ...
def compile(
    f: Callable[P, R] | None = None,
    *,
    backend: Backend = "native",
    donate: Sequence[int] = (),
    profile: Profile = "fast",
    threads: int | None = None,
    checks: bool = True,
) -> Compiled[P, R] | Callable[[Callable[P, R]], Compiled[P, R]]:
    """Compiles a function; also a decorator, with or without arguments.

    Args:
        f: written in NumPy's vocabulary; its arguments and result are trees of arrays.
        backend: "native" (generated C; the reference one where there is no compiler), "reference"
            (NumPy, slow), or PyTorch: "torch:cpu", "torch:cuda", "torch:npu".
        donate: arguments whose memory the results may take; their arrays must not be used
            afterwards.
        profile: "fast", "reproducible" (f32 gives the same bits on every back end, at about the
            cost of f64) or "exact" (integers and random bits; float arithmetic is refused).
        threads: how many one call may use, with the native back end: $DELIAN_THREADS, or 1. The
            results are the same bit for bit.
        checks: False leaves out `assert`, as `python -O` does, and the checks of indices, divisors
            and the like: an index out of range is moved to the nearest place. `raise` stays.
    """
    if f is None:
        return lambda g: Compiled(g, backend, donate, profile, threads, checks)
    return Compiled(f, backend, donate, profile, threads, checks)


# Derivatives


class _Program(Compiled[..., Any]):
    """One that plain Python cannot stand for."""

    _plainly = False
    _changes = False


class _Value(Compiled[..., Any]):
    """The value of a function of which a derivative is wanted too."""

    _changes = False


#: What gives a value, and a function of cotangents or tangents.
_PAIRS = ("vjp", "linearize")
#: What has a meaning without a program: a loop over lanes, or the function itself.
_PLAIN = ("vmap", "checkpoint", "custom_vjp", "mixed_precision")


class Derivative(Transform):
    """A derivative of a function, callable."""

    __slots__ = ("_compiled", "_pull")

    def __init__(
        self,
        kind: Kind,
        f: Any,
        argnums: int | tuple[int, ...] = 0,
        has_aux: bool = False,
        extra: tuple[Any, Any] = (0, 0),
    ) -> None:
        super().__init__(kind, f, argnums, has_aux, extra)
        # What a call runs; a pullback cannot leave a program, so a vjp's value and pullback are
        # two, and so are those of a linearize.
        pair = kind in _PAIRS
        self._compiled = _Value(f, "reference", ()) if pair else _Program(self, "reference", ())
        self._pull = _Program(partial(_pull if kind == "vjp" else _push, f), "reference", ())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Compiled with the reference back end on first use; wrap it in `compile` for speed."""
        if debugging.on and self.kind in _PLAIN:
            if self.kind == "vmap":
                return loop_over_lanes(self.f, self.extra, args, kwargs)
            return self.f(*args, **kwargs)
        args = _positional(self, args, kwargs)
        made = self
        if debugging.on:
            made = _made_before(self)
            if self.kind not in _PAIRS:  # of these the value is plain Python's
                self._run_plainly(args)
        return made.run(args)

    def run(self, args: tuple[Any, ...]) -> Any:
        """A call of the compiled programs, by the function's own positional arguments."""
        result = self._compiled(*args)
        if self.kind == "vjp":
            return result, lambda cotangent: self._pull(args, cotangent)
        if self.kind == "linearize":
            return result, lambda *tangents: self._pull(args, tangents)
        return result

    def _run_plainly(self, args: Sequence[Any]) -> None:
        """Runs the function itself, for what it says and where it stops."""
        primals = args[0] if self.kind == "jvp" else args
        self.f(*(a.value if isinstance(a, Static) else a for a in primals))


def _made_before(made: Derivative) -> Derivative:
    """A cached derivative: a debugged training takes one at each step."""
    if not isinstance(made.f, FunctionType | MethodType):
        return made  # others may be equal to one another and yet differ, as 1 and True do
    key = made.kind, made.f, made.argnums, made.has_aux
    found = _derivatives.get(key)
    if found is None:
        while len(_derivatives) >= _DERIVATIVES_MAX:
            _derivatives.pop(next(iter(_derivatives)))
        found = _derivatives[key] = made
    return found


_DERIVATIVES_MAX = 64
_derivatives: dict[Any, Derivative] = {}


def _pull(f: Callable[..., Any], primals: tuple[Any, ...], cotangent: Any) -> Any:
    return vjp(f, *primals)[1](cotangent)


def _push(f: Callable[..., Any], primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> Any:
    return jvp(f, primals, tangents)[1]


def grad(
    f: Callable[P, Any], argnums: int | tuple[int, ...] = 0, has_aux: bool = False
) -> Callable[P, Any]:
    """The gradient of a function whose result is one float.

    Args:
        f: gives a float[], or (float[], aux) with `has_aux`.
        argnums: the argument, or tuple of arguments, to differentiate; trees of floats.

    Returns:
        a function of the same arguments that gives a tree like the argument, or a tuple of them;
        with `has_aux`, (that, aux).
    """
    return Derivative("grad", f, argnums, has_aux)


def value_and_grad(
    f: Callable[P, R], argnums: int | tuple[int, ...] = 0, has_aux: bool = False
) -> Callable[P, tuple[R, Any]]:
    """Like `grad`, but gives (result of f, gradient)."""
    return Derivative("value_and_grad", f, argnums, has_aux)


def jvp(f: Callable[..., R], primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[R, R]:
    """(f(*primals), its derivative along `tangents`). Both are tuples of trees of floats, alike."""
    return Derivative("jvp", f)(primals, tangents)  # type: ignore[no-any-return]


def vjp(f: Callable[..., R], *primals: Any) -> tuple[R, Callable[[R], Any]]:
    """(f(*primals), pullback); pullback: cotangents of the result -> a tuple like the primals."""
    return Derivative("vjp", f)(*primals)  # type: ignore[no-any-return]


def linearize(f: Callable[..., R], *primals: Any) -> tuple[R, Callable[..., R]]:
    """(f(*primals), its linear approximation there).

    The latter takes tangents like the primals to the result's. Within a program, what does not
    depend on the tangents is computed once.
    """
    return Derivative("linearize", f)(*primals)  # type: ignore[no-any-return]


def jacfwd(f: Callable[P, Any], argnums: int | tuple[int, ...] = 0) -> Callable[P, Any]:
    """The Jacobian by forward mode: best where the arguments are fewer numbers than the result.

    Returns:
        a function of the same arguments that gives a tree like the result of f, each leaf of which
        is a tree like the argument (a tuple of them for a tuple of argnums) of arrays
        [*result's shape, *argument's shape].
    """
    return Derivative("jacfwd", f, argnums)


def jacrev(f: Callable[P, Any], argnums: int | tuple[int, ...] = 0) -> Callable[P, Any]:
    """Like `jacfwd`, by reverse mode: best where the result is fewer numbers than the arguments."""
    return Derivative("jacrev", f, argnums)


def hessian(f: Callable[P, Any], argnums: int | tuple[int, ...] = 0) -> Callable[P, Any]:
    """The second derivative, jacfwd of jacrev: [*shape, *shape] for a float[] result."""
    return Derivative("jacfwd", Derivative("jacrev", f, argnums), argnums)


def hvp(f: Callable[..., Any], primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> Any:
    """The Hessian of a function whose result is one float, times `tangents`.

    A tuple of trees like the primals.

    Forward over reverse mode (Pearlmutter 1994): about the work of two gradients, and no Hessian.
    """
    places = tuple(range(len(primals)))
    return Derivative("jvp", Derivative("grad", f, places))(primals, tangents)[1]


def vmap(f: Callable[P, R], in_axes: Any = 0, out_axes: Any = 0) -> Callable[P, R]:
    """The function over many lanes at once: f of each row of its arguments, in one program.

    Branches become choices and loops run until all lanes are done; a lane that is out of a branch
    or done does no harm (no NaN reaches its gradient, its loops end).

    Args:
        f: of one lane.
        in_axes: the axis of the lanes in each argument, None for one that all lanes share: one for
            all arguments, or a tuple with one each, any of which may be a tree that is a prefix of
            its argument. Keyword arguments are mapped over their first axis.
        out_axes: where the lanes go in the result, likewise; None for what is the same in all.

    Returns:
        a function of arguments with these axes.
    """
    return Derivative("vmap", f, extra=(in_axes, out_axes))


def checkpoint(f: Callable[P, R], every: int | None = None) -> Callable[P, R]:
    """The function, of which a derivative saves the arguments alone.

    What is inside is run again when the reverse gets there.

    Its loops are cut into segments, so that the derivative of one of T trips needs memory for about
    2 sqrt(T) of its carries instead of T, also where T is not known: one more run of the body. With
    `every` the segments have so many trips each.
    """
    return Derivative("checkpoint", f, extra=(every, None))


def custom_vjp(
    f: Callable[P, R], forward: Callable[..., Any], reverse: Callable[..., Any]
) -> Callable[P, R]:
    """The function with a reverse rule of its own.

    Args:
        f: of arguments by position.
        forward: of the same arguments, gives (what f gives, what to keep): trees.
        reverse: of (what was kept, cotangents like the result), gives a tuple of cotangents like
            the arguments; None for one that is zero. Static arguments and integers get none.

    Returns:
        a function like f. It has no forward derivative; the functions may use no tensor of the
        program but their arguments.
    """
    return Derivative("custom_vjp", f, extra=(forward, reverse))


def mixed_precision(f: Callable[P, R], dtype: Any = np.float16) -> Callable[P, R]:
    """The function with its products of matrices and convolutions in 16 bits, the rest in f32.

    Weights, results and gradients stay f32 where they were. With f16, gradients that are too small
    for it are lost: scale the loss with `dl.loss_scale`. bf16 needs none.

    Args:
        f: any function; take its gradient after: dl.grad(dl.mixed_precision(loss, dl.bfloat16)).
        dtype: np.float16 or dl.bfloat16.
    """
    return Derivative("mixed_precision", f, extra=(np.dtype(dtype), None))


__all__ += [
    "Derivative",
    "checkpoint",
    "custom_vjp",
    "hessian",
    "hvp",
    "jacfwd",
    "jacrev",
    "linearize",
    "mixed_precision",
    "tree",
    "vmap",
]
