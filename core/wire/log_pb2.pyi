from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Cosignature(_message.Message):
    __slots__ = ("witness", "signature")
    WITNESS_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    witness: bytes
    signature: bytes
    def __init__(self, witness: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class Checkpoint(_message.Message):
    __slots__ = ("head", "signature", "cosignatures")
    HEAD_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    COSIGNATURES_FIELD_NUMBER: _ClassVar[int]
    head: bytes
    signature: bytes
    cosignatures: _containers.RepeatedCompositeFieldContainer[Cosignature]
    def __init__(self, head: _Optional[bytes] = ..., signature: _Optional[bytes] = ..., cosignatures: _Optional[_Iterable[_Union[Cosignature, _Mapping]]] = ...) -> None: ...

class LogUpdate(_message.Message):
    __slots__ = ("old_size", "checkpoint", "consistency")
    OLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    CONSISTENCY_FIELD_NUMBER: _ClassVar[int]
    old_size: int
    checkpoint: Checkpoint
    consistency: bytes
    def __init__(self, old_size: _Optional[int] = ..., checkpoint: _Optional[_Union[Checkpoint, _Mapping]] = ..., consistency: _Optional[bytes] = ...) -> None: ...

class LogProof(_message.Message):
    __slots__ = ("update", "indices", "inclusion")
    UPDATE_FIELD_NUMBER: _ClassVar[int]
    INDICES_FIELD_NUMBER: _ClassVar[int]
    INCLUSION_FIELD_NUMBER: _ClassVar[int]
    update: LogUpdate
    indices: _containers.RepeatedScalarFieldContainer[int]
    inclusion: bytes
    def __init__(self, update: _Optional[_Union[LogUpdate, _Mapping]] = ..., indices: _Optional[_Iterable[int]] = ..., inclusion: _Optional[bytes] = ...) -> None: ...

class LogAsk(_message.Message):
    __slots__ = ("first", "old_size")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    OLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    first: int
    old_size: int
    def __init__(self, first: _Optional[int] = ..., old_size: _Optional[int] = ...) -> None: ...

class LogPage(_message.Message):
    __slots__ = ("update", "first", "entries")
    UPDATE_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    update: LogUpdate
    first: int
    entries: bytes
    def __init__(self, update: _Optional[_Union[LogUpdate, _Mapping]] = ..., first: _Optional[int] = ..., entries: _Optional[bytes] = ...) -> None: ...

class CosignAsk(_message.Message):
    __slots__ = ("update",)
    UPDATE_FIELD_NUMBER: _ClassVar[int]
    update: LogUpdate
    def __init__(self, update: _Optional[_Union[LogUpdate, _Mapping]] = ...) -> None: ...

class CosignReply(_message.Message):
    __slots__ = ("cosignature", "size")
    COSIGNATURE_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    cosignature: Cosignature
    size: int
    def __init__(self, cosignature: _Optional[_Union[Cosignature, _Mapping]] = ..., size: _Optional[int] = ...) -> None: ...
