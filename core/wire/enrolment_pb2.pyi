from delian.core.wire import link_pb2 as _link_pb2
from delian.core.wire import log_pb2 as _log_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class EnrolRequest(_message.Message):
    __slots__ = ("token", "request", "tier", "labels")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    token: str
    request: bytes
    tier: _link_pb2.NodeTier
    labels: _containers.ScalarMap[str, str]
    def __init__(self, token: _Optional[str] = ..., request: _Optional[bytes] = ..., tier: _Optional[_Union[_link_pb2.NodeTier, str]] = ..., labels: _Optional[_Mapping[str, str]] = ...) -> None: ...

class EnrolReply(_message.Message):
    __slots__ = ("node", "federation", "certificate", "authority", "renew_after_s", "homes", "terms")
    NODE_FIELD_NUMBER: _ClassVar[int]
    FEDERATION_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    AUTHORITY_FIELD_NUMBER: _ClassVar[int]
    RENEW_AFTER_S_FIELD_NUMBER: _ClassVar[int]
    HOMES_FIELD_NUMBER: _ClassVar[int]
    TERMS_FIELD_NUMBER: _ClassVar[int]
    node: _link_pb2.Address
    federation: str
    certificate: bytes
    authority: bytes
    renew_after_s: int
    homes: _containers.RepeatedCompositeFieldContainer[Home]
    terms: bytes
    def __init__(self, node: _Optional[_Union[_link_pb2.Address, _Mapping]] = ..., federation: _Optional[str] = ..., certificate: _Optional[bytes] = ..., authority: _Optional[bytes] = ..., renew_after_s: _Optional[int] = ..., homes: _Optional[_Iterable[_Union[Home, _Mapping]]] = ..., terms: _Optional[bytes] = ...) -> None: ...

class FederationTerms(_message.Message):
    __slots__ = ("federation", "version", "issued_s", "artifact_root", "masks_required", "cohort_min", "corrupt", "log_required", "witnesses", "quorum", "epsilon", "delta")
    FEDERATION_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ISSUED_S_FIELD_NUMBER: _ClassVar[int]
    ARTIFACT_ROOT_FIELD_NUMBER: _ClassVar[int]
    MASKS_REQUIRED_FIELD_NUMBER: _ClassVar[int]
    COHORT_MIN_FIELD_NUMBER: _ClassVar[int]
    CORRUPT_FIELD_NUMBER: _ClassVar[int]
    LOG_REQUIRED_FIELD_NUMBER: _ClassVar[int]
    WITNESSES_FIELD_NUMBER: _ClassVar[int]
    QUORUM_FIELD_NUMBER: _ClassVar[int]
    EPSILON_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    federation: str
    version: int
    issued_s: int
    artifact_root: bytes
    masks_required: bool
    cohort_min: int
    corrupt: float
    log_required: bool
    witnesses: _containers.RepeatedScalarFieldContainer[bytes]
    quorum: int
    epsilon: float
    delta: float
    def __init__(self, federation: _Optional[str] = ..., version: _Optional[int] = ..., issued_s: _Optional[int] = ..., artifact_root: _Optional[bytes] = ..., masks_required: _Optional[bool] = ..., cohort_min: _Optional[int] = ..., corrupt: _Optional[float] = ..., log_required: _Optional[bool] = ..., witnesses: _Optional[_Iterable[bytes]] = ..., quorum: _Optional[int] = ..., epsilon: _Optional[float] = ..., delta: _Optional[float] = ...) -> None: ...

class SignedTerms(_message.Message):
    __slots__ = ("terms", "signature")
    TERMS_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    terms: bytes
    signature: bytes
    def __init__(self, terms: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class Home(_message.Message):
    __slots__ = ("node", "grpc", "mqtt")
    NODE_FIELD_NUMBER: _ClassVar[int]
    GRPC_FIELD_NUMBER: _ClassVar[int]
    MQTT_FIELD_NUMBER: _ClassVar[int]
    node: _link_pb2.Address
    grpc: str
    mqtt: str
    def __init__(self, node: _Optional[_Union[_link_pb2.Address, _Mapping]] = ..., grpc: _Optional[str] = ..., mqtt: _Optional[str] = ...) -> None: ...
