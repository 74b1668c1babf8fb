from delian.core.wire import admission_pb2 as _admission_pb2
from delian.core.wire import blob_pb2 as _blob_pb2
from delian.core.wire import link_pb2 as _link_pb2
from delian.core.wire import round_pb2 as _round_pb2
from delian.core.wire import secure_pb2 as _secure_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RunMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RUN_MODE_UNSPECIFIED: _ClassVar[RunMode]
    SYNCHRONOUS: _ClassVar[RunMode]
    BUFFERED: _ClassVar[RunMode]

class AggregationRule(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WEIGHTED_MEAN: _ClassVar[AggregationRule]
    KRUM: _ClassVar[AggregationRule]
    MULTI_KRUM: _ClassVar[AggregationRule]
    TRIMMED_MEAN: _ClassVar[AggregationRule]
    MEDIAN: _ClassVar[AggregationRule]
    GEOMETRIC_MEDIAN: _ClassVar[AggregationRule]
    CLIPPED_MEAN: _ClassVar[AggregationRule]
RUN_MODE_UNSPECIFIED: RunMode
SYNCHRONOUS: RunMode
BUFFERED: RunMode
WEIGHTED_MEAN: AggregationRule
KRUM: AggregationRule
MULTI_KRUM: AggregationRule
TRIMMED_MEAN: AggregationRule
MEDIAN: AggregationRule
GEOMETRIC_MEDIAN: AggregationRule
CLIPPED_MEAN: AggregationRule

class Aggregation(_message.Message):
    __slots__ = ("rule", "hostile")
    RULE_FIELD_NUMBER: _ClassVar[int]
    HOSTILE_FIELD_NUMBER: _ClassVar[int]
    rule: AggregationRule
    hostile: float
    def __init__(self, rule: _Optional[_Union[AggregationRule, str]] = ..., hostile: _Optional[float] = ...) -> None: ...

class PrivacyPlan(_message.Message):
    __slots__ = ("epsilon", "delta", "corrupt")
    EPSILON_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    CORRUPT_FIELD_NUMBER: _ClassVar[int]
    epsilon: float
    delta: float
    corrupt: float
    def __init__(self, epsilon: _Optional[float] = ..., delta: _Optional[float] = ..., corrupt: _Optional[float] = ...) -> None: ...

class MovingClip(_message.Message):
    __slots__ = ("quantile", "rate")
    QUANTILE_FIELD_NUMBER: _ClassVar[int]
    RATE_FIELD_NUMBER: _ClassVar[int]
    quantile: float
    rate: float
    def __init__(self, quantile: _Optional[float] = ..., rate: _Optional[float] = ...) -> None: ...

class PlanMessage(_message.Message):
    __slots__ = ("name", "mode", "rounds", "cohort", "bundle", "weights", "ring", "over_selection", "reports_min", "attempts_max", "timeout_ms", "margin_ms", "wait_ms", "rest_ms", "pool_min", "requirements", "after_task", "evaluation_every", "evaluation_cohort", "patience", "improvement_min", "buffer", "concurrency", "staleness_max", "seed", "labels", "secure", "manifest", "aggregation", "rollback_worse", "privacy", "cohorts", "rollback_accuracy", "moving_clip", "own_metrics", "frozen", "split")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    COHORT_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    RING_FIELD_NUMBER: _ClassVar[int]
    OVER_SELECTION_FIELD_NUMBER: _ClassVar[int]
    REPORTS_MIN_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_MAX_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    MARGIN_MS_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    REST_MS_FIELD_NUMBER: _ClassVar[int]
    POOL_MIN_FIELD_NUMBER: _ClassVar[int]
    REQUIREMENTS_FIELD_NUMBER: _ClassVar[int]
    AFTER_TASK_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_EVERY_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_COHORT_FIELD_NUMBER: _ClassVar[int]
    PATIENCE_FIELD_NUMBER: _ClassVar[int]
    IMPROVEMENT_MIN_FIELD_NUMBER: _ClassVar[int]
    BUFFER_FIELD_NUMBER: _ClassVar[int]
    CONCURRENCY_FIELD_NUMBER: _ClassVar[int]
    STALENESS_MAX_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    SECURE_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    AGGREGATION_FIELD_NUMBER: _ClassVar[int]
    ROLLBACK_WORSE_FIELD_NUMBER: _ClassVar[int]
    PRIVACY_FIELD_NUMBER: _ClassVar[int]
    COHORTS_FIELD_NUMBER: _ClassVar[int]
    ROLLBACK_ACCURACY_FIELD_NUMBER: _ClassVar[int]
    MOVING_CLIP_FIELD_NUMBER: _ClassVar[int]
    OWN_METRICS_FIELD_NUMBER: _ClassVar[int]
    FROZEN_FIELD_NUMBER: _ClassVar[int]
    SPLIT_FIELD_NUMBER: _ClassVar[int]
    name: str
    mode: RunMode
    rounds: int
    cohort: int
    bundle: _blob_pb2.BlobRef
    weights: _blob_pb2.BlobRef
    ring: _round_pb2.RingPlan
    over_selection: float
    reports_min: int
    attempts_max: int
    timeout_ms: int
    margin_ms: int
    wait_ms: int
    rest_ms: int
    pool_min: int
    requirements: _admission_pb2.Requirements
    after_task: _admission_pb2.RetryWindow
    evaluation_every: int
    evaluation_cohort: int
    patience: int
    improvement_min: float
    buffer: int
    concurrency: int
    staleness_max: int
    seed: int
    labels: _containers.ScalarMap[str, str]
    secure: _secure_pb2.SecurePlan
    manifest: bytes
    aggregation: Aggregation
    rollback_worse: float
    privacy: PrivacyPlan
    cohorts: int
    rollback_accuracy: float
    moving_clip: MovingClip
    own_metrics: _containers.RepeatedScalarFieldContainer[str]
    frozen: _containers.RepeatedCompositeFieldContainer[_blob_pb2.BlobRef]
    split: bool
    def __init__(self, name: _Optional[str] = ..., mode: _Optional[_Union[RunMode, str]] = ..., rounds: _Optional[int] = ..., cohort: _Optional[int] = ..., bundle: _Optional[_Union[_blob_pb2.BlobRef, _Mapping]] = ..., weights: _Optional[_Union[_blob_pb2.BlobRef, _Mapping]] = ..., ring: _Optional[_Union[_round_pb2.RingPlan, _Mapping]] = ..., over_selection: _Optional[float] = ..., reports_min: _Optional[int] = ..., attempts_max: _Optional[int] = ..., timeout_ms: _Optional[int] = ..., margin_ms: _Optional[int] = ..., wait_ms: _Optional[int] = ..., rest_ms: _Optional[int] = ..., pool_min: _Optional[int] = ..., requirements: _Optional[_Union[_admission_pb2.Requirements, _Mapping]] = ..., after_task: _Optional[_Union[_admission_pb2.RetryWindow, _Mapping]] = ..., evaluation_every: _Optional[int] = ..., evaluation_cohort: _Optional[int] = ..., patience: _Optional[int] = ..., improvement_min: _Optional[float] = ..., buffer: _Optional[int] = ..., concurrency: _Optional[int] = ..., staleness_max: _Optional[int] = ..., seed: _Optional[int] = ..., labels: _Optional[_Mapping[str, str]] = ..., secure: _Optional[_Union[_secure_pb2.SecurePlan, _Mapping]] = ..., manifest: _Optional[bytes] = ..., aggregation: _Optional[_Union[Aggregation, _Mapping]] = ..., rollback_worse: _Optional[float] = ..., privacy: _Optional[_Union[PrivacyPlan, _Mapping]] = ..., cohorts: _Optional[int] = ..., rollback_accuracy: _Optional[float] = ..., moving_clip: _Optional[_Union[MovingClip, _Mapping]] = ..., own_metrics: _Optional[_Iterable[str]] = ..., frozen: _Optional[_Iterable[_Union[_blob_pb2.BlobRef, _Mapping]]] = ..., split: _Optional[bool] = ...) -> None: ...

class RunOrder(_message.Message):
    __slots__ = ("run", "submit", "pause", "resume", "cancel", "weights")
    RUN_FIELD_NUMBER: _ClassVar[int]
    SUBMIT_FIELD_NUMBER: _ClassVar[int]
    PAUSE_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    run: int
    submit: PlanMessage
    pause: bool
    resume: bool
    cancel: bool
    weights: _blob_pb2.BlobRef
    def __init__(self, run: _Optional[int] = ..., submit: _Optional[_Union[PlanMessage, _Mapping]] = ..., pause: _Optional[bool] = ..., resume: _Optional[bool] = ..., cancel: _Optional[bool] = ..., weights: _Optional[_Union[_blob_pb2.BlobRef, _Mapping]] = ...) -> None: ...

class SubmitRequest(_message.Message):
    __slots__ = ("plan", "request_id")
    PLAN_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    plan: PlanMessage
    request_id: bytes
    def __init__(self, plan: _Optional[_Union[PlanMessage, _Mapping]] = ..., request_id: _Optional[bytes] = ...) -> None: ...

class RunRequest(_message.Message):
    __slots__ = ("run",)
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: int
    def __init__(self, run: _Optional[int] = ...) -> None: ...

class RunControl(_message.Message):
    __slots__ = ("run", "action")
    RUN_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    run: int
    action: str
    def __init__(self, run: _Optional[int] = ..., action: _Optional[str] = ...) -> None: ...

class CloneRequest(_message.Message):
    __slots__ = ("run", "changes", "from_newest", "request_id")
    RUN_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    FROM_NEWEST_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    run: int
    changes: PlanMessage
    from_newest: bool
    request_id: bytes
    def __init__(self, run: _Optional[int] = ..., changes: _Optional[_Union[PlanMessage, _Mapping]] = ..., from_newest: _Optional[bool] = ..., request_id: _Optional[bytes] = ...) -> None: ...

class ListRequest(_message.Message):
    __slots__ = ("limit", "before")
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    limit: int
    before: int
    def __init__(self, limit: _Optional[int] = ..., before: _Optional[int] = ...) -> None: ...

class Holding(_message.Message):
    __slots__ = ("run", "devices")
    RUN_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    run: int
    devices: int
    def __init__(self, run: _Optional[int] = ..., devices: _Optional[int] = ...) -> None: ...

class Outlook(_message.Message):
    __slots__ = ("wanted", "least", "ready", "idle", "unconsented", "unfit", "working", "behind", "next_try_ms", "evaluates")
    WANTED_FIELD_NUMBER: _ClassVar[int]
    LEAST_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    IDLE_FIELD_NUMBER: _ClassVar[int]
    UNCONSENTED_FIELD_NUMBER: _ClassVar[int]
    UNFIT_FIELD_NUMBER: _ClassVar[int]
    WORKING_FIELD_NUMBER: _ClassVar[int]
    BEHIND_FIELD_NUMBER: _ClassVar[int]
    NEXT_TRY_MS_FIELD_NUMBER: _ClassVar[int]
    EVALUATES_FIELD_NUMBER: _ClassVar[int]
    wanted: int
    least: int
    ready: int
    idle: int
    unconsented: int
    unfit: int
    working: _containers.RepeatedCompositeFieldContainer[Holding]
    behind: _containers.RepeatedScalarFieldContainer[int]
    next_try_ms: int
    evaluates: bool
    def __init__(self, wanted: _Optional[int] = ..., least: _Optional[int] = ..., ready: _Optional[int] = ..., idle: _Optional[int] = ..., unconsented: _Optional[int] = ..., unfit: _Optional[int] = ..., working: _Optional[_Iterable[_Union[Holding, _Mapping]]] = ..., behind: _Optional[_Iterable[int]] = ..., next_try_ms: _Optional[int] = ..., evaluates: _Optional[bool] = ...) -> None: ...

class RunInfo(_message.Message):
    __slots__ = ("run", "plan", "phase", "round", "attempt", "weights", "created_ms", "ended_ms", "why", "privacy_spent", "outlook")
    RUN_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    CREATED_MS_FIELD_NUMBER: _ClassVar[int]
    ENDED_MS_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    PRIVACY_SPENT_FIELD_NUMBER: _ClassVar[int]
    OUTLOOK_FIELD_NUMBER: _ClassVar[int]
    run: int
    plan: PlanMessage
    phase: str
    round: int
    attempt: int
    weights: _blob_pb2.BlobRef
    created_ms: int
    ended_ms: int
    why: str
    privacy_spent: PrivacySpent
    outlook: Outlook
    def __init__(self, run: _Optional[int] = ..., plan: _Optional[_Union[PlanMessage, _Mapping]] = ..., phase: _Optional[str] = ..., round: _Optional[int] = ..., attempt: _Optional[int] = ..., weights: _Optional[_Union[_blob_pb2.BlobRef, _Mapping]] = ..., created_ms: _Optional[int] = ..., ended_ms: _Optional[int] = ..., why: _Optional[str] = ..., privacy_spent: _Optional[_Union[PrivacySpent, _Mapping]] = ..., outlook: _Optional[_Union[Outlook, _Mapping]] = ...) -> None: ...

class PrivacySpent(_message.Message):
    __slots__ = ("epsilon", "delta", "releases")
    EPSILON_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    RELEASES_FIELD_NUMBER: _ClassVar[int]
    epsilon: float
    delta: float
    releases: int
    def __init__(self, epsilon: _Optional[float] = ..., delta: _Optional[float] = ..., releases: _Optional[int] = ...) -> None: ...

class RunList(_message.Message):
    __slots__ = ("runs",)
    RUNS_FIELD_NUMBER: _ClassVar[int]
    runs: _containers.RepeatedCompositeFieldContainer[RunInfo]
    def __init__(self, runs: _Optional[_Iterable[_Union[RunInfo, _Mapping]]] = ...) -> None: ...

class RunEvent(_message.Message):
    __slots__ = ("run", "sequence", "time_ms", "kind", "facts")
    RUN_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    TIME_MS_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    FACTS_FIELD_NUMBER: _ClassVar[int]
    run: int
    sequence: int
    time_ms: int
    kind: str
    facts: str
    def __init__(self, run: _Optional[int] = ..., sequence: _Optional[int] = ..., time_ms: _Optional[int] = ..., kind: _Optional[str] = ..., facts: _Optional[str] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("run", "after", "once")
    RUN_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    ONCE_FIELD_NUMBER: _ClassVar[int]
    run: int
    after: int
    once: bool
    def __init__(self, run: _Optional[int] = ..., after: _Optional[int] = ..., once: _Optional[bool] = ...) -> None: ...

class NodeInfo(_message.Message):
    __slots__ = ("node", "home", "state", "seen_ms", "enrolled_ms", "certificate_ends_ms", "labels", "site")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NODE_FIELD_NUMBER: _ClassVar[int]
    HOME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SEEN_MS_FIELD_NUMBER: _ClassVar[int]
    ENROLLED_MS_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_ENDS_MS_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    SITE_FIELD_NUMBER: _ClassVar[int]
    node: _link_pb2.Address
    home: _link_pb2.Address
    state: str
    seen_ms: int
    enrolled_ms: int
    certificate_ends_ms: int
    labels: _containers.ScalarMap[str, str]
    site: str
    def __init__(self, node: _Optional[_Union[_link_pb2.Address, _Mapping]] = ..., home: _Optional[_Union[_link_pb2.Address, _Mapping]] = ..., state: _Optional[str] = ..., seen_ms: _Optional[int] = ..., enrolled_ms: _Optional[int] = ..., certificate_ends_ms: _Optional[int] = ..., labels: _Optional[_Mapping[str, str]] = ..., site: _Optional[str] = ...) -> None: ...

class FleetRequest(_message.Message):
    __slots__ = ("tier", "limit", "after")
    TIER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    tier: _link_pb2.NodeTier
    limit: int
    after: int
    def __init__(self, tier: _Optional[_Union[_link_pb2.NodeTier, str]] = ..., limit: _Optional[int] = ..., after: _Optional[int] = ...) -> None: ...

class FleetList(_message.Message):
    __slots__ = ("nodes",)
    NODES_FIELD_NUMBER: _ClassVar[int]
    nodes: _containers.RepeatedCompositeFieldContainer[NodeInfo]
    def __init__(self, nodes: _Optional[_Iterable[_Union[NodeInfo, _Mapping]]] = ...) -> None: ...

class NodeRequest(_message.Message):
    __slots__ = ("node", "undo")
    NODE_FIELD_NUMBER: _ClassVar[int]
    UNDO_FIELD_NUMBER: _ClassVar[int]
    node: _link_pb2.Address
    undo: bool
    def __init__(self, node: _Optional[_Union[_link_pb2.Address, _Mapping]] = ..., undo: _Optional[bool] = ...) -> None: ...

class ModelInfo(_message.Message):
    __slots__ = ("weights", "bundle", "run", "round", "parent", "created_ms", "metrics", "aliases")
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    CREATED_MS_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    ALIASES_FIELD_NUMBER: _ClassVar[int]
    weights: _blob_pb2.BlobRef
    bundle: _blob_pb2.BlobRef
    run: int
    round: int
    parent: bytes
    created_ms: int
    metrics: _containers.ScalarMap[str, float]
    aliases: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, weights: _Optional[_Union[_blob_pb2.BlobRef, _Mapping]] = ..., bundle: _Optional[_Union[_blob_pb2.BlobRef, _Mapping]] = ..., run: _Optional[int] = ..., round: _Optional[int] = ..., parent: _Optional[bytes] = ..., created_ms: _Optional[int] = ..., metrics: _Optional[_Mapping[str, float]] = ..., aliases: _Optional[_Iterable[str]] = ...) -> None: ...

class ModelRequest(_message.Message):
    __slots__ = ("digest", "run", "round", "alias")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ALIAS_FIELD_NUMBER: _ClassVar[int]
    digest: bytes
    run: int
    round: int
    alias: str
    def __init__(self, digest: _Optional[bytes] = ..., run: _Optional[int] = ..., round: _Optional[int] = ..., alias: _Optional[str] = ...) -> None: ...

class ModelList(_message.Message):
    __slots__ = ("models",)
    MODELS_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedCompositeFieldContainer[ModelInfo]
    def __init__(self, models: _Optional[_Iterable[_Union[ModelInfo, _Mapping]]] = ...) -> None: ...

class PromoteRequest(_message.Message):
    __slots__ = ("model", "alias")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    ALIAS_FIELD_NUMBER: _ClassVar[int]
    model: ModelRequest
    alias: str
    def __init__(self, model: _Optional[_Union[ModelRequest, _Mapping]] = ..., alias: _Optional[str] = ...) -> None: ...

class PutPart(_message.Message):
    __slots__ = ("blob", "content")
    BLOB_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    blob: _blob_pb2.BlobRef
    content: bytes
    def __init__(self, blob: _Optional[_Union[_blob_pb2.BlobRef, _Mapping]] = ..., content: _Optional[bytes] = ...) -> None: ...

class TokenRequest(_message.Message):
    __slots__ = ("tier", "valid_s", "uses", "approval", "site")
    TIER_FIELD_NUMBER: _ClassVar[int]
    VALID_S_FIELD_NUMBER: _ClassVar[int]
    USES_FIELD_NUMBER: _ClassVar[int]
    APPROVAL_FIELD_NUMBER: _ClassVar[int]
    SITE_FIELD_NUMBER: _ClassVar[int]
    tier: _link_pb2.NodeTier
    valid_s: int
    uses: int
    approval: bytes
    site: str
    def __init__(self, tier: _Optional[_Union[_link_pb2.NodeTier, str]] = ..., valid_s: _Optional[int] = ..., uses: _Optional[int] = ..., approval: _Optional[bytes] = ..., site: _Optional[str] = ...) -> None: ...

class TokenReply(_message.Message):
    __slots__ = ("token", "expires_ms")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_MS_FIELD_NUMBER: _ClassVar[int]
    token: str
    expires_ms: int
    def __init__(self, token: _Optional[str] = ..., expires_ms: _Optional[int] = ...) -> None: ...

class AuditRequest(_message.Message):
    __slots__ = ("after",)
    AFTER_FIELD_NUMBER: _ClassVar[int]
    after: int
    def __init__(self, after: _Optional[int] = ...) -> None: ...

class AuditLine(_message.Message):
    __slots__ = ("line",)
    LINE_FIELD_NUMBER: _ClassVar[int]
    line: bytes
    def __init__(self, line: _Optional[bytes] = ...) -> None: ...

class Nothing(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
