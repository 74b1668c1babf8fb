"""Judges operators of ONNX by onnxruntime: random shapes and options, beyond the suite's own cases.

    python tests/judges/onnx_runtime.py [OPERATOR...] [--seeds N] [--native]

Needs onnx and onnxruntime. Draws models of one node, runs them as plain Python (with --native also
compiled) and by onnxruntime, and prints where they differ by more than 1e-4. What either refuses is
counted, not judged: onnxruntime has not all types of every operator.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import delian as dl
import numpy as np
import onnxruntime
from delian.core.common.errors import DelianError
from onnx import helper

Case = tuple[str, list[Any], dict[str, Any], int, int]
TOLERANCE = 1e-4


class Draws:
    """Random shapes, arrays and options."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def integer(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high + 1))

    def one(self, *choices: Any) -> Any:
        return choices[self.integer(0, len(choices) - 1)]

    def floats(self, *shape: int) -> Any:
        return self.rng.normal(size=shape).astype(np.float32)

    def images(self, rank: int) -> Any:
        return self.floats(self.integer(1, 2), 4, *[self.integer(5, 8) for _ in range(rank)])


def windows(d: Draws, rank: int, padded: bool = True) -> dict[str, Any]:
    options: dict[str, Any] = {"strides": [d.integer(1, 3) for _ in range(rank)]}
    kind = d.one("NOTSET", "NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")
    if kind != "NOTSET":
        options["auto_pad"] = kind
    elif padded:
        options["pads"] = [d.integer(0, 1) for _ in range(2 * rank)]
    return options


