from delian.core.wire import blob_pb2 as _blob_pb2
from delian.core.wire import secure_pb2 as _secure_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Purpose(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TRAIN: _ClassVar[Purpose]
    EVALUATE: _ClassVar[Purpose]

class FailureReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FAILURE_UNSPECIFIED: _ClassVar[FailureReason]
    NON_FINITE: _ClassVar[FailureReason]
    OUT_OF_MEMORY: _ClassVar[FailureReason]
    DEADLINE: _ClassVar[FailureReason]
    BAD_BUNDLE: _ClassVar[FailureReason]
    PROGRAM_FAILED: _ClassVar[FailureReason]
    NO_DATA: _ClassVar[FailureReason]
    NOT_IN_COHORT: _ClassVar[FailureReason]
    MASKS_REQUIRED: _ClassVar[FailureReason]
    BELOW_FLOOR: _ClassVar[FailureReason]
    NOT_SIGNED: _ClassVar[FailureReason]
    TASK_NOT_SIGNED: _ClassVar[FailureReason]
    QUESTION_REFUSED: _ClassVar[FailureReason]
    NO_ROOM: _ClassVar[FailureReason]

class UploadStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    UPLOAD_UNSPECIFIED: _ClassVar[UploadStatus]
    COUNTED: _ClassVar[UploadStatus]
    LATE: _ClassVar[UploadStatus]
    REFUSED: _ClassVar[UploadStatus]
TRAIN: Purpose
EVALUATE: Purpose
FAILURE_UNSPECIFIED: FailureReason
NON_FINITE: FailureReason
OUT_OF_MEMORY: FailureReason
DEADLINE: FailureReason
BAD_BUNDLE: FailureReason
PROGRAM_FAILED: FailureReason
NO_DATA: FailureReason
NOT_IN_COHORT: FailureReason
MASKS_REQUIRED: FailureReason
BELOW_FLOOR: FailureReason
NOT_SIGNED: FailureReason
TASK_NOT_SIGNED: FailureReason
QUESTION_REFUSED: FailureReason
NO_ROOM: FailureReason
UPLOAD_UNSPECIFIED: UploadStatus
COUNTED: UploadStatus
LATE: UploadStatus
REFUSED: UploadStatus

class RingPlan(_message.Message):
    __slots__ = ("clip", "clients_max", "bits", "dimension", "noise", "central", "rotated", "kept", "within", "top", "wide")
    CLIP_FIELD_NUMBER: _ClassVar[int]
    CLIENTS_MAX_FIELD_NUMBER: _ClassVar[int]
    BITS_FIELD_NUMBER: _ClassVar[int]
    DIMENSION_FIELD_NUMBER: _ClassVar[int]
    NOISE_FIELD_NUMBER: _ClassVar[int]
    CENTRAL_FIELD_NUMBER: _ClassVar[int]
    ROTATED_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    WITHIN_FIELD_NUMBER: _ClassVar[int]
    TOP_FIELD_NUMBER: _ClassVar[int]
    WIDE_FIELD_NUMBER: _ClassVar[int]
    clip: float
    clients_max: int
    bits: int
    dimension: int
    noise: float
    central: bool
    rotated: bool
    kept: int
    within: float
    top: int
    wide: bool
    def __init__(self, clip: _Optional[float] = ..., clients_max: _Optional[int] = ..., bits: _Optional[int] = ..., dimension: _Optional[int] = ..., noise: _Optional[float] = ..., central: _Optional[bool] = ..., rotated: _Optional[bool] = ..., kept: _Optional[int] = ..., within: _Optional[float] = ..., top: _Optional[int] = ..., wide: _Optional[bool] = ...) -> None: ...

class Task(_message.Message):
    __slots__ = ("run", "round", "attempt", "bundle", "weights", "ring", "time_ms", "rng_key", "purpose", "secure", "manifest", "left_ms", "expires_s", "certificate", "signature", "frozen", "split")
    RUN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    RING_FIELD_NUMBER: _ClassVar[int]
    TIME_MS_FIELD_NUMBER: _ClassVar[int]
    RNG_KEY_FIELD_NUMBER: _ClassVar[int]
    PURPOSE_FIELD_NUMBER: _ClassVar[int]
    SECURE_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    LEFT_MS_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_S_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    FROZEN_FIELD_NUMBER: _ClassVar[int]
    SPLIT_FIELD_NUMBER: _ClassVar[int]
    run: int
    round: int
    attempt: int
    bundle: _blob_pb2.BlobRef
    weights: _blob_pb2.BlobRef
    ring: RingPlan
    time_ms: int
    rng_key: bytes
    purpose: Purpose
    secure: _secure_pb2.SecurePlan
    manifest: bytes
    left_ms: int
    expires_s: int
    certificate: bytes
    signature: bytes
    frozen: _containers.RepeatedCompositeFieldContainer[_blob_pb2.BlobRef]
    split: bool
    def __init__(self, run: _Optional[int] = ..., round: _Optional[int] = ..., attempt: _Optional[int] = ..., bundle: _Optional[_Union[_blob_pb2.BlobRef, _Mapping]] = ..., weights: _Optional[_Union[_blob_pb2.BlobRef, _Mapping]] = ..., ring: _Optional[_Union[RingPlan, _Mapping]] = ..., time_ms: _Optional[int] = ..., rng_key: _Optional[bytes] = ..., purpose: _Optional[_Union[Purpose, str]] = ..., secure: _Optional[_Union[_secure_pb2.SecurePlan, _Mapping]] = ..., manifest: _Optional[bytes] = ..., left_ms: _Optional[int] = ..., expires_s: _Optional[int] = ..., certificate: _Optional[bytes] = ..., signature: _Optional[bytes] = ..., frozen: _Optional[_Iterable[_Union[_blob_pb2.BlobRef, _Mapping]]] = ..., split: _Optional[bool] = ...) -> None: ...

class Upload(_message.Message):
    __slots__ = ("run", "round", "attempt", "device", "vector", "seeds", "split")
    RUN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    VECTOR_FIELD_NUMBER: _ClassVar[int]
    SEEDS_FIELD_NUMBER: _ClassVar[int]
    SPLIT_FIELD_NUMBER: _ClassVar[int]
    run: int
    round: int
    attempt: int
    device: int
    vector: bytes
    seeds: _secure_pb2.MaskSeeds
    split: bytes
    def __init__(self, run: _Optional[int] = ..., round: _Optional[int] = ..., attempt: _Optional[int] = ..., device: _Optional[int] = ..., vector: _Optional[bytes] = ..., seeds: _Optional[_Union[_secure_pb2.MaskSeeds, _Mapping]] = ..., split: _Optional[bytes] = ...) -> None: ...

class Failure(_message.Message):
    __slots__ = ("run", "round", "attempt", "device", "reason")
    RUN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    run: int
    round: int
    attempt: int
    device: int
    reason: FailureReason
    def __init__(self, run: _Optional[int] = ..., round: _Optional[int] = ..., attempt: _Optional[int] = ..., device: _Optional[int] = ..., reason: _Optional[_Union[FailureReason, str]] = ...) -> None: ...

class UploadAck(_message.Message):
    __slots__ = ("run", "round", "attempt", "device", "status")
    RUN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    run: int
    round: int
    attempt: int
    device: int
    status: UploadStatus
    def __init__(self, run: _Optional[int] = ..., round: _Optional[int] = ..., attempt: _Optional[int] = ..., device: _Optional[int] = ..., status: _Optional[_Union[UploadStatus, str]] = ...) -> None: ...

class EdgeTask(_message.Message):
    __slots__ = ("task", "devices", "time_ms", "alone", "apart")
    TASK_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    TIME_MS_FIELD_NUMBER: _ClassVar[int]
    ALONE_FIELD_NUMBER: _ClassVar[int]
    APART_FIELD_NUMBER: _ClassVar[int]
    task: Task
    devices: _containers.RepeatedScalarFieldContainer[int]
    time_ms: int
    alone: bool
    apart: bool
    def __init__(self, task: _Optional[_Union[Task, _Mapping]] = ..., devices: _Optional[_Iterable[int]] = ..., time_ms: _Optional[int] = ..., alone: _Optional[bool] = ..., apart: _Optional[bool] = ...) -> None: ...

class EdgeProgress(_message.Message):
    __slots__ = ("run", "round", "attempt", "edge", "counted", "part")
    RUN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    EDGE_FIELD_NUMBER: _ClassVar[int]
    COUNTED_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    run: int
    round: int
    attempt: int
    edge: int
    counted: int
    part: int
    def __init__(self, run: _Optional[int] = ..., round: _Optional[int] = ..., attempt: _Optional[int] = ..., edge: _Optional[int] = ..., counted: _Optional[int] = ..., part: _Optional[int] = ...) -> None: ...

class Flush(_message.Message):
    __slots__ = ("run", "round", "attempt", "part", "go_on")
    RUN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    GO_ON_FIELD_NUMBER: _ClassVar[int]
    run: int
    round: int
    attempt: int
    part: int
    go_on: bool
    def __init__(self, run: _Optional[int] = ..., round: _Optional[int] = ..., attempt: _Optional[int] = ..., part: _Optional[int] = ..., go_on: _Optional[bool] = ...) -> None: ...

class DeviceFailure(_message.Message):
    __slots__ = ("device", "reason")
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    device: int
    reason: FailureReason
    def __init__(self, device: _Optional[int] = ..., reason: _Optional[_Union[FailureReason, str]] = ...) -> None: ...

class EdgeSum(_message.Message):
    __slots__ = ("run", "round", "attempt", "edge", "devices", "count", "sum", "failures", "part", "more", "seeds")
    RUN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    EDGE_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    SUM_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    SEEDS_FIELD_NUMBER: _ClassVar[int]
    run: int
    round: int
    attempt: int
    edge: int
    devices: _containers.RepeatedScalarFieldContainer[int]
    count: int
    sum: bytes
    failures: _containers.RepeatedCompositeFieldContainer[DeviceFailure]
    part: int
    more: bool
    seeds: _containers.RepeatedCompositeFieldContainer[_secure_pb2.MaskSeeds]
    def __init__(self, run: _Optional[int] = ..., round: _Optional[int] = ..., attempt: _Optional[int] = ..., edge: _Optional[int] = ..., devices: _Optional[_Iterable[int]] = ..., count: _Optional[int] = ..., sum: _Optional[bytes] = ..., failures: _Optional[_Iterable[_Union[DeviceFailure, _Mapping]]] = ..., part: _Optional[int] = ..., more: _Optional[bool] = ..., seeds: _Optional[_Iterable[_Union[_secure_pb2.MaskSeeds, _Mapping]]] = ...) -> None: ...

class EdgeSumAck(_message.Message):
    __slots__ = ("run", "round", "attempt", "part")
    RUN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    run: int
    round: int
    attempt: int
    part: int
    def __init__(self, run: _Optional[int] = ..., round: _Optional[int] = ..., attempt: _Optional[int] = ..., part: _Optional[int] = ...) -> None: ...

class RoundClosed(_message.Message):
    __slots__ = ("run", "round", "attempt", "succeeded", "device")
    RUN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    SUCCEEDED_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    run: int
    round: int
    attempt: int
    succeeded: bool
    device: int
    def __init__(self, run: _Optional[int] = ..., round: _Optional[int] = ..., attempt: _Optional[int] = ..., succeeded: _Optional[bool] = ..., device: _Optional[int] = ...) -> None: ...
