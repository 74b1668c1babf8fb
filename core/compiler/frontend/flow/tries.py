"""`try`, `except`, `else` and `finally` on values of the running program.

A `try` has a fault code of its own (`raises.Faults`), which says after its body which error was met
first. A program cannot stop in the middle of the body. So what follows a place that may have met an
error runs under `if code == 0`, and an error leaves the names what they were:

    try:                                  code = 0
        y = a // b                        %y = a // b; code = 1 if b == 0
        z = y + 1                   ->    if code == 0: y = %y; z = y + 1
    except ZeroDivisionError:             if code == 0: pass
        z = 0                             else: z = 0

- Within a statement everything is computed; what it changes is changed where there was no error:
  names after it is computed (`deferred`), arrays by a select (`Faults.kept`), and a list that it
  would change is refused.
- Which handler takes an error is known while compiling, from the error's class. What may raise an
  error of a class that is not known is refused.
- What no handler takes becomes an error of the `try` around it, or of the call.
- An error that is met while compiling (a key that a dict has not) is raised at its statement.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ...ir import DType, Value
from .. import statements
from ..hir import hir
from ..memory import stores
from ..values import Error, Frame, Tensor, Unbound, describe
from . import branches, raises
from .raises import Faults, Raised

if TYPE_CHECKING:
    from ..specialise import Specialiser


class Caught(Faults):
    """The errors of one `try`.

    Attributes:
        outer: where those go that no handler takes.
        classes: what the handlers take.
        clear: the code that is known to be 0 at this place.
        hidden: names of which handlers do not know the value, and why.
    """

    local = True

    def __init__(
        self, s: Specialiser, outer: Faults | None, frame: Frame, classes: tuple[type, ...]
    ) -> None:
        self.outer = outer
        self.frame = frame
        self.classes = classes
        self.serial = stores.mark(s)[1]
        self.hidden: dict[str, Unbound] = {}
        super().__init__(s)
        self.clear = self.none[0]

    def born(self) -> int:
        return self.serial

    def pending(self) -> bool:
        return self.memories[0].value is not self.clear

    def none_yet(self) -> Value:
        none = self.none_here()
        if self.outer is not None and self.outer.possible():
            return self.s.emit("and", none, self.outer.none_yet())
        return none

    def none_here(self) -> Value:
        """bool[]: the body has met no error."""
        return super().none_yet()

    def kept(self, new: Value, old: Value) -> Value:
        none = self.none_here()
        if new.shape:
            none = self.s.emit("broadcast", none, shape=new.shape, dims=())
        return self.s.emit("select", none, new, old)

    def unknown(self, frame: Frame, name: str, why: Unbound) -> None:
        if frame is self.frame:
            self.hidden[name] = why

    def check(self, kind: type | None) -> None:
        """Refuses an error whose class only the call knows.

        Raises:
            ProgramError: DL102.
        """
        if kind is None:
            raise self.s.error(
                "DL102",
                "only a call knows which error this raises, if any, so no `try` can be around it",
                "compute it before the `try`, or test its numbers with `if`",
            )

    def takes(self, kind: type) -> bool:
        """Whether a handler of this `try`, or of one around it, takes an error."""
        if issubclass(kind, self.classes):
            return True
        return self.outer is not None and self.outer.takes(kind)


# The body


def run(s: Specialiser, block: hir.Block, frame: Frame) -> None:
    """Statements within a `try`."""
    for k, statement in enumerate(block):
        if s.faults is not None and s.faults.pending():
            _guarded(s, frame, partial(run, s, block[k:], frame))
            return
        _one(s, statement, frame)
        if s.deferred is not None:
            finish, s.deferred = s.deferred, None

            def rest(finish: Callable[[], None] = finish, k: int = k) -> None:
                finish()
                run(s, block[k + 1 :], frame)

            _guarded(s, frame, rest)
            return


def _one(s: Specialiser, statement: hir.Statement, frame: Frame) -> None:
    """A statement. An error of Python's that it meets while compiling is raised here."""
    with raises.met(s):
        statements.RUN[type(statement)](s, statement, frame)


