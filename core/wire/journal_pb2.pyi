from delian.core.wire import admission_pb2 as _admission_pb2
from delian.core.wire import blob_pb2 as _blob_pb2
from delian.core.wire import link_pb2 as _link_pb2
from delian.core.wire import log_pb2 as _log_pb2
from delian.core.wire import operator_pb2 as _operator_pb2
from delian.core.wire import round_pb2 as _round_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Entry(_message.Message):
    __slots__ = ("now", "started", "received", "timer", "blob_stored", "program_finished", "ordered")
    NOW_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    TIMER_FIELD_NUMBER: _ClassVar[int]
    BLOB_STORED_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_FINISHED_FIELD_NUMBER: _ClassVar[int]
    ORDERED_FIELD_NUMBER: _ClassVar[int]
    now: int
    started: StartedEvent
    received: _link_pb2.Envelope
    timer: str
    blob_stored: BlobStoredEvent
    program_finished: ProgramFinishedEvent
    ordered: OrderedEvent
    def __init__(self, now: _Optional[int] = ..., started: _Optional[_Union[StartedEvent, _Mapping]] = ..., received: _Optional[_Union[_link_pb2.Envelope, _Mapping]] = ..., timer: _Optional[str] = ..., blob_stored: _Optional[_Union[BlobStoredEvent, _Mapping]] = ..., program_finished: _Optional[_Union[ProgramFinishedEvent, _Mapping]] = ..., ordered: _Optional[_Union[OrderedEvent, _Mapping]] = ...) -> None: ...

class StartedEvent(_message.Message):
    __slots__ = ("stored", "unix_ns")
    STORED_FIELD_NUMBER: _ClassVar[int]
    UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    stored: _containers.RepeatedScalarFieldContainer[bytes]
    unix_ns: int
    def __init__(self, stored: _Optional[_Iterable[bytes]] = ..., unix_ns: _Optional[int] = ...) -> None: ...

class BlobStoredEvent(_message.Message):
    __slots__ = ("digest", "intact")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    INTACT_FIELD_NUMBER: _ClassVar[int]
    digest: bytes
    intact: bool
    def __init__(self, digest: _Optional[bytes] = ..., intact: _Optional[bool] = ...) -> None: ...

class ProgramFinishedEvent(_message.Message):
    __slots__ = ("ticket", "outcome_of_update", "new_model", "stopped")
    TICKET_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_OF_UPDATE_FIELD_NUMBER: _ClassVar[int]
    NEW_MODEL_FIELD_NUMBER: _ClassVar[int]
    STOPPED_FIELD_NUMBER: _ClassVar[int]
    ticket: int
    outcome_of_update: OutcomeEvent
    new_model: NewModelEvent
    stopped: _round_pb2.FailureReason
    def __init__(self, ticket: _Optional[int] = ..., outcome_of_update: _Optional[_Union[OutcomeEvent, _Mapping]] = ..., new_model: _Optional[_Union[NewModelEvent, _Mapping]] = ..., stopped: _Optional[_Union[_round_pb2.FailureReason, str]] = ...) -> None: ...

class OutcomeEvent(_message.Message):
    __slots__ = ("vector", "examples", "loss", "finite", "split")
    VECTOR_FIELD_NUMBER: _ClassVar[int]
    EXAMPLES_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    FINITE_FIELD_NUMBER: _ClassVar[int]
    SPLIT_FIELD_NUMBER: _ClassVar[int]
    vector: bytes
    examples: int
    loss: float
    finite: bool
    split: bytes
    def __init__(self, vector: _Optional[bytes] = ..., examples: _Optional[int] = ..., loss: _Optional[float] = ..., finite: _Optional[bool] = ..., split: _Optional[bytes] = ...) -> None: ...

class NewModelEvent(_message.Message):
    __slots__ = ("weights", "memory")
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    weights: _blob_pb2.BlobRef
    memory: _blob_pb2.BlobRef
    def __init__(self, weights: _Optional[_Union[_blob_pb2.BlobRef, _Mapping]] = ..., memory: _Optional[_Union[_blob_pb2.BlobRef, _Mapping]] = ...) -> None: ...

