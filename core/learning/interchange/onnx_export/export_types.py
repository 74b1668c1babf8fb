"""Element types of the IR in ONNX, and the wider ones in which operators compute.

ONNX Runtime's CPU kernels do not cover all types of every operator, and some operators have no
narrow types in ONNX either. A row then casts to a wider type, computes, and casts back. Casts
between whole numbers keep the low bits (ONNX, operator Cast), so sums and products that wrap stay
the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ....compiler.ir import DType

#: TensorProto.DataType of onnx.proto.
ELEMENT: Mapping[DType, int] = MappingProxyType(
    {
        DType.F32: 1,
        DType.U8: 2,
        DType.I8: 3,
        DType.U16: 4,
        DType.I16: 5,
        DType.I32: 6,
        DType.I64: 7,
        DType.BOOL: 9,
        DType.F16: 10,
        DType.F64: 11,
        DType.U32: 12,
        DType.U64: 13,
        DType.BF16: 16,
    }
)
#: The unsigned type of the same width.
UNSIGNED: Mapping[DType, DType] = MappingProxyType(
    {DType.I64: DType.U64, DType.I32: DType.U32, DType.I16: DType.U16, DType.I8: DType.U8}
)
#: Where: one of two elements, so any type that holds the bits will do.
IN_SELECT: Mapping[DType, DType] = MappingProxyType(
    {
        DType.I16: DType.I32,
        DType.U16: DType.I32,
        DType.U64: DType.I64,
        DType.BOOL: DType.U8,
        DType.BF16: DType.F32,
    }
)
#: Max, Min and Pad.
IN_EXTREME: Mapping[DType, DType] = MappingProxyType({DType.I16: DType.I32, DType.U16: DType.I32})
#: CumSum.
IN_SUM: Mapping[DType, DType] = MappingProxyType(
    dict.fromkeys((DType.I16, DType.I8, DType.U64, DType.U32, DType.U16, DType.U8), DType.I64)
)
#: MatMul: modulo 2^32 is enough for narrow results.
IN_PRODUCT: Mapping[DType, DType] = MappingProxyType(
    dict.fromkeys((DType.I16, DType.I8, DType.U16, DType.U8), DType.I32)
)
#: ReduceMax, ArgMax and TopK: in the same order. u64 needs more than a cast (`rows_sums`).
IN_ORDER: Mapping[DType, DType] = MappingProxyType(
    {
        DType.I16: DType.I32,
        DType.I8: DType.I32,
        DType.U16: DType.I32,
        DType.U8: DType.I32,
        DType.U32: DType.I64,
        DType.U64: DType.I64,
        DType.BOOL: DType.I32,
    }
)
#: Types that sequences and Expand have not.
IN_MOVE: Mapping[DType, DType] = MappingProxyType({DType.BF16: DType.F32})