def conv(d: Draws) -> Case:
    rank, groups = d.integer(1, 3), d.one(1, 2, 4)
    options = {**windows(d, rank), "group": groups}
    if "auto_pad" not in options:
        options["dilations"] = [d.integer(1, 2) for _ in range(rank)]
    kernel = d.floats(4, 4 // groups, *[d.integer(1, 3) for _ in range(rank)])
    return "Conv", [d.images(rank), kernel, d.floats(4)], options, 11, 1


def conv_transpose(d: Draws) -> Case:
    rank, groups = d.integer(1, 2), d.one(1, 2)
    options: dict[str, Any] = {"strides": [d.integer(1, 3) for _ in range(rank)], "group": groups}
    how = d.one("pads", "pads", "auto", "shape")
    kernel = d.floats(4, 3, *[d.integer(2, 3) for _ in range(rank)])
    x = d.images(rank)
    if how == "pads":
        options["pads"] = [d.integer(0, 1) for _ in range(2 * rank)]
        options["dilations"] = [d.integer(1, 2) for _ in range(rank)]
        options["output_padding"] = [d.integer(0, s - 1) for s in options["strides"]]
    elif how == "auto":  # onnxruntime gives smaller images than ONNX where a stride is larger
        options["strides"] = [min(options["strides"][k], kernel.shape[2 + k]) for k in range(rank)]
        options["auto_pad"] = d.one("SAME_UPPER", "SAME_LOWER", "VALID")
    else:
        sizes = [n * s for n, s in zip(x.shape[2:], options["strides"], strict=True)]
        options["output_shape"] = sizes
    return "ConvTranspose", [x, kernel], options, 11, 1


def max_pool(d: Draws) -> Case:
    rank = d.integer(1, 3)
    options = {**windows(d, rank), "kernel_shape": [d.integer(2, 3) for _ in range(rank)]}
    if "auto_pad" not in options:
        options |= {"dilations": [d.integer(1, 2) for _ in range(rank)], "ceil_mode": d.one(0, 1)}
    return "MaxPool", [d.images(rank)], options, 12, d.one(1, 1, 2)


def average_pool(d: Draws) -> Case:
    rank = d.integer(1, 3)
    options = {**windows(d, rank), "kernel_shape": [d.integer(2, 3) for _ in range(rank)]}
    options |= {"count_include_pad": d.one(0, 1)}
    if "auto_pad" not in options:
        options |= {"ceil_mode": d.one(0, 1), "dilations": [d.integer(1, 2) for _ in range(rank)]}
    return "AveragePool", [d.images(rank)], options, 19, 1


def lp_pool(d: Draws) -> Case:
    rank = d.integer(1, 2)
    options = {**windows(d, rank), "kernel_shape": [d.integer(2, 3) for _ in range(rank)]}
    return "LpPool", [d.images(rank)], {**options, "p": d.one(1, 2, 3)}, 18, 1


def resize(d: Draws) -> Case:
    x = d.images(2)
    mode = d.one("nearest", "linear", "cubic")
    where = d.one("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")
    options: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": where}
    if mode == "nearest":
        ways = ("floor", "ceil", "round_prefer_ceil", "round_prefer_floor")
        options["nearest_mode"] = d.one(*ways)
    if mode == "cubic":
        options |= {"exclude_outside": d.one(0, 1), "cubic_coeff_a": d.one(-0.5, -0.75)}
    elif mode == "linear":
        options["antialias"] = d.one(0, 1)
    # With align_corners, onnxruntime rounds the new size first; the suite does not. Places of the
    # nearest mode that are halves in f64 may be less in f32.
    if where == "align_corners" or mode == "nearest" or d.one(True, False):
        sizes = np.array([*x.shape[:2], d.integer(2, 12), d.integer(2, 12)])
        return "Resize", [x, None, None, sizes], options, 19, 1
    scales = np.array([1, 1, d.one(0.5, 0.6, 1.7, 2), d.one(0.7, 1, 2.5)], np.float32)
    return "Resize", [x, None, scales], options, 19, 1


def recurrent(d: Draws) -> Case:
    kind, gates = d.one(("RNN", 1), ("GRU", 3), ("LSTM", 4))
    way = d.one("forward", "reverse", "bidirectional")
    ways, size, steps, rows = 2 if way == "bidirectional" else 1, 3, 4, 2
    inputs = [
        d.floats(steps, rows, 5),
        d.floats(ways, gates * size, 5),
        d.floats(ways, gates * size, size),
        d.one(None, d.floats(ways, 2 * gates * size)),
        d.one(None, np.array([d.integer(1, 4), 4], np.int32)),
        d.one(None, d.floats(ways, rows, size)),
    ]
    options: dict[str, Any] = {"direction": way, "hidden_size": size}
    if d.one(True, False):
        options["clip"] = 0.5
    if kind == "GRU":
        options["linear_before_reset"] = d.one(0, 1)
    if kind == "LSTM":
        inputs += [d.one(None, d.floats(ways, rows, size))]
        inputs += [d.one(None, d.floats(ways, 3 * size))]
        options["input_forget"] = d.one(0, 0, 1)
    if d.one(True, False):
        per = {"RNN": 1, "GRU": 2, "LSTM": 3}[kind]
        names = [d.one("Tanh", "Sigmoid", "Relu", "Softsign") for _ in range(per * ways)]
        options["activations"] = names
    while inputs[-1] is None:
        inputs.pop()
    return kind, inputs, options, 14, 3 if kind == "LSTM" else 2


def grid_sample(d: Draws) -> Case:
    x = d.images(2)
    grid = d.rng.uniform(-1.6, 1.6, (x.shape[0], 3, 4, 2)).astype(np.float32)
    options = {
        "mode": d.one("bilinear", "nearest", "bicubic"),
        "padding_mode": d.one("zeros", "border", "reflection"),
        "align_corners": d.one(0, 1),
    }
    return "GridSample", [x, grid], options, 16, 1


def roi_align(d: Draws) -> Case:
    x = d.images(2)
    corner = d.rng.uniform(-1, 4, (3, 2))
    boxes = np.concatenate([corner, corner + d.rng.uniform(0.3, 4, (3, 2))], 1).astype(np.float32)
    options = {
        "coordinate_transformation_mode": d.one("half_pixel", "output_half_pixel"),
        "mode": d.one("avg", "max"),
        "output_height": d.integer(1, 3),
        "output_width": d.integer(1, 3),
        "sampling_ratio": d.integer(1, 3),
        "spatial_scale": d.one(1.0, 0.5),
    }
    batch = np.zeros(3, np.int64)
    return "RoiAlign", [x, boxes, batch], options, 16, 1


def reduction(d: Draws) -> Case:
    names = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
    name = d.one(*names)
    x = np.abs(d.floats(2, 3, 4)) + 0.1
    if name != "LogSumExp":  # whose exponentials onnxruntime cuts off, of whole numbers
        x = x.astype(d.one(np.float32, np.float32, np.float64, np.int32, np.int64))
    options = {"keepdims": d.one(0, 1), "noop_with_empty_axes": d.one(0, 1)}
    axes = d.one(None, np.array([], np.int64), np.array([-1, 0]), np.array([1]))
    inputs = [x] if axes is None else [x, axes]
    return f"Reduce{name}", inputs, options, 18, 1


def places(d: Draws) -> Case:
    x = d.rng.integers(0, 4, (3, 5)).astype(d.one(np.float32, np.int64))
    options = {"axis": d.one(0, 1, -1), "keepdims": d.one(0, 1), "select_last_index": d.one(0, 1)}
    return d.one("ArgMax", "ArgMin"), [x], options, 13, 1


def top_k(d: Draws) -> Case:
    x = d.rng.integers(0, 6, (3, 5)).astype(d.one(np.float32, np.int64, np.int32))
    options = {"axis": d.one(0, 1, -1), "largest": d.one(0, 1)}
    return "TopK", [x, np.array([d.integer(1, 3)])], options, 11, 2


def suppression(d: Draws) -> Case:
    """Boxes on a grid, so that overlaps and scores tie."""
    images, classes, count = d.integer(1, 2), d.integer(1, 3), d.integer(1, 30)
    low, sides = d.rng.integers(0, 8, (images, count, 2)), d.rng.integers(0, 5, (images, count, 2))
    centred = d.one(0, 1)
    boxes = np.concatenate([low, sides if centred else low + sides], 2).astype(np.float32)
    if d.one(0, 1) and not centred:
        boxes = boxes[..., [2, 1, 0, 3]]  # any two corners
    scores = (d.rng.integers(0, 9, (images, classes, count)) / 8).astype(np.float32)
    most = np.array([d.integer(0, count + 2)])
    options = [np.array([d.one(0.0, 0.3, 0.5, 1.0)], np.float32), np.array([0.2], np.float32)]
    inputs = [boxes, scores, most, *options[: d.integer(0, 2)]]
    return "NonMaxSuppression", inputs, {"center_point_box": centred}, 11, 1


def cumulative(d: Draws) -> Case:
    x = d.rng.integers(-4, 6, (3, 5)).astype(d.one(np.float32, np.int64, np.int32))
    options = {"exclusive": d.one(0, 1), "reverse": d.one(0, 1)}
    return "CumSum", [x, np.array(d.one(0, 1, -1))], options, 14, 1


def slices(d: Draws) -> Case:
    x = d.floats(5, 6)
    axes = d.one(np.array([0, 1]), np.array([-1, 0]))
    starts, ends = (d.rng.integers(-8, 9, 2) for _ in range(2))
    steps = np.array([d.one(1, 2, -1, -2) for _ in range(2)])
    return "Slice", [x, starts, ends, axes, steps], {}, 13, 1


def pad(d: Draws) -> Case:
    mode = d.one("constant", "edge", "reflect", "wrap")
    low = 0 if mode == "wrap" else -1
    widths = d.rng.integers(low, 3, 4)
    inputs = [d.floats(4, 5), widths] + ([np.float32(1.5)] if mode == "constant" else [])
    return "Pad", inputs, {"mode": mode}, 19, 1


def scatter(d: Draws) -> Case:
    how = d.one("none", "add", "mul", "max", "min")
    x = d.floats(4, 5)
    if d.one(True, False):
        axis = d.one(0, 1, -1)
        index = np.stack([d.rng.permutation(x.shape[axis])[:3] for _ in range(3)])
        index = index if axis else index.T
        index = np.where(d.rng.random(index.shape) < 0.3, index - x.shape[axis], index)
        options = {"axis": axis, "reduction": how}
        return "ScatterElements", [x, index, d.floats(3, 3)], options, 18, 1
    index = d.rng.permutation(4)[:3, None]
    return "ScatterND", [x, index - 4 * d.integer(0, 1), d.floats(3, 5)], {"reduction": how}, 18, 1


def gathers(d: Draws) -> Case:
    x = d.floats(4, 5, 3)
    axis = d.one(0, 1, 2, -1, -3)
    index = d.rng.integers(-x.shape[axis], x.shape[axis], (2, 2, 2))
    if d.one(True, False):
        return "GatherElements", [x, index], {"axis": axis}, 13, 1
    return "Gather", [x, index], {"axis": axis}, 13, 1


def gather_nd(d: Draws) -> Case:
    batch = d.integer(0, 1)
    index = d.rng.integers(-3, 3, (4, 2, d.integer(1, 2)))
    return "GatherND", [d.floats(4, 5, 3), index], {"batch_dims": batch}, 13, 1


def binary(d: Draws) -> Case:
    kind = d.one(np.float32, np.int32, np.int64, np.float64)
    a = d.rng.integers(-9, 9, (3, 4)).astype(kind)
    b = d.rng.integers(1, 5, (4,)).astype(kind) * d.one(1, -1)
    name = d.one("Div", "Mod", "Mod", "Pow", "Max", "Min", "Sub", "Equal", "Less")
    if name == "Pow":
        return name, [a, np.abs(b).astype(d.one(kind, np.float32, np.int32))], {}, 15, 1
    options = {"fmod": 1 if kind in (np.float32, np.float64) else d.one(0, 1)}
    return name, [a, b.astype(kind)], options if name == "Mod" else {}, 13, 1


def unary(d: Draws) -> Case:
    x = d.floats(3, 5) * d.one(0.3, 3, 30)
    name, options = d.one(
        ("Elu", {"alpha": 1.3}),
        ("Selu", {}),
        ("Celu", {"alpha": 0.6}),
        ("HardSigmoid", {"alpha": 0.3, "beta": 0.4}),
        ("HardSwish", {}),
        ("Mish", {}),
        ("Gelu", {"approximate": d.one("tanh", "none")}),
        ("ThresholdedRelu", {"alpha": 0.4}),
        ("Shrink", {"lambd": 0.7, "bias": 0.2}),
        ("Softplus", {}),
        ("Softsign", {}),
        ("Erf", {}),
        ("Round", {}),
        ("Sign", {}),
        ("IsInf", {"detect_negative": d.one(0, 1)}),
        ("Hardmax", {"axis": d.one(0, 1)}),
        ("LogSoftmax", {"axis": d.one(0, 1)}),
        ("LpNormalization", {"axis": d.one(0, 1), "p": d.one(1, 2)}),
        ("Trilu", {"upper": d.one(0, 1)}),
        ("Flatten", {"axis": d.one(0, 1, 2, -1)}),
        ("EyeLike", {"k": d.integer(-2, 2)}),
    )
    return name, [np.round(x * 2) / 2 if d.one(True, False) else x], options, 20, 1


def old(d: Draws) -> Case:
    """Versions whose meaning has changed since."""
    x = d.floats(2, 3, 4)
    name = d.one("Softmax", "LogSoftmax", "Hardmax")
    axis = d.one(0, 1, 2)
    return d.one(
        (name, [x], {"axis": axis}, 11, 1),
        (
            "Upsample",
            [d.images(2), np.array([1, 1, 2, 3], np.float32)],
            {"mode": d.one("linear", "nearest")},
            9,
            1,
        ),
        (
            "Resize",
            [d.images(2), np.array([1, 1, 0.5, 2.2], np.float32)],
            {"mode": d.one("linear", "nearest")},
            10,
            1,
        ),
        ("Clip", [x], {"min": -0.3, "max": 0.4}, 6, 1),
        (
            "BatchNormalization",
            [x, d.floats(3), d.floats(3), d.floats(3), np.abs(d.floats(3))],
            {"epsilon": 0.01},
            9,
            1,
        ),
        ("Squeeze", [x[:, :1]], {"axes": [1]}, 11, 1),
        ("Unsqueeze", [x], {"axes": [0, 4]}, 11, 1),
        ("ReduceSum", [x], {"axes": [0, -1], "keepdims": 0}, 11, 1),
        ("Pad", [x], {"pads": [1, 0, 0, 0, 2, 0], "value": 0.5}, 10, 1),
        ("Slice", [x], {"starts": [1, -3], "ends": [9, -1], "axes": [0, 2]}, 9, 1),
        ("TopK", [x], {"k": 2, "axis": 1}, 9, 2),
        ("Split", [x], {"split": [1, 3], "axis": 2}, 11, 2),
        ("Dropout", [x], {"ratio": 0.3}, 10, 1),
    )


def norms(d: Draws) -> Case:
    x = d.images(2)
    return d.one(
        ("LRN", [x], {"size": d.one(1, 3, 5), "alpha": 0.3, "beta": 0.6, "bias": 1.5}, 13, 1),
        ("InstanceNormalization", [x, d.floats(4), d.floats(4)], {"epsilon": 0.01}, 6, 1),
        ("LayerNormalization", [x, d.floats(x.shape[-1])], {"epsilon": 0.01}, 17, 3),
        ("GroupNormalization", [x, d.floats(4), d.floats(4)], {"num_groups": 2}, 21, 1),
        ("MeanVarianceNormalization", [x], {"axes": [0, 2, 3]}, 13, 1),
        ("GlobalLpPool", [x], {"p": d.one(1, 2, 3)}, 2, 1),
    )


def quantised(d: Draws) -> Case:
    kind = d.one(np.uint8, np.int8)
    limits = np.iinfo(kind)

    def whole(*shape: int) -> Any:
        return d.rng.integers(limits.min, limits.max + 1, shape).astype(kind)

    def step(*shape: int) -> Any:
        return (d.rng.uniform(0.01, 0.2, shape)).astype(np.float32)

    x, zero = d.floats(3, 4) * 5, whole()
    image, kernel = whole(1, 2, 5, 5), whole(3, 2, 2, 3)
    a = [image, step(), zero, kernel, step(3), whole(3) * 0, step(), whole()]
    return d.one(
        ("QuantizeLinear", [x, step(4), whole(4)], {"axis": 1}, 13, 1),
        ("DequantizeLinear", [whole(3, 4), step(3), whole(3)], {"axis": 0}, 13, 1),
        (
            "QLinearMatMul",
            [whole(3, 4), step(), zero, whole(4, 2), step(), whole(), step(), whole()],
            {},
            10,
            1,
        ),
        ("MatMulInteger", [whole(3, 4), whole(4, 2), zero, whole()], {}, 10, 1),
        ("ConvInteger", [image, kernel, zero], {"pads": [1, 0, 1, 1]}, 10, 1),
        ("QLinearConv", a, {"pads": [1, 1, 0, 0], "strides": [2, 1]}, 10, 1),
        ("DynamicQuantizeLinear", [x], {}, 11, 3),
    )


def transforms(d: Draws) -> Case:
    x = d.floats(2, 9, 1)
    return d.one(
        ("DFT", [x, np.array(d.integer(5, 12))], {"axis": 1, "onesided": d.one(0, 1)}, 17, 1),
        ("DFT", [d.floats(2, 8, 2)], {"axis": 1, "inverse": 1}, 17, 1),
        ("STFT", [d.floats(2, 20, 1), np.array(3), None, np.array(7)], {}, 17, 1),
        ("STFT", [d.floats(1, 20, 1), np.array(4), d.floats(8)], {"onesided": d.one(0, 1)}, 17, 1),
        ("MelWeightMatrix", [np.array(v) for v in (8, 16, 8192, 0.0, 4096.0)], {}, 17, 1),
    )


def others(d: Draws) -> Case:
    x = d.floats(2, 4, 6)
    lengths = np.array([d.integer(1, 4) for _ in range(2)])
    return d.one(
        ("ReverseSequence", [x, lengths], {"batch_axis": 0, "time_axis": 1}, 10, 1),
        (
            "OneHot",
            [d.rng.integers(-5, 5, (2, 3)), np.array(4), np.array([0, 3])],
            {"axis": d.one(0, 1, -1)},
            11,
            1,
        ),
        (
            "DepthToSpace",
            [d.floats(1, 8, 2, 3)],
            {"blocksize": 2, "mode": d.one("DCR", "CRD")},
            13,
            1,
        ),
        ("SpaceToDepth", [d.floats(1, 2, 4, 6)], {"blocksize": 2}, 13, 1),
        (
            "Gemm",
            [d.floats(3, 4), d.floats(5, 4), d.one(d.floats(5), d.floats(3, 1), d.floats(3, 5))],
            {"transB": 1, "alpha": 0.3, "beta": 0.7},
            13,
            1,
        ),
        (
            "Einsum",
            [x, d.floats(2, 6, 3)],
            {"equation": d.one("bij,bjk->bik", "bij,bjk", "b i j, b j k -> k b")},
            12,
            1,
        ),
        ("Split", [d.floats(7, 2)], {"num_outputs": 3}, 18, 3),
        ("CenterCropPad", [x, np.array([3, 3, 7])], {}, 18, 1),
        ("Tile", [x, np.array([2, 1, 3])], {}, 13, 1),
        (
            "NegativeLogLikelihoodLoss",
            [x, d.rng.integers(0, 4, (2, 6)), np.abs(d.floats(4))],
            {"reduction": d.one("mean", "sum", "none"), "ignore_index": d.one(0, 2)},
            13,
            1,
        ),
        (
            "SoftmaxCrossEntropyLoss",
            [x, d.rng.integers(0, 4, (2, 6))],
            {"reduction": d.one("mean", "sum", "none")},
            13,
            2,
        ),
        ("Det", [d.floats(2, 3, 3)], {}, 11, 1),
        ("Cast", [x * 3], {"to": d.one(6, 7, 9, 10, 11)}, 13, 1),
        (
            "Range",
            [np.array(v) for v in (d.integer(-3, 3), d.integer(4, 9), d.integer(1, 3))],
            {},
            11,
            1,
        ),
        (
            "Col2Im",
            [d.floats(1, 12, 12), np.array([4, 5]), np.array([2, 3])],
            {"pads": [0, 1, 0, 0]},
            18,
            1,
        ),
        (
            "BitShift",
            [d.rng.integers(0, 99, 5).astype(np.uint8), d.rng.integers(0, 7, 5).astype(np.uint8)],
            {"direction": d.one("LEFT", "RIGHT")},
            11,
            1,
        ),
    )


DRAWS: list[Callable[[Draws], Case]] = [
    average_pool, binary, conv, conv_transpose, cumulative, gather_nd, gathers, grid_sample,
    lp_pool, max_pool, norms, old, others, pad, places, quantised, recurrent, reduction, resize,
    roi_align, scatter, slices, suppression, top_k, transforms, unary,
]  # fmt: skip


def model_of(case: Case) -> tuple[Any, dict[str, Any]]:
    operator, inputs, options, opset, outputs = case
    names = [f"i{k}" if x is not None else "" for k, x in enumerate(inputs)]
    feeds = {n: np.asarray(x) for n, x in zip(names, inputs, strict=True) if n}
    values = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for n, x in feeds.items()
    ]
    node = helper.make_node(operator, names, [f"o{k}" for k in range(outputs)], **options)
    results = [helper.make_empty_tensor_value_info(f"o{k}") for k in range(outputs)]
    graph = helper.make_graph([node], "one", values, results)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    return model, feeds


