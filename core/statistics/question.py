"""What a question is: a method with its settings, asked in steps.

A method is a frozen dataclass, registered by its name. Its fields are its settings, plain data as
JSON has it. `ask` is a generator: it yields a step, receives the totals over all sites, and returns
the answer.

    @method("mean")
    @dataclass(frozen=True)
    class Mean(Question):
        column: str

        def columns(self): return (self.column,)

        def ask(self):
            totals = yield Step("mean", (counts("rows"), Sum("total")))
            return MeanAnswer(totals.number("total") / totals.number("rows"))

        def measure(self, table, step, kept):
            values = table.numbers(self.column)
            known = values[~np.isnan(values)]
            return {"rows": np.array(len(known)), "total": known.sum()}
"""

from __future__ import annotations

import importlib
import json
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from typing import Any, ClassVar, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from .answer import Answer
from .site_table import Table
from .sums import StatisticsError, Sum, Totals

Array: TypeAlias = npt.NDArray[Any]
#: Bytes of a question's settings, and of a step's arrays.
SETTINGS_BYTES_MAX = 1 << 16
ARRAYS_BYTES_MAX = 1 << 26
ARRAYS_MAX = 64
_NAME_CHARS_MAX = 40
#: What arrays of a step are made of.
_DTYPES = ("float64", "int64")
_MAGIC = b"delian step 1\n"


