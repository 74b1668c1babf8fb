"""Just enough SVG to draw by hand: elements, number formats, nice ticks, and a frame with two axes.

Colours are CSS classes, so that one drawing serves light and dark pages. Each figure is drawn for a
wide and for a narrow page, and the style sheet shows one: scaling a drawing down would scale its
text too.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

WIDE, NARROW = 880, 360


def element(tag: str, content: str = "", **attributes: str | float) -> str:
    """`<tag ...>content</tag>`.

    `content` is markup already; attribute values are escaped; `cls` is `class`.
    """
    parts = [tag]
    for name, value in attributes.items():
        text = number(value) if isinstance(value, int | float) else html.escape(value)
        parts.append(f'{"class" if name == "cls" else name.replace("_", "-")}="{text}"')
    opening = " ".join(parts)
    return f"<{opening}>{content}</{tag}>" if content else f"<{opening}/>"


def text(x: float, y: float, words: str, **attributes: str | float) -> str:
    """A text element at x, y."""
    return element("text", html.escape(words), x=x, y=y, **attributes)


def title(words: str) -> str:
    """The tooltip of the parent element."""
    return f"<title>{html.escape(words)}</title>"


def number(value: float) -> str:
    """A coordinate: a tenth of a pixel is enough."""
    return f"{value:.1f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def drawing(width: float, height: float, label: str, parts: Iterable[str]) -> str:
    """A whole SVG image; `label` is for screen readers."""
    return element(
        "svg",
        title(label) + "".join(parts),
        viewBox=f"0 0 {number(width)} {number(height)}",
        role="img",
        aria_label=label,
        cls="wide" if width > (WIDE + NARROW) / 2 else "narrow",
    )


def both(draw: Callable[[float], str]) -> str:
    """The drawing for wide pages and for narrow ones."""
    return draw(WIDE) + draw(NARROW)


def path(points: Sequence[tuple[float, float]]) -> str:
    """The `d` of a line through the points."""
    return "M" + "L".join(f"{number(float(x))} {number(float(y))}" for x, y in points)


def ticks(low: float, high: float, about: int, step_min: float = 0.0) -> list[float]:
    """Round numbers from `low` to `high`, about so many, and not closer than `step_min`."""
    if high <= low:
        return [low]
    raw = max((high - low) / max(1, about), step_min)
    magnitude = 10.0 ** math.floor(math.log10(raw))
    step = next(m * magnitude for m in (1, 2, 5, 10) if m * magnitude >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(i * step, 10) for i in range(first, last + 1)]


@dataclass(frozen=True, slots=True)
class Frame:
    """A plotting area: data ranges mapped onto a rectangle, margins around it for labels."""

    width: float
    height: float
    x_range: tuple[float, float]
    y_range: tuple[float, float]
    left: float = 46.0
    right: float = 16.0
    top: float = 14.0
    bottom: float = 40.0

    @property
    def narrow(self) -> bool:
        return self.width < (WIDE + NARROW) / 2

    @property
    def x_end(self) -> float:
        return self.width - self.right

    @property
    def y_end(self) -> float:
        return self.height - self.bottom

    def x(self, value: float) -> float:
        low, high = self.x_range
        return self.left + (value - low) / ((high - low) or 1.0) * (self.x_end - self.left)

    def y(self, value: float) -> float:
        low, high = self.y_range
        return self.y_end - (value - low) / ((high - low) or 1.0) * (self.y_end - self.top)

    def grid(self, values: Sequence[float], show: Callable[[float], str]) -> str:
        """Horizontal lines with their values on the left."""
        lines = []
        for value in values:
            y = self.y(value)
            lines.append(element("line", x1=self.left, x2=self.x_end, y1=y, y2=y, cls="grid"))
            lines.append(text(self.left - 8, y + 4, show(value), cls="tick", text_anchor="end"))
        return "".join(lines)

    def scale(
        self, values: Sequence[float], show: Callable[[float], str], *, broken: bool = False
    ) -> str:
        """The values under the horizontal axis, and the axis: dashed where it is not at zero."""
        kind, y = "axis dashed" if broken else "axis", self.y_end
        line = element("line", x1=self.left, x2=self.x_end, y1=y, y2=y, cls=kind)
        marks = (
            text(self.x(v), self.y_end + 16, show(v), cls="tick", text_anchor="middle")
            for v in values
        )
        return line + "".join(marks)

    def x_title(self, words: str) -> str:
        middle = (self.left + self.x_end) / 2
        return text(middle, self.height - 6, words, cls="label", text_anchor="middle")


def percent(value: float) -> str:
    """A share as a whole percentage."""
    return f"{100 * value:.0f}%"


def points(value: float) -> str:
    """A difference of two shares in percentage points."""
    return f"{100 * value:+.0f}" if value else "0"


def whole(value: float) -> str:
    """A whole number with separators."""
    return f"{value:,.0f}"


def count(number: float, what: str) -> str:
    """A number with its noun: 1 round, 2,000 rounds."""
    return f"{whole(number)} {what}{'s' if number != 1 else ''}"


def size(octets: float) -> str:
    """Bytes for people: 1 kB is 1,000 bytes, as networks count."""
    for unit in ("B", "kB", "MB", "GB"):
        if octets < 1000 or unit == "GB":
            return (
                f"{octets:.0f} {unit}" if unit == "B" or octets >= 100 else f"{octets:.1f} {unit}"
            )
        octets /= 1000
    raise AssertionError("the last unit returns")


def duration(seconds: float) -> str:
    """Seconds for people: 0.42 s, 42 s, 3 min 20 s, 2 h 5 min."""
    if seconds < 10:
        return f"{seconds:.2g} s" if seconds < 1 else f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60) if seconds >= 3600 else int(seconds // 60)
    if minutes < 60:
        return f"{minutes} min {seconds - 60 * minutes:.0f} s"
    return f"{minutes // 60} h {minutes % 60} min"
