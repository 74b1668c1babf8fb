"""Runs a program by CPython with NumPy and by a back end, and says in what they differ.

Each of the two has the module to itself. Compared are, after each call, the result, the caller's
arguments and the arrays, lists and numbers of the module.
"""

from __future__ import annotations

import ast
import io
import linecache
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from itertools import count
from types import CodeType
from typing import Any
from unittest import mock

import delian as dl
import numpy as np
from delian.core.common.errors import DelianError, ProgramError
from delian.core.compiler.frontend.flow import iteration, unroll_limits
from delian.core.compiler.frontend.values import Tensor
from delian.core.compiler.ir import DType
from delian.core.compiler.traced import FLOAT, INT, SCALAR

from . import causes, numpys_faults
from .samples import quiet

EQUAL, REFUSED, DIFFERS = "equal", "refused", "differs"
#: Programs whose loops are unrolled no further than a few operations: lists are arrays in them.
LONG = "long"
#: Differences that docs/language.md states: a class after paths that meet; an int of more than 64
#: bits; the sign of a zero; a program whose Python result itself differs so with the last bits of
#: its numbers, or with the sign of a zero; equal elements in another order than NumPy's unstable
#: `argsort` leaves them in; what a fault of NumPy's gives.
WIDER, OVERFLOW, ZERO = "wider class", "overflow", "sign of a zero"
ROUNDING, TIES, NUMPYS = "rounding", "ties of a sort", "fault of NumPy's"
STATED = (WIDER, OVERFLOW, ZERO, ROUNDING, TIES, NUMPYS)


@dataclass(frozen=True, slots=True)
class Verdict:
    """mark: one of the words above; code: of a refusal; words: what differs, and where; call and
    outcome: of the compiled program, where it differs; mild: differences that are stated of it
    whatever they come of (`causes`).
    """

    mark: str
    words: str = ""
    code: str = ""
    call: int = 0
    outcome: Any = field(default=None, compare=False)
    mild: tuple[str, ...] = ()


class World:
    """A program's module of its own."""

    def __init__(self, code: CodeType) -> None:
        self.names: dict[str, Any] = {"__name__": "program", **causes.HELPERS}
        exec(code, self.names)

    def state(self) -> dict[str, Any]:
        """The values of the module."""
        return causes.state(self.names)


_files = count()


@contextmanager
def compiled(text: str) -> Iterator[CodeType]:
    """A program's code, of a file whose lines the compiler finds and need not compile again."""
    from delian.core.compiler.frontend.hir import syntax, syntax_source

    file, lines = f"<program {next(_files)}>", text.splitlines(True)
    linecache.cache[file] = (len(text), None, lines, file)
    tree = ast.parse(text)
    code = compile(tree, file, "exec", dont_inherit=True)
    codes: syntax_source.Codes = {0: {}}
    syntax_source._gather(code, codes[0])
    try:
        syntax._FILES[file] = (lines, syntax._mangled(tree, text), codes)
        yield code
    finally:
        del linecache.cache[file]
        syntax._FILES.pop(file, None)
        for key in [k for k in syntax._FUNCTIONS if k[0] == file]:
            del syntax._FUNCTIONS[key]


@contextmanager
def _made_long(backend: str) -> Iterator[str]:
    """The back end that runs a program; for `LONG` it is made as a long one of long lists is."""
    if backend != LONG:
        yield backend
        return
    with (
        mock.patch.object(unroll_limits, "FIRST_MAX", 3),
        mock.patch.object(iteration, "LOOP_MIN", 2),
    ):
        yield "reference"


def judge(text: str, backend: str = "reference") -> Verdict:
    """What comes of a program. backend: one of Delian's, or `LONG`."""
    with quiet(), _made_long(backend) as backend:
        found = _judged(text, text, backend)
        if found.mark != DIFFERS or found.code:
            return found
        for rewritten, mark in ((causes.stable, TIES), (numpys_faults.sound, NUMPYS)):
            if (other := rewritten(text)) != text:
                again = _judged(text, other, backend)
                if again.mark != DIFFERS:
                    return Verdict(mark, found.words)
                text, found = other, again
        several, narrow = _meets(text, backend)
        several |= bool(found.mild)
        if several and found.words.partition(": ")[2].startswith(_COMPLEX):
            return Verdict(WIDER, found.words)
        if causes.wraps_so(text, found.call, found.outcome, found.mild, several):
            return Verdict(OVERFLOW, found.words)
        if causes.rounds_so(text, found.call, found.outcome, found.mild, narrow):
            return Verdict(ROUNDING, found.words)
        return found


