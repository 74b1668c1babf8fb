"""Arrays to tensors and back, and the element types on the way.

torch's uint32 has hardly any operations, so u32 is kept in int64, from 0 to 2^32 - 1: whatever can
leave that range is brought back (`low32`). The other types are torch's own.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import torch

from ...ir import Array, DType, TensorType

Tensor: TypeAlias = Any

_LOW_32 = 0xFFFFFFFF
_INT_32 = torch.int32

TORCH: dict[DType, Any] = {
    DType.F64: torch.float64,
    DType.F32: torch.float32,
    DType.F16: torch.float16,
    DType.BF16: torch.bfloat16,
    DType.I64: torch.int64,
    DType.I32: torch.int32,
    DType.U32: torch.int64,
    DType.U8: torch.uint8,
    DType.BOOL: torch.bool,
}


def low32(x: Tensor) -> Tensor:
    """An int64 tensor brought into the range of u32."""
    return x & _LOW_32


def to_tensor(array: Array, device: str) -> Tensor:
    """An array's elements on a device, in memory of their own."""
    kind = DType.of(array.dtype)
    contiguous = np.ascontiguousarray(array).reshape(array.shape)
    if kind is DType.U32:
        found = torch.from_numpy(contiguous.astype(np.int64))
    elif kind is DType.BF16:
        found = torch.from_numpy(contiguous.view(np.int16).copy()).view(torch.bfloat16)
    else:
        found = torch.from_numpy(contiguous.copy())
    return found.to(device)


def to_array(tensor: Tensor, type_: TensorType) -> Array:
    """A tensor's elements as an array of the type that it stands for."""
    here = tensor.detach().to("cpu").contiguous()
    if type_.dtype is DType.BF16:
        found: Array = here.view(torch.int16).numpy().view(type_.dtype.numpy)
    else:
        found = here.numpy()
    if type_.dtype is DType.U32:
        found = found.astype(np.uint32)
    return found.reshape(type_.shape)


def convert(x: Tensor, *, source: DType, target: DType) -> Tensor:
    """The numbers in another element type; integers that do not fit wrap."""
    if target is DType.U32:
        return low32(x.to(torch.int64))
    if target is DType.U8 and source.is_float:
        return x.to(torch.int64).to(torch.uint8)
    return x.to(TORCH[target])


def bitcast(x: Tensor, *, source: DType, target: DType) -> Tensor:
    """The bits as another element type of the same width."""
    if source is target:
        return x
    if source is DType.U32:
        x = x.to(_INT_32)
    if target is DType.U32:
        return low32(x.view(_INT_32).to(torch.int64))
    return x.view(TORCH[target])
