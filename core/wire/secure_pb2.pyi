from delian.core.wire import log_pb2 as _log_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SecurePlan(_message.Message):
    __slots__ = ("suite", "cohort_min", "corrupt", "dropout", "helpers", "noise_survivors", "denied_version")
    SUITE_FIELD_NUMBER: _ClassVar[int]
    COHORT_MIN_FIELD_NUMBER: _ClassVar[int]
    CORRUPT_FIELD_NUMBER: _ClassVar[int]
    DROPOUT_FIELD_NUMBER: _ClassVar[int]
    HELPERS_FIELD_NUMBER: _ClassVar[int]
    NOISE_SURVIVORS_FIELD_NUMBER: _ClassVar[int]
    DENIED_VERSION_FIELD_NUMBER: _ClassVar[int]
    suite: int
    cohort_min: int
    corrupt: float
    dropout: float
    helpers: _containers.RepeatedCompositeFieldContainer[HelperKey]
    noise_survivors: int
    denied_version: int
    def __init__(self, suite: _Optional[int] = ..., cohort_min: _Optional[int] = ..., corrupt: _Optional[float] = ..., dropout: _Optional[float] = ..., helpers: _Optional[_Iterable[_Union[HelperKey, _Mapping]]] = ..., noise_survivors: _Optional[int] = ..., denied_version: _Optional[int] = ...) -> None: ...

