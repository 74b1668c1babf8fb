from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SubgraphFailure(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SUBGRAPH_DONE: _ClassVar[SubgraphFailure]
    SUBGRAPH_UNKNOWN: _ClassVar[SubgraphFailure]
    SUBGRAPH_MISFIT: _ClassVar[SubgraphFailure]
    SUBGRAPH_BUSY: _ClassVar[SubgraphFailure]
    SUBGRAPH_LATE: _ClassVar[SubgraphFailure]
    SUBGRAPH_LOST: _ClassVar[SubgraphFailure]
    SUBGRAPH_FAILED: _ClassVar[SubgraphFailure]

class SubgraphSharing(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SUBGRAPH_SHARING_UNSPECIFIED: _ClassVar[SubgraphSharing]
    SUBGRAPH_COPIES: _ClassVar[SubgraphSharing]
    SUBGRAPH_SEQUENTIAL: _ClassVar[SubgraphSharing]
SUBGRAPH_DONE: SubgraphFailure
SUBGRAPH_UNKNOWN: SubgraphFailure
SUBGRAPH_MISFIT: SubgraphFailure
SUBGRAPH_BUSY: SubgraphFailure
SUBGRAPH_LATE: SubgraphFailure
SUBGRAPH_LOST: SubgraphFailure
SUBGRAPH_FAILED: SubgraphFailure
SUBGRAPH_SHARING_UNSPECIFIED: SubgraphSharing
SUBGRAPH_COPIES: SubgraphSharing
SUBGRAPH_SEQUENTIAL: SubgraphSharing

class BoundaryTensor(_message.Message):
    __slots__ = ("index", "dtype", "shape", "content", "scale", "zero_point")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    SCALE_FIELD_NUMBER: _ClassVar[int]
    ZERO_POINT_FIELD_NUMBER: _ClassVar[int]
    index: int
    dtype: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    content: bytes
    scale: float
    zero_point: int
    def __init__(self, index: _Optional[int] = ..., dtype: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., content: _Optional[bytes] = ..., scale: _Optional[float] = ..., zero_point: _Optional[int] = ...) -> None: ...

class SubgraphRequest(_message.Message):
    __slots__ = ("session", "sequence", "bundle", "program", "inputs", "time_ms", "phase")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    TIME_MS_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    session: int
    sequence: int
    bundle: bytes
    program: str
    inputs: _containers.RepeatedCompositeFieldContainer[BoundaryTensor]
    time_ms: int
    phase: int
    def __init__(self, session: _Optional[int] = ..., sequence: _Optional[int] = ..., bundle: _Optional[bytes] = ..., program: _Optional[str] = ..., inputs: _Optional[_Iterable[_Union[BoundaryTensor, _Mapping]]] = ..., time_ms: _Optional[int] = ..., phase: _Optional[int] = ...) -> None: ...

class SubgraphReply(_message.Message):
    __slots__ = ("session", "sequence", "failure", "outputs", "held_us", "above")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    HELD_US_FIELD_NUMBER: _ClassVar[int]
    ABOVE_FIELD_NUMBER: _ClassVar[int]
    session: int
    sequence: int
    failure: SubgraphFailure
    outputs: _containers.RepeatedCompositeFieldContainer[BoundaryTensor]
    held_us: int
    above: SubgraphLink
    def __init__(self, session: _Optional[int] = ..., sequence: _Optional[int] = ..., failure: _Optional[_Union[SubgraphFailure, str]] = ..., outputs: _Optional[_Iterable[_Union[BoundaryTensor, _Mapping]]] = ..., held_us: _Optional[int] = ..., above: _Optional[_Union[SubgraphLink, _Mapping]] = ...) -> None: ...

class SubgraphLink(_message.Message):
    __slots__ = ("up", "down", "latency_s")
    UP_FIELD_NUMBER: _ClassVar[int]
    DOWN_FIELD_NUMBER: _ClassVar[int]
    LATENCY_S_FIELD_NUMBER: _ClassVar[int]
    up: float
    down: float
    latency_s: float
    def __init__(self, up: _Optional[float] = ..., down: _Optional[float] = ..., latency_s: _Optional[float] = ...) -> None: ...

class SubgraphOpen(_message.Message):
    __slots__ = ("session", "bundle", "weights", "program", "cut", "tier", "training")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    TRAINING_FIELD_NUMBER: _ClassVar[int]
    session: int
    bundle: bytes
    weights: bytes
    program: str
    cut: bytes
    tier: int
    training: SubgraphTraining
    def __init__(self, session: _Optional[int] = ..., bundle: _Optional[bytes] = ..., weights: _Optional[bytes] = ..., program: _Optional[str] = ..., cut: _Optional[bytes] = ..., tier: _Optional[int] = ..., training: _Optional[_Union[SubgraphTraining, _Mapping]] = ...) -> None: ...

class SubgraphTraining(_message.Message):
    __slots__ = ("run", "again", "steps", "examples", "sharing")
    RUN_FIELD_NUMBER: _ClassVar[int]
    AGAIN_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    EXAMPLES_FIELD_NUMBER: _ClassVar[int]
    SHARING_FIELD_NUMBER: _ClassVar[int]
    run: bytes
    again: bool
    steps: int
    examples: int
    sharing: SubgraphSharing
    def __init__(self, run: _Optional[bytes] = ..., again: _Optional[bool] = ..., steps: _Optional[int] = ..., examples: _Optional[int] = ..., sharing: _Optional[_Union[SubgraphSharing, str]] = ...) -> None: ...

class SubgraphOpened(_message.Message):
    __slots__ = ("session", "failure", "reason")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    session: int
    failure: SubgraphFailure
    reason: str
    def __init__(self, session: _Optional[int] = ..., failure: _Optional[_Union[SubgraphFailure, str]] = ..., reason: _Optional[str] = ...) -> None: ...

class SubgraphClose(_message.Message):
    __slots__ = ("session",)
    SESSION_FIELD_NUMBER: _ClassVar[int]
    session: int
    def __init__(self, session: _Optional[int] = ...) -> None: ...

class SubgraphCancel(_message.Message):
    __slots__ = ("session", "sequence")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    session: int
    sequence: int
    def __init__(self, session: _Optional[int] = ..., sequence: _Optional[int] = ...) -> None: ...

class SubgraphChunk(_message.Message):
    __slots__ = ("session", "sequence", "size", "offset", "content")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    session: int
    sequence: int
    size: int
    offset: int
    content: bytes
    def __init__(self, session: _Optional[int] = ..., sequence: _Optional[int] = ..., size: _Optional[int] = ..., offset: _Optional[int] = ..., content: _Optional[bytes] = ...) -> None: ...

class SubgraphTaken(_message.Message):
    __slots__ = ("bytes", "at_us")
    BYTES_FIELD_NUMBER: _ClassVar[int]
    AT_US_FIELD_NUMBER: _ClassVar[int]
    bytes: int
    at_us: int
    def __init__(self, bytes: _Optional[int] = ..., at_us: _Optional[int] = ...) -> None: ...

class SubgraphProbe(_message.Message):
    __slots__ = ("number", "padding", "answer_bytes")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    PADDING_FIELD_NUMBER: _ClassVar[int]
    ANSWER_BYTES_FIELD_NUMBER: _ClassVar[int]
    number: int
    padding: bytes
    answer_bytes: int
    def __init__(self, number: _Optional[int] = ..., padding: _Optional[bytes] = ..., answer_bytes: _Optional[int] = ...) -> None: ...

class SubgraphProbed(_message.Message):
    __slots__ = ("number", "at_us", "padding", "above")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    AT_US_FIELD_NUMBER: _ClassVar[int]
    PADDING_FIELD_NUMBER: _ClassVar[int]
    ABOVE_FIELD_NUMBER: _ClassVar[int]
    number: int
    at_us: int
    padding: bytes
    above: SubgraphLink
    def __init__(self, number: _Optional[int] = ..., at_us: _Optional[int] = ..., padding: _Optional[bytes] = ..., above: _Optional[_Union[SubgraphLink, _Mapping]] = ...) -> None: ...

class SubgraphFrame(_message.Message):
    __slots__ = ("open", "opened", "close", "chunk", "cancel", "taken", "probe", "probed", "visit", "count")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    OPENED_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    TAKEN_FIELD_NUMBER: _ClassVar[int]
    PROBE_FIELD_NUMBER: _ClassVar[int]
    PROBED_FIELD_NUMBER: _ClassVar[int]
    VISIT_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    open: SubgraphOpen
    opened: SubgraphOpened
    close: SubgraphClose
    chunk: SubgraphChunk
    cancel: SubgraphCancel
    taken: SubgraphTaken
    probe: SubgraphProbe
    probed: SubgraphProbed
    visit: int
    count: int
    def __init__(self, open: _Optional[_Union[SubgraphOpen, _Mapping]] = ..., opened: _Optional[_Union[SubgraphOpened, _Mapping]] = ..., close: _Optional[_Union[SubgraphClose, _Mapping]] = ..., chunk: _Optional[_Union[SubgraphChunk, _Mapping]] = ..., cancel: _Optional[_Union[SubgraphCancel, _Mapping]] = ..., taken: _Optional[_Union[SubgraphTaken, _Mapping]] = ..., probe: _Optional[_Union[SubgraphProbe, _Mapping]] = ..., probed: _Optional[_Union[SubgraphProbed, _Mapping]] = ..., visit: _Optional[int] = ..., count: _Optional[int] = ...) -> None: ...
