"""Runs of calls as data.

The entry of a deep network is a thousand calls of a hundred functions, one after the other: some
forty bytes of code each, and time of the compiler's. In a large file they are numbers instead,

    static const int32_t dl_values[] = {512, -2, 0, 18432, ...};
    static const uint8_t dl_calls[] = {
      /* div (norms.py:194) */ 7, 0, 3,
      ...

for each call which function it is and which of the values it is given, and `dl_follow` goes through
them. A value that is a pointer is an offset in the arena, or below zero a parameter or a result of
the entry. A call that is given something else, such as a local variable, stays a call, and a number
that is the same in all calls of a function stands there. What is named most often has the lowest
number: one byte says most of them, two the others.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from .shared_loops import AS_BEFORE, LESS_EFFORT

#: A file with fewer calls keeps them, and so does a shorter run of them.
CALLS_MIN = 120
RUN_MIN = 4
#: Numbers below this take one byte, others two: a first byte from this on, and any second one.
_ONE_BYTE = 192
#: Values, and functions with what they are given, that the numbers of a call can name.
_NAMED_MAX = _ONE_BYTE + (256 - _ONE_BYTE) * 256
#: Pointers of a call, and its numbers, as a byte counts them.
_GIVEN_MAX = 255
_INT_MAX = 2**31

_CALL = re.compile(r"([a-z]\w*)\((.*)\);")
_KEYWORDS = frozenset(["if", "for", "while", "switch", "return", "sizeof"])
_CONTEXT = re.compile(r"const void \*const (\w+)\[\] = \{(.*)\};")
_PARALLEL = re.compile(r"dl_parallel\((\d+), (\w+), \(void \*\)(\w+), 0, 0\);")
_SHARED = re.compile(r"#define (\w+)\(\.\.\.\) (\w+)\(__VA_ARGS__, (.*)\)")
_POINTER = re.compile(
    r"\(?(?:\((?:const )?\w+ \*\))?(?:\(?arena \+ (?P<arena>\d+)\)?|params\[(?P<params>\d+)\])\)?"
    r"|p(?P<p>\d+)|r(?P<r>\d+)"
)
_NUMBER = re.compile(r"\((-\d+)\)|\(?(\d+)\)?")
_FLOAT = re.compile(r"\(?(-?\d+\.\d+e[+-]\d+)f\)?")
_SIZES = re.compile(r"\(dl_sizes \+ (\d+)\)")
_AT = re.compile(r"\b(DL_INT_AT|DL_F32_AT)\((\d+)\)")
#: Such a number where it is written out.
_WRITTEN = {"DL_INT_AT": "({})", "DL_F32_AT": "dl_as_f32((uint32_t)({}))"}
_PLACE = re.compile(r"\b[pr]\d+\b")
_BETWEEN = re.compile(r"[(\[{)\]},]")
_FIXED = re.compile(r"0|&dl_\w+")


@dataclass(frozen=True, slots=True)
class Entry:
    """A function as it is written: `places` declares pointers to what it is given, by name."""

    head: str
    places: dict[str, str]
    body: list[str]


@dataclass(frozen=True, slots=True)
class _Call:
    """A call's text, with placeholders for what differs from call to call."""

    text: str
    """The call with placeholders."""
    pointers: tuple[int, ...]
    """The pointers that stand at the placeholders."""
    numbers: tuple[int, ...]
    """The numbers that stand there."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """Calls of one text."""

    number: int
    text: str
    """Its text, with the numbers that all calls share."""
    pointers: int
    """How many they are given."""
    places: tuple[int, ...]
    """Places of the numbers that differ, among all numbers."""

    def values(self, call: _Call) -> Iterator[int]:
        """What a call is given that is data."""
        yield from call.pointers
        yield from (call.numbers[i] for i in self.places)


def entry_text(entry: Entry, body: Sequence[str]) -> str:
    """An entry with this body, and those of its places that are in it."""
    named = set(_PLACE.findall("\n".join(body)))
    lines = [*(line for name, line in entry.places.items() if name in named), *body]
    return "\n".join(["", entry.head, *_indented(lines), "}", ""])


def _indented(lines: Sequence[str]) -> list[str]:
    """Lines with an indentation that follows their braces."""
    out, depth = [], 1
    for line in lines:
        for part in line.split("\n"):
            text = part.strip()
            if text.startswith("}"):
                depth -= 1
            out.append("  " * depth + text)
            if text.endswith("{"):
                depth += 1
    return out


class Runs:
    """The runs of a file's entries. macros: as `shared_loops` writes them."""

    def __init__(self, macros: Sequence[str]) -> None:
        found = (_SHARED.fullmatch(text) for text in macros)
        self._shared = {m[1]: (m[2], m[3]) for m in found if m}
        self._values: dict[int, int] = {}
        self._kinds: dict[str, _Kind] = {}
        self._calls: list[str] = []
        self._count = 0

    def replaced(self, entries: Sequence[Sequence[str]]) -> list[list[str]]:
        """The lines of the entries with their runs replaced, where there are enough of them."""
        parted = [list(_parted(_single(lines), self._shared)) for lines in entries]
        long = [run for parts in parted for run, _ in parts if len(run) >= RUN_MIN]
        calls = [call for run in long for _, call in run]
        kinds = _kinds(calls)
        named = Counter(v for call in calls for v in kinds[call.text].values(call))
        given = max((max(k.pointers, len(k.places)) for k in kinds.values()), default=0)
        most = max(len(named), len(kinds))
        if len(calls) < CALLS_MIN or most > _NAMED_MAX or given > _GIVEN_MAX:
            return [list(lines) for lines in entries]
        self._kinds = kinds
        self._values = {v: i for i, (v, _) in enumerate(named.most_common())}
        return [
            [
                line
                for run, lines in parts
                for line in ([self._run(run)] if len(run) >= RUN_MIN else lines)
            ]
            for parts in parted
        ]

    def driver(self) -> list[str]:
        """What goes through the runs; nothing where there are none."""
        if not self._calls:
            return []
        values = ", ".join(map(str, self._values))
        given = [(k.pointers, len(k.places)) for k in self._kinds.values()]
        counts = ", ".join(f"{{{pointers}, {numbers}}}" for pointers, numbers in given)
        return [
            f"static const int32_t dl_values[] = {{{values}}};",
            "static const uint8_t dl_calls[] = {",
            *self._calls,
            "};",
            f"static const uint8_t dl_counts[][2] = {{{counts}}};",
            "DL_INLINE int dl_named(const uint8_t **at) {",
            "  const int first = *(*at)++;",
            f"  return first < {_ONE_BYTE} ? first"
            f" : {_ONE_BYTE} + (first - {_ONE_BYTE}) * 256 + *(*at)++;",
            "}",
            "#define DL_INT_AT(i) ((int64_t)n[i])",
            "#define DL_F32_AT(i) dl_as_f32((uint32_t)n[i])",
            LESS_EFFORT,  # it takes no time, and a compiler half of its own
            "DL_FUNCTION void dl_follow(int64_t from, int64_t to, void *const *params,"
            " void *const *results, char *arena) {",
            "  const uint8_t *at = dl_calls + from, *const end = dl_calls + to;",
            "  while (at < end) {",
            f"    void *p[{max(pointers for pointers, _ in given) or 1}];",
            f"    int32_t n[{max(numbers for _, numbers in given) or 1}];",
            "    const int call = dl_named(&at);",
            "    for (int i = 0; i < dl_counts[call][0]; i++) {",
            "      const int32_t v = dl_values[dl_named(&at)];",
            "      p[i] = v >= 0 ? arena + v : (~v & 1 ? results : params)[~v >> 1];",
            "    }",
            "    for (int i = 0; i < dl_counts[call][1]; i++) n[i] = dl_values[dl_named(&at)];",
            "    switch (call) {",
            *(f"      case {k.number}: {k.text} break;" for k in self._kinds.values()),
            "    }",
            "  }",
            "}",
            AS_BEFORE,
        ]

    def _run(self, run: Sequence[tuple[str, _Call]]) -> str:
        begin = self._count
        for comment, call in run:
            kind = self._kinds[call.text]
            named = [kind.number, *(self._values[v] for v in kind.values(call))]
            written = [byte for number in named for byte in _bytes(number)]
            self._calls.append(f"  {comment} {', '.join(map(str, written))},")
            self._count += len(written)
        return f"dl_follow({begin}, {self._count}, params, results, arena);"


