"""A part for several requests at once: what an edge makes of the devices that ask at the same time.

    part: (weights, x) -> y          lanes(part, n): (weights, X) -> Y,   Y[k] = part(weights, X[k])

by the transform that makes lanes of any program (`transforms.vmap`). The weights are shared, so a
product of matrices stays one product, of n times as many rows, and a convolution sees n times as
many images: the weights are read once. Results are those of single requests up to rounding, since a
product of another shape may be added up in another order; in the profile reproducible they are the
same bits.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from ...common.errors import DelianError
from ...compiler.ir import Builder, Function
from ...compiler.passes.simplify import simplify
from ...compiler.primitives.batching import spread
from ...compiler.transforms.vmap import Manner, vmap
from .program_split import Part

#: Requests in one call: more rows than this gain nothing on a CPU, and each holds its memory.
LANES_MAX = 256


def lanes(part: Part, count: int, copied: Collection[int] = ()) -> Part:
    """The part for `count` requests in one call.

    Each input and result has one more axis, the first, for the requests; the new values of owned
    parameters too, a value for each request. Resident parameters stay as they are, but for those
    whose numbers are in `copied`: of these each request brings its own.

    Raises DelianError when there are no requests or more than LANES_MAX, or the part has lanes.
    """
    if not 1 <= count <= LANES_MAX or part.lanes:
        raise DelianError(f"{count} lanes of a part; from 1 to {LANES_MAX}, made once")
    body = part.program.body
    flags = [*(i in copied for i in part.resident), *(True for _ in part.inputs)]
    # Nothing is differentiated any more: derivatives are in the program.
    wide, made = vmap(body, flags, count, Manner(last=True))
    builder = Builder([p.type for p in wide.params])
    outs = builder.inline(wide, builder.params)
    results = [spread(builder, v, flag, count) for v, flag in zip(outs, made, strict=True)]
    program = Function(
        f"{part.program.name}_of_{count}",
        simplify(builder.finish(results)),
        part.program.param_names,
        part.program.result_names,
    )
    return replace(part, program=program, lanes=count)
