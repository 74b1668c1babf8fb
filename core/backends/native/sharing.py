"""One function for loops that differ in their sizes alone.

A loop is written with every size as a number, which lets a compiler know all about it. A deep
network has hundreds of them, most of which differ from one another in these numbers only: layer
after layer the same. There the numbers become parameters of one function, and the loop a macro that
calls it:

    (float *p0) {                                   (float *p0, const int64_t z0) {
      for (i0 = 0; i0 < 3456; i0++) ...      =>       for (i0 = 0; i0 < z0; i0++) ...
                                                    #define loop_7(...) same_2(__VA_ARGS__, 3456)

Small numbers stay: they decide how a loop is unrolled.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

#: A file with fewer loops keeps them as they are, and a loop that fewer are like stays itself.
LOOPS_MIN = 48
ALIKE_MIN = 2
#: The largest number that stays.
_SMALL = 8
#: Names, sizes of arrays, constants of 64 bits, and numbers as a C preprocessor reads them.
_TOKEN = re.compile(r"[A-Za-z_]\w*(?:\(\d+\))?|\[\d+\];|\.?\d(?:[eEpP][+-]|[\w.])*")


def shared_functions(texts: Mapping[str, str]) -> list[str]:
    """The functions of a file, in order. `texts` maps parameters and body to the name."""
    loops = [text for text, name in texts.items() if name.startswith("loop_")]
    alike: dict[str, list[tuple[str, list[str]]]] = {}
    if len(loops) >= LOOPS_MIN:
        for text in loops:
            pattern, numbers = _parted(text)
            if numbers and not text.startswith("(void)"):
                alike.setdefault(pattern, []).append((text, numbers))
    macro: dict[str, str] = {}
    parts: list[str] = []
    for pattern, members in alike.items():
        if len(members) < ALIKE_MIN:
            continue
        name = f"same_{len(parts) + 1}"
        parts.append(f"DL_FUNCTION void {name}{pattern}")
        for text, numbers in members:
            call = f"{name}(__VA_ARGS__, {', '.join(numbers)})"
            macro[text] = f"#define {texts[text]}(...) {call}"
    for text, name in texts.items():
        parts.append(macro.get(text, f"DL_FUNCTION void {name}{text}"))
    return parts


def _parted(text: str) -> tuple[str, list[str]]:
    """A text with parameters for its numbers, and these numbers, each once."""
    numbers: dict[str, str] = {}

    def replaced(match: re.Match[str]) -> str:
        token = match.group()
        if not token.isdigit() or int(token) <= _SMALL:
            return token
        return numbers.setdefault(token, f"z{len(numbers)}")

    head, body = text.split(")", 1)
    body = _TOKEN.sub(replaced, body)
    more = "".join(f", const int64_t {name}" for name in numbers.values())
    return f"{head}{more}){body}", list(numbers)