@dataclass(frozen=True)
class Step:
    """What sites are asked for in one round."""

    name: str
    """Which of the method's steps."""
    sums: tuple[Sum, ...]
    """What comes back: the total of each."""
    arrays: Mapping[str, Array] = field(default_factory=dict)
    """What sites need for it, such as coefficients: f64 or i64."""

    def floats(self, name: str, *shape: int) -> npt.NDArray[np.float64]:
        """An array, for `measure`: f64 of this shape. Raises StatisticsError: a step is hostile."""
        found: npt.NDArray[np.float64] = self._array(name, np.dtype(np.float64), shape)
        return found

    def integers(self, name: str, *shape: int) -> npt.NDArray[np.int64]:
        """An array, for `measure`: i64 of this shape; -1 in `shape` is any length."""
        found: npt.NDArray[np.int64] = self._array(name, np.dtype(np.int64), shape)
        return found

    def _array(self, name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Any:
        found = self.arrays.get(name)
        if found is None or found.dtype != dtype or found.ndim != len(shape):
            raise StatisticsError(f"the step `{self.name}` has no {dtype} array `{name}`")
        if any(want not in (-1, have) for want, have in zip(shape, found.shape, strict=True)):
            raise StatisticsError(f"the step's `{name}` has shape {list(found.shape)}")
        if dtype.kind == "f" and not np.isfinite(found).all():
            raise StatisticsError(f"the step's `{name}` is not finite")
        return found


Asking: TypeAlias = Generator[Step, Totals, Answer]
#: What a site keeps from step to step of one question. It may be lost: a method makes it again.
Kept: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class Question(ABC):
    """A method with its settings: a frozen dataclass whose fields are plain data."""

    method: ClassVar[str] = ""
    """The name that it is registered by."""

    @abstractmethod
    def columns(self) -> tuple[str, ...]:
        """All columns that a site reads for it."""

    @abstractmethod
    def ask(self) -> Asking:
        """Yields steps, receives their totals, returns the answer. Raises StatisticsError."""

    @abstractmethod
    def measure(self, table: Table, step: Step, kept: Kept) -> Mapping[str, Any]:
        """One site's numbers for a step, by the names of its sums. Raises StatisticsError.

        It runs at the site, on a step that may be hostile.

        Args:
            table: the site's rows.
            step: what is asked.
            kept: what this site keeps for this question, empty at first; it may be lost at any
                time.
        """

    def rows(self, table: Table) -> int:
        """The site's rows that the question reads, for the owner's floor."""
        return table.rows

    def cell_floor(self) -> int | None:
        """The fewest rows of a site that a number of its steps is about, as it is asked.

        None: its sums are over all rows of a site. A site whose floor is higher refuses it.
        """
        if not hasattr(self, "floor"):
            return None
        return self.floor if type(self.floor) is int else 0

    def sensitivities(self, step: Step) -> Mapping[str, float]:
        """By each sum's name: the largest L2 norm of what one row changes in it.

        Raises StatisticsError where a row may change a sum by any amount: it cannot have noise.
        """
        raise StatisticsError(
            f"`{self.method}` has no bound on what one row changes, so that no noise hides a row",
            "ask for counts and histograms, or give the limits of each column",
        )


_METHODS: dict[str, type[Question]] = {}
_Q = TypeVar("_Q", bound=type[Question])


def method(name: str) -> Callable[[_Q], _Q]:
    """Registers a question's class by a name."""

    def register(kind: _Q) -> _Q:
        kind.method = name
        _METHODS[name] = kind
        return kind

    return register


def methods() -> Mapping[str, type[Question]]:
    """All methods by name."""
    from . import methods as package

    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    return dict(sorted(_METHODS.items()))


def settings_of(question: Question) -> dict[str, Any]:
    """A question as plain data: its method, and its settings by name."""
    return {"method": question.method, **asdict(question)}


def question_from(said: Any) -> Question:
    """The reverse of `settings_of`. Raises StatisticsError for what is no question."""
    if not isinstance(said, dict) or not isinstance(said.get("method"), str):
        raise StatisticsError("a question names no method")
    kind = methods().get(said["method"])
    if kind is None:
        raise StatisticsError(
            f"there is no method `{said['method'][:_NAME_CHARS_MAX]}`",
            f"one of {', '.join(methods())}",
        )
    known = {f.name: f for f in fields(kind)}
    given = {name: _frozen(value) for name, value in said.items() if name != "method"}
    unknown = sorted(set(given) - set(known))
    missing = [n for n, f in known.items() if n not in given and _is_needed(f)]
    if unknown or missing:
        what = f"no setting {unknown[0][:_NAME_CHARS_MAX]!r}" if unknown else f"needs {missing[0]}"
        raise StatisticsError(f"the method `{kind.method}` {what}", f"it has {', '.join(known)}")
    try:
        return kind(**given)
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        raise StatisticsError(f"settings of `{kind.method}` that make no sense: {error}") from None


def _is_needed(setting: Any) -> bool:
    return setting.default is MISSING and setting.default_factory is MISSING


def _frozen(value: Any) -> Any:
    """Lists as tuples: settings are hashable and never changed."""
    if isinstance(value, list):
        return tuple(map(_frozen, value))
    if isinstance(value, dict):
        return {str(k): _frozen(v) for k, v in value.items()}
    return value


def step_bytes(step: Step) -> bytes:
    """A step: a line of JSON, and the arrays behind it, little-endian. Raises StatisticsError."""
    arrays = {name: np.asarray(a) for name, a in step.arrays.items()}
    head = {
        "name": step.name,
        "sums": [[s.name, list(s.shape), s.before, s.after] for s in step.sums],
        "arrays": [[n, a.dtype.name, list(a.shape)] for n, a in arrays.items()],
    }
    if any(a.dtype.name not in _DTYPES for a in arrays.values()):
        raise StatisticsError("a step has arrays of f64 and i64 alone")
    parts = [np.ascontiguousarray(a, a.dtype.newbyteorder("<")).tobytes() for a in arrays.values()]
    if sum(map(len, parts)) > ARRAYS_BYTES_MAX:
        raise StatisticsError(f"a step of more than {ARRAYS_BYTES_MAX >> 20} MiB")
    return _MAGIC + json.dumps(head, separators=(",", ":")).encode() + b"\n" + b"".join(parts)


def parse_step(content: bytes) -> Step:
    """The reverse of `step_bytes`. Raises StatisticsError for what is none."""
    magic, _, rest = content[: len(_MAGIC)], None, content[len(_MAGIC) :]
    line, _, body = rest.partition(b"\n")
    if magic != _MAGIC or len(line) > SETTINGS_BYTES_MAX or len(body) > ARRAYS_BYTES_MAX:
        raise StatisticsError("this is no step of a question, or too long a one")
    try:
        head = json.loads(line)
        sums = tuple(
            Sum(str(name), tuple(map(int, shape)), int(before), int(after))
            for name, shape, before, after in head["sums"]
        )
        arrays: dict[str, Array] = {}
        place = 0
        if len(head["arrays"]) > ARRAYS_MAX:
            raise StatisticsError(f"a step of {len(head['arrays'])} arrays")
        for name, dtype, shape in head["arrays"]:
            made = np.dtype(_DTYPES[_DTYPES.index(dtype)])
            size = made.itemsize
            for length in shape:
                size *= int(length)
                if not 0 <= size <= len(body) - place or int(length) < 0:
                    raise StatisticsError("an array that is longer than its step")
            flat = np.frombuffer(body[place : place + size], made.newbyteorder("<"))
            arrays[str(name)] = flat.astype(made).reshape([int(n) for n in shape])
            place += size
        return Step(str(head["name"]), sums, arrays)
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise StatisticsError(f"a step that cannot be read: {error}") from None
