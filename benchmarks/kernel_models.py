"""The workloads of benchmarks/kernels.py: models of the zoo, their data, Delian's training step.

Each workload is one model on one batch of made-up data. A training step is forward, loss, backward
and SGD in place. Delian runs `steps` of them in one call of a compiled program whose parameters are
donated: that is how a device trains.
"""

from __future__ import annotations

import dataclasses
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import delian as dl
import numpy as np
from delian.core.compiler.backends import compile_function
from delian.core.compiler.ir import Block, Function
from delian.core.compiler.primitives import PRIMITIVES
from delian.core.learning import nn

INNER_RATE = 0.1
SYMBOLS, TAGS, LENGTH = 80, 17, 80
TOKENS = 64

Arrays = tuple[np.ndarray[Any, Any], ...]


@dataclass(frozen=True, slots=True)
class Workload:
    """A model and what its peers must know of its parameters.

    Attributes:
        build: gives the model.
        data: (rng, batch) -> the arrays of a batch.
        loss: (model, *data) -> f32[], in Delian's vocabulary.
        steps: training steps a timed call.
        batches: the batch sizes that are measured.
        tables: leaves that are tables of rows, which no framework stores turned.
        flat: leaf -> (height, width, channels) of the image that its rows are.
        depthwise: leaves that are depthwise kernels.
        rate: of SGD; small for a deep network, which else takes roundings apart.
    """

    build: Callable[[], Any]
    data: Callable[[np.random.Generator, int], Arrays]
    loss: Callable[..., Any]
    steps: int
    batches: tuple[int, ...]
    tables: tuple[int, ...] = ()
    flat: tuple[tuple[int, tuple[int, int, int]], ...] = ()
    depthwise: tuple[int, ...] = ()
    rate: float = 0.05


def _images(height: int, channels: int, classes: int) -> Callable[..., Arrays]:
    def make(rng: np.random.Generator, batch: int) -> Arrays:
        x = rng.standard_normal((batch, height, height, channels), dtype=np.float32)
        return x, rng.integers(0, classes, batch).astype(np.int32)

    return make


def _sequences(length: int, symbols: int, labels: int) -> Callable[..., Arrays]:
    def make(rng: np.random.Generator, batch: int) -> Arrays:
        x = rng.integers(0, symbols, (batch, length)).astype(np.int32)
        return x, rng.integers(0, labels, (batch, length)).astype(np.int32)

    return make


def _episode(rng: np.random.Generator, batch: int) -> Arrays:
    """Five ways: one image of each to learn from, `batch` to be judged by."""
    images = _images(28, 1, 5)
    support, _ = images(rng, 5)
    return support, np.arange(5, dtype=np.int32), *images(rng, batch)


def classify(model: Any, x: Any, y: Any) -> Any:
    return np.mean(dl.ops.cross_entropy(model(x, None), y))


def maml(model: Any, support: Any, labels: Any, x: Any, y: Any) -> Any:
    """The loss after one inner step, whose gradient goes through that step's (Finn et al. 2017)."""
    inner = dl.grad(classify)(model, support, labels)
    adapted = dl.tree.map(lambda w, g: w - INNER_RATE * g, model, inner)
    return classify(adapted, x, y)


def symmetric(layer: Any) -> Any:
    """The model with the same zeros on both sides of an image also where a stride is taken, as the
    paper and torch have it.
    """
    if isinstance(layer, nn.Conv | nn.DepthwiseConv) and layer.stride != 1:
        p = layer.kernel.shape[0] // 2
        return dataclasses.replace(layer, padding=((p, p), (p, p)))
    if isinstance(layer, nn.Sequential):
        return nn.Sequential(tuple(symmetric(part) for part in layer.layers))
    if isinstance(layer, nn.Residual):
        return nn.Residual(symmetric(layer.body), layer.shortcut and symmetric(layer.shortcut))
    return layer


