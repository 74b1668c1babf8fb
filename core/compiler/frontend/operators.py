"""Operators on any abstract values: on tensors they are the IR's, on static values Python's own."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Sequence
from enum import Enum, IntEnum
from functools import partial
from types import MethodType
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import tree
from ..complex_numbers import Complex
from ..ir import Value
from ..ragged import Ragged
from ..traced import ARRAY, BOOL, SCALAR
from . import complexes, pynumbers, ragged, special_methods
from .containers import containers
from .containers.texts import text_of
from .flow import picked_numbers
from .memory import shared_memory
from .numpy import arithmetic
from .values import (
    Choice,
    NotKnown,
    Once,
    Picked,
    RaggedList,
    Tensor,
    Text,
    describe,
    inherits,
    is_number,
    is_static,
    kind_of,
)

if TYPE_CHECKING:
    from .specialise import Specialiser

BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": operator.pow,
    "@": operator.matmul,
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
    "<<": operator.lshift,
    ">>": operator.rshift,
}
#: Those that change a list, dict or set.
IN_PLACE: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.iadd,
    "*": operator.imul,
    "&": operator.iand,
    "|": operator.ior,
    "^": operator.ixor,
    "-": operator.isub,
}
COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
UNARY: dict[str, Callable[[Any], Any]] = {
    "-": operator.neg,
    "+": operator.pos,
    "~": operator.invert,
}


def python(s: Specialiser, compute: Callable[[], Any], what: str) -> Any:
    """Something that Python itself computes on known values; its errors become the user's.

    (NumPy's warnings are off while a program is specialised.)
    """
    try:
        return compute()
    except NotKnown:
        raise not_known(s, what) from None
    except (ArithmeticError, MemoryError, TypeError, ValueError, LookupError, AttributeError) as e:
        if isinstance(e, TypeError) and _OURS.search(str(e)):
            text = f"{what} runs in Python, and cannot compute with what belongs to the program"
            raise s.error("DL106", text, "write it as a loop or a comprehension") from e
        text = (
            f"{type(e).__name__}: {e}".removesuffix(": ")
            if not isinstance(e, KeyError)
            else f"no key {e}"
        )
        raise s.error("DL113", f"{what} fails: {text}") from e


#: Python's words about values of the compiler's.
_OURS = re.compile(
    "'(Tensor|Complex|Ragged|Text|Closure|Method|Picked|Once|TensorRange|RaggedList)'"
    "|belongs to a program that is being compiled"
)


def not_known(s: Specialiser, what: str) -> Exception:
    """The error for what Python asks of a value that only the running program knows."""
    hint = (
        "compare numbers with ==, <, np.where or np.sort; use known values as keys, or pass them as"
        " dl.Static(value)"
    )
    text = f"{what} needs the value of a number that only the running program knows"
    return s.static_needed(text, hint)


def _written(s: Specialiser, op: str, a: Any, b: Any) -> Text:
    """A string with a number of the running program in it, and another one."""
    if op not in "+%" or not (
        isinstance(a, str | Text) and (op == "%" or isinstance(b, str | Text))
    ):
        raise text_needed(s, f"`{op}`")
    shown = f"{describe(a) if type(a) is Text else a}{b if isinstance(b, str) else describe(b)}"
    return text_of(s, shown, BINARY[op], a, b)


def text_needed(s: Specialiser, what: str) -> Exception:
    """The error of an operation on the text of a number that is not known."""
    hint = "choose by comparing the number itself, or make the text outside the compiled function"
    return s.static_needed(
        f"{what} needs the text of a number that only the running program knows", hint
    )


def binary(s: Specialiser, op: str, a: Any, b: Any) -> Any:
    """`a op b` by the classes of both: the program's numbers, structures, a user's objects."""
    if op == "%" and isinstance(a, str) and not is_static(b):
        return _written(s, op, a, b)
    _no_list(s, op, a, b)
    if type(a) is Ragged or type(b) is Ragged:
        return ragged.binary(s, op, a, b)
    if _of_complex(a, b):
        return complexes.binary(s, op, a, b)
    if _running(a, b):
        if arithmetic.is_operand(a) and arithmetic.is_operand(b):
            if op == "@":
                from .numpy import matrix_products

                return shared_memory.operator_result(s, matrix_products.matmul(s, a, b))
            return shared_memory.operator_result(s, pynumbers.binary(s, op, a, b), a, b)
        return _tensor_and_other(s, op, a, b)
    if type(a) is Text or type(b) is Text:
        return _written(s, op, a, b)
    function = BINARY[op]
    made = special_methods.binary(s, op, a, b)
    if made is not NotImplemented:
        return made
    if any(isinstance(v, np.ndarray | np.generic) for v in (a, b)) and not is_static((a, b)):
        x, y = _listed(s, op, a, b), _listed(s, op, b, a)
        if x is not a or y is not b:
            return binary(s, op, x, y)
    joined = op == "|" and isinstance(a, dict) and isinstance(b, dict)
    if not (joined or isinstance(a, list | tuple | str) or is_static((a, b))):
        raise _no_operator(s, op, a, b)
    result = python(s, lambda: function(a, b), f"`{op}`")
    return s.own(result) if isinstance(result, list | dict | set) else result


#: What to do instead with a list whose length the data decide.
OF_ITEMS = "make an array of it, np.array(values), or select from an array: v[v > t]"


def _no_list(s: Specialiser, op: str, *operands: Any) -> None:
    """Refuses a list whose length the data decide."""
    found = next((v for v in operands if type(v) is RaggedList), None)
    if found is not None:
        raise s.static_needed(f"`{op}` of {describe(found)}", OF_ITEMS)


def _of_complex(a: Any, b: Any) -> bool:
    """Whether an operator is one of complex numbers, not all of them known."""
    numbers = complexes.is_operand(a) and complexes.is_operand(b)
    return numbers and _running(a, b) and (complexes.is_any(a) or complexes.is_any(b))


def _running(a: Any, b: Any) -> bool:
    """Whether one of two values is a number or an array of the running program."""
    return type(a) in (Tensor, Complex) or type(b) in (Tensor, Complex)


def _tensor_and_other(s: Specialiser, op: str, a: Any, b: Any) -> Any:
    """A tensor and something that is not a number: a nested list, or a user's class."""
    made = special_methods.binary(s, op, a, b)
    if made is not NotImplemented:
        return made
    x, y = _listed(s, op, a, b), _listed(s, op, b, a)
    if x is not a or y is not b:
        return binary(s, op, x, y)
    for one, other in ((a, b), (b, a)):
        if (
            op == "*"
            and isinstance(one, list | tuple)
            and type(other) is Tensor
            and not arithmetic.dtype_of(s, other)[0].is_float
        ):
            raise s.needs_static(other, f"how often `*` repeats {describe(one)}")
    raise _no_operator(s, op, a, b)


def _no_operator(s: Specialiser, op: str, a: Any, b: Any) -> Exception:
    is_tree = any(tree.children(v) is not None for v in (a, b))
    hint = "for trees of arrays use tree.map" if is_tree else ""
    return s.error("DL119", f"`{op}` does not take {describe(a)} and {describe(b)}", hint)


def _listed(s: Specialiser, op: str, value: Any, other: Any) -> Any:
    """A list or tuple with an array or a NumPy scalar, as the array that NumPy takes it for.

    With one of Python's own numbers it stays what it is, and `*` with a scalar repeats it. A member
    of an enumeration of numbers is Python's number there, and with NumPy's a NumPy scalar.
    """
    member = isinstance(value, Enum) and isinstance(value, int | float)
    if not member and not isinstance(value, list | tuple | range):
        return value
    known = isinstance(other, np.ndarray | np.generic)
    kind = kind_of(other) if known else kind_of_tensor(other)
    repeated = op == "*" and isinstance(value, list | tuple)
    numpys = kind & (ARRAY if repeated else ARRAY | SCALAR)
    if numpys and kind != numpys:
        text = f"{describe(other)} is in Python of one class or another, as the program takes its"
        text += f" path, and `{op}` with {describe(value)} depends on which"
        raise s.error("DL108", text, "convert it on each path: np.float64(x), np.asarray(x)")
    if member:
        own = int(value) if isinstance(value, int) else float(value)
        return np.asarray(own)[()] if numpys else own
    if numpys:
        return s.array(value) if len(value) else np.zeros(0)
    return value


def unary(s: Specialiser, op: str, a: Any) -> Any:
    """`op a`, op one of `not`, `-`, `+`, `~`."""
    if op == "not":
        test = condition(s, a)
        return not test if isinstance(test, bool) else Tensor(s.emit("not", test), True)
    if type(a) is Tensor:
        return shared_memory.operator_result(s, pynumbers.unary(s, op, a), a)
    if type(a) in (Complex, Ragged):
        return (complexes if type(a) is Complex else ragged).unary(s, op, a)
    name = {"-": "__neg__", "+": "__pos__", "~": "__invert__"}[op]
    found = special_methods.find(a, name)
    if found is not None:
        return s.call(MethodType(found, a))
    return python(s, lambda: UNARY[op](a), f"`{op}`")


def compare(s: Specialiser, op: str, a: Any, b: Any) -> Any:
    """`a op b`, op one of `==`, `<`, `is`, `in` and their like."""
    if op in ("is", "is not"):
        same = _is(s, a, b)
        return same if op == "is" else unary(s, "not", same)
    if op in ("in", "not in"):
        return _contains(s, a, b, op)
    _no_list(s, op, a, b)
    if (known := s.natural.compared(op, a, b)) is not None:
        return known
    if type(a) is Ragged or type(b) is Ragged:
        return ragged.compare(s, op, a, b)
    if _of_complex(a, b):
        return complexes.compare(s, op, a, b)
    kinds = kind_of_tensor(a) | kind_of_tensor(b)
    if not (is_static(a) and is_static(b)):
        made = special_methods.compare(s, op, a, b)
        if made is not NotImplemented:
            return made
        if SCALAR & kinds and (_is_sequence(a) or _is_sequence(b)):
            raise s.error("DL119", f"`{op}` does not take {describe(a)} and {describe(b)}")
        asked = any(special_methods.find(v, "__eq__") for v in (a, b))
        if asked and op in ("==", "!=") and not (isinstance(a, tuple) and isinstance(b, tuple)):
            return (a is b) is (op == "==")
        x, y = _listed(s, op, a, b), _listed(s, op, b, a)
        if x is not a or y is not b:
            return compare(s, op, x, y)
    if _running(a, b):
        if arithmetic.is_operand(a) and arithmetic.is_operand(b):
            return shared_memory.operator_result(s, pynumbers.compare(s, op, a, b), a, b)
        if op in ("==", "!=") and not ARRAY & kinds:
            # As in Python: a number equals no string, no None, no function. NumPy's answers about
            # a string with a number of its own.
            numpys = SCALAR & kinds and str in (type(a), type(b))
            return np.bool_(op == "!=") if numpys else op == "!="
        hint = "ask `x is None`, or compare with a number" if op in ("==", "!=") else ""
        raise s.error("DL119", f"`{op}` does not take {describe(a)} and {describe(b)}", hint)
    if type(a) is Text or type(b) is Text:
        raise text_needed(s, f"`{op}`")
    if op in ("==", "!=") and _has_identity_alone(a, b):
        return (op == "==") is _is(s, a, b)
    if not (is_static(a) and is_static(b)):
        return _compare_trees(s, op, a, b)
    return python(s, lambda: COMPARE[op](a, b), f"`{op}`")


def _is_sequence(value: Any) -> bool:
    """Whether NumPy takes a user's object for an array of its items."""
    return all(special_methods.find(value, name) for name in ("__getitem__", "__len__"))


def attribute_of_pair(s: Specialiser, value: Any, name: str) -> Any:
    """`value.name` of a complex number or a ragged array."""
    module = ragged if type(value) is Ragged else complexes
    return module.attribute_of(s, value, name)


def kind_of_tensor(value: Any) -> int:
    """What a running number or array is in Python, as a `Tensor.kind`; 0 for other values."""
    if type(value) is Complex:
        return complexes.kind(value)
    return kind_of(value) if type(value) is Tensor else 0


def _is(s: Specialiser, a: Any, b: Any) -> Any:
    """`a is b`.

    A number of the running program is the object True or False where it is a bool of Python's.
    Whether two such numbers are one object is Python's affair: two names may be one argument.
    """
    if type(b) is Tensor and type(a) is not Tensor:
        a, b = b, a
    if complexes.is_any(a) and complexes.is_any(b) and a is not b:
        raise s.needs_static(a if type(a) is Complex else b, "an operand of `is`")
    if type(a) is not Tensor:
        for one, other in ((a, b), (b, a)):
            if type(one) is Choice or (type(one) is Picked and isinstance(other, list | Picked)):
                raise s.needs_static(one, "an operand of `is`")
        if (id(a) in s.shared or id(b) in s.shared) and type(a) is type(b):
            raise s.error(
                "DL111",
                f"only the running program knows whether {describe(a)} and {describe(b)} are one"
                " object: a branch or loop may have bound a name to either",
                "compare what they hold, or keep a number that says which it is",
            )
        return a is b
    if isinstance(b, bool) and a.kind & BOOL:
        if a.kind != BOOL:
            raise s.needs_static(a, "the class of an operand of `is`")
        return a if b else unary(s, "not", a)
    if is_number(b) and kind_of(b) & a.kind:
        hint = "compare the values: ==, np.array_equal"
        raise s.needs_static(a, "an operand of `is`", hint)
    return False


def of_several_classes(s: Specialiser, value: Tensor) -> Exception:
    """The error for what depends on the class of a number that has one of several."""
    classes = " or ".join(f"`{c.__name__}`" for c in value.classes)
    text = f"this number is in Python {classes}, as the program takes its path"
    return s.static_needed(text, "convert it on each path: float(x), np.float64(x), np.asarray(x)")


def _has_identity_alone(a: Any, b: Any) -> bool:
    """Whether Python compares two objects of a program by `is`: their class says nothing of it."""
    opened = tree.is_open(a) or tree.is_open(b)
    kinds = (type(a), type(b))
    return opened and all(k.__module__ == "builtins" or inherits(k, "__eq__") for k in kinds)


def _compare_trees(s: Specialiser, op: str, a: Any, b: Any) -> Any:
    """Comparisons of lists, tuples and dicts, item by item.

    As in Python, an item is equal to itself.
    """
    listed = next((k for k in (list, tuple) if isinstance(a, k) and isinstance(b, k)), None)
    if op in ("==", "!="):
        if listed is not None:
            same = len(a) == len(b) and _all_equal(s, zip(a, b, strict=True))
            return same if op == "==" else unary(s, "not", same)
        if isinstance(a, dict) and isinstance(b, dict):
            same = a.keys() == b.keys() and _all_equal(s, ((v, b[k]) for k, v in a.items()))
            return same if op == "==" else unary(s, "not", same)
        plain = (list, tuple, dict, set, frozenset, str, int, float, type(None))
        if isinstance(a, plain) and isinstance(b, plain) and not isinstance(a, set | frozenset):
            return op == "!="
        if (a is None or b is None) and "__eq__" not in (*vars(type(a)), *vars(type(b))):
            return op == "!="
    elif listed is not None and not _asks_users((*a, *b)):
        return _in_order(s, op, a, b)
    hint = "compare their arrays one by one"
    raise s.needs_static(a if not is_static(a) else b, f"`{op}` of structures", hint)


def _in_order(s: Specialiser, op: str, a: Sequence[Any], b: Sequence[Any]) -> Any:
    """`<` and the like of two lists or tuples.

    It is that of the first items that differ; of the lengths, where none does.
    """
    result: Any = COMPARE[op](len(a), len(b))
    open_pairs: list[tuple[Any, Any]] = []
    for x, y in zip(a, b, strict=False):
        same = equal(s, x, y)
        if same is True:
            continue
        one = compare(s, op, x, y)
        if same is False:
            result = one
            break
        open_pairs.append((same, one))
    for same, one in reversed(open_pairs):
        kind = kind_of(result) | kind_of(one)
        made = arithmetic.select(s, Tensor(same), result, one)
        result = Tensor(made.value, kind=kind)
    return result


def _all_equal(s: Specialiser, pairs: Iterable[tuple[Any, Any]]) -> Any:
    pairs = list(pairs)
    if _asks_users(part for pair in pairs for part in pair):
        return _in_turns(s, "and", pairs)
    result: Any = True
    for x, y in pairs:
        test = equal(s, x, y)
        if test is False:
            return False
        if test is not True:
            one = Tensor(test, True)
            result = one if result is True else arithmetic.bitwise_and(s, result, one)
    return result


def _asks_users(values: Iterable[Any]) -> bool:
    """Whether a comparison of these runs a user's `__eq__`, which may change something."""
    return any(special_methods.find(v, "__eq__") for v in values)


def _in_turns(s: Specialiser, op: str, pairs: Sequence[tuple[Any, Any]]) -> Any:
    """Comparisons, each where Python comes to it."""
    from .flow.branches import boolean

    def asked(x: Any, y: Any) -> Any:
        test = equal(s, x, y)
        return test if isinstance(test, bool) else Tensor(test, True)

    if not pairs:
        return op == "and"
    assert s.loc is not None
    return boolean(s, op, [partial(asked, x, y) for x, y in pairs], s.loc)


def _contains(s: Specialiser, a: Any, b: Any, op: str) -> Any:
    _no_list(s, op, a, b)
    if type(b) is Ragged:
        return ragged.compare(s, op, a, b)
    method = special_methods.find(b, "__contains__")
    if method is not None:
        test = condition(s, s.call(MethodType(method, b), a))
        found = test if isinstance(test, bool) else Tensor(test, True)
        return found if op == "in" else unary(s, "not", found)
    if type(b) is Once or special_methods.find(b, "__iter__"):
        from .flow import iteration

        b = iteration.partly(s, b)[0]
    if _is_array(b) and is_number(a) and not is_static((a, b)):
        found = Tensor(s.call(np.any, s.call(np.equal, b, a)).value, True)
        return found if op == "in" else unary(s, "not", found)
    if isinstance(b, set | frozenset | dict):
        containers.check_hashable(s, a, f"`{op}`")
    if isinstance(b, _VALUES):
        b = [*b]  # type: ignore[misc]
    among = isinstance(b, tuple | list | set | frozenset | range) and len(b) <= _IN_MAX
    if among and not is_static((a, b)):
        return _equals_one_of(s, a, list(b), op)
    if not is_static(a) or type(b) is Tensor:
        hint = "np.any(x == value) asks whether an array holds a value"
        raise s.needs_static(a if not is_static(a) else b, f"an operand of `{op}`", hint)
    found = python(s, lambda: a in b, f"`{op}`")
    return found if op == "in" else not found


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray) or (type(value) is Tensor and value.kind == ARRAY)