class OrderedEvent(_message.Message):
    __slots__ = ("conditions", "homes", "drain", "forget", "run", "drain_edge", "denied", "connected", "log_head", "log_update", "left", "split_trained")
    CONDITIONS_FIELD_NUMBER: _ClassVar[int]
    HOMES_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    FORGET_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    DRAIN_EDGE_FIELD_NUMBER: _ClassVar[int]
    DENIED_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_FIELD_NUMBER: _ClassVar[int]
    LOG_HEAD_FIELD_NUMBER: _ClassVar[int]
    LOG_UPDATE_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    SPLIT_TRAINED_FIELD_NUMBER: _ClassVar[int]
    conditions: Conditions
    homes: Homes
    drain: Drain
    forget: Forget
    run: _operator_pb2.RunOrder
    drain_edge: DrainEdge
    denied: DeniedVersion
    connected: Connected
    log_head: _log_pb2.Checkpoint
    log_update: _log_pb2.LogUpdate
    left: Left
    split_trained: SplitTrained
    def __init__(self, conditions: _Optional[_Union[Conditions, _Mapping]] = ..., homes: _Optional[_Union[Homes, _Mapping]] = ..., drain: _Optional[_Union[Drain, _Mapping]] = ..., forget: _Optional[_Union[Forget, _Mapping]] = ..., run: _Optional[_Union[_operator_pb2.RunOrder, _Mapping]] = ..., drain_edge: _Optional[_Union[DrainEdge, _Mapping]] = ..., denied: _Optional[_Union[DeniedVersion, _Mapping]] = ..., connected: _Optional[_Union[Connected, _Mapping]] = ..., log_head: _Optional[_Union[_log_pb2.Checkpoint, _Mapping]] = ..., log_update: _Optional[_Union[_log_pb2.LogUpdate, _Mapping]] = ..., left: _Optional[_Union[Left, _Mapping]] = ..., split_trained: _Optional[_Union[SplitTrained, _Mapping]] = ...) -> None: ...

class Conditions(_message.Message):
    __slots__ = ("facts", "eligibility")
    FACTS_FIELD_NUMBER: _ClassVar[int]
    ELIGIBILITY_FIELD_NUMBER: _ClassVar[int]
    facts: _admission_pb2.DeviceFacts
    eligibility: _admission_pb2.Eligibility
    def __init__(self, facts: _Optional[_Union[_admission_pb2.DeviceFacts, _Mapping]] = ..., eligibility: _Optional[_Union[_admission_pb2.Eligibility, _Mapping]] = ...) -> None: ...

class Homes(_message.Message):
    __slots__ = ("homes",)
    HOMES_FIELD_NUMBER: _ClassVar[int]
    homes: _containers.RepeatedCompositeFieldContainer[_link_pb2.Address]
    def __init__(self, homes: _Optional[_Iterable[_Union[_link_pb2.Address, _Mapping]]] = ...) -> None: ...

class Connected(_message.Message):
    __slots__ = ("home",)
    HOME_FIELD_NUMBER: _ClassVar[int]
    home: _link_pb2.Address
    def __init__(self, home: _Optional[_Union[_link_pb2.Address, _Mapping]] = ...) -> None: ...

class Drain(_message.Message):
    __slots__ = ("draining",)
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    draining: bool
    def __init__(self, draining: _Optional[bool] = ...) -> None: ...

class Forget(_message.Message):
    __slots__ = ("device",)
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    device: int
    def __init__(self, device: _Optional[int] = ...) -> None: ...

class Left(_message.Message):
    __slots__ = ("device",)
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    device: int
    def __init__(self, device: _Optional[int] = ...) -> None: ...

class SplitTrained(_message.Message):
    __slots__ = ("run", "round", "attempt", "device", "name")
    RUN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    run: int
    round: int
    attempt: int
    device: int
    name: bytes
    def __init__(self, run: _Optional[int] = ..., round: _Optional[int] = ..., attempt: _Optional[int] = ..., device: _Optional[int] = ..., name: _Optional[bytes] = ...) -> None: ...

class DrainEdge(_message.Message):
    __slots__ = ("edge", "draining")
    EDGE_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    edge: int
    draining: bool
    def __init__(self, edge: _Optional[int] = ..., draining: _Optional[bool] = ...) -> None: ...

class DeniedVersion(_message.Message):
    __slots__ = ("version", "issued_s")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ISSUED_S_FIELD_NUMBER: _ClassVar[int]
    version: int
    issued_s: int
    def __init__(self, version: _Optional[int] = ..., issued_s: _Optional[int] = ...) -> None: ...