#: Functions of np.linalg that raise LinAlgError where they do not converge; programs give NaN.
_SOLVERS = frozenset(
    f"np.linalg.{name}"
    for name in (
        *("lstsq", "eig", "eigh", "eigvals", "eigvalsh", "svd", "svdvals", "pinv", "cond"),
        "matrix_rank",
    )
)


def check_function(s: Specialiser, name: str) -> None:
    """Refuses a function that may raise in Python what a handler takes, and never in a program."""
    if name in _SOLVERS:
        raises.not_raised(s, np.linalg.LinAlgError, f"`{name}`")


def deferred(s: Specialiser, finish: Callable[[], None]) -> bool:
    """Whether the end of a statement waits: something in the statement may have raised an error."""
    if s.faults is None or not s.faults.pending():
        return False
    s.deferred = finish
    return True


def where_none(s: Specialiser, frame: Frame, run: Callable[[], None]) -> None:
    """A round of a loop: only where no round before has met an error that a handler takes."""
    if s.faults is not None and s.faults.pending():
        _guarded(s, frame, run)
    else:
        run()


def _guarded(s: Specialiser, frame: Frame, run: Callable[[], None]) -> None:
    """What runs if there was no error."""
    faults = s.faults
    assert type(faults) is Caught

    def inside() -> None:
        clear, faults.clear = faults.clear, faults.memories[0].value
        try:
            run()
        finally:
            faults.clear = clear

    branches.split(s, faults.none_here(), (inside, _nothing), frame, None, _where, failed=1)


def _nothing() -> None:
    pass


def _where(name: str) -> tuple[str, str]:
    return "without an error", "after an error"


# The statement


def run_try(s: Specialiser, node: hir.Try, frame: Frame) -> None:
    """A `try`, its handlers, `else` and `finally`."""
    s.at(node.loc)
    before = _code(s)
    with raises.path(s) as ended:
        if node.handlers:
            _handled(s, node, frame)
        else:
            statements.run(s, node.body, frame)
    if node.last:
        if s.tries and (ended or (s.faults is not None and s.faults.pending())):
            s.at(node.loc)
            text = "an error may pass this `finally` on its way to a handler around it"
            raise s.error("DL102", text, "handle the error in this `try`")
        passing = ended or _code(s) is not before
        before = _code(s)
        statements.run(s, node.last, frame)
        if passing and _code(s) is not before:
            s.at(node.loc)
            text = "an error of this `finally` may take the place of one that passes it"
            raise s.error("DL102", text, "handle the error in this `try`")
    if ended:
        raise Raised("what this `try` does not handle")


def _code(s: Specialiser) -> Any:
    """The code of the error that was met first: another value once there may be one."""
    return None if s.faults is None else s.faults.memories[0].value


def _handled(s: Specialiser, node: hir.Try, frame: Frame) -> None:
    classes = [_classes(s, h, frame) for h in node.handlers]
    caught = Caught(s, s.faults, frame, tuple(c for part in classes for c in part))
    with _trying(s, caught), raises.path(s) as ended:
        statements.run(s, node.body, frame)
    taken: list[list[int]] = [[] for _ in classes]
    rest: list[int] = []
    for number, kind in enumerate(caught.kinds, start=1):
        assert kind is not None
        one = kind is not raises.Uncaught
        found = (k for k, part in enumerate(classes) if one and issubclass(kind, part))
        k = next(found, None)
        (rest if k is None else taken[k]).append(number)
    options: list[tuple[list[int], Callable[[], None]]] = []
    if not ended:
        options.append(([0], partial(statements.run, s, node.otherwise, frame)))
    for handler, numbers in zip(node.handlers, taken, strict=True):
        if numbers:
            options.append((numbers, partial(_handle, s, handler, frame, caught, numbers)))
    if rest:
        _pass_on(s, caught, rest)
    if not options:
        raise Raised("no handler takes this error")
    choose = partial(_choose, s, frame, caught, options)
    if rest and s.faults is not None and s.faults.pending():
        _guarded(s, frame, choose)
    else:
        choose()


@contextmanager
def _trying(s: Specialiser, caught: Caught) -> Iterator[None]:
    before, scope, checked = (s.faults, s.checks), s.scope, set(s.scope.checked)
    s.faults, s.checks = caught, True
    s.tries += 1
    try:
        yield
    finally:
        s.faults, s.checks = before
        s.tries -= 1
        scope.checked = checked  # What the body has checked may have failed, and was handled.


