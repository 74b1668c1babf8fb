from delian.core.wire import enrolment_pb2 as _enrolment_pb2
from delian.core.wire import link_pb2 as _link_pb2
from delian.core.wire import operator_pb2 as _operator_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Announcement(_message.Message):
    __slots__ = ("home", "draining", "denied_version", "numbers")
    HOME_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    DENIED_VERSION_FIELD_NUMBER: _ClassVar[int]
    NUMBERS_FIELD_NUMBER: _ClassVar[int]
    home: _enrolment_pb2.Home
    draining: _containers.RepeatedScalarFieldContainer[int]
    denied_version: int
    numbers: SignedNumbers
    def __init__(self, home: _Optional[_Union[_enrolment_pb2.Home, _Mapping]] = ..., draining: _Optional[_Iterable[int]] = ..., denied_version: _Optional[int] = ..., numbers: _Optional[_Union[SignedNumbers, _Mapping]] = ...) -> None: ...

class Announced(_message.Message):
    __slots__ = ("terms", "numbers", "recall", "authorities")
    TERMS_FIELD_NUMBER: _ClassVar[int]
    NUMBERS_FIELD_NUMBER: _ClassVar[int]
    RECALL_FIELD_NUMBER: _ClassVar[int]
    AUTHORITIES_FIELD_NUMBER: _ClassVar[int]
    terms: bytes
    numbers: SignedNumbers
    recall: bool
    authorities: _containers.RepeatedCompositeFieldContainer[IssuingAuthority]
    def __init__(self, terms: _Optional[bytes] = ..., numbers: _Optional[_Union[SignedNumbers, _Mapping]] = ..., recall: _Optional[bool] = ..., authorities: _Optional[_Iterable[_Union[IssuingAuthority, _Mapping]]] = ...) -> None: ...

class IssuingAuthority(_message.Message):
    __slots__ = ("number", "site", "address")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    SITE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    number: int
    site: str
    address: str
    def __init__(self, number: _Optional[int] = ..., site: _Optional[str] = ..., address: _Optional[str] = ...) -> None: ...

class RegisterRequest(_message.Message):
    __slots__ = ("address",)
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    address: str
    def __init__(self, address: _Optional[str] = ...) -> None: ...

class RegisterReply(_message.Message):
    __slots__ = ("terms",)
    TERMS_FIELD_NUMBER: _ClassVar[int]
    terms: bytes
    def __init__(self, terms: _Optional[bytes] = ...) -> None: ...

class AppendRequest(_message.Message):
    __slots__ = ("certificate",)
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    certificate: bytes
    def __init__(self, certificate: _Optional[bytes] = ...) -> None: ...

class AppendReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SignedNumbers(_message.Message):
    __slots__ = ("federation", "devices", "edges", "signature")
    FEDERATION_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    EDGES_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    federation: str
    devices: int
    edges: int
    signature: bytes
    def __init__(self, federation: _Optional[str] = ..., devices: _Optional[int] = ..., edges: _Optional[int] = ..., signature: _Optional[bytes] = ...) -> None: ...

class NodesAsk(_message.Message):
    __slots__ = ("tier", "after")
    TIER_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    tier: _link_pb2.NodeTier
    after: int
    def __init__(self, tier: _Optional[_Union[_link_pb2.NodeTier, str]] = ..., after: _Optional[int] = ...) -> None: ...

class EnrolledNode(_message.Message):
    __slots__ = ("number", "enrolled_ms", "certificate_ends_ms", "labels", "site")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    ENROLLED_MS_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_ENDS_MS_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    SITE_FIELD_NUMBER: _ClassVar[int]
    number: int
    enrolled_ms: int
    certificate_ends_ms: int
    labels: _containers.ScalarMap[str, str]
    site: str
    def __init__(self, number: _Optional[int] = ..., enrolled_ms: _Optional[int] = ..., certificate_ends_ms: _Optional[int] = ..., labels: _Optional[_Mapping[str, str]] = ..., site: _Optional[str] = ...) -> None: ...

class NodesPage(_message.Message):
    __slots__ = ("nodes",)
    NODES_FIELD_NUMBER: _ClassVar[int]
    nodes: _containers.RepeatedCompositeFieldContainer[EnrolledNode]
    def __init__(self, nodes: _Optional[_Iterable[_Union[EnrolledNode, _Mapping]]] = ...) -> None: ...

class RevokeRequest(_message.Message):
    __slots__ = ("name", "why")
    NAME_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    name: str
    why: str
    def __init__(self, name: _Optional[str] = ..., why: _Optional[str] = ...) -> None: ...

class RevokeReply(_message.Message):
    __slots__ = ("changed", "version")
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    changed: bool
    version: int
    def __init__(self, changed: _Optional[bool] = ..., version: _Optional[int] = ...) -> None: ...