def _judged(text: str, in_python: str, backend: str) -> Verdict:
    """The compiled program against another one that Python runs."""
    with compiled(text) as code:
        other = World(code)
        if in_python != text:
            code = compile(in_python, "<program>", "exec", dont_inherit=True)
        python = World(code)
        ours = dl.compile(other.names["f"], backend=backend)
        stated = Verdict(EQUAL)
        for k, make in enumerate(python.names["CALLS"]):
            found = _call(python, other, ours, k, make)
            if found.mark in _MILD:
                stated = found
            elif found.mark != EQUAL:
                return found
            if not _changed(python) or not _changed(other):
                break
        return stated


#: A number that is complex on some path is so on all, and so is what is made of it.
_COMPLEX = (f"{WIDER} array of complex", f"{WIDER} complex")

#: What is looked past for the rest of a program.
_MILD = (WIDER, ZERO)


def _changed(side: World) -> bool:
    try:
        side.names["between"]()
    except Exception:  # The program has put something else in this place.
        return False
    return True


def _call(python: World, other: World, compiled: Any, k: int, make: Any) -> Verdict:
    theirs, mine = make(), other.names["CALLS"][k]()
    want = got = raised = error = None
    want_out, out = io.StringIO(), io.StringIO()
    try:
        with redirect_stdout(want_out):
            want = python.names["f"](*theirs)
    except Exception as e:
        raised = e
    try:
        with redirect_stdout(out):
            got = compiled(*mine)
    except ProgramError as e:
        if e.code == "DL121":
            return Verdict(DIFFERS, f"call {k}: {e}", e.code)
        return Verdict(REFUSED, e.message, e.code)
    except DelianError as e:
        return Verdict(REFUSED, e.message, "DelianError")
    except Exception as e:
        error = e
    outcome: Any = (got, tuple(mine), other.state(), out.getvalue())
    if error is not None and REFUSED_LATE.search(str(error)):
        return Verdict(REFUSED, str(error), "at run time")
    if error is not None:
        outcome = type(error).__name__
    if raised is not None or error is not None:
        return _of_errors(k, raised, error, outcome)
    parts = (
        ("the result", got, want),
        ("the arguments", mine, theirs),
        ("the module", other.state(), python.state()),
        ("the output", out.getvalue(), want_out.getvalue()),
    )
    mild = Verdict(EQUAL)
    for what, a, b in parts:
        said = text_difference(a, b) if what == "the output" else difference(a, b)
        if said.startswith(_MILD) and (said.startswith(ZERO) or _is_of_several(compiled)):
            mild = Verdict(next(m for m in _MILD if said.startswith(m)), said)
        elif said:
            shown = f"{backend_words(a)}\n  Python:   {backend_words(b)}"
            words = f"call {k}: {said} of {what}\n  compiled: {shown}"
            stated = (WIDER,) if _is_of_several(compiled) else ()
            return Verdict(DIFFERS, words, call=k, outcome=outcome, mild=stated)
    return mild


#: Errors of compiled programs that say that they are no error of Python's.
REFUSED_LATE = re.compile(
    "^Python gives |is an error of Python's numbers and has a value among NumPy's"
    "|is an error of NumPy's .*and has a value among Python's"
    "|^NumPy's power 2 of bools is of i8|^NumPy's polynomial has no leading zero"
    "|^Python has no order of NaN|^NumPy has another rule for bins that fall"
    "|^a program's np.geomspace takes|^NumPy's quantile of NaN has the array's type"
)


def _is_of_several(compiled: Any) -> bool:
    """Whether the class of some result depends on the path that Python takes."""
    kinds = [k for e in compiled._entries.values() for k in e.traced.kinds]
    return any(kind & (kind - 1) for kind in kinds)


def _meets(text: str, backend: str) -> tuple[bool, bool]:
    """Whether the path decides the class of some number of the program.

    An int or a float; and a float of Python's or one of NumPy's of fewer bits, to whose type it is
    rounded then.
    """
    found: list[Tensor] = []

    def watched(made: Tensor, value: Any, weak: bool = False, kind: int = 0) -> None:
        begin(made, value, weak, kind)
        if made.kind & (made.kind - 1):
            found.append(made)

    begin = Tensor.__init__
    with mock.patch.object(Tensor, "__init__", watched):
        _judged(text, text, backend)
    several = any(x.kind & INT and x.kind & (FLOAT | SCALAR) for x in found)
    narrow = (x for x in found if x.kind & SCALAR and x.kind & (INT | FLOAT))
    return several, any(x.dtype.is_float and x.dtype is not DType.F64 for x in narrow)


