"""Products of matrices, convolutions, linear systems and random bits, in torch."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from .torch_tensors import Tensor

# Threefry-2x32's: rotation distances of eight rounds, and the word that the third key is made with.
_ROTATIONS = (13, 15, 26, 6, 17, 29, 16, 24)
_PARITY = 0x1BD11BDA
_ROUNDS = 20
_ROUNDS_A_KEY = 4
_WORD = 32

Padding = Sequence[Sequence[int]]


def _matmul(a: Tensor, b: Tensor) -> Tensor:
    """[batch, rows, inner] x [batch, inner, columns]."""
    if a.is_floating_point() or a.device.type == "cpu":
        return torch.mm(a[0], b[0])[None] if a.shape[0] == 1 else torch.bmm(a, b)
    # Devices have no product of integer matrices.
    return torch.sum(a[:, :, :, None] * b[:, None, :, :], dim=2, dtype=a.dtype)


def _narrowed(x: Tensor, bf16: bool) -> Tensor:
    return x.to(torch.bfloat16) if bf16 and x.dtype is torch.float32 else x


def dot(
    a: Tensor,
    b: Tensor,
    *,
    contract_a: Sequence[int],
    contract_b: Sequence[int],
    batch_a: Sequence[int],
    batch_b: Sequence[int],
    bf16: bool,
) -> Tensor:
    free_a = [i for i in range(a.dim()) if i not in (*contract_a, *batch_a)]
    free_b = [i for i in range(b.dim()) if i not in (*contract_b, *batch_b)]
    batch = [a.shape[i] for i in batch_a]
    rows, columns = [a.shape[i] for i in free_a], [b.shape[i] for i in free_b]
    inner, count = math.prod([a.shape[i] for i in contract_a]), math.prod(batch)
    left = a.permute([*batch_a, *free_a, *contract_a]).reshape(count, math.prod(rows), inner)
    right = b.permute([*batch_b, *contract_b, *free_b]).reshape(count, inner, math.prod(columns))
    product = _matmul(_narrowed(left, bf16), _narrowed(right, bf16)).to(a.dtype)
    return product.reshape([*batch, *rows, *columns])


def _first(x: Tensor) -> Tensor:
    """[N,H,W,C] as torch's [N,C,H,W], in the same memory."""
    return x.permute(0, 3, 1, 2)


def _last(x: Tensor) -> Tensor:
    return x.permute(0, 2, 3, 1)


def _edged(x: Tensor, padding: Padding) -> Tensor:
    (top, bottom), (left, right) = padding
    if not (top or bottom or left or right):
        return x
    return torch.nn.functional.pad(x, (0, 0, left, right, top, bottom))


def conv(
    x: Tensor,
    k: Tensor,
    *,
    strides: Sequence[int],
    padding: Padding,
    bf16: bool,
    groups: int = 1,
) -> Tensor:
    wide, kernel = _narrowed(_edged(x, padding), bf16), _narrowed(k, bf16)
    kernel = kernel.permute(3, 2, 0, 1)
    made = torch.conv2d(_first(wide), kernel, stride=tuple(strides), groups=groups)
    return _last(made).to(x.dtype)


def _backward(
    y: Tensor,
    x: Tensor,
    k: Tensor,
    strides: Sequence[int],
    groups: int,
    wanted: tuple[bool, bool],
) -> tuple[Tensor, Tensor]:
    """The gradients by a padded input and by a kernel, those that are wanted."""
    made = torch.ops.aten.convolution_backward(
        y, x, k, None, list(strides), [0, 0], [1, 1], False, [0, 0], groups, [*wanted, False]
    )
    return made[0], made[1]


