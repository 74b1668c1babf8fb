"""What this node can do, measured through the kernels that programs really run.

For each class of operations (`profile.CLASSES`) one program is made of many small independent ones
of different sizes, compiled, and timed step by step (`backends.native.timing`): a sample is the
least time of a step over many calls, for on a busy machine the others say what its neighbours did.
What a look at the clock takes is measured too and taken off.

A whole program is measured in the same way: its steps, the looks at the clock taken off, each
shared among the operations that it computes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from ...common.aligned_arrays import aligned
from ...compiler.backends import compile_function
from ...compiler.backends.native.toolchain.timing import StepTime, time_steps
from ...compiler.backends.native.toolchain.tune import example_of
from ...compiler.ir import Array, Builder, DType, Function, TensorType, Value
from .costs import Rates, Step, Work, share, steps_of, tagged
from .profile import NodeProfile, Sample
from .wire_formats import NARROW, decode, encode

Say = Callable[[str], None]
#: What a case adds to a program: given the builder, its result.
_Case = Callable[[Builder, "_Params"], Value]

_F32 = DType.F32
#: How long a profile takes unless it is said.
SECONDS = 10.0
_REPEATS = 20
_WIRE_ELEMENTS = 1 << 16
_COPY_BYTES = 64 << 20
_MANY_ARGUMENTS = 64
_FUNCTION_SHAPE = (16, 256)
#: What the arguments of functions go up to, about: a sine of a large number takes longer.
_FUNCTION_SCALE = 500.0
#: What the parameters of one program of cases may take: small enough to stay in a near cache, as a
#: layer's input does. Of products of few rows, which are as fast as their weights come: more than a
#: near cache holds, for a model's weights are that together.
_NEAR_BYTES, _FAR_BYTES = 1 << 20, 12 << 20
_FEW_ROWS = 4
#: The share of what a step took that stays when the clock's part is taken off.
_LEFT_MIN = 0.05

#: Rows, depth, columns, batch: dense layers, attention, recurrent cells. Widths are powers of two,
#: as those of models are, which caches take less well than others.
_PRODUCTS = (
    *((1, 64, 10, 1), (1, 84, 10, 1), (1, 128, 512, 1), (1, 256, 1024, 1), (1, 512, 128, 1)),
    *((1, 400, 120, 1), (1, 1280, 10, 1), (1, 3136, 512, 1), (1, 1024, 2048, 1)),
    *((1, 512, 512, 1), (1, 512, 2048, 1), (1, 3136, 2048, 1), (8, 3136, 2048, 1)),
    *((8, 16, 16, 1), (8, 128, 512, 1), (8, 400, 120, 1), (8, 256, 1024, 1), (8, 1280, 10, 1)),
    *((8, 8, 256, 1), (64, 8, 128, 1), (64, 8, 512, 1), (64, 8, 1024, 1), (512, 8, 128, 1)),
    *((64, 64, 64, 1), (64, 128, 128, 1), (64, 128, 384, 1), (64, 128, 512, 1)),
    *((64, 256, 80, 1), (64, 256, 1024, 1), (64, 512, 128, 1), (512, 128, 128, 1)),
    *((512, 512, 128, 1), (512, 256, 1024, 1), (256, 27, 16, 1)),
    *((64, 32, 64, 4), (64, 64, 32, 4), (64, 32, 64, 32), (16, 16, 16, 8), (128, 64, 128, 4)),
)
#: Side of the image, channels in and out, side of the window, stride, images.
_CONVOLUTIONS = (
    *((28, 1, 6, 5, 1, 1), (28, 1, 32, 5, 1, 1), (14, 6, 16, 5, 1, 1), (14, 32, 64, 5, 1, 1)),
    *((32, 3, 16, 3, 1, 1), (32, 16, 16, 3, 1, 1), (32, 16, 32, 3, 2, 1), (16, 32, 32, 3, 1, 1)),
    *((16, 32, 64, 3, 2, 1), (8, 64, 64, 3, 1, 1), (32, 16, 32, 1, 2, 1), (16, 32, 64, 1, 2, 1)),
    *((4, 128, 128, 3, 1, 1), (28, 64, 64, 3, 1, 1), (96, 3, 16, 3, 2, 1), (48, 16, 8, 1, 1, 1)),
    *((48, 8, 48, 1, 1, 1), (24, 48, 8, 1, 1, 1), (12, 96, 16, 1, 1, 1), (6, 24, 144, 1, 1, 1)),
    *((6, 192, 32, 1, 1, 1), (3, 336, 56, 1, 1, 1), (3, 56, 336, 1, 1, 1), (3, 112, 1280, 1, 1, 1)),
    *((32, 16, 16, 3, 1, 8), (8, 64, 64, 3, 1, 8), (12, 96, 16, 1, 1, 8), (28, 1, 6, 5, 1, 8)),
    *((14, 6, 16, 5, 1, 8), (96, 3, 16, 3, 2, 8)),
)
#: Side of the image, channels, stride, images; windows of 3 by 3.
_DEPTHWISE = (
    *((48, 16, 1, 1), (48, 48, 2, 1), (24, 48, 1, 1), (24, 48, 2, 1), (12, 96, 1, 1)),
    *((12, 96, 2, 1), (6, 192, 1, 1), (6, 192, 2, 1), (3, 336, 1, 1), (24, 48, 1, 8)),
)
#: Rows and the length of the innermost loop.
_LOOPS = (
    *((1, 16), (1, 128), (8, 8), (9, 56), (36, 32), (1, 2048), (64, 128), (256, 16), (2304, 8)),
    *((2304, 48), (1024, 16), (256, 64), (64, 512), (576, 256), (4096, 64), (4096, 256)),
)
#: Kept outside, reduced, kept inside: [a, b, c] summed over b. And of rows: over b and c.
_REDUCTIONS = (
    *((1, 64, 16), (1, 2304, 16), (1, 1024, 16), (1, 64, 128), (1, 512, 64), (1, 9, 336)),
    *((8, 28, 32), (64, 2, 64), (1, 36, 192), (1, 4096, 64), (196, 4, 6), (49, 4, 16)),
)
_ROWS = (
    *((2304, 2, 8), (2304, 6, 8), (576, 6, 8), (144, 12, 8), (36, 24, 8), (9, 42, 8)),
    *((1024, 8, 2), (256, 8, 4), (64, 8, 8), (1, 64, 128), (1, 256, 64), (1, 512, 128)),
    *((1, 80, 256), (1, 1, 512), (1, 10, 10), (9, 1, 1280)),
)
#: Rows taken by index, and numbers in one.
_MOVES = ((1, 256), (64, 128), (80, 8), (512, 128), (2048, 512))
#: Rows and columns of a product whose tiles a loop takes, and whether it squares them too.
_TILES = tuple(
    (rows, columns, squared)
    for rows, columns in ((8, 256), (64, 128), (64, 512), (64, 1024), (512, 128))
    for squared in (False, True)
)
_TILE_DEPTH = 8
_FUNCTIONS = ("exp", "log", "sin", "cos", "tanh", "sigmoid", "erf", "sqrt", "div", "pow")


class _Params:
    """The parameters of a program being made, as they are asked for."""

    def __init__(self) -> None:
        self.values: list[Value] = []

    def __call__(self, *shape: int, dtype: DType = _F32) -> Value:
        value = Value(TensorType(dtype, shape))
        self.values.append(value)
        return value


def measure_node(
    *,
    name: str,
    cpu: str,
    date: str,
    memory: int | None,
    seconds: float = SECONDS,
    say: Say = lambda text: None,
) -> NodeProfile:
    """Measures this node, on one thread.

    name, cpu, date, memory: as in `NodeProfile`; the caller knows them. seconds: about how long,
    without compilation. say: called at each step. Raises DelianError where there is no C compiler.
    """
    groups = [(label, part) for label, room, cases in _groups() for part in _parted(cases, room)]
    each = seconds / (len(groups) + 2)
    say("what a look at the clock takes")
    look = _look_s(each)
    samples: dict[str, list[Sample]] = {}
    others: list[tuple[tuple[Work, ...], float]] = []
    for n, (label, cases) in enumerate(groups):
        say(f"{n + 1} of {len(groups)}: {label}, {len(cases)} sizes")
        for step, timed in _timed(_program(label, cases), each):
            took = _without_looks(timed.seconds / max(timed.runs, 1), look)
            if len(step.works) == 1 and not step.works[0].functions:
                (work,) = step.works
                samples.setdefault(work.kind, []).append(Sample(work.sizes, took))
            else:
                others.append((step.works, took))
    kept = {k: tuple(v) for k, v in samples.items()}
    say("memory, calls and wires")
    call_s, argument_s = _call_s(each)
    bare = NodeProfile(
        *(name, cpu, date),
        threads=1,
        samples=kept,
        element_s={},
        bandwidth=_bandwidth(),
        memory=memory,
        call_s=call_s,
        argument_s=argument_s,
        encode_s=_encode_s(),
    )
    rates = Rates(bare)
    tiles = [_tile(works, took, rates) for works, took in others if len(works) == 2]
    functions = {
        w.functions[0][0]: _element_s(w, took, rates)
        for w, took in ((works[0], t) for works, t in others if len(works) == 1)
    }
    return bare.with_more({"tile": tuple(tiles)}, functions)


def measured_seconds(
    function: Function, repeats: int = _REPEATS, seconds: float = 0.0
) -> tuple[float, ...]:
    """The measured seconds of each operation of a program's body on this node.

    Their form is that of `op_seconds`. Each is the least of `repeats` calls, or of as many as
    `seconds` hold where that is more. Operations that depend on what the numbers are run on made-up
    ones.

    Raises DelianError where there is no C compiler.
    """
    out = [0.0] * len(function.body.ops)
    look = _look_s(0.0)
    for step, timed in _timed(function, seconds, repeats):
        each = _without_looks(timed.seconds / max(timed.runs, 1), look)
        share(function, step, timed.runs * each, out)
    return tuple(out)


def _timed(
    function: Function, seconds: float, repeats: int = _REPEATS
) -> Iterator[tuple[Step, StepTime]]:
    """The steps of a program, each with its time."""
    steps = [s for s in steps_of(function) if s.timed]
    args = [aligned(a) for a in example_of(function)]
    times = time_steps(tagged(function), args, repeats, seconds)
    assert [s.names for s in steps] == [t.operations for t in times], "the same steps are timed"
    return zip(steps, times, strict=True)


def _without_looks(seconds: float, look: float) -> float:
    """What a step took, without the clock's part."""
    return max(seconds - look, _LEFT_MIN * seconds, 1e-9)