def _depthwise(model: Any) -> tuple[int, ...]:
    """The leaves that are depthwise kernels: [height, width, channels, 1]."""
    leaves = dl.tree.leaves(model)
    return tuple(i for i, w in enumerate(leaves) if w.ndim == 4 and w.shape[3] == 1)


_KEY = dl.random.key(0)


def _mobilenet() -> Any:
    return symmetric(nn.mobilenet_v2(_KEY, (96, 96, 3), 10))


def _workloads() -> dict[str, Workload]:
    return {
        "mlp": Workload(
            lambda: nn.Mlp.init(_KEY, 784, (200, 200), 10),
            _images(28, 1, 10),
            classify,
            20,
            (10, 32),
        ),
        "cnn": Workload(
            lambda: nn.femnist_cnn(_KEY),
            _images(28, 1, 62),
            classify,
            2,
            (10, 32),
            flat=((4, (7, 7, 64)),),
        ),
        "omniglot": Workload(
            lambda: nn.OmniglotNet.init(_KEY, 1, 64, 5), _images(28, 1, 5), classify, 2, (10, 32)
        ),
        "lstm": Workload(
            lambda: nn.CharLstm.init(_KEY, SYMBOLS, 8, 256, 2),
            _sequences(LENGTH, SYMBOLS, SYMBOLS),
            classify,
            1,
            (10,),
            tables=(0,),
        ),
        "resnet8": Workload(
            lambda: symmetric(nn.resnet(_KEY, (32, 32, 3), 10, depth=8, norm="batch")),
            _images(32, 3, 10),
            classify,
            1,
            (32, 10),
        ),
        "mobilenet": Workload(
            _mobilenet,
            _images(96, 3, 10),
            classify,
            1,
            (8,),
            depthwise=_depthwise(_mobilenet()),
            rate=0.0001,
        ),
        "gru": Workload(
            lambda: nn.tagger(_KEY, SYMBOLS, TAGS, nn.GruCell),
            _sequences(LENGTH, SYMBOLS, TAGS),
            classify,
            1,
            (10,),
            tables=(0,),
        ),
        "transformer": Workload(
            lambda: nn.transformer(_KEY, SYMBOLS, width=128, depth=4, heads=4),
            _sequences(TOKENS, SYMBOLS, SYMBOLS),
            classify,
            1,
            (10,),
            tables=(0,),
        ),
        "maml": Workload(lambda: nn.OmniglotNet.init(_KEY, 1, 64, 5), _episode, maml, 1, (25,)),
    }


WORKLOADS = _workloads()


# Delian's side


def training(workload: Workload, steps: int) -> Callable[..., Any]:
    """(model, *data) -> (the model after `steps` steps, the loss before the last)."""

    def train(model: Any, *data: Any) -> Any:
        value = np.float32(0.0)
        for _ in range(steps):
            value, gradient = dl.value_and_grad(workload.loss)(model, *data)
            model = dl.tree.map(lambda w, g: w - workload.rate * g, model, gradient)
        return model, value

    return train


@dataclass(frozen=True, slots=True)
class Built:
    """A compiled training program and what its compilation cost."""

    function: Function
    program: Any
    trace_s: float
    compile_s: float
    compile_cpu_s: float


def build(workload: Workload, model: Any, data: Arrays, steps: int) -> Built:
    """Compiles, in processor time of this process and of the compiler's."""
    start = time.perf_counter()
    traced = dl.compile(training(workload, steps), donate=(0,)).trace(model, *data)
    middle, before = time.perf_counter(), _cpu_s()
    program = compile_function(traced.function)
    end = time.perf_counter()
    return Built(traced.function, program, middle - start, end - middle, _cpu_s() - before)


def _cpu_s() -> float:
    import resource

    own = resource.getrusage(resource.RUSAGE_SELF)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


class DelianStep:
    """Calls a training program again and again, its parameters lying where they are."""

    def __init__(self, program: Any, leaves: Iterable[Any], data: Arrays) -> None:
        self.program = program
        self.leaves = [np.array(leaf, dtype=np.float32) for leaf in leaves]
        self.data = data
        self.loss = 0.0

    def __call__(self) -> None:
        *leaves, loss = self.program(*self.leaves, *self.data)
        self.leaves = leaves
        self.loss = float(loss)