def conv_input_grad(
    y: Tensor,
    k: Tensor,
    *,
    strides: Sequence[int],
    padding: Padding,
    input_size: Sequence[int],
    bf16: bool,
    groups: int = 1,
) -> Tensor:
    (top, bottom), (left, right) = padding
    height, width = input_size
    shape = (y.shape[0], k.shape[2] * groups, height + top + bottom, width + left + right)
    g, kernel = _narrowed(y, bf16), _narrowed(k, bf16)
    stand_in = g.new_zeros((1,)).expand(shape)  # only its shape is looked at
    kernel = kernel.permute(3, 2, 0, 1)
    made = _last(_backward(_first(g), stand_in, kernel, strides, groups, (True, False))[0])
    return made[:, top : top + height, left : left + width].to(y.dtype)


def conv_weight_grad(
    x: Tensor,
    y: Tensor,
    *,
    strides: Sequence[int],
    padding: Padding,
    kernel_size: Sequence[int],
    bf16: bool,
    groups: int = 1,
) -> Tensor:
    shape = (y.shape[3], x.shape[3] // groups, *kernel_size)
    wide, g = _narrowed(_edged(x, padding), bf16), _narrowed(y, bf16)
    stand_in = g.new_zeros((1,)).expand(shape)
    made = _backward(_first(g), _first(wide), stand_in, strides, groups, (False, True))[1]
    return made.permute(2, 3, 1, 0).to(x.dtype)


def quantised_conv(x: Tensor, k: Tensor, *, strides: Sequence[int]) -> Tensor:
    """In f64, whose 53 bits hold every sum that the type rule admits."""
    kh, kw, fours, outputs, together = k.shape
    signed = k.view(torch.int8).permute(3, 2, 4, 0, 1).to(torch.float64)
    kernel = signed.reshape(outputs, fours * together, kh, kw)
    made = torch.conv2d(_first(x.to(torch.float64)), kernel, stride=tuple(strides))
    return _last(made).to(torch.int32)


def _nan_where(bad: Tensor, x: Tensor) -> Tensor:
    return torch.where(bad[..., None, None], torch.full_like(x, math.nan), x)


def cholesky(a: Tensor) -> Tensor:
    """In f64 and rounded once, as all of these; NaN where there is no factor."""
    factor, info = torch.linalg.cholesky_ex(a.double())
    return torch.tril(_nan_where(info != 0, factor)).to(a.dtype)


def solve(a: Tensor, b: Tensor) -> Tensor:
    found, info = torch.linalg.solve_ex(a.double(), b.double())
    return _nan_where(info != 0, found).to(b.dtype)


def triangular_solve(a: Tensor, b: Tensor, *, lower: bool) -> Tensor:
    wide = a.double()
    found = torch.linalg.solve_triangular(wide, b.double(), upper=not lower)
    singular = torch.any(torch.diagonal(wide, dim1=-2, dim2=-1) == 0, dim=-1)
    return _nan_where(singular, found).to(b.dtype)


def slogdet(a: Tensor) -> tuple[Tensor, Tensor]:
    found = torch.linalg.slogdet(a.double())
    return found[0].to(a.dtype), found[1].to(a.dtype)


def threefry(k0: Tensor, k1: Tensor, c0: Tensor, c1: Tensor) -> tuple[Tensor, Tensor]:
    """In place where it can be: without a compiler each line is a pass over memory."""
    keys = (k0, k1, k0 ^ k1 ^ _PARITY)
    x, y = c0 + k0, c1 + k1
    for i in range(_ROUNDS):
        x.add_(y)
        distance = _ROTATIONS[i % len(_ROTATIONS)]
        left = y << distance
        # int32 shifts its sign in: what comes from the left is masked off.
        y.bitwise_right_shift_(_WORD - distance).bitwise_and_((1 << distance) - 1)
        y.bitwise_or_(left).bitwise_xor_(x)
        if i % _ROUNDS_A_KEY == _ROUNDS_A_KEY - 1:
            n = i // _ROUNDS_A_KEY + 1
            x.add_(keys[n % 3])
            y.add_(keys[(n + 1) % 3]).add_(n)
    return x, y
