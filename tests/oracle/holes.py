"""The holes of rows: what `<n>`, `<a>` and the others are filled with.

Each follows from the values of names at this point: `Writer.places`. `w.last` is the array that
was drawn before, for an index, a mask or an operand that fits it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from . import samples
from .samples import is_array, is_number, is_python
from .writer import Skip, Writer, hole


def _usable(value: Any) -> bool:
    return samples.is_sane(value)


@hole("n")
def number(w: Writer) -> str:
    """One number: Python's, NumPy's, an array of rank 0."""
    return w.draw("number", lambda v: is_number(v) and _usable(v), lambda: _plain_number(w))


def _plain_number(w: Writer) -> str:
    if w.rng.random() < 0.75:
        try:
            return w.place(lambda v: is_number(v) or (is_array(v) and v.ndim == 0))
        except Skip:
            pass
    return w.rng.choice(("2", "0.5", "1", "-1.5", "3", "True", "0", "-2", "1.0"))


@hole("p")
def python_number(w: Writer) -> str:
    def plain() -> str:
        try:
            return w.place(is_python)
        except Skip:
            return w.rng.choice(("2", "0.5", "-1", "True"))

    return w.draw("number", lambda v: is_python(v) and _usable(v), plain)


@hole("i")
def small(w: Writer) -> str:
    """A known whole number."""
    return w.rng.choice(("0", "1", "2", "3", "-1", "-2"))


@hole("c")
def condition(w: Writer) -> str:
    def test(v: Any) -> bool:
        return isinstance(v, bool | np.bool_) or is_python(v)

    def plain() -> str:
        left, right = _plain_number(w), _plain_number(w)
        return f"{left} {w.rng.choice(('<', '>', '<=', '>=', '==', '!='))} {right}"

    return w.draw("condition", test, plain)


def _keep(w: Writer, text: str) -> str:
    w.last = w.value(text)
    return text


@hole("a")
def array(w: Writer) -> str:
    return _keep(w, w.draw("array", _is_usable_array, lambda: _plain_array(w)))


def _is_usable_array(v: Any) -> bool:
    return is_array(v) and _usable(v)


def _plain_array(w: Writer) -> str:
    try:
        return w.place(is_array)
    except Skip:
        return w.rng.choice(
            ("np.arange(4.0)", "np.array([1, -2, 3])", "np.ones((2, 3))", "np.eye(3)")
        )


@hole("s")
def same_shape(w: Writer) -> str:
    """An operand for the array drawn last: of its shape, a row of it, or a number."""
    shape = np.shape(w.last)

    def fits(v: Any) -> bool:
        return is_array(v) and np.shape(v) == shape and _usable(v)

    kind = w.rng.random()
    if kind < 0.3:
        return number(w)
    if kind < 0.4 and len(shape) > 1:
        try:
            return w.place(lambda v: is_array(v) and v.shape == shape[1:])
        except Skip:
            pass
    try:
        return w.draw("array", fits, lambda: w.place(fits))
    except Skip:
        return number(w)


@hole("v")
def vector(w: Writer) -> str:
    return _of_rank(w, 1, ("np.arange(3.0)", "np.array([2, 0, 1])", "np.array([0.5, -1.0, 2.0])"))


@hole("m")
def matrix(w: Writer) -> str:
    return _of_rank(w, 2, ("np.eye(3)", "np.arange(6.0).reshape(2, 3)", "np.ones((3, 4))"))


def _of_rank(w: Writer, rank: int, plain: tuple[str, ...]) -> str:
    def test(v: Any) -> bool:
        return is_array(v) and v.ndim == rank and v.size > 0 and _usable(v)

    def simple() -> str:
        try:
            return w.place(test)
        except Skip:
            return w.rng.choice(plain)

    return _keep(w, w.draw("array", test, simple))


# -- places of arrays that may be changed: always an existing one


def _is_writable(v: Any) -> bool:
    return is_array(v) and v.flags.writeable


def _held(w: Writer, test: Any) -> str:
    """Prefers names that the function has made."""
    inside = {name for frame in w.frames for name in frame.names}

    def own(text: str) -> bool:
        return text.split("[")[0].split(".")[0] in inside

    found = [text for text, v in w.places() if _is_writable(v) and test(v)]
    mine = [text for text in found if own(text)]
    if w.daring and w.rng.random() < 0.1:
        mine = found
    if not mine:
        raise Skip
    return _keep(w, w.rng.choice(mine))


@hole("A")
def array_place(w: Writer) -> str:
    return _held(w, lambda v: True)


@hole("V")
def vector_place(w: Writer) -> str:
    return _held(w, lambda v: v.ndim == 1 and v.size > 0)


@hole("M")
def matrix_place(w: Writer) -> str:
    return _held(w, lambda v: v.ndim == 2 and v.size > 0)


@hole("F")
def float_place(w: Writer) -> str:
    return _held(w, lambda v: v.dtype.kind == "f")


@hole("k")
def index(w: Writer) -> str:
    """An index of the first axis of the array drawn last."""
    size = np.shape(w.last)[0] if np.ndim(w.last) else 0
    if not size:
        raise Skip
    if w.rng.random() < 0.3:
        try:
            return w.place(
                lambda v: (
                    isinstance(v, int | np.integer)
                    and not isinstance(v, bool)
                    and -size <= v < size
                )
            )
        except Skip:
            pass
    return str(w.rng.randrange(-size, size))


@hole("x")
def axis(w: Writer) -> str:
    rank = np.ndim(w.last)
    if not rank:
        return "None"
    return str(w.rng.randrange(-rank if w.rng.random() < 0.2 else 0, rank))


@hole("h")
def mask(w: Writer) -> str:
    """Bools of the shape of the array drawn last."""
    shape = np.shape(w.last)

    def fits(v: Any) -> bool:
        return is_array(v) and v.dtype == bool and v.shape == shape

    return w.draw("array", fits, lambda: w.place(fits))


@hole("g")
def part(w: Writer) -> str:
    """A slice."""
    parts = (":2", "1:", "1:3", "::2", "::-1", "1::2", "-2:", ":-1", "2:0:-1", ":", "::-2", ":0")
    return w.rng.choice(parts)


@hole("t")
def dtype(w: Writer) -> str:
    drawn = samples.draw_dtype(w.rng)
    if drawn in ("bool", "float64", "int64") and w.rng.random() < 0.4:
        return {"bool": "bool", "float64": "float", "int64": "int"}[drawn]
    return "np.bool_" if drawn == "bool" else f"np.{drawn}"


# -- names and containers


@hole("N")
def new_name(w: Writer) -> str:
    """A name that has no value yet."""
    name = w.new()
    w.frame.names.append(name)
    return name


@hole("R")
def old_name(w: Writer) -> str:
    """A name of this function that has a value."""
    if not w.frame.names:
        raise Skip
    return w.rng.choice(w.frame.names)


@hole("S")
def number_name(w: Writer) -> str:
    """A name of this function that stands for one number."""
    found = [n for n in w.frame.names if is_number(w.env.get(n))]
    if not found:
        raise Skip
    return w.rng.choice(found)


def _container(w: Writer, class_: type) -> str:
    """One of the function's own, as a rule of the block that it changes in."""
    found = [text for text, v in w.places() if type(v) is class_]
    root = {t: t.split("[")[0].split(".")[0] for t in found}
    mine = {n for frame in w.frames for n in frame.names if n not in frame.fixed}
    if not w.daring and w.rng.random() < 0.7:
        mine -= w.passed
    local = [t for t in found if root[t] in mine]
    if w.daring and w.rng.random() < 0.3:
        local = found
    if not local:
        raise Skip
    return w.rng.choice(local)