def _classes(s: Specialiser, handler: hir.Handler, frame: Frame) -> tuple[type, ...]:
    """The classes that a handler takes."""
    if handler.kinds is None:
        return (BaseException,)
    value = s.eval(handler.kinds, frame)
    s.at(handler.kinds.loc)
    found = value if isinstance(value, tuple) else (value,)
    for cls in found:
        if not (isinstance(cls, type) and issubclass(cls, BaseException)):
            text = f"`except` takes classes of exceptions, not {describe(cls)}"
            raise s.error("DL119", text, "except ValueError:")
    return found


def _choose(
    s: Specialiser,
    frame: Frame,
    caught: Caught,
    options: Sequence[tuple[list[int], Callable[[], None]]],
) -> None:
    """Runs the option whose numbers the fault code is among; the last one if no other."""
    (numbers, run), *others = options
    if not others or not caught.possible():
        run()
        return
    code = caught.memories[0].value
    runs = (run, partial(_choose, s, frame, caught, others))
    branches.split(s, _among(s, code, numbers), runs, frame, None, _where)


def _among(s: Specialiser, code: Value, numbers: Sequence[int]) -> Value:
    """bool[]: whether the code is one of some numbers."""
    test: Value | None = None
    for number in numbers:
        one = s.emit("eq", code, s.scope.number(number, DType.I64))
        test = one if test is None else s.emit("or", test, one)
    assert test is not None
    return test


def _handle(
    s: Specialiser, handler: hir.Handler, frame: Frame, caught: Caught, numbers: list[int]
) -> None:
    for name, why in caught.hidden.items():
        if name.startswith("$"):
            frame.vars.pop(name, None)
        else:
            frame.vars[name] = why
    if handler.name is not None:
        frame.vars[handler.name] = _error(caught, numbers)
    s.handled.append((caught, numbers))
    try:
        statements.run(s, handler.body, frame)
    finally:
        s.handled.pop()
    if handler.name is not None:
        text = f"`{handler.name}` is read after its `except`"
        frame.vars[handler.name] = Unbound("DL103", text, "keep what you need under another name")


def _error(caught: Caught, numbers: list[int]) -> Any:
    """What `except ... as e` binds."""
    made = caught.made[numbers[0] - 1]
    if len(numbers) == 1 and isinstance(made, BaseException | Error):
        return made
    text = "only the running program knows which error this is"
    return Unbound("DL102", text, "use a handler for each class, and no text of the error")


def again(s: Specialiser) -> None:
    """`raise` in a handler.

    Raises:
        Raised: the path ends here.
    """
    if not s.handled:
        raise s.error("DL112", "`raise` stands in no handler", "raise an error by its class")
    _pass_on(s, *s.handled[-1])
    raise Raised("the error of the handler")


def check_cause(s: Specialiser, cause: Any) -> None:
    """Refuses `raise error from cause` of what is no cause."""
    if cause is None or type(cause) is Error or isinstance(cause, BaseException):
        return
    if not (isinstance(cause, type) and issubclass(cause, BaseException)):
        raise s.error("DL119", f"the cause of an error is an exception, not {describe(cause)}")


def _pass_on(s: Specialiser, caught: Caught, numbers: list[int]) -> None:
    """Errors that go on to the `try` around this one, or to the call."""
    code = caught.memories[0].value
    for number in numbers:
        fault, made = caught.table[number - 1], caught.made[number - 1]
        kind = caught.kinds[number - 1]
        if s.faults is None or (made is None and not s.checks):
            if made is not None:
                raise s.error(
                    "DL112",
                    "the numbers of the running program decide whether this is raised, and no"
                    f" handler takes it: {getattr(kind, '__name__', '')}",
                    "only a call of a compiled function from Python raises it; here, return a flag",
                )
            continue
        held = [Tensor(caught.memories[k + 1].value, kind=of) for k, of in fault.held]
        met = s.emit("eq", code, s.scope.number(number, DType.I64))
        s.faults.add(fault.make, held, met, kind, made, fault.locs)
