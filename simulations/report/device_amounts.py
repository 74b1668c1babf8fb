"""How many examples each device has, as a drawing: a bar a device, above the map of its labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .report_plots import MAP_DEVICES_MAX
from .svg import Frame, drawing, element, ticks, title, whole

HEIGHT = 130.0


def bars(card: Mapping[str, Any], held_out: Sequence[bool], width: float) -> str:
    """The first devices' examples. card: `examples` by device, and what the `unit` is called."""
    sizes = card["examples"][:MAP_DEVICES_MAX]
    high = max(sizes)
    left = 22 + 7.0 * len(whole(high))
    frame = Frame(width, HEIGHT, (0, len(sizes)), (0, high * 1.02), left=left, bottom=28)
    wide = frame.x(1) - frame.x(0)
    drawn = [frame.grid(ticks(0, high, 3, 1), whole)]
    for device, (size, out) in enumerate(zip(sizes, held_out, strict=False)):
        drawn.append(
            element(
                "rect",
                title(f"device {device}: {whole(size)} {card['unit']}"),
                x=frame.x(device),
                y=frame.y(size),
                width=max(0.6, wide - (1 if wide > 4 else 0)),
                height=frame.y(0) - frame.y(size),
                cls="bar newcomer" if out else "bar reported",
            )
        )
    drawn.append(frame.scale([], whole))
    few = len(sizes) < len(card["examples"])
    drawn.append(frame.x_title(f"the first {len(sizes)} devices" if few else "devices"))
    return drawing(width, frame.height, f"{card['unit'].capitalize()} on each device", drawn)