@hole("L")
def list_place(w: Writer) -> str:
    return _container(w, list)


@hole("D")
def dict_place(w: Writer) -> str:
    return _container(w, dict)


@hole("l")
def items(w: Writer) -> str:
    """A list or tuple."""
    return w.draw("items", _is_sequence, lambda: _plain_items(w))


def _plain_items(w: Writer) -> str:
    try:
        return w.place(_is_sequence)
    except Skip:
        return w.fill("[<n>, <n>]")


def _is_sequence(v: Any) -> bool:
    return isinstance(v, list | tuple) and len(v) > 0 and _usable(v)


@hole("u")
def numbers(w: Writer) -> str:
    """A list or tuple of single numbers."""

    def test(v: Any) -> bool:
        return _is_sequence(v) and all(map(is_number, v))

    def plain() -> str:
        try:
            return w.place(test)
        except Skip:
            return w.fill("[<n>, <n>, <n>]")

    return w.draw("items", test, plain)


@hole("d")
def dictionary(w: Writer) -> str:
    try:
        return w.place(lambda v: type(v) is dict and v)
    except Skip:
        return w.fill("{'a': <n>, 'b': <e>}")


@hole("q")
def key(w: Writer) -> str:
    return w.rng.choice(("'a'", "'b'", "'c'", "0", "(1, 'b')"))


@hole("e")
def anything(w: Writer) -> str:
    kind = w.rng.random()
    if kind < 0.45:
        return number(w)
    if kind < 0.85:
        return array(w)
    return w.draw("any", _usable, lambda: w.place(lambda v: not callable(v)))