def _look_s(seconds: float) -> float:
    """What the timed program's two looks at the clock add to a step: steps of two numbers each."""
    cases = [_loop_case(1, 2 + i) for i in range(4)]
    return min(t.seconds / t.runs for _, t in _timed(_program("look", cases), seconds, 200))


# -- the programs


def _program(name: str, cases: Sequence[_Case]) -> Function:
    params, body = _Params(), Builder()
    results = [case(body, params) for case in cases]
    block = body.finish(results)
    block.params = tuple(params.values)
    names = (
        tuple(f"a{i}" for i in range(len(block.params))),
        tuple(f"r{i}" for i in range(len(results))),
    )
    return Function(name, block, *names)


def _parted(cases: Sequence[_Case], room: int) -> Iterator[list[_Case]]:
    """The cases in lists whose parameters take no more than `room`."""
    part: list[_Case] = []
    total = 0
    for case in cases:
        params = _Params()
        case(Builder(), params)
        size = sum(v.tensor.nbytes for v in params.values)
        if part and total + size > room:
            yield part
            part, total = [], 0
        part.append(case)
        total += size
    if part:
        yield part


def _groups() -> Iterator[tuple[str, int, list[_Case]]]:
    """What is measured, the bytes of one program of it, and the cases."""
    few = [sizes for sizes in _PRODUCTS if sizes[0] <= _FEW_ROWS]
    many = [sizes for sizes in _PRODUCTS if sizes[0] > _FEW_ROWS]
    yield "products of few rows", _FAR_BYTES, [_product_case(*sizes) for sizes in few]
    yield "products", _NEAR_BYTES, [_product_case(*sizes) for sizes in many]
    yield "convolutions", _NEAR_BYTES, [_convolution_case(*sizes) for sizes in _CONVOLUTIONS]
    yield (
        "gradients of convolutions",
        _NEAR_BYTES,
        [_gradient_case(*sizes, by) for sizes in _CONVOLUTIONS[5:14] for by in (0, 1)],
    )
    yield "depthwise convolutions", _NEAR_BYTES, [_depthwise_case(*sizes) for sizes in _DEPTHWISE]
    yield "loops", _NEAR_BYTES, [_loop_case(*sizes) for sizes in _LOOPS]
    yield (
        "reductions",
        _NEAR_BYTES,
        [_reduction_case(sizes, (1,)) for sizes in _REDUCTIONS]
        + [_reduction_case(sizes, (0, 2)) for sizes in _ROWS]
        + [_reduction_case(sizes, (0, 2), True) for sizes in _ROWS],
    )
    yield "tiles of products", _NEAR_BYTES, [_tile_case(*sizes) for sizes in _TILES]
    yield "rows by index", _NEAR_BYTES, [_move_case(*sizes) for sizes in _MOVES]
    kinds = (_F32, DType.F64)
    yield (
        "functions",
        _NEAR_BYTES,
        [_function_case(name, dtype) for dtype in kinds for name in _FUNCTIONS],
    )