def _equals_one_of(s: Specialiser, a: Any, values: list[Any], op: str) -> Any:
    """Whether a value is among some others, compared one by one as in Python.

    The running program compares where numbers of its own are among them.
    """
    found: Any = False
    pairs = [(value, a) for value in values]  # Python asks the item first.
    if _asks_users((a, *values)):
        found = _in_turns(s, "or", pairs)
        return found if op == "in" else unary(s, "not", found)
    for item, value in pairs:
        test = equal(s, item, value)
        if test is True:
            found = True
            break
        if test is not False:
            one = Tensor(test, True)
            found = one if found is False else arithmetic.bitwise_or(s, found, one)
    return found if op == "in" else unary(s, "not", found)


def equal(s: Specialiser, a: Any, b: Any) -> bool | Value:
    """Whether two values are one object or equal, as Python's containers ask."""
    if a is b:
        return True
    test = condition(s, compare(s, "==", a, b))
    if isinstance(test, bool):
        return test
    one = picked_numbers.same(s, a, b)
    if isinstance(one, bool):
        return True if one else test
    return s.emit("or", test, one)


def condition(s: Specialiser, value: Any) -> bool | Value:
    """The truth of a value: known now, or a bool of the running program."""
    if type(value) is bool:
        return value
    if type(value) is Tensor:
        return arithmetic.truth(s, value)
    if type(value) is Complex:
        return complexes.truth(s, value)  # type: ignore[no-any-return]
    if type(value) is Ragged:
        raise ragged.no_truth(s, value)
    if type(value) is RaggedList:
        return condition(s, value.count)
    if type(value) is Text:
        raise text_needed(s, "the truth of a text")
    found = special_methods.find(value, "__bool__")
    if found is not None:
        return _own_truth(s, s.call(MethodType(found, value)))
    if special_methods.find(value, "__len__") is not None:
        return condition(s, s.call(len, value))
    if isinstance(value, np.ndarray) and value.size != 1:
        return arithmetic.truth(s, value)  # Refuses with its own words.
    if isinstance(value, list | tuple | dict | set | frozenset | str):
        return bool(value)
    truth: bool = python(s, lambda: bool(value), "the truth of a value")
    return truth