def backend_words(value: Any) -> str:
    try:
        text = repr(value)
    except ValueError:  # An int of thousands of digits is in it.
        return type(value).__name__
    return text if len(text) < 2000 else text[:2000] + "..."


def _of_errors(k: int, raised: Any, error: Any, outcome: Any) -> Verdict:
    words = f"call {k}: compiled {_said(error)}, in Python {_said(raised)}"
    if isinstance(raised, MemoryError):
        return Verdict(OVERFLOW, words)
    if raised is None or error is None:
        return Verdict(DIFFERS, words, call=k, outcome=outcome)
    same = type(raised) is type(error) and str(raised) == str(error)
    if isinstance(raised, RecursionError) and isinstance(error, RecursionError):
        same = True  # The words name the operation at which the stack ended.
    if same:
        return Verdict(EQUAL)
    return Verdict(DIFFERS, words, call=k, outcome=outcome)


def _said(error: Any) -> str:
    return "has a value" if error is None else f"raises {type(error).__name__}: {error}"


# -- comparison

_NUMBERS = (bool, int, float, complex, np.ndarray, np.generic)


def difference(got: Any, want: Any) -> str:
    """In what a compiled result differs from Python's; empty where it does not."""
    if isinstance(want, list | tuple):
        if type(got).__name__ != type(want).__name__ or len(got) != len(want):
            return "structure"
        return _worst(map(difference, got, want))
    if isinstance(want, dict):
        if type(got) is not type(want) or list(got) != list(want):
            return "structure"
        return _worst(map(difference, got.values(), want.values()))
    if want is None or got is None or isinstance(want, str):
        return "" if type(got) is type(want) and got == want else "value"
    if not isinstance(want, _NUMBERS):
        if type(got).__name__ != type(want).__name__:
            return "class"
        return difference(vars(got), vars(want)) if hasattr(want, "__dict__") else ""
    return _of_numbers(got, want)


_FLOAT = re.compile(r"-?(?:\d+\.\d*(?:e[+-]?\d+)?|\d+e[+-]?\d+)")
#: Where an object without a text of its own lies.
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
#: Digits that no array of NumPy's shows, and no number of 32 bits.
_DIGITS = 10


def text_difference(got: str, want: str) -> str:
    """In what a text differs: its floats may be rounded otherwise."""
    got, want = (_ADDRESS.sub("", text) for text in (got, want))
    if _is_same_text(got, want):
        return ""
    signed = any(p.search(text) for p in (_SIGNED_ZERO, _MINUS) for text in (got, want))
    return ZERO if signed and _is_same_text(unsigned(got), unsigned(want)) else "value"


def _is_same_text(got: str, want: str) -> bool:
    mine, theirs = _FLOAT.findall(got), _FLOAT.findall(want)
    if [len(x.lstrip("-")) for x in mine] != [len(x.lstrip("-")) for x in theirs]:
        got, want = _PADDED.sub(_bare, got), _PADDED.sub(_bare, want)
    if _FLOAT.sub("#", got) != _FLOAT.sub("#", want):
        return False
    for x, y in zip(mine, theirs, strict=True):
        size = 8 if max(map(len, (x, y))) > _DIGITS else 4
        if not np.isclose(float(x), float(y), rtol=_CLOSE[size], atol=_SMALL[size]):
            return False
    return True


#: A zero with its sign, as a float's text has it.
_SIGNED_ZERO = re.compile(r"(?<![\w.)\]])-(?=0(?:\.0*)?(?:e[+-]?\d+)?j?(?![\d.]))")
_NOTHING = re.compile(r"\(-?0(?:\.0*)?\+?(-?[^()\s]*j)\)")
_MINUS = re.compile(r"(?<=[\d.])-(?=0(?:\.0*)?j)")
#: A row of an array of floats: NumPy pads each element for the longest one of the array.
_PADDED = re.compile(rf"\[(?:{_FLOAT.pattern}|[-+]?(?:nan|inf)|[-+j,]|\s)++\]")
_PADDING = re.compile(r"(?<=\[)\s+|\s+(?=[],])|\s+(?=[+-][\w.]+j)|\s+(?=\s)")


