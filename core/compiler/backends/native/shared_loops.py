"""One function for loops that differ in their sizes alone.

A loop is written with every size as a number, which lets a compiler know all about it. A deep
network has hundreds of them, most of which differ from one another in these numbers only: layer
after layer the same. There the numbers become parameters of one function, and the loop a macro that
calls it:

    (float *p0) {                                   (float *p0, const int64_t z0) {
      for (i0 = 0; i0 < 3456; i0++) ...      =>       for (i0 = 0; i0 < z0; i0++) ...
                                                    #define loop_7(...) same_2(__VA_ARGS__, 3456)

Small sizes of innermost loops stay: they decide how these are unrolled, unless all of it is so
short that it costs nothing. So does what is the same in all of them, and numbers that are the same
in each are one parameter.

Where there are very many, GCC makes less of an effort: vectors as ever, but less of what it does
besides, which takes it a fifth of its time and made no such program faster.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

#: A file with fewer loops keeps them as they are, and a loop that fewer are like stays itself.
LOOPS_MIN = 48
ALIKE_MIN = 2
#: A file with as many loops has them compiled with less effort; "expensive" finds multiply-adds.
MANY_LOOPS = 100
LESS_EFFORT = """#if defined(__GNUC__) && !defined(__clang__) && !defined(DL_PORTABLE)
#pragma GCC push_options
#pragma GCC optimize ("O1", "expensive-optimizations", "tree-vectorize", "vect-cost-model=dynamic")
#endif"""
AS_BEFORE = """#if defined(__GNUC__) && !defined(__clang__) && !defined(DL_PORTABLE)
#pragma GCC pop_options
#endif"""
#: The largest number that stays: an inner loop of fewer is unrolled, and much faster so.
_SMALL = 32
#: A loop that goes over fewer numbers takes no time that counts.
_SHORT = 4096
#: Sizes that are all multiples of a number up to this say so: vectors then leave nothing over.
_UNIT_MAX = 64
#: Names, sizes of arrays, constants of 64 bits, and numbers as a C preprocessor reads them.
_FLOAT = re.compile(r"\d+\.\d+(?:e[+-]\d+)?f?")
_HEAD = re.compile(r"^( *)for \(int64_t (\w+) = 0; \w+ < (\w+); ", re.MULTILINE)
_OUTER = re.compile(r"\b(i\d+) [*<] $")
_TOKEN = re.compile(r"[A-Za-z_]\w*(?:\(\d+\))?|\[\d+\];|\.?\d(?:[eEpP][+-]|[\w.])*")


@dataclass(frozen=True, slots=True)
class Functions:
    """The functions of a file."""

    macros: list[str]
    """The names of loops that are others with numbers. loops call nothing; others call them."""
    loops: list[str]
    others: list[str]
    many: bool
    """All are compiled with less effort."""

    def with_effort(self, texts: Sequence[str]) -> list[str]:
        """Functions with what says how much of an effort to make."""
        return [LESS_EFFORT, *texts, AS_BEFORE] if self.many else [*texts]


def shared_functions(texts: Mapping[str, str]) -> Functions:
    """The functions of a file, in order. `texts` maps parameters and body to the name."""
    loops = [text for text, name in texts.items() if name.startswith("loop_")]
    alike: dict[tuple[str, ...], list[tuple[str, list[str]]]] = {}
    if len(loops) >= LOOPS_MIN:
        for text in loops:
            pattern, numbers = _parted(text)
            if numbers and not text.startswith("(void)"):
                alike.setdefault(pattern, []).append((text, numbers))
    macro: dict[str, str] = {}
    written: list[str] = []
    for pattern, members in alike.items():
        if len(members) < ALIKE_MIN:
            continue
        name = f"same_{len(written) + 1}"
        shared, columns = _joined(pattern, [numbers for _, numbers in members])
        written.append(f"DL_LOOP void {name}{shared}")
        for row, (text, _) in enumerate(members):
            call = f"{name}(__VA_ARGS__, {', '.join(column[row] for column in columns)})"
            macro[text] = f"#define {texts[text]}(...) {call}"
    written += [f"DL_LOOP void {texts[text]}{text}" for text in loops if text not in macro]
    others = [f"DL_FUNCTION void {n}{t}" for t, n in texts.items() if not n.startswith("loop_")]
    return Functions(list(macro.values()), written, others, len(loops) >= MANY_LOOPS)


def _parted(text: str) -> tuple[tuple[str, ...], list[str]]:
    """A text without its numbers, with the type of each where it was; and these numbers."""
    pieces, numbers, begin = [], [], 0
    outer, short = _nest(text)
    for match in _TOKEN.finditer(text, text.index(")")):
        token = match.group()
        index = _OUTER.search(text, max(match.start() - 9, 0), match.start())
        kind = _type(token, 1 if short or (index and index[1] in outer) else _SMALL)
        if kind:
            pieces += [text[begin : match.start()], kind]
            numbers.append(token)
            begin = match.end()
    return (*pieces, text[begin:]), numbers


def _nest(text: str) -> tuple[set[str], bool]:
    """The indices of loops that have loops within; and whether the text goes over few numbers."""
    outer: set[str] = set()
    around: list[tuple[int, str, int]] = []
    most = 0
    for spaces, index, size in _HEAD.findall(text):
        while around and around[-1][0] >= len(spaces):
            around.pop()
        outer.update(name for _, name, _ in around)
        around.append((len(spaces), index, int(size) if size.isdigit() else _SHORT))
        most = max(most, math.prod(count for _, _, count in around))
    return outer, 0 < most < _SHORT


def _type(token: str, most: int) -> str:
    """The type of a number above `most` that may differ between alike loops, or None."""
    if token.isdigit():
        return "int64_t" if int(token) > most else ""
    if _FLOAT.fullmatch(token):
        return "float" if token.endswith("f") else "double"
    return ""


def _joined(pattern: tuple[str, ...], rows: list[list[str]]) -> tuple[str, list[tuple[str, ...]]]:
    """One text for alike loops, with parameters where numbers differ, and their values."""
    names: dict[tuple[str, ...], str] = {}
    out, parameters = [], []
    for place, column in enumerate(zip(*rows, strict=True)):
        out.append(pattern[2 * place])
        if len(set(column)) == 1:
            out.append(column[0])
            continue
        if column not in names:
            names[column] = f"z{len(names)}"
            parameters.append(f", const {pattern[2 * place + 1]} {names[column]}")
        out.append(names[column])
    head, body = "".join([*out, pattern[-1]]).split(") {\n", 1)
    for column, name in names.items():
        unit = math.gcd(_UNIT_MAX, *(int(n) for n in column if n.isdigit()))
        if unit > 1 and f" < {name}; " in body:
            body = f"  const int64_t {name} = {name}_ & -{unit};\n{body}"
            parameters = [f"{p}_" if p.endswith(f" {name}") else p for p in parameters]
    return f"{head}{''.join(parameters)}) {{\n{body}", list(names)