def _bytes(number: int) -> tuple[int, ...]:
    if number < _ONE_BYTE:
        return (number,)
    high, low = divmod(number - _ONE_BYTE, 256)
    return _ONE_BYTE + high, low


def _kinds(calls: Sequence[_Call]) -> dict[str, _Kind]:
    """The kinds of calls by their texts, the most frequent one first."""
    alike: dict[str, list[_Call]] = {}
    for call in calls:
        alike.setdefault(call.text, []).append(call)
    kinds: dict[str, _Kind] = {}
    for text, members in sorted(alike.items(), key=lambda item: -len(item[1])):
        numbers = members[0].numbers
        places = [i for i, n in enumerate(numbers) if any(call.numbers[i] != n for call in members)]

        def given(match: re.Match[str], numbers: Sequence[int], places: Sequence[int]) -> str:
            i = int(match[2])
            if i in places:
                return f"{match[1]}({places.index(i)})"
            return _WRITTEN[match[1]].format(numbers[i])

        written = _AT.sub(partial(given, numbers=numbers, places=places), text)
        pointers = len(members[0].pointers)
        kinds[text] = _Kind(len(kinds), written, pointers, tuple(places))
    return kinds


def _single(lines: Sequence[str]) -> list[str]:
    return [part.strip() for line in lines for part in line.split("\n")]


