"""Arrays to tensors and back, and the element types on the way.

torch's uint32 and uint16 have hardly any operations, so u32 is kept as the same bits in int32, u16
in int16. Sums, products and bits come out right that way; what depends on the sign (an order, a
quotient, a shift to the right) is done on `unsigned` numbers in int64. No other type has the
numbers of u64: `torch_program` refuses it. The other types are torch's own.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import torch

from ...ir import Array, DType, TensorType

Tensor: TypeAlias = Any

TORCH: dict[DType, Any] = {
    DType.F64: torch.float64,
    DType.F32: torch.float32,
    DType.F16: torch.float16,
    DType.BF16: torch.bfloat16,
    DType.I64: torch.int64,
    DType.I32: torch.int32,
    DType.I16: torch.int16,
    DType.I8: torch.int8,
    DType.U32: torch.int32,
    DType.U16: torch.int16,
    DType.U8: torch.uint8,
    DType.BOOL: torch.bool,
}


#: Types that are kept as the bits of another, with NumPy's type of those.
AS_BITS: dict[DType, Any] = {DType.U32: np.int32, DType.U16: np.int16}
_LOW = {torch.int32: 0xFFFFFFFF, torch.int16: 0xFFFF}


def unsigned(x: Tensor) -> Tensor:
    """The numbers of a tensor of u32 or u16, in int64."""
    return x.to(torch.int64) & _LOW[x.dtype]


def bits32(x: Tensor) -> Tensor:
    """An int64 tensor's low bits, as a u32 tensor."""
    return x.to(torch.int32)


def bits16(x: Tensor) -> Tensor:
    """An int64 tensor's low bits, as a u16 tensor."""
    return x.to(torch.int16)


def to_tensor(array: Array, device: str) -> Tensor:
    """An array's elements on a device, in memory of their own."""
    kind = DType.of(array.dtype)
    plain = np.ascontiguousarray(array).reshape(array.shape)
    if kind in AS_BITS:
        plain = plain.view(AS_BITS[kind])
    elif kind is DType.BF16:
        plain = plain.view(np.int16)
    # The copy is also what makes it writable.
    found = torch.from_numpy(
        plain.copy() if device == "cpu" or not plain.flags.writeable else plain
    )
    return (found.view(torch.bfloat16) if kind is DType.BF16 else found).to(device)


def to_array(tensor: Tensor, type_: TensorType) -> Array:
    """A tensor's elements as an array of the type that it stands for."""
    here = tensor.detach().to("cpu").contiguous()
    if type_.dtype is DType.BF16:
        found: Array = here.view(torch.int16).numpy().view(type_.dtype.numpy)
    else:
        found = here.numpy()
    if type_.dtype in AS_BITS:
        found = found.view(type_.dtype.numpy)
    return found.reshape(type_.shape)


def convert(x: Tensor, *, source: DType, target: DType) -> Tensor:
    """The numbers in another element type; integers that do not fit wrap."""
    if source is target:
        return x
    if source in AS_BITS:
        x = unsigned(x)
    if source.is_float and target.is_int and target.itemsize < DType.I64.itemsize:
        x = x.to(torch.int64 if target.is_unsigned else torch.int32)
    return x.to(TORCH[target])


def bitcast(x: Tensor, *, target: DType) -> Tensor:
    """The bits as another element type of the same width."""
    return x.view(TORCH[target])
