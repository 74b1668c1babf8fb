"""Loops over sines and cosines of f32 that are right for any number, at the speed of small ones.

The reduction of a small angle is a few products, which compilers turn into vectors. That of a large
one takes its exponent's bits of 2/pi, which they do not. A loop cannot branch in its middle and
stay a loop of vectors, so a function runs its loop for small angles, and records whether it met a
large one. If so, all of it runs again, element by element:

    int far = 0;
    {
      for (...) { const float v0 = dl_sin_near_f32(x0); far |= dl_is_far_f32(x0); p1[i0] = v0; }
    }
    if (far) {
      for (...) { const float v0 = dl_sin_f32(x0); p1[i0] = v0; }
    }

Where it writes over what it reads, it cannot run again. There a first loop stores nothing, and so
computes the angles alone.
"""

from __future__ import annotations

import re

_SINE = re.compile(r"dl_(sin|cos)_f32\((.+)\);$")
#: A store of a loop's function: its pointers are p0, p1, ...
_STORE = re.compile(r" *p\d+\[")


def for_far_angles(body: list[str], in_place: bool) -> list[str]:
    """The body of a function such that sines and cosines of f32 in it are right for any number.

    The body can run several times. in_place: but not if it stores.
    """
    if not any(map(_SINE.search, body)):
        return body
    near = [
        _SINE.sub(r"dl_\1_near_f32(\2); far |= dl_is_far_f32(\2);", line)
        for line in body
        if not (in_place and _STORE.match(line))
    ]
    lines = ["int far = 0;", *_block("", near), *_block("if (far) ", body)]
    if in_place:
        small = [_SINE.sub(r"dl_\1_near_f32(\2);", line) for line in body]
        lines += _block("else ", small)
    return lines


def _block(head: str, lines: list[str]) -> list[str]:
    return [f"{head}{{", *("  " + line for line in lines), "}"]