def _parted(
    lines: Sequence[str], shared: Mapping[str, tuple[str, str]]
) -> Iterator[tuple[list[tuple[str, _Call]], list[str]]]:
    """The lines of consecutive calls, or of other code without calls."""
    run: list[tuple[str, _Call]] = []
    begin = at = 0
    while at < len(lines):
        comment = lines[at] if lines[at].startswith("/*") and at + 1 < len(lines) else ""
        first = at + 1 if comment else at
        call, after = _call(lines, first, shared)
        if call is not None:
            begin = begin if run else at
            run.append((comment, call))
        else:
            if run:
                yield run, list(lines[begin:at])
            run = []
            yield [], list(lines[at:after])
        at = after
    if run:
        yield run, list(lines[begin:])


def _call(
    lines: Sequence[str], at: int, shared: Mapping[str, tuple[str, str]]
) -> tuple[_Call | None, int]:
    """The call of a line, or of two with the first a chunk's; and the place of the next line."""
    context = _CONTEXT.fullmatch(lines[at])
    if context and at + 1 < len(lines):
        parallel = _PARALLEL.fullmatch(lines[at + 1])
        given = [_pointer(text) for text in arguments(context[2])]
        pointers = tuple(v for v in given if v is not None)
        if parallel is None or parallel[3] != context[1] or len(pointers) < len(given):
            return None, at + 1
        text = f"dl_parallel({parallel[1]}, {parallel[2]}, p, 0, 0);"
        return _Call(text, pointers, ()), at + 2
    found = _CALL.fullmatch(lines[at])
    if found is None or found[1] in _KEYWORDS:
        return None, at + 1
    name, more = shared.get(found[1], (found[1], ""))
    return _with_places(name, arguments(f"{found[2]}, {more}" if more else found[2])), at + 1


def _with_places(name: str, given: Sequence[str]) -> _Call | None:
    """A call whose arguments are data; None where one of them cannot be."""
    places: list[str] = []
    pointers: list[int] = []
    numbers: list[int] = []
    for text in given:
        pointer = _pointer(text)
        if _FIXED.fullmatch(text):
            places.append(text)
        elif pointer is not None:
            places.append(f"p[{len(pointers)}]")
            pointers.append(pointer)
        else:
            place, number = _number(text)
            if not place or not -_INT_MAX <= number < _INT_MAX:
                return None
            places.append(place.format(len(numbers)))
            numbers.append(number)
    return _Call(f"{name}({', '.join(places)});", tuple(pointers), tuple(numbers))


def _pointer(text: str) -> int | None:
    """A pointer as a value."""
    m = _POINTER.fullmatch(text)
    if m is None:
        return None
    if m["arena"]:
        return int(m["arena"]) if int(m["arena"]) < _INT_MAX else None
    return ~(2 * int(m["r"]) + 1) if m["r"] else ~(2 * int(m["p"] or m["params"]))


def _number(text: str) -> tuple[str, int]:
    """What reads a number from the values, and the value; nothing for what is none."""
    if m := _NUMBER.fullmatch(text):
        return "DL_INT_AT({})", int(m[1] or m[2])
    if m := _SIZES.fullmatch(text):
        return "dl_sizes + DL_INT_AT({})", int(m[1])
    if m := _FLOAT.fullmatch(text):
        return "DL_F32_AT({})", int(np.float32(m[1]).view(np.int32))
    return "", 0


def arguments(text: str) -> list[str]:
    """What stands between the commas of a call."""
    out, depth, begin = [], 0, 0
    for found in _BETWEEN.finditer(text):
        letter, at = found.group(), found.start()
        if letter != ",":
            depth += 1 if letter in "([{" else -1
        elif depth == 0:
            out.append(text[begin:at].strip())
            begin = at + 1
    return [*out, text[begin:].strip()]
