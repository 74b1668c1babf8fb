from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class UnmaskRequest(_message.Message):
    __slots__ = ("run", "round", "attempt", "survivors", "dropped", "survivors_digest", "signature")
    RUN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    SURVIVORS_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    SURVIVORS_DIGEST_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    run: int
    round: int
    attempt: int
    survivors: _containers.RepeatedScalarFieldContainer[int]
    dropped: _containers.RepeatedScalarFieldContainer[int]
    survivors_digest: bytes
    signature: bytes
    def __init__(self, run: _Optional[int] = ..., round: _Optional[int] = ..., attempt: _Optional[int] = ..., survivors: _Optional[_Iterable[int]] = ..., dropped: _Optional[_Iterable[int]] = ..., survivors_digest: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class UnmaskShare(_message.Message):
    __slots__ = ("neighbour", "share")
    NEIGHBOUR_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    neighbour: int
    share: bytes
    def __init__(self, neighbour: _Optional[int] = ..., share: _Optional[bytes] = ...) -> None: ...

class UnmaskShares(_message.Message):
    __slots__ = ("run", "round", "attempt", "device", "self_masks", "pair_keys")
    RUN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    SELF_MASKS_FIELD_NUMBER: _ClassVar[int]
    PAIR_KEYS_FIELD_NUMBER: _ClassVar[int]
    run: int
    round: int
    attempt: int
    device: int
    self_masks: _containers.RepeatedCompositeFieldContainer[UnmaskShare]
    pair_keys: _containers.RepeatedCompositeFieldContainer[UnmaskShare]
    def __init__(self, run: _Optional[int] = ..., round: _Optional[int] = ..., attempt: _Optional[int] = ..., device: _Optional[int] = ..., self_masks: _Optional[_Iterable[_Union[UnmaskShare, _Mapping]]] = ..., pair_keys: _Optional[_Iterable[_Union[UnmaskShare, _Mapping]]] = ...) -> None: ...