def product_flops(block: Block, times: int = 1) -> int:
    """Floating-point operations of products and convolutions, loops of known length multiplied."""
    total = 0
    for op in block.ops:
        if op.name in ("dot", "conv", "conv_input_grad", "conv_weight_grad"):
            total += times * PRIMITIVES[op.name].cost(op)
        trips = 1
        if op.name == "for":
            low, high = (_known(block, v) for v in op.operands[:2])
            trips = high - low
        total += sum(product_flops(region, times * trips) for region in op.regions)
    return total


def _known(block: Block, value: Any) -> int:
    for op in block.ops:
        if op.name == "constant" and op.result is value:
            return int(op.attrs["value"])
    raise ValueError("a loop of unknown length")


def plain_products(block: Block) -> int:
    """Products and convolutions that plain loops compute, because their numbers are not f32."""
    from delian.cli.programs.listing import fallbacks

    return len(fallbacks(block))


# The machine's peak

# No chain may begin at 1, which t * 0.999 + 0.001 leaves: a compiler would leave it out.
_PEAK = """
__attribute__((visibility("default"))) float dl_peak(int64_t n) {
  dl_vf t[CHAINS], b = (dl_vf){0} + 0.999f, c = (dl_vf){0} + 1e-3f;
  DL_UNROLL for (int i = 0; i < CHAINS; i++) t[i] = (dl_vf){0} + (float)(i + 2);
  for (int64_t k = 0; k < n; k++) {
    DL_UNROLL for (int i = 0; i < CHAINS; i++) t[i] = t[i] * b + c;
    __asm__ volatile("" ::: "memory");
  }
  dl_vf s = t[0];
  DL_UNROLL for (int i = 1; i < CHAINS; i++) s += t[i];
  return s[0];
}
__attribute__((visibility("default"))) const int64_t dl_lanes = DL_LANES;
"""
_CHAINS = 12


class Peak:
    """Multiply-adds in registers, by the product's own compiler and flags: GFLOP/s of a core."""

    def __init__(self) -> None:
        import ctypes
        from importlib import resources

        from delian.core.compiler.backends.native.toolchain import toolchain

        compiler = toolchain.find()
        if compiler is None:
            raise SystemExit("no C compiler: kernels cannot be measured")
        ground = (
            resources.files("delian.core.compiler.backends.native")
            .joinpath("c", "vector.h")
            .read_text()
        )
        with tempfile.TemporaryDirectory() as folder:
            source, output = Path(folder) / "peak.c", Path(folder) / "peak.so"
            source.write_text(f"#define CHAINS {_CHAINS}\n{ground}{_PEAK}")
            compiler.compile(source, output)
            library = ctypes.CDLL(str(output))
        self.lanes = ctypes.c_int64.in_dll(library, "dl_lanes").value
        self.run = library.dl_peak
        self.run.argtypes, self.run.restype = [ctypes.c_int64], ctypes.c_float
        self.gflops = 0.0

    def measure(self, repeats: int = 40, count: int = 100_000) -> None:
        """Raises the figure when the machine is seen faster than before."""
        for _ in range(repeats):
            start = time.perf_counter()
            self.run(count)
            elapsed = time.perf_counter() - start
            self.gflops = max(self.gflops, 2e-9 * _CHAINS * self.lanes * count / elapsed)


def worst_error(ours: Sequence[Any], theirs: Sequence[Any]) -> float:
    """The largest difference of any leaf, over that leaf's largest number."""
    worst = 0.0
    for a, b in zip(ours, theirs, strict=True):
        scale = max(float(np.max(np.abs(b))), 1e-2)  # a bias before a normalisation stays at zero
        worst = max(worst, float(np.max(np.abs(np.asarray(a) - np.asarray(b)))) / scale)
    return worst