def _bare(row: re.Match[str]) -> str:
    """A row without its padding."""
    return _PADDING.sub("", row[0]).replace("\n", " ")


def unsigned(text: str) -> str:
    """A text without the signs of its zeros, and without the padding of its arrays.

    Of a complex number whose real part is zero Python shows the imaginary part alone.
    """
    plain = _MINUS.sub("+", _SIGNED_ZERO.sub("", text))
    return _PADDED.sub(_bare, _NOTHING.sub(r"\1", plain))


def numbers_of(text: str) -> tuple[str, list[float]]:
    """A text without its floats, and these."""
    return _FLOAT.sub("#", text), list(map(float, _FLOAT.findall(text)))


def _worst(found: Iterable[str]) -> str:
    said = [words for words in found if words]
    return next((w for w in said if not w.startswith(_MILD)), said[0] if said else "")


def _of_numbers(got: Any, want: Any) -> str:
    if isinstance(want, int) and not -(2**63) <= want < 2**63:
        return "overflow"
    if not isinstance(got, _NUMBERS):
        return f"class {type(got).__name__}, not {type(want).__name__},"
    if np.shape(got) != np.shape(want):
        return f"shape {np.shape(got)}, not {np.shape(want)},"
    if type(got) is not type(want) or np.asarray(got).dtype != np.asarray(want).dtype:
        if _rank(got) > _rank(want) and _close(got, want) != "value":
            return f"wider class {_class(got)}, not {_class(want)},"
        return f"class {_class(got)}, not {_class(want)},"
    return _close(got, want)


def _class(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"array of {value.dtype}"
    return type(value).__name__


def _rank(value: Any) -> tuple[int, int]:
    """Of two numbers on paths that meet, the wider is the one of the higher rank."""
    if type(value) in _NUMBERS[:4]:
        return _NUMBERS.index(type(value)), 0
    if np.ndim(value) == 0 and isinstance(value, np.ndarray):
        return 3, 64  # Of several classes a program gives a NumPy scalar.
    kind = "?buifc".find(np.asarray(value).dtype.kind.replace("b", "?"))
    return (5 if isinstance(value, np.ndarray) else 4), kind * 16 + np.asarray(value).dtype.itemsize


#: By the size of a float: of a few operations, each rounded.
_CLOSE = {2: 4e-3, 4: 1e-5, 8: 1e-9}
_SMALL = {2: 1e-3, 4: 1e-6, 8: 1e-12}


def is_near(got: Any, want: Any) -> Any:
    """bool, of numbers of one shape: element by element, equal up to a few operations' rounding."""
    a, b = np.asarray(got), np.asarray(want)
    if a.dtype.kind == "c" and b.dtype.kind == "c":
        size = min(a.dtype.itemsize, b.dtype.itemsize) // 2
        near = np.isclose(a, b, rtol=_CLOSE[size], atol=_SMALL[size])  # By their distance.
        near |= ~np.isfinite(a) & ~np.isfinite(b)  # Which part is infinite or NaN is open.
        return near | (is_near(a.real, b.real) & is_near(a.imag, b.imag))
    if a.dtype.kind != "f" or b.dtype.kind != "f":
        return a == b
    size = min(a.dtype.itemsize, b.dtype.itemsize)
    return np.isclose(a, b, rtol=_CLOSE[size], atol=_SMALL[size], equal_nan=True)


def _close(got: Any, want: Any) -> str:
    a, b = np.asarray(got), np.asarray(want)
    if a.dtype == b.dtype and a.dtype.kind in "biufc" and a.tobytes() == b.tobytes():
        return ""
    complex_ = a.dtype.kind == "c" and b.dtype.kind == "c"
    if not complex_ and (a.dtype.kind != "f" or b.dtype.kind != "f"):
        return "" if np.array_equal(a, b) else "value"
    if not is_near(a, b).all():
        return "value"
    if complex_:
        a, b = (np.stack([v.real, v.imag]) for v in (a, b))
    zero = (b == 0) & (a == 0)
    return "" if np.array_equal(np.signbit(a[zero]), np.signbit(b[zero])) else ZERO


__all__ = [
    "DIFFERS",
    "EQUAL",
    "REFUSED",
    "REFUSED_LATE",
    "STATED",
    "Verdict",
    "difference",
    "judge",
    "numbers_of",
    "text_difference",
    "unsigned",
]
