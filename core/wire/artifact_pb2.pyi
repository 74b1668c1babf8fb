from delian.core.wire import blob_pb2 as _blob_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class OnlineKey(_message.Message):
    __slots__ = ("key", "expires_s", "name")
    KEY_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_S_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    expires_s: int
    name: str
    def __init__(self, key: _Optional[bytes] = ..., expires_s: _Optional[int] = ..., name: _Optional[str] = ...) -> None: ...

class OnlineKeys(_message.Message):
    __slots__ = ("federation", "version", "expires_s", "keys")
    FEDERATION_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_S_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    federation: str
    version: int
    expires_s: int
    keys: _containers.RepeatedCompositeFieldContainer[OnlineKey]
    def __init__(self, federation: _Optional[str] = ..., version: _Optional[int] = ..., expires_s: _Optional[int] = ..., keys: _Optional[_Iterable[_Union[OnlineKey, _Mapping]]] = ...) -> None: ...

class ArtifactLimits(_message.Message):
    __slots__ = ("memory_mib", "cpu_s", "wall_s")
    MEMORY_MIB_FIELD_NUMBER: _ClassVar[int]
    CPU_S_FIELD_NUMBER: _ClassVar[int]
    WALL_S_FIELD_NUMBER: _ClassVar[int]
    memory_mib: int
    cpu_s: int
    wall_s: int
    def __init__(self, memory_mib: _Optional[int] = ..., cpu_s: _Optional[int] = ..., wall_s: _Optional[int] = ...) -> None: ...

class ArtifactManifest(_message.Message):
    __slots__ = ("federation", "line", "sequence", "bundle", "targets", "issued_s", "expires_s", "limits", "clip", "dimension", "cohort_min", "noise", "central", "corrupt")
    FEDERATION_FIELD_NUMBER: _ClassVar[int]
    LINE_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_FIELD_NUMBER: _ClassVar[int]
    TARGETS_FIELD_NUMBER: _ClassVar[int]
    ISSUED_S_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_S_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    CLIP_FIELD_NUMBER: _ClassVar[int]
    DIMENSION_FIELD_NUMBER: _ClassVar[int]
    COHORT_MIN_FIELD_NUMBER: _ClassVar[int]
    NOISE_FIELD_NUMBER: _ClassVar[int]
    CENTRAL_FIELD_NUMBER: _ClassVar[int]
    CORRUPT_FIELD_NUMBER: _ClassVar[int]
    federation: str
    line: str
    sequence: int
    bundle: _blob_pb2.BlobRef
    targets: _containers.RepeatedScalarFieldContainer[str]
    issued_s: int
    expires_s: int
    limits: ArtifactLimits
    clip: float
    dimension: int
    cohort_min: int
    noise: float
    central: bool
    corrupt: float
    def __init__(self, federation: _Optional[str] = ..., line: _Optional[str] = ..., sequence: _Optional[int] = ..., bundle: _Optional[_Union[_blob_pb2.BlobRef, _Mapping]] = ..., targets: _Optional[_Iterable[str]] = ..., issued_s: _Optional[int] = ..., expires_s: _Optional[int] = ..., limits: _Optional[_Union[ArtifactLimits, _Mapping]] = ..., clip: _Optional[float] = ..., dimension: _Optional[int] = ..., cohort_min: _Optional[int] = ..., noise: _Optional[float] = ..., central: _Optional[bool] = ..., corrupt: _Optional[float] = ...) -> None: ...

class SignedArtifact(_message.Message):
    __slots__ = ("keys", "keys_signature", "manifest", "signer", "signature")
    KEYS_FIELD_NUMBER: _ClassVar[int]
    KEYS_SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    SIGNER_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    keys: bytes
    keys_signature: bytes
    manifest: bytes
    signer: bytes
    signature: bytes
    def __init__(self, keys: _Optional[bytes] = ..., keys_signature: _Optional[bytes] = ..., manifest: _Optional[bytes] = ..., signer: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...
