"""A program as bytes, and back: `proto/ir.proto` says field by field what the bytes hold.

Encoding is deterministic, so a program's content hash is the hash of its bytes (without source
spans: moving a line in a file does not make another program). The files of spans have names that
do not depend on where they lie (`core.common.source_names`).

Decoding trusts nothing. Bytes that are malformed, or a program that breaks a rule of the IR or one
of the `Limits`, raise `DelianError`; sizes are checked before anything of that size is made. An
operation written for an older version of its primitive is brought up to date by an upgrader,

    UPGRADERS[name, version]: (builder, operation as it was written) -> its results now,

which may build any operations of today. A program from a newer Delian is refused by name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar

import numpy as np
from google.protobuf.message import DecodeError

from ..common.errors import DelianError, Loc
from ..common.source_names import name_of, path_of
from ..wire import ir_pb2 as pb
from . import ir
from .primitives import PRIMITIVES
from .verify import Limits, verify, verify_type

T = TypeVar("T")

#: The version of the message that this module writes and reads.
SCHEMA = 1

#: Builds what an operation of an older version has become; gives the values of its results.
Upgrader: TypeAlias = Callable[[ir.Builder, ir.Op], ir.Values]
#: By (primitive, the version that it was written for). An upgrader leads to today's version.
UPGRADERS: Mapping[tuple[str, int], Upgrader] = MappingProxyType({})

_DTYPES = {
    ir.DType.F64: pb.F64,
    ir.DType.F32: pb.F32,
    ir.DType.I64: pb.I64,
    ir.DType.I32: pb.I32,
    ir.DType.U32: pb.U32,
    ir.DType.U8: pb.U8,
    ir.DType.BOOL: pb.BOOL,
    ir.DType.BF16: pb.BF16,
    ir.DType.F16: pb.F16,
    ir.DType.I16: pb.I16,
    ir.DType.I8: pb.I8,
    ir.DType.U64: pb.U64,
    ir.DType.U16: pb.U16,
}
_DTYPE_OF: dict[int, ir.DType] = {number: dtype for dtype, number in _DTYPES.items()}


class ProgramFormatError(DelianError):
    """Bytes that are not a program, or not one that this version can read."""


def encode_function(fn: ir.Function, locs: bool = True) -> bytes:
    """The program as bytes: message Program of `proto/ir.proto`. Source spans only if `locs`."""
    return _Encoder(locs).program(fn)


def decode_function(
    data: bytes,
    limits: Limits | None = None,
    upgraders: Mapping[tuple[str, int], Upgrader] = UPGRADERS,
) -> ir.Function:
    """The program that some bytes hold, verified.

    Raises:
        ProgramFormatError: the bytes are malformed or from a newer version.
        VerifyError: the program breaks a rule of the IR or exceeds the limits.
    """
    limits = Limits() if limits is None else limits
    if len(data) > limits.encoded_bytes_max:
        raise ProgramFormatError(
            f"a program of {len(data)} bytes; at most {limits.encoded_bytes_max}"
        )
    message = pb.Program()
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise ProgramFormatError("the bytes are not a program") from error
    fn = _Decoder(message, limits, upgraders).program()
    verify(fn, limits)
    return fn


def content_hash(fn: ir.Function) -> str:
    """SHA-256, in hex, of the program without its source spans."""
    return hashlib.sha256(encode_function(fn, locs=False)).hexdigest()


class _Table:
    """Numbers things in order of first use."""

    def __init__(self) -> None:
        self.numbers: dict[Any, int] = {}
        self._same: dict[int, int] = {}  # by identity, of what the program keeps

    def index(self, key: Any) -> int:
        return self.numbers.setdefault(key, len(self.numbers))

    def index_of_kept(self, key: Any) -> int:
        """The index of a part of the program, found by identity, ten times faster than by hash."""
        number = self._same.get(id(key))
        if number is None:
            number = self._same[id(key)] = self.index(key)
        return number


class _Encoder:
    def __init__(self, locs: bool) -> None:
        self.locs = locs
        self.message = pb.Program(schema=SCHEMA)
        self.primitives = _Table()
        self.types = _Table()
        self.files = _Table()
        self.spans = _Table()

    def program(self, fn: ir.Function) -> bytes:
        message = self.message
        message.name = fn.name
        self._block(fn.body)
        message.param_names.extend(fn.param_names)
        message.result_names.extend(fn.result_names)
        message.donated.extend(sorted(fn.donated))
        for name in self.primitives.numbers:
            message.primitives.add(name=name, version=PRIMITIVES[name].version)
        for type in self.types.numbers:
            self._write_type(type)
        for loc in self.spans.numbers:
            message.spans.add(
                file=self.files.index(name_of(loc.file)),
                line=loc.line,
                column=loc.column,
                end_line=loc.end_line,
                end_column=loc.end_column,
            )
        message.files.extend(self.files.numbers)
        return message.SerializeToString(deterministic=True)

    def _type(self, type: ir.Type) -> int:
        """The number of a type of the program."""
        if isinstance(type, ir.ListType):
            self._type(type.element)  # an element's index comes first
        return self.types.index_of_kept(type)

    def _write_type(self, type: ir.Type) -> None:
        made = self.message.types.add()
        if isinstance(type, ir.ListType):
            made.list_of = self.types.index(type.element)
            made.lanes.extend(type.lanes)
        else:
            made.tensor.dtype = _DTYPES[type.dtype]
            made.tensor.shape.extend(type.shape)

    def _block(self, block: ir.Block) -> int:
        """Writes a block after those of its regions; gives its index."""
        made = pb.Block()
        type_of, span_of = self._type, self.spans.index_of_kept
        numbers: dict[ir.Value, int] = {}
        for p in block.params:
            numbers[p] = len(numbers)
            made.params.append(type_of(p.type))
        for op in block.ops:
            row = made.ops.add(primitive=self.primitives.index(op.name))
            row.operands.extend([numbers[v] for v in op.operands])
            row.results.extend([type_of(v.type) for v in op.results])
            for v in op.results:
                numbers[v] = len(numbers)
            for name in sorted(op.attrs):
                self._datum(row.attributes.add(name=name).value, op.attrs[name])
            if op.regions:
                row.regions.extend([self._block(region) for region in op.regions])
            if self.locs and op.locs:
                row.spans.extend([span_of(loc) for loc in op.locs])
        made.results.extend(numbers[v] for v in block.results)
        self.message.blocks.append(made)
        return len(self.message.blocks) - 1

    def _datum(self, datum: pb.Datum, value: Any) -> None:
        if isinstance(value, bool):
            datum.truth = value
        elif isinstance(value, int):
            datum.integer = value
        elif isinstance(value, float):
            datum.real = value
        elif isinstance(value, str):
            datum.text = value
        elif isinstance(value, ir.DType):
            datum.dtype = _DTYPES[value]
        elif isinstance(value, ir.TensorType | ir.ListType):
            datum.type = self._type(value)
        elif isinstance(value, np.ndarray):
            datum.array.type = self.types.index(ir.TensorType.of(value))
            little = value.dtype.newbyteorder("<")
            datum.array.data = np.ascontiguousarray(value, little).tobytes()
        elif isinstance(value, tuple):
            self._tuple(datum, value)
        else:
            raise TypeError(f"an attribute cannot be a {type(value).__name__}")

    def _tuple(self, datum: pb.Datum, value: tuple[Any, ...]) -> None:
        if all(type(item) is int for item in value):
            datum.integers.SetInParent()
            datum.integers.items.extend(value)
            return
        for item in value:
            self._datum(datum.tuple.items.add(), item)


class _Decoder:
    def __init__(
        self,
        message: pb.Program,
        limits: Limits,
        upgraders: Mapping[tuple[str, int], Upgrader],
    ) -> None:
        self.message = message
        self.limits = limits
        self.upgraders = upgraders
        self.types: list[ir.Type] = []
        self.primitives: list[tuple[str, Upgrader | None]] = []
        self.spans: list[Loc] = []
        self.blocks: list[ir.Block | None] = []
        self.constant_bytes = 0

    def program(self) -> ir.Function:
        message, limits = self.message, self.limits
        if message.schema != SCHEMA:
            raise ProgramFormatError(
                f"the program has format {message.schema} and this version reads {SCHEMA}",
                "update Delian on the older side",
            )
        total = sum(len(block.ops) for block in message.blocks)
        if total > limits.ops_max:
            raise ProgramFormatError(f"{total} operations; at most {limits.ops_max}")
        self.types = self._types()
        self.primitives = [self._primitive(p.name, p.version) for p in message.primitives]
        self.spans = [self._span(s) for s in message.spans]
        for block in message.blocks:
            self.blocks.append(self._block(block))
        if not self.blocks:
            raise ProgramFormatError("the program has no body")
        body = self.blocks.pop()
        if body is None or any(block is not None for block in self.blocks):
            raise ProgramFormatError("a block is not the region of exactly one operation")
        donated = tuple(message.donated)
        if list(donated) != sorted(set(donated)):
            raise ProgramFormatError("the donated parameters are not in increasing order")
        names = tuple(message.param_names), tuple(message.result_names)
        return ir.Function(message.name, body, *names, frozenset(donated))

    def _types(self) -> list[ir.Type]:
        types: list[ir.Type] = []
        for row in self.message.types:
            kind = row.WhichOneof("kind")
            if kind == "list_of":
                lanes = tuple(row.lanes)
                if len(lanes) > self.limits.rank_max:
                    raise ProgramFormatError(
                        f"a list with {len(lanes)} axes of lanes; at most {self.limits.rank_max}"
                    )
                made: ir.Type = ir.ListType(_at(types, row.list_of, "type"), lanes)
            elif kind == "tensor":
                shape = tuple(row.tensor.shape)
                # Before the product of its sizes is worked out.
                if len(shape) > self.limits.rank_max:
                    raise ProgramFormatError(
                        f"a tensor of rank {len(shape)}; at most {self.limits.rank_max}"
                    )
                made = ir.TensorType(_dtype(row.tensor.dtype), shape)
            else:
                raise ProgramFormatError("a type is neither a tensor nor a list")
            verify_type(made, self.limits)
            types.append(made)
        return types

    def _primitive(self, name: str, version: int) -> tuple[str, Upgrader | None]:
        row = PRIMITIVES.get(name)
        upgrader = self.upgraders.get((name, version))
        if upgrader is not None:
            return name, upgrader
        if row is None or version > row.version:
            raise ProgramFormatError(
                f"the program uses {name[:100]!r} version {version}, which this version of Delian "
                "has not",
                "update Delian here",
            )
        if version != row.version:
            raise ProgramFormatError(
                f"the program uses {name!r} version {version}; now it is version {row.version} "
                "and there is no upgrade",
                "compile the program again",
            )
        return name, None

    def _span(self, row: pb.Span) -> Loc:
        file = _at(self.message.files, row.file, "file")
        return Loc(path_of(file), row.line, row.column, row.end_line, row.end_column)

    def _block(self, block: pb.Block) -> ir.Block:
        b = ir.Builder([_at(self.types, i, "type") for i in block.params])
        values = list(b.params)
        for row in block.ops:
            name, upgrader = _at(self.primitives, row.primitive, "primitive")
            op = ir.Op(
                name,
                tuple([_at(values, i, "value") for i in row.operands]),
                tuple([ir.Value(_at(self.types, i, "type")) for i in row.results]),
                self._attributes(row),
                tuple([self._take_block(i) for i in row.regions]),
                tuple([_at(self.spans, i, "span") for i in row.spans]),
            )
            if upgrader is None:
                b.ops.append(op)
                values += op.results
            else:
                values += self._upgrade(b, op, upgrader)
        return b.finish([_at(values, i, "value") for i in block.results])

    def _upgrade(self, b: ir.Builder, op: ir.Op, upgrader: Upgrader) -> ir.Values:
        with b.at(op.locs):
            made = upgrader(b, op)
        if [v.type for v in made] != [v.type for v in op.results]:
            raise ProgramFormatError(f"upgrading {op.name!r} changed the types of its results")
        return made

    def _take_block(self, i: int) -> ir.Block:
        """An earlier block, which becomes the region of one operation and of no other."""
        block = _at(self.blocks, i, "block")
        if block is None:
            raise ProgramFormatError(f"block {i} is the region of two operations")
        self.blocks[i] = None
        return block

    def _attributes(self, row: pb.Op) -> dict[str, Any]:
        attrs: dict[str, Any] = {}
        last = ""
        for attribute in row.attributes:
            if attribute.name <= last and attrs:
                raise ProgramFormatError("an operation's attributes are not sorted by name")
            last = attribute.name
            attrs[last] = self._datum(attribute.value)
        return attrs

    def _datum(self, datum: pb.Datum) -> Any:
        kind = datum.WhichOneof("kind")
        if kind in ("integer", "real", "truth", "text"):
            return getattr(datum, kind)
        if kind == "dtype":
            return _dtype(datum.dtype)
        if kind == "type":
            return _at(self.types, datum.type, "type")
        if kind == "array":
            return self._array(datum.array)
        if kind == "integers":
            return tuple(datum.integers.items)
        if kind == "tuple":
            # Bounded by protobuf's own limit on nesting.
            return tuple([self._datum(item) for item in datum.tuple.items])
        raise ProgramFormatError("an attribute has no value")

    def _array(self, row: pb.Array) -> ir.Array:
        type = _at(self.types, row.type, "type")
        if not isinstance(type, ir.TensorType):
            raise ProgramFormatError(f"a constant cannot be a {type}")
        if len(row.data) != type.nbytes:
            raise ProgramFormatError(f"{type} takes {type.nbytes} bytes, not {len(row.data)}")
        self.constant_bytes += type.nbytes
        if self.constant_bytes > self.limits.constant_bytes_max:
            raise ProgramFormatError(f"constants exceed {self.limits.constant_bytes_max} bytes")
        numpy = type.dtype.numpy
        raw = np.frombuffer(row.data, numpy.newbyteorder("<") if numpy.itemsize > 1 else np.uint8)
        if type.dtype is ir.DType.BOOL and raw.size and raw.max() > 1:
            raise ProgramFormatError("a bool is 0 or 1")
        array = raw.astype(numpy).reshape(type.shape)
        array.setflags(write=False)
        return array


def _at(items: Sequence[T], i: int, what: str) -> T:
    if i >= len(items):
        raise ProgramFormatError(f"{what} {i} is not defined before it is used")
    return items[i]


def _dtype(number: int) -> ir.DType:
    if number not in _DTYPE_OF:
        raise ProgramFormatError(f"there is no element type {number}")
    return _DTYPE_OF[number]
