from delian.core.wire import link_pb2 as _link_pb2
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PresenceState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PRESENCE_UNSPECIFIED: _ClassVar[PresenceState]
    PRESENCE_HOME: _ClassVar[PresenceState]
    PRESENCE_BIRTH: _ClassVar[PresenceState]
    PRESENCE_WELCOME: _ClassVar[PresenceState]
    PRESENCE_DEATH: _ClassVar[PresenceState]
PRESENCE_UNSPECIFIED: PresenceState
PRESENCE_HOME: PresenceState
PRESENCE_BIRTH: PresenceState
PRESENCE_WELCOME: PresenceState
PRESENCE_DEATH: PresenceState

class Presence(_message.Message):
    __slots__ = ("version", "state", "federation", "node", "session", "other", "other_session", "key", "certificate", "answers")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    FEDERATION_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    OTHER_FIELD_NUMBER: _ClassVar[int]
    OTHER_SESSION_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    version: int
    state: PresenceState
    federation: str
    node: _link_pb2.Address
    session: int
    other: _link_pb2.Address
    other_session: int
    key: bytes
    certificate: bytes
    answers: bytes
    def __init__(self, version: _Optional[int] = ..., state: _Optional[_Union[PresenceState, str]] = ..., federation: _Optional[str] = ..., node: _Optional[_Union[_link_pb2.Address, _Mapping]] = ..., session: _Optional[int] = ..., other: _Optional[_Union[_link_pb2.Address, _Mapping]] = ..., other_session: _Optional[int] = ..., key: _Optional[bytes] = ..., certificate: _Optional[bytes] = ..., answers: _Optional[bytes] = ...) -> None: ...

class SignedPresence(_message.Message):
    __slots__ = ("presence", "signature")
    PRESENCE_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    presence: bytes
    signature: bytes
    def __init__(self, presence: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...
