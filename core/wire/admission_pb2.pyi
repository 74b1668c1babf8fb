from delian.core.wire import secure_pb2 as _secure_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RejectReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REJECT_UNSPECIFIED: _ClassVar[RejectReason]
    NOT_ELIGIBLE: _ClassVar[RejectReason]
    POOL_FULL: _ClassVar[RejectReason]
    EDGE_FULL: _ClassVar[RejectReason]
    PROTOCOL_TOO_OLD: _ClassVar[RejectReason]
    TOO_SMALL: _ClassVar[RejectReason]
    NO_WORK: _ClassVar[RejectReason]
    DRAINING: _ClassVar[RejectReason]
    WORK_CAME: _ClassVar[RejectReason]
    NOT_CONSENTED: _ClassVar[RejectReason]
REJECT_UNSPECIFIED: RejectReason
NOT_ELIGIBLE: RejectReason
POOL_FULL: RejectReason
EDGE_FULL: RejectReason
PROTOCOL_TOO_OLD: RejectReason
TOO_SMALL: RejectReason
NO_WORK: RejectReason
DRAINING: RejectReason
WORK_CAME: RejectReason
NOT_CONSENTED: RejectReason

class CheckIn(_message.Message):
    __slots__ = ("device", "sequence", "protocol", "facts", "eligibility")
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    FACTS_FIELD_NUMBER: _ClassVar[int]
    ELIGIBILITY_FIELD_NUMBER: _ClassVar[int]
    device: int
    sequence: int
    protocol: int
    facts: DeviceFacts
    eligibility: Eligibility
    def __init__(self, device: _Optional[int] = ..., sequence: _Optional[int] = ..., protocol: _Optional[int] = ..., facts: _Optional[_Union[DeviceFacts, _Mapping]] = ..., eligibility: _Optional[_Union[Eligibility, _Mapping]] = ...) -> None: ...

class DeviceFacts(_message.Message):
    __slots__ = ("abi", "memory_mib", "storage_mib")
    ABI_FIELD_NUMBER: _ClassVar[int]
    MEMORY_MIB_FIELD_NUMBER: _ClassVar[int]
    STORAGE_MIB_FIELD_NUMBER: _ClassVar[int]
    abi: str
    memory_mib: int
    storage_mib: int
    def __init__(self, abi: _Optional[str] = ..., memory_mib: _Optional[int] = ..., storage_mib: _Optional[int] = ...) -> None: ...

class Eligibility(_message.Message):
    __slots__ = ("powered", "unmetered", "idle", "consented", "fresh")
    POWERED_FIELD_NUMBER: _ClassVar[int]
    UNMETERED_FIELD_NUMBER: _ClassVar[int]
    IDLE_FIELD_NUMBER: _ClassVar[int]
    CONSENTED_FIELD_NUMBER: _ClassVar[int]
    FRESH_FIELD_NUMBER: _ClassVar[int]
    powered: bool
    unmetered: bool
    idle: bool
    consented: bool
    fresh: bool
    def __init__(self, powered: _Optional[bool] = ..., unmetered: _Optional[bool] = ..., idle: _Optional[bool] = ..., consented: _Optional[bool] = ..., fresh: _Optional[bool] = ...) -> None: ...

class RetryWindow(_message.Message):
    __slots__ = ("min_ms", "max_ms")
    MIN_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_MS_FIELD_NUMBER: _ClassVar[int]
    min_ms: int
    max_ms: int
    def __init__(self, min_ms: _Optional[int] = ..., max_ms: _Optional[int] = ...) -> None: ...

class Accept(_message.Message):
    __slots__ = ("sequence", "lease_ms", "after_task")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    AFTER_TASK_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    lease_ms: int
    after_task: RetryWindow
    def __init__(self, sequence: _Optional[int] = ..., lease_ms: _Optional[int] = ..., after_task: _Optional[_Union[RetryWindow, _Mapping]] = ...) -> None: ...

