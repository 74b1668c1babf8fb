"""Random small programs of the classes that compiled code must not answer differently.

Numbers are small and mostly halves, so that no rounding decides and no int leaves its 64 bits.
"""

from __future__ import annotations

import random
import re

_NUMBERS = ("p", "q", "i", "j", "t", "u", "s", "r", "c", "d", "g", "z", "p2", "2", "0.5", "nan")
_ARRAYS = ("x", "w", "k", "m", "h", "o")
_UNARY = ("-{}", "+{}", "abs({})", "not {}", "float({})", "int({})", "bool({})", "round({})")
_BINARY = ("+", "-", "*", "+", "*", "/", "//", "%", "&", "|", "<", "<=", "==", "!=", ">")
_OF_TWO = (
    *("max({}, {})", "min({}, {})", "divmod({}, {})[1]", "[{0}, {1}].count({0})"),
    *("np.where(p > 1, {}, {})", "np.maximum({}, {})", "({} if p > q else {})", "({} and {})"),
    *("({} or {})", "len([{}, {}])", "sum([{}, {}])", "np.add({}, {})", "({0} in [{1}, {0}])"),
    *("len({{{}, {}}})", "(({0}, {1}) == ({1}, {0}))", "[{}, {}][-1]", "{{'a': {}, 'b': {}}}['b']"),
)
_OF_ARRAY = (
    *(
        "{}.sum()",
        "{}.mean()",
        "{}.max()",
        "np.sum({}, 0)",
        "{}[0]",
        "{}[-1]",
        "{}[::-1]",
        "{}[1:]",
    ),
    *(
        "np.argmax({})",
        "{}.var(0, None, None, 1)",
        "np.sort({})",
        "np.cumsum({})",
        "{}.astype(int)",
    ),
    *("np.clip({}, 0, 1)", "np.round({})", "np.abs({})", "np.any({}, 0)", "{}.T", "np.sqrt({})"),
    "np.sum({}, 0, None, None, True)",
    *("np.mean({}, 0, None, None, True)", "list({})[0]", "max(list({}))", "{}.astype(np.float32)"),
)
_QUESTIONS = (
    *("isinstance({}, float)", "isinstance({}, (int, np.integer))", "type({}) is float"),
    *("hasattr({}, 'dtype')", "isinstance({}, np.ndarray)", "({} is None)", "np.isscalar({})"),
    *("(({}) is True)", "('{{}}'.format({}) == 'x')", "str({}) == '7'", "callable({})"),
)


def number(rng: random.Random, depth: int) -> str:
    """An expression, of one number as a rule."""
    if depth == 0 or rng.random() < 0.15:
        return rng.choice(_NUMBERS)
    kind = rng.random()
    if kind < 0.4:
        a, b = number(rng, depth - 1), number(rng, depth - 1)
        return f"({a} {rng.choice(_BINARY)} {b})"
    if kind < 0.5:
        return f"({number(rng, depth - 1)} ** {rng.choice((0, 1, 2, -1, 'j', 'u'))})"
    if kind < 0.62:
        return "(" + rng.choice(_UNARY).format(number(rng, depth - 1)) + ")"
    if kind < 0.8:
        return rng.choice(_OF_TWO).format(number(rng, depth - 1), number(rng, depth - 1))
    if kind < 0.9:
        return rng.choice(_QUESTIONS).format(number(rng, depth - 1))
    return rng.choice(_OF_ARRAY).format(array(rng, depth - 1))


def array(rng: random.Random, depth: int) -> str:
    if depth <= 0 or rng.random() < 0.4:
        return rng.choice(_ARRAYS)
    a = rng.choice(_ARRAYS)
    return (
        f"({a} {rng.choice(('+', '*', '-', '/', '//', '%', '<', '=='))} {number(rng, depth - 1)})"
    )


_SHAPES = (
    "{a}",
    "v = {a}\nif {b}:\n    v = {c}\nreturn v",
    "v = {a}\nfor n in range(3):\n    v = v + {b}\nreturn v",
    "v = 0\nfor a in k:\n    if a > {a}:\n        v = v + 1\nreturn v",
    "l = [{a}, {b}]\nl.append({c})\nl.reverse()\nreturn l, len(l), l.index(l[0])",
    "l = [{a}, {b}, {c}]\nl.remove({b})\nreturn l",
    "l = [1, 2, 3]\nfor n in l:\n    if len(l) < 6:\n        l.append({a})\nreturn len(l), l[-1]",
    "l = [{a}]\na = l\na += [{b}]\nl[0] = {c}\nreturn a, len(l)",
    "d = {{'a': {a}}}\nd['b'] = {b}\nd.setdefault('a', {c})\nreturn list(d.values())",
    "v = zip([{a}, {b}], [1, 2])\nreturn list(v), {c}",
    "v = zip([{a}, {b}], [1, 2])\nn = len(list(v))\nreturn n + len(list(v)), {c}",
    "def f(v, acc=[]):\n    acc.append(v)\n    return len(acc)\nreturn f({a}) + f({b})",
    "n = 0\nwhile n < 4 and n != {a}:\n    n = n + 1\nreturn n",
    "n = {a}\ndef f():\n    return n\nn = {b}\nreturn f()",
)


def program(rng: random.Random) -> str:
    """A program's text."""
    a, b, c = (number(rng, rng.choice((1, 1, 2))) for _ in range(3))
    return rng.choice(_SHAPES).format(a=a, b=b, c=c)


#: What gives a number of one class on each path, where Python's class depends on the path.
_PATHS = re.compile(r"\bif\b|\bmax\(|\bmin\(|\band\b|\bor\b|\bwhile\b|\bfor\b")


def is_allowed(text: str, words: str) -> bool:
    """Whether a difference is that of a class alone, after paths that meet."""
    return bool(_PATHS.search(text)) and words.startswith(("class ", "element type"))