class HelperKey(_message.Message):
    __slots__ = ("edge", "key", "certificate", "signature")
    EDGE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    edge: int
    key: bytes
    certificate: bytes
    signature: bytes
    def __init__(self, edge: _Optional[int] = ..., key: _Optional[bytes] = ..., certificate: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class SealedSeed(_message.Message):
    __slots__ = ("sealed", "signature")
    SEALED_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    sealed: bytes
    signature: bytes
    def __init__(self, sealed: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class MaskSeeds(_message.Message):
    __slots__ = ("device", "certificate", "seeds")
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    SEEDS_FIELD_NUMBER: _ClassVar[int]
    device: int
    certificate: bytes
    seeds: _containers.RepeatedCompositeFieldContainer[SealedSeed]
    def __init__(self, device: _Optional[int] = ..., certificate: _Optional[bytes] = ..., seeds: _Optional[_Iterable[_Union[SealedSeed, _Mapping]]] = ...) -> None: ...

class KeyBundle(_message.Message):
    __slots__ = ("run", "round", "attempt", "device", "sealing_key", "mask_key", "certificate", "signature", "log_size")
    RUN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    SEALING_KEY_FIELD_NUMBER: _ClassVar[int]
    MASK_KEY_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    LOG_SIZE_FIELD_NUMBER: _ClassVar[int]
    run: int
    round: int
    attempt: int
    device: int
    sealing_key: bytes
    mask_key: bytes
    certificate: bytes
    signature: bytes
    log_size: int
    def __init__(self, run: _Optional[int] = ..., round: _Optional[int] = ..., attempt: _Optional[int] = ..., device: _Optional[int] = ..., sealing_key: _Optional[bytes] = ..., mask_key: _Optional[bytes] = ..., certificate: _Optional[bytes] = ..., signature: _Optional[bytes] = ..., log_size: _Optional[int] = ...) -> None: ...

class Cohort(_message.Message):
    __slots__ = ("run", "round", "attempt", "device", "leaves", "index", "indices", "neighbours", "devices", "log")
    RUN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    LEAVES_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    INDICES_FIELD_NUMBER: _ClassVar[int]
    NEIGHBOURS_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    run: int
    round: int
    attempt: int
    device: int
    leaves: bytes
    index: int
    indices: _containers.RepeatedScalarFieldContainer[int]
    neighbours: _containers.RepeatedCompositeFieldContainer[KeyBundle]
    devices: bytes
    log: _log_pb2.LogProof
    def __init__(self, run: _Optional[int] = ..., round: _Optional[int] = ..., attempt: _Optional[int] = ..., device: _Optional[int] = ..., leaves: _Optional[bytes] = ..., index: _Optional[int] = ..., indices: _Optional[_Iterable[int]] = ..., neighbours: _Optional[_Iterable[_Union[KeyBundle, _Mapping]]] = ..., devices: _Optional[bytes] = ..., log: _Optional[_Union[_log_pb2.LogProof, _Mapping]] = ...) -> None: ...

class SealedShare(_message.Message):
    __slots__ = ("index", "sealed")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    SEALED_FIELD_NUMBER: _ClassVar[int]
    index: int
    sealed: bytes
    def __init__(self, index: _Optional[int] = ..., sealed: _Optional[bytes] = ...) -> None: ...

class SealedShares(_message.Message):
    __slots__ = ("run", "round", "attempt", "device", "shares")
    RUN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    SHARES_FIELD_NUMBER: _ClassVar[int]
    run: int
    round: int
    attempt: int
    device: int
    shares: _containers.RepeatedCompositeFieldContainer[SealedShare]
    def __init__(self, run: _Optional[int] = ..., round: _Optional[int] = ..., attempt: _Optional[int] = ..., device: _Optional[int] = ..., shares: _Optional[_Iterable[_Union[SealedShare, _Mapping]]] = ...) -> None: ...

class Delivery(_message.Message):
    __slots__ = ("run", "round", "attempt", "device", "shares")
    RUN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    SHARES_FIELD_NUMBER: _ClassVar[int]
    run: int
    round: int
    attempt: int
    device: int
    shares: _containers.RepeatedCompositeFieldContainer[SealedShare]
    def __init__(self, run: _Optional[int] = ..., round: _Optional[int] = ..., attempt: _Optional[int] = ..., device: _Optional[int] = ..., shares: _Optional[_Iterable[_Union[SealedShare, _Mapping]]] = ...) -> None: ...

class Survivors(_message.Message):
    __slots__ = ("run", "round", "attempt", "device", "members")
    RUN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    run: int
    round: int
    attempt: int
    device: int
    members: bytes
    def __init__(self, run: _Optional[int] = ..., round: _Optional[int] = ..., attempt: _Optional[int] = ..., device: _Optional[int] = ..., members: _Optional[bytes] = ...) -> None: ...

class Consent(_message.Message):
    __slots__ = ("run", "round", "attempt", "device", "signature")
    RUN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    run: int
    round: int
    attempt: int
    device: int
    signature: bytes
    def __init__(self, run: _Optional[int] = ..., round: _Optional[int] = ..., attempt: _Optional[int] = ..., device: _Optional[int] = ..., signature: _Optional[bytes] = ...) -> None: ...

class Signed(_message.Message):
    __slots__ = ("index", "signature")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    index: int
    signature: bytes
    def __init__(self, index: _Optional[int] = ..., signature: _Optional[bytes] = ...) -> None: ...

class UnmaskRequest(_message.Message):
    __slots__ = ("run", "round", "attempt", "device", "consents")
    RUN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    CONSENTS_FIELD_NUMBER: _ClassVar[int]
    run: int
    round: int
    attempt: int
    device: int
    consents: _containers.RepeatedCompositeFieldContainer[Signed]
    def __init__(self, run: _Optional[int] = ..., round: _Optional[int] = ..., attempt: _Optional[int] = ..., device: _Optional[int] = ..., consents: _Optional[_Iterable[_Union[Signed, _Mapping]]] = ...) -> None: ...

class UnmaskShare(_message.Message):
    __slots__ = ("index", "share")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    index: int
    share: bytes
    def __init__(self, index: _Optional[int] = ..., share: _Optional[bytes] = ...) -> None: ...

class UnmaskShares(_message.Message):
    __slots__ = ("run", "round", "attempt", "device", "shares")
    RUN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    SHARES_FIELD_NUMBER: _ClassVar[int]
    run: int
    round: int
    attempt: int
    device: int
    shares: _containers.RepeatedCompositeFieldContainer[UnmaskShare]
    def __init__(self, run: _Optional[int] = ..., round: _Optional[int] = ..., attempt: _Optional[int] = ..., device: _Optional[int] = ..., shares: _Optional[_Iterable[_Union[UnmaskShare, _Mapping]]] = ...) -> None: ...