def judge(case: Case, native: bool) -> str:
    """agrees, refused, skipped (by onnxruntime) or what differs."""
    proto, feeds = model_of(case)
    try:
        session = onnxruntime.InferenceSession(proto.SerializeToString())
        wanted = session.run(None, feeds)
    except Exception as error:  # of several classes of its own
        return f"skipped: {str(error)[:150]}"
    for backend in (None, "native") if native else (None,):
        try:
            got = dl.from_onnx(proto).run(*feeds.values(), backend=backend)
        except (DelianError, ValueError) as error:
            return f"refused: {str(error)[:150]}"
        for mine, theirs in zip(got, wanted, strict=True):
            if mine.shape != theirs.shape or mine.dtype != theirs.dtype:
                return f"{mine.dtype}{mine.shape}, not {theirs.dtype}{theirs.shape}"
            if not np.allclose(mine, theirs, TOLERANCE, TOLERANCE, equal_nan=True):
                worst = np.max(np.abs(mine.astype(np.float64) - theirs))
                return f"{backend or 'plain'} differs by up to {worst:.3g}"
    return "agrees"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("operators", nargs="*")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--native", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    onnxruntime.set_default_logger_severity(4)
    counts = Counter[str]()
    said = Counter[str]()
    for draw in DRAWS:
        for seed in range(options.seeds):
            case = draw(Draws(seed))
            if options.operators and case[0] not in options.operators:
                continue
            verdict = judge(case, options.native)
            word = verdict.partition(":")[0]
            word = word if word in ("agrees", "refused", "skipped") else "differs"
            counts[word] += 1
            if word != "agrees" and said[case[0] + word] < 4:
                said[case[0] + word] += 1
                shapes = [None if x is None else np.shape(x) for x in case[1]]
                print(case[0], shapes, case[2], f"opset {case[3]} seed {seed}:", verdict)
    print(", ".join(f"{n} {word}" for word, n in sorted(counts.items())))
    return int(counts["differs"] > 0)


if __name__ == "__main__":
    sys.exit(main())
