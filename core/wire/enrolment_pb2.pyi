from delian.core.wire import link_pb2 as _link_pb2
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
    __slots__ = ("node", "federation", "certificate", "authority", "renew_after_s", "homes")
    NODE_FIELD_NUMBER: _ClassVar[int]
    FEDERATION_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    AUTHORITY_FIELD_NUMBER: _ClassVar[int]
    RENEW_AFTER_S_FIELD_NUMBER: _ClassVar[int]
    HOMES_FIELD_NUMBER: _ClassVar[int]
    node: _link_pb2.Address
    federation: str
    certificate: bytes
    authority: bytes
    renew_after_s: int
    homes: _containers.RepeatedCompositeFieldContainer[Home]
    def __init__(self, node: _Optional[_Union[_link_pb2.Address, _Mapping]] = ..., federation: _Optional[str] = ..., certificate: _Optional[bytes] = ..., authority: _Optional[bytes] = ..., renew_after_s: _Optional[int] = ..., homes: _Optional[_Iterable[_Union[Home, _Mapping]]] = ...) -> None: ...

class Home(_message.Message):
    __slots__ = ("node", "grpc", "mqtt")
    NODE_FIELD_NUMBER: _ClassVar[int]
    GRPC_FIELD_NUMBER: _ClassVar[int]
    MQTT_FIELD_NUMBER: _ClassVar[int]
    node: _link_pb2.Address
    grpc: str
    mqtt: str
    def __init__(self, node: _Optional[_Union[_link_pb2.Address, _Mapping]] = ..., grpc: _Optional[str] = ..., mqtt: _Optional[str] = ...) -> None: ...

class RenewRequest(_message.Message):
    __slots__ = ("request",)
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    request: bytes
    def __init__(self, request: _Optional[bytes] = ...) -> None: ...