def _product_case(rows: int, depth: int, columns: int, batch: int) -> _Case:
    def case(b: Builder, param: _Params) -> Value:
        axes = (0,) if batch > 1 else ()
        lead = (batch,) if batch > 1 else ()
        n = len(lead)
        x, y = param(*lead, rows, depth), param(*lead, depth, columns)
        return b("dot", x, y, contract_a=(n + 1,), contract_b=(n,), batch_a=axes, batch_b=axes)

    return case


def _convolution_case(
    side: int, inputs: int, outputs: int, window: int, stride: int, images: int
) -> _Case:
    def case(b: Builder, param: _Params) -> Value:
        x, k = param(images, side, side, inputs), param(window, window, inputs, outputs)
        return b("conv", x, k, **_same(window, stride))

    return case


def _gradient_case(
    side: int, inputs: int, outputs: int, window: int, stride: int, images: int, by: int
) -> _Case:
    def case(b: Builder, param: _Params) -> Value:
        place = _same(window, stride)
        out = (side + 2 * (window // 2) - window) // stride + 1
        y = param(images, out, out, outputs)
        if by:
            x = param(images, side, side, inputs)
            return b("conv_weight_grad", x, y, kernel_size=(window, window), **place)
        k = param(window, window, inputs, outputs)
        return b("conv_input_grad", y, k, input_size=(side, side), **place)

    return case


def _depthwise_case(side: int, channels: int, stride: int, images: int) -> _Case:
    def case(b: Builder, param: _Params) -> Value:
        x, k = param(images, side, side, channels), param(3, 3, 1, channels)
        return b("grouped_conv", x, k, groups=channels, **_same(3, stride))

    return case


def _same(window: int, stride: int) -> dict[str, object]:
    pad = (window // 2, window // 2)
    return {"strides": (stride, stride), "padding": (pad, pad)}


def _loop_case(rows: int, inner: int) -> _Case:
    """x * v + w, where v and w are a number a column: as a normalisation ends."""

    def case(b: Builder, param: _Params) -> Value:
        x, v, w = param(rows, inner), param(inner), param(inner)
        across = {"shape": (rows, inner), "dims": (1,)}
        scaled = b("mul", x, b("broadcast", v, **across))
        return b("add", scaled, b("broadcast", w, **across))

    return case


def _reduction_case(
    sizes: tuple[int, int, int], axes: tuple[int, ...], squared: bool = False
) -> _Case:
    """A sum, or one of squares, as statistics are."""

    def case(b: Builder, param: _Params) -> Value:
        x = param(*sizes)
        return b("reduce_sum", b("mul", x, x) if squared else x, axes=axes)

    return case


def _tile_case(rows: int, columns: int, squared: bool) -> _Case:
    """A dense layer of little depth, its bias, and what may follow."""

    def case(b: Builder, param: _Params) -> Value:
        x, y, bias = param(rows, _TILE_DEPTH), param(_TILE_DEPTH, columns), param(columns)
        z = b("dot", x, y, contract_a=(1,), contract_b=(0,), batch_a=(), batch_b=())
        z = b("add", z, b("broadcast", bias, shape=(rows, columns), dims=(1,)))
        return b("mul", z, z) if squared else z

    return case


def _move_case(rows: int, length: int) -> _Case:
    def case(b: Builder, param: _Params) -> Value:
        return b("take", param(rows, length), param(rows, dtype=DType.I32), axis=0)

    return case


def _function_case(name: str, dtype: DType) -> _Case:
    def case(b: Builder, param: _Params) -> Value:
        x = param(*_FUNCTION_SHAPE, dtype=dtype)
        if name in ("sin", "cos"):
            x = b("mul", x, b.full(x.tensor, _FUNCTION_SCALE))
        return (
            b(name, x, param(*_FUNCTION_SHAPE, dtype=dtype))
            if name in ("div", "pow")
            else b(name, x)
        )

    return case


def _element_s(work: Work, took: float, rates: Rates) -> float:
    """The seconds an element of a function: what its loop took beyond reading and writing."""
    rest = rates.seconds(Work(work.kind, work.sizes))
    return max(took - rest, 0.0) / work.functions[0][1]


def _tile(works: Sequence[Work], took: float, rates: Rates) -> Sample:
    """What a loop over the tiles of a product took: the step's time without the product's."""
    product, loop = works
    return Sample(loop.sizes, max(took - rates.seconds(product), _LEFT_MIN * took))


# -- calls, memory, wires


def _call_s(seconds: float) -> tuple[float, float]:
    """What a call takes, and what each argument adds to it."""
    few, many = (compile_function(_program("call", [_sum_case(n)])) for n in (1, _MANY_ARGUMENTS))
    args = [np.ones(8, np.float32)] * _MANY_ARGUMENTS
    least = [
        _least(lambda: few(args[0]), seconds / 2),
        _least(lambda: many(*args), seconds / 2),
    ]
    each = max(least[1] - least[0], 0.0) / (_MANY_ARGUMENTS - 1)
    return max(least[0] - each, 0.0), each


def _sum_case(count: int) -> _Case:
    def case(b: Builder, param: _Params) -> Value:
        total = param(8)
        for _ in range(count - 1):
            total = b("add", total, param(8))
        return b("neg", total)

    return case


def _least(call: Callable[[], object], seconds: float) -> float:
    """The least time of a call, of a hundred, or as many as there is time for."""
    best, end, count = math.inf, time.perf_counter() + seconds, 0
    while count < 100 or time.perf_counter() < end:
        begin = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - begin)
        count += 1
    return best


def _bandwidth() -> float:
    """Bytes read and written a second, of memory that no cache holds."""
    source = np.ones(_COPY_BYTES // 8)
    target = np.empty_like(source)
    best = math.inf
    for _ in range(8):
        begin = time.perf_counter()
        np.copyto(target, source)
        best = min(best, time.perf_counter() - begin)
    return 2 * source.nbytes / best


def _encode_s() -> dict[str, float]:
    """By wire, the seconds a byte of f32 takes to encode and decode."""
    rng = np.random.default_rng(0)
    array: Array = rng.standard_normal(_WIRE_ELEMENTS).astype(np.float32)
    type_ = TensorType.of(array)

    def taken(wire: str) -> float:
        return _least(lambda: decode(encode(array, wire), type_), 0.0) / array.nbytes

    return {wire: taken(wire) for wire in ("f32", *NARROW)}