class Reject(_message.Message):
    __slots__ = ("sequence", "reason", "retry")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    RETRY_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    reason: RejectReason
    retry: RetryWindow
    def __init__(self, sequence: _Optional[int] = ..., reason: _Optional[_Union[RejectReason, str]] = ..., retry: _Optional[_Union[RetryWindow, _Mapping]] = ...) -> None: ...

class Away(_message.Message):
    __slots__ = ("reason", "devices")
    REASON_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    reason: RejectReason
    devices: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, reason: _Optional[_Union[RejectReason, str]] = ..., devices: _Optional[_Iterable[int]] = ...) -> None: ...

class EdgeHello(_message.Message):
    __slots__ = ("edge", "incarnation", "sequence", "protocol", "ready", "devices_max", "asks_pace", "told_draining", "pace", "helper", "away")
    EDGE_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    DEVICES_MAX_FIELD_NUMBER: _ClassVar[int]
    ASKS_PACE_FIELD_NUMBER: _ClassVar[int]
    TOLD_DRAINING_FIELD_NUMBER: _ClassVar[int]
    PACE_FIELD_NUMBER: _ClassVar[int]
    HELPER_FIELD_NUMBER: _ClassVar[int]
    AWAY_FIELD_NUMBER: _ClassVar[int]
    edge: int
    incarnation: int
    sequence: int
    protocol: int
    ready: _containers.RepeatedScalarFieldContainer[int]
    devices_max: int
    asks_pace: bool
    told_draining: bool
    pace: int
    helper: _secure_pb2.HelperKey
    away: _containers.RepeatedCompositeFieldContainer[Away]
    def __init__(self, edge: _Optional[int] = ..., incarnation: _Optional[int] = ..., sequence: _Optional[int] = ..., protocol: _Optional[int] = ..., ready: _Optional[_Iterable[int]] = ..., devices_max: _Optional[int] = ..., asks_pace: _Optional[bool] = ..., told_draining: _Optional[bool] = ..., pace: _Optional[int] = ..., helper: _Optional[_Union[_secure_pb2.HelperKey, _Mapping]] = ..., away: _Optional[_Iterable[_Union[Away, _Mapping]]] = ...) -> None: ...

class Pace(_message.Message):
    __slots__ = ("ready_max", "after_task", "after_reject", "lease_ms", "requirements", "draining", "denied_version", "number")
    READY_MAX_FIELD_NUMBER: _ClassVar[int]
    AFTER_TASK_FIELD_NUMBER: _ClassVar[int]
    AFTER_REJECT_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    REQUIREMENTS_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    DENIED_VERSION_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    ready_max: int
    after_task: RetryWindow
    after_reject: RetryWindow
    lease_ms: int
    requirements: Requirements
    draining: bool
    denied_version: int
    number: int
    def __init__(self, ready_max: _Optional[int] = ..., after_task: _Optional[_Union[RetryWindow, _Mapping]] = ..., after_reject: _Optional[_Union[RetryWindow, _Mapping]] = ..., lease_ms: _Optional[int] = ..., requirements: _Optional[_Union[Requirements, _Mapping]] = ..., draining: _Optional[bool] = ..., denied_version: _Optional[int] = ..., number: _Optional[int] = ...) -> None: ...

class Requirements(_message.Message):
    __slots__ = ("powered", "unmetered", "idle", "memory_mib", "storage_mib", "fresh")
    POWERED_FIELD_NUMBER: _ClassVar[int]
    UNMETERED_FIELD_NUMBER: _ClassVar[int]
    IDLE_FIELD_NUMBER: _ClassVar[int]
    MEMORY_MIB_FIELD_NUMBER: _ClassVar[int]
    STORAGE_MIB_FIELD_NUMBER: _ClassVar[int]
    FRESH_FIELD_NUMBER: _ClassVar[int]
    powered: bool
    unmetered: bool
    idle: bool
    memory_mib: int
    storage_mib: int
    fresh: bool
    def __init__(self, powered: _Optional[bool] = ..., unmetered: _Optional[bool] = ..., idle: _Optional[bool] = ..., memory_mib: _Optional[int] = ..., storage_mib: _Optional[int] = ..., fresh: _Optional[bool] = ...) -> None: ...
