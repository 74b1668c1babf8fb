from delian.core.wire import admission_pb2 as _admission_pb2
from delian.core.wire import blob_pb2 as _blob_pb2
from delian.core.wire import helper_pb2 as _helper_pb2
from delian.core.wire import log_pb2 as _log_pb2
from delian.core.wire import round_pb2 as _round_pb2
from delian.core.wire import secure_pb2 as _secure_pb2
from delian.core.wire import subgraph_pb2 as _subgraph_pb2
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class NodeTier(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NODE_TIER_UNSPECIFIED: _ClassVar[NodeTier]
    NODE_DEVICE: _ClassVar[NodeTier]
    NODE_EDGE: _ClassVar[NodeTier]
    NODE_CLOUD: _ClassVar[NodeTier]

class TransferKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TRANSFER_UNSPECIFIED: _ClassVar[TransferKind]
    TRANSFER_BLOB: _ClassVar[TransferKind]
    TRANSFER_ENVELOPE: _ClassVar[TransferKind]
NODE_TIER_UNSPECIFIED: NodeTier
NODE_DEVICE: NodeTier
NODE_EDGE: NodeTier
NODE_CLOUD: NodeTier
TRANSFER_UNSPECIFIED: TransferKind
TRANSFER_BLOB: TransferKind
TRANSFER_ENVELOPE: TransferKind

class Address(_message.Message):
    __slots__ = ("tier", "number")
    TIER_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    tier: NodeTier
    number: int
    def __init__(self, tier: _Optional[_Union[NodeTier, str]] = ..., number: _Optional[int] = ...) -> None: ...

class Envelope(_message.Message):
    __slots__ = ("sender", "to", "traceparent", "check_in", "accept", "reject", "edge_hello", "pace", "fetch_blob", "blob", "task", "upload", "failure", "upload_ack", "edge_task", "edge_progress", "flush", "edge_sum", "edge_sum_ack", "round_closed", "key_bundle", "cohort", "sealed_shares", "delivery", "survivors", "consent", "unmask_request", "unmask_shares", "help_request", "help_sum", "offer", "want", "goodbye", "renewal_ask", "renewal_answer", "denied_ask", "denied_page", "subgraph")
    SENDER_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    CHECK_IN_FIELD_NUMBER: _ClassVar[int]
    ACCEPT_FIELD_NUMBER: _ClassVar[int]
    REJECT_FIELD_NUMBER: _ClassVar[int]
    EDGE_HELLO_FIELD_NUMBER: _ClassVar[int]
    PACE_FIELD_NUMBER: _ClassVar[int]
    FETCH_BLOB_FIELD_NUMBER: _ClassVar[int]
    BLOB_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    UPLOAD_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    UPLOAD_ACK_FIELD_NUMBER: _ClassVar[int]
    EDGE_TASK_FIELD_NUMBER: _ClassVar[int]
    EDGE_PROGRESS_FIELD_NUMBER: _ClassVar[int]
    FLUSH_FIELD_NUMBER: _ClassVar[int]
    EDGE_SUM_FIELD_NUMBER: _ClassVar[int]
    EDGE_SUM_ACK_FIELD_NUMBER: _ClassVar[int]
    ROUND_CLOSED_FIELD_NUMBER: _ClassVar[int]
    KEY_BUNDLE_FIELD_NUMBER: _ClassVar[int]
    COHORT_FIELD_NUMBER: _ClassVar[int]
    SEALED_SHARES_FIELD_NUMBER: _ClassVar[int]
    DELIVERY_FIELD_NUMBER: _ClassVar[int]
    SURVIVORS_FIELD_NUMBER: _ClassVar[int]
    CONSENT_FIELD_NUMBER: _ClassVar[int]
    UNMASK_REQUEST_FIELD_NUMBER: _ClassVar[int]
    UNMASK_SHARES_FIELD_NUMBER: _ClassVar[int]
    HELP_REQUEST_FIELD_NUMBER: _ClassVar[int]
    HELP_SUM_FIELD_NUMBER: _ClassVar[int]
    OFFER_FIELD_NUMBER: _ClassVar[int]
    WANT_FIELD_NUMBER: _ClassVar[int]
    GOODBYE_FIELD_NUMBER: _ClassVar[int]
    RENEWAL_ASK_FIELD_NUMBER: _ClassVar[int]
    RENEWAL_ANSWER_FIELD_NUMBER: _ClassVar[int]
    DENIED_ASK_FIELD_NUMBER: _ClassVar[int]
    DENIED_PAGE_FIELD_NUMBER: _ClassVar[int]
    SUBGRAPH_FIELD_NUMBER: _ClassVar[int]
    sender: Address
    to: Address
    traceparent: str
    check_in: _admission_pb2.CheckIn
    accept: _admission_pb2.Accept
    reject: _admission_pb2.Reject
    edge_hello: _admission_pb2.EdgeHello
    pace: _admission_pb2.Pace
    fetch_blob: _blob_pb2.FetchBlob
    blob: _blob_pb2.Blob
    task: _round_pb2.Task
    upload: _round_pb2.Upload
    failure: _round_pb2.Failure
    upload_ack: _round_pb2.UploadAck
    edge_task: _round_pb2.EdgeTask
    edge_progress: _round_pb2.EdgeProgress
    flush: _round_pb2.Flush
    edge_sum: _round_pb2.EdgeSum
    edge_sum_ack: _round_pb2.EdgeSumAck
    round_closed: _round_pb2.RoundClosed
    key_bundle: _secure_pb2.KeyBundle
    cohort: _secure_pb2.Cohort
    sealed_shares: _secure_pb2.SealedShares
    delivery: _secure_pb2.Delivery
    survivors: _secure_pb2.Survivors
    consent: _secure_pb2.Consent
    unmask_request: _secure_pb2.UnmaskRequest
    unmask_shares: _secure_pb2.UnmaskShares
    help_request: _helper_pb2.HelpRequest
    help_sum: _helper_pb2.HelpSum
    offer: Offer
    want: Want
    goodbye: Goodbye
    renewal_ask: RenewalAsk
    renewal_answer: RenewalAnswer
    denied_ask: DeniedAsk
    denied_page: DeniedPage
    subgraph: _subgraph_pb2.SubgraphFrame
    def __init__(self, sender: _Optional[_Union[Address, _Mapping]] = ..., to: _Optional[_Union[Address, _Mapping]] = ..., traceparent: _Optional[str] = ..., check_in: _Optional[_Union[_admission_pb2.CheckIn, _Mapping]] = ..., accept: _Optional[_Union[_admission_pb2.Accept, _Mapping]] = ..., reject: _Optional[_Union[_admission_pb2.Reject, _Mapping]] = ..., edge_hello: _Optional[_Union[_admission_pb2.EdgeHello, _Mapping]] = ..., pace: _Optional[_Union[_admission_pb2.Pace, _Mapping]] = ..., fetch_blob: _Optional[_Union[_blob_pb2.FetchBlob, _Mapping]] = ..., blob: _Optional[_Union[_blob_pb2.Blob, _Mapping]] = ..., task: _Optional[_Union[_round_pb2.Task, _Mapping]] = ..., upload: _Optional[_Union[_round_pb2.Upload, _Mapping]] = ..., failure: _Optional[_Union[_round_pb2.Failure, _Mapping]] = ..., upload_ack: _Optional[_Union[_round_pb2.UploadAck, _Mapping]] = ..., edge_task: _Optional[_Union[_round_pb2.EdgeTask, _Mapping]] = ..., edge_progress: _Optional[_Union[_round_pb2.EdgeProgress, _Mapping]] = ..., flush: _Optional[_Union[_round_pb2.Flush, _Mapping]] = ..., edge_sum: _Optional[_Union[_round_pb2.EdgeSum, _Mapping]] = ..., edge_sum_ack: _Optional[_Union[_round_pb2.EdgeSumAck, _Mapping]] = ..., round_closed: _Optional[_Union[_round_pb2.RoundClosed, _Mapping]] = ..., key_bundle: _Optional[_Union[_secure_pb2.KeyBundle, _Mapping]] = ..., cohort: _Optional[_Union[_secure_pb2.Cohort, _Mapping]] = ..., sealed_shares: _Optional[_Union[_secure_pb2.SealedShares, _Mapping]] = ..., delivery: _Optional[_Union[_secure_pb2.Delivery, _Mapping]] = ..., survivors: _Optional[_Union[_secure_pb2.Survivors, _Mapping]] = ..., consent: _Optional[_Union[_secure_pb2.Consent, _Mapping]] = ..., unmask_request: _Optional[_Union[_secure_pb2.UnmaskRequest, _Mapping]] = ..., unmask_shares: _Optional[_Union[_secure_pb2.UnmaskShares, _Mapping]] = ..., help_request: _Optional[_Union[_helper_pb2.HelpRequest, _Mapping]] = ..., help_sum: _Optional[_Union[_helper_pb2.HelpSum, _Mapping]] = ..., offer: _Optional[_Union[Offer, _Mapping]] = ..., want: _Optional[_Union[Want, _Mapping]] = ..., goodbye: _Optional[_Union[Goodbye, _Mapping]] = ..., renewal_ask: _Optional[_Union[RenewalAsk, _Mapping]] = ..., renewal_answer: _Optional[_Union[RenewalAnswer, _Mapping]] = ..., denied_ask: _Optional[_Union[DeniedAsk, _Mapping]] = ..., denied_page: _Optional[_Union[DeniedPage, _Mapping]] = ..., subgraph: _Optional[_Union[_subgraph_pb2.SubgraphFrame, _Mapping]] = ...) -> None: ...

class Offer(_message.Message):
    __slots__ = ("id", "size", "kind")
    ID_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    id: bytes
    size: int
    kind: TransferKind
    def __init__(self, id: _Optional[bytes] = ..., size: _Optional[int] = ..., kind: _Optional[_Union[TransferKind, str]] = ...) -> None: ...

class Want(_message.Message):
    __slots__ = ("id", "offset", "have", "part_bytes", "refused")
    ID_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    HAVE_FIELD_NUMBER: _ClassVar[int]
    PART_BYTES_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    id: bytes
    offset: int
    have: bytes
    part_bytes: int
    refused: bool
    def __init__(self, id: _Optional[bytes] = ..., offset: _Optional[int] = ..., have: _Optional[bytes] = ..., part_bytes: _Optional[int] = ..., refused: _Optional[bool] = ...) -> None: ...

class Part(_message.Message):
    __slots__ = ("id", "offset", "content")
    ID_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    id: bytes
    offset: int
    content: bytes
    def __init__(self, id: _Optional[bytes] = ..., offset: _Optional[int] = ..., content: _Optional[bytes] = ...) -> None: ...

class Goodbye(_message.Message):
    __slots__ = ("reason", "retry_ms")
    REASON_FIELD_NUMBER: _ClassVar[int]
    RETRY_MS_FIELD_NUMBER: _ClassVar[int]
    reason: str
    retry_ms: int
    def __init__(self, reason: _Optional[str] = ..., retry_ms: _Optional[int] = ...) -> None: ...

class RenewalAsk(_message.Message):
    __slots__ = ("claim", "signature")
    CLAIM_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    claim: bytes
    signature: bytes
    def __init__(self, claim: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class RenewalClaim(_message.Message):
    __slots__ = ("node", "request", "certificate")
    NODE_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    node: Address
    request: bytes
    certificate: bytes
    def __init__(self, node: _Optional[_Union[Address, _Mapping]] = ..., request: _Optional[bytes] = ..., certificate: _Optional[bytes] = ...) -> None: ...

class RenewalAnswer(_message.Message):
    __slots__ = ("result", "certificate", "signature")
    RESULT_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    result: bytes
    certificate: bytes
    signature: bytes
    def __init__(self, result: _Optional[bytes] = ..., certificate: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class RenewalResult(_message.Message):
    __slots__ = ("node", "claim_hash", "reply", "refusal")
    NODE_FIELD_NUMBER: _ClassVar[int]
    CLAIM_HASH_FIELD_NUMBER: _ClassVar[int]
    REPLY_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    node: Address
    claim_hash: bytes
    reply: bytes
    refusal: str
    def __init__(self, node: _Optional[_Union[Address, _Mapping]] = ..., claim_hash: _Optional[bytes] = ..., reply: _Optional[bytes] = ..., refusal: _Optional[str] = ...) -> None: ...

class DeniedAsk(_message.Message):
    __slots__ = ("version", "offset", "log_size")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LOG_SIZE_FIELD_NUMBER: _ClassVar[int]
    version: int
    offset: int
    log_size: int
    def __init__(self, version: _Optional[int] = ..., offset: _Optional[int] = ..., log_size: _Optional[int] = ...) -> None: ...

class DeniedPage(_message.Message):
    __slots__ = ("head", "signature", "offset", "entries", "log")
    HEAD_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    head: bytes
    signature: bytes
    offset: int
    entries: bytes
    log: _log_pb2.LogUpdate
    def __init__(self, head: _Optional[bytes] = ..., signature: _Optional[bytes] = ..., offset: _Optional[int] = ..., entries: _Optional[bytes] = ..., log: _Optional[_Union[_log_pb2.LogUpdate, _Mapping]] = ...) -> None: ...

class PullRequest(_message.Message):
    __slots__ = ("id", "offset")
    ID_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    id: bytes
    offset: int
    def __init__(self, id: _Optional[bytes] = ..., offset: _Optional[int] = ...) -> None: ...

class PushReply(_message.Message):
    __slots__ = ("offset",)
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    offset: int
    def __init__(self, offset: _Optional[int] = ...) -> None: ...
