"""From functions to a C file and the facts of the object that it becomes."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from ...ir import Function
from ...ir_codec import content_hash
from ...passes.pipeline import lowered
from . import emit
from .toolchain import cache
from .toolchain.artifact import Assembled, Entry, Facts, Layout
from .toolchain.toolchain import Toolchain


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without Python's search for cycles, a tenth of the time.

    Nearly all that passes make lives until they end, and what does not goes by its references.
    """
    searched = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if searched:
            gc.enable()


def assembled(
    functions: Mapping[str, Function],
    toolchain: Toolchain,
    strict: bool = False,
    *,
    embed: bool = False,
    features: tuple[str, ...] = (),
    bundle: str = "",
) -> Assembled:
    """Some functions as C, with entries dl_entry_0, dl_entry_1, ... in their order.

    strict, embed: as in `emit`. features, bundle: as in `Facts`.
    """
    symbols = {name: f"dl_entry_{i}" for i, name in enumerate(functions)}
    with _uncollected():
        lowest = {symbols[name]: lowered(f) for name, f in functions.items()}
        text, made = emit.emit(lowest, strict, embed)
    entries = []
    for name, function in functions.items():
        p = made[symbols[name]]
        entries.append(
            Entry(
                name=name,
                symbol=p.name,
                program=content_hash(function),
                arena_bytes=p.arena_bytes,
                tensor_bytes=p.tensor_bytes,
                groups=p.groups,
                calls=p.calls,
                constants=tuple(map(Layout.of, p.constants)),
                donated=p.donated,
                lists=p.lists,
            )
        )
    target = toolchain.target
    facts = Facts(
        target=target.name,
        machine=target.machine,
        compiler=toolchain.version,
        flags=toolchain.flags,
        emitter=cache.emitter_version(),
        entries=tuple(entries),
        features=features,
        strict=strict,
        bundle=bundle,
    )
    return Assembled(text, facts, tuple(c for p in made.values() for c in p.constants))