def _own_truth(s: Specialiser, answer: Any) -> bool | Value:
    """What a class's `__bool__` gives: Python takes a bool of its own alone."""
    classes = answer.classes if type(answer) is Tensor else [type(answer)]
    if classes == [bool]:
        return condition(s, answer)
    if bool in classes:
        raise of_several_classes(s, answer)
    text = f"`__bool__` gives {describe(answer)}, in Python a TypeError"
    raise s.error("DL113", text, "convert it: bool(x)")


_VALUES: tuple[type, ...] = (type({}.values()), type({}.items()))

#: `in` over more items than this is not written out.
_IN_MAX = 1000

#: Sizes, axes and the like are 64-bit numbers.
_INT_MAX = 2**63


def static_index(s: Specialiser, value: Any, what: str) -> int:
    """A whole number of Python's that must be known now: a bool is 0 or 1."""
    return int(value) if isinstance(value, bool) else static_int(s, value, what)


def static_int(s: Specialiser, value: Any, what: str) -> int:
    """A whole number that must be known now, as most functions of NumPy take it: no bool."""
    if type(value) is int or isinstance(value, IntEnum):
        if not -_INT_MAX <= value < _INT_MAX:
            raise s.error("DL119", f"{what} cannot be {value}: it has more than 64 bits")
        return int(value)
    if type(value) is Tensor:
        raise s.needs_static(value, what)
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    if isinstance(value, np.integer):
        return int(value)
    raise s.error("DL119", f"{what} must be a whole number, not {describe(value)}")


def no_list(s: Specialiser, axis: Any) -> Any:
    """The axis or axes, as reductions of NumPy take them: a number or a tuple."""
    if isinstance(axis, list) or (isinstance(axis, np.ndarray) and axis.ndim):
        raise s.error("DL119", f"axes are a number or a tuple, not {describe(axis)}", "tuple(axes)")
    return axis


def static_ints(s: Specialiser, value: Any, what: str) -> tuple[int, ...]:
    """A whole number or a sequence of them, as a tuple."""
    if isinstance(value, tuple | list):
        return tuple(static_int(s, v, what) for v in value)
    if isinstance(value, np.ndarray) and value.ndim == 1:
        return tuple(static_int(s, v, what) for v in value)
    return (static_int(s, value, what),)
