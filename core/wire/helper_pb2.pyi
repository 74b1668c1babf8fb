from delian.core.wire import log_pb2 as _log_pb2
from delian.core.wire import round_pb2 as _round_pb2
from delian.core.wire import secure_pb2 as _secure_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class HelpRefusal(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    HELP_GIVEN: _ClassVar[HelpRefusal]
    MALFORMED: _ClassVar[HelpRefusal]
    TOO_FEW: _ClassVar[HelpRefusal]
    ASKED_BEFORE: _ClassVar[HelpRefusal]
    BAD_SEEDS: _ClassVar[HelpRefusal]
    NOT_LOGGED: _ClassVar[HelpRefusal]
    OTHER_HEAD: _ClassVar[HelpRefusal]
    OLD_DENY_LIST: _ClassVar[HelpRefusal]
HELP_GIVEN: HelpRefusal
MALFORMED: HelpRefusal
TOO_FEW: HelpRefusal
ASKED_BEFORE: HelpRefusal
BAD_SEEDS: HelpRefusal
NOT_LOGGED: HelpRefusal
OTHER_HEAD: HelpRefusal
OLD_DENY_LIST: HelpRefusal

class HelpPart(_message.Message):
    __slots__ = ("task", "devices")
    TASK_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    task: _round_pb2.Task
    devices: _containers.RepeatedCompositeFieldContainer[_secure_pb2.MaskSeeds]
    def __init__(self, task: _Optional[_Union[_round_pb2.Task, _Mapping]] = ..., devices: _Optional[_Iterable[_Union[_secure_pb2.MaskSeeds, _Mapping]]] = ...) -> None: ...

class HelpRequest(_message.Message):
    __slots__ = ("run", "batch", "parts", "log")
    RUN_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    run: int
    batch: int
    parts: _containers.RepeatedCompositeFieldContainer[HelpPart]
    log: _log_pb2.LogProof
    def __init__(self, run: _Optional[int] = ..., batch: _Optional[int] = ..., parts: _Optional[_Iterable[_Union[HelpPart, _Mapping]]] = ..., log: _Optional[_Union[_log_pb2.LogProof, _Mapping]] = ...) -> None: ...

class HelpSum(_message.Message):
    __slots__ = ("run", "batch", "edge", "refusal", "sum", "bad", "log_size")
    RUN_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    EDGE_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    SUM_FIELD_NUMBER: _ClassVar[int]
    BAD_FIELD_NUMBER: _ClassVar[int]
    LOG_SIZE_FIELD_NUMBER: _ClassVar[int]
    run: int
    batch: int
    edge: int
    refusal: HelpRefusal
    sum: bytes
    bad: _containers.RepeatedScalarFieldContainer[int]
    log_size: int
    def __init__(self, run: _Optional[int] = ..., batch: _Optional[int] = ..., edge: _Optional[int] = ..., refusal: _Optional[_Union[HelpRefusal, str]] = ..., sum: _Optional[bytes] = ..., bad: _Optional[_Iterable[int]] = ..., log_size: _Optional[int] = ...) -> None: ...
