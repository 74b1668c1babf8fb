"""What can be configured: one model a section, one line a key.

`cli/config.py` fills them from defaults, a TOML file, the environment and flags. A key's meaning is
its description; `delian config keys` prints them. Keys have the names of the settings that the
daemons take, units last.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from pydantic import Field, JsonValue

from .settings_forms import (
    Address,
    BrokerUrl,
    Folder,
    OptionalAddress,
    Section,
    Texts,
    Transport,
)

SECRET: dict[str, JsonValue] = {"secret": True}  # never shown
URL: dict[str, JsonValue] = {"secret": "password"}  # shown without its password

GRPC_PORT, ENROLMENT_PORT, EDGE_PORT, HEALTH_PORT = 7443, 7444, 7451, 7790
AUTHORITY_PORT = 7445
_SANDBOX = (
    "require: run no program where the kernel lacks landlock or seccomp. prefer: use what it has."
)
_BROKER_AUTHORITY = "PEM of the CA of the broker's certificate. Absent: the federation."


def state_home() -> Path:
    """Where programs keep state, by the XDG base directory specification."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "delian"


class LogConfig(Section):
    """Logging of a process."""

    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Lowest level of the events that are logged."
    )
    format: Literal["auto", "json", "pretty"] = Field(
        default="auto", description="JSON lines, or text for people; auto: text on a terminal."
    )


class TraceConfig(Section):
    """OpenTelemetry. Needs delian[otel] and, for an endpoint, an OTLP exporter."""

    endpoint: str = Field(
        default="", description="OTLP endpoint, as http://127.0.0.1:4318. Empty: none."
    )
    ratio: float = Field(
        default=1.0, ge=0.0, le=1.0, description="The share of rounds that is traced."
    )


class BrokerConfig(Section):
    """An MQTT broker to connect through, in addition to gRPC."""

    url: BrokerUrl = Field(default="", description="mqtts://host:port. Empty: no MQTT.")
    authority: Folder | None = Field(default=None, description=_BROKER_AUTHORITY)


class UpdateConfig(Section):
    """Limits of one server update: its programs come from the submitter of the run."""

    memory_mib: int = Field(default=8192, ge=1, description="Memory of an updating process.")
    compile_memory_mib: int = Field(default=2048, ge=1, description="Memory of a compiler process.")
    cpu_s: int = Field(default=600, ge=1, description="Processor seconds of one update.")
    wall_s: int = Field(default=600, ge=1, description="Seconds of one update by the clock.")
    files: int = Field(default=128, ge=32, description="Open files.")
    nice: int = Field(default=0, ge=0, le=19, description="Added to the niceness.")
    sandbox: Literal["prefer", "require"] = Field(default="prefer", description=_SANDBOX)
    operations_max: int = Field(
        default=2**50, ge=1, description="Arithmetic operations of one call of a program."
    )


class CloudConfig(Section):
    """The coordinator: `delian cloud run`."""

    state: Folder = Field(
        default_factory=lambda: state_home() / "cloud", description="Folder for all that it keeps."
    )
    authority: OptionalAddress = Field(
        default="",
        description="host:port of `delian authority run`, which has the CA's key. Empty: the key "
        "is here, and the coordinator's operator can invent devices.",
    )
    ca: Folder | None = Field(
        default=None,
        description="The CA's folder, without `authority`. Absent: `ca` in the state.",
    )
    identity: Folder | None = Field(
        default=None,
        description="Folder of its own key and certificate. Absent: `identity` in the state.",
    )
    listen: Address = Field(
        default=f"127.0.0.1:{GRPC_PORT}", description="gRPC: links, renewals, operators."
    )
    enrolment: Address = Field(
        default=f"127.0.0.1:{ENROLMENT_PORT}",
        description="gRPC: nodes that have no certificate yet.",
    )
    health: str = Field(
        default=f"127.0.0.1:{HEALTH_PORT}",
        description="HTTP: /healthz, /readyz, /metrics. Empty: none. No authentication.",
    )
    public: str = Field(
        default="", description="host:port by which nodes reach `listen`. Empty: `listen` itself."
    )
    public_enrolment: str = Field(
        default="",
        description="host:port by which nodes reach `enrolment`. Empty: `enrolment` itself.",
    )
    addresses: Texts = Field(
        default=(), description="Host names and IP addresses that its certificate carries."
    )
    store: str = Field(
        default="",
        description="SQLAlchemy URL: postgresql+asyncpg://... Empty: SQLite in the state.",
        json_schema_extra=URL,
    )
    objects: str = Field(
        default="",
        description="Where models are kept: a folder or s3://bucket/prefix. Empty: in the state.",
        json_schema_extra=URL,
    )
    broker: BrokerConfig = Field(default_factory=BrokerConfig)
    certificate_days: int = Field(
        default=30, ge=1, le=398, description="How long certificates live."
    )
    enrolments_per_minute: float = Field(
        default=60.0, gt=0.0, le=1e6, description="From one address, after a burst of 20."
    )
    token_uses: int = Field(
        default=20,
        ge=0,
        le=100_000,
        description="Devices that admins may let in by tokens in a day without an approval.",
    )
    backend: str = Field(
        default="native",
        description="What computes server updates: native, reference, torch:cpu, torch:cuda...",
    )
    worker: UpdateConfig = Field(default_factory=UpdateConfig)
    serve: Texts = Field(
        default=(),
        description="Bundles with weights of which it runs parts for edges and devices.",
    )
    witnesses: Texts = Field(
        default=(),
        description="host:port of the certificate log's witnesses, which co-sign its heads.",
    )
    insecure: bool = Field(
        default=False, description="No TLS: a peer's name is not verified. On loopback only."
    )


class AuthorityConfig(Section):
    """The authority: `delian authority run`.

    It has the CA's key, on another machine than the coordinator's.
    """

    state: Folder = Field(
        default_factory=lambda: state_home() / "authority",
        description="Folder for all that it keeps.",
    )
    ca: Folder | None = Field(
        default=None, description="The CA's folder. Absent: `ca` in the state."
    )
    superior: OptionalAddress = Field(
        default="",
        description="Of an issuing authority: host:port of the federation's root authority. Empty: "
        "this is the root.",
    )
    listen: Address = Field(
        default=f"127.0.0.1:{AUTHORITY_PORT}", description="gRPC: the coordinator and admins."
    )
    public: OptionalAddress = Field(
        default="",
        description="Of an issuing authority: host:port by which the coordinator reaches `listen`. "
        "Empty: `listen` itself.",
    )
    enrolment: Address = Field(
        default=f"127.0.0.1:{ENROLMENT_PORT}",
        description="gRPC: nodes that have no certificate yet.",
    )
    public_enrolment: str = Field(
        default="",
        description="host:port by which nodes reach `enrolment`. Empty: `enrolment` itself.",
    )
    addresses: Texts = Field(
        default=(), description="Host names and IP addresses that its certificate carries."
    )
    health: str = Field(
        default="", description="HTTP: /healthz, /readyz, /metrics, as 127.0.0.1:7791. Empty: none."
    )
    store: str = Field(
        default="",
        description="SQLAlchemy URL: postgresql+asyncpg://... Empty: SQLite in the state.",
        json_schema_extra=URL,
    )
    witnesses: Texts = Field(
        default=(),
        description="host:port of the certificate log's witnesses, which co-sign its heads.",
    )
    certificate_days: int = Field(
        default=30, ge=1, le=398, description="How long certificates live."
    )
    enrolments_per_minute: float = Field(
        default=60.0, gt=0.0, le=1e6, description="From one address, after a burst of 20."
    )
    token_uses: int = Field(
        default=20,
        ge=0,
        le=100_000,
        description="Devices that admins may let in by tokens in a day without an approval.",
    )


class EdgeConfig(Section):
    """An edge: `delian edge run`."""

    state: Folder = Field(
        default_factory=lambda: state_home() / "edge", description="Folder for all that it keeps."
    )
    identity: Folder | None = Field(
        default=None,
        description="Folder of its key and certificate. Absent: `identity` in the state.",
    )
    listen: Address = Field(default=f"127.0.0.1:{EDGE_PORT}", description="gRPC: its devices.")
    public: str = Field(
        default="",
        description="host:port by which devices reach `listen`; `delian join` sends it to the "
        "coordinator. Empty: `listen` itself.",
    )
    coordinator: str = Field(
        default="", description="host:port of the coordinator. Empty: as enrolment said."
    )
    broker: BrokerConfig = Field(default_factory=BrokerConfig)
    transport: Transport = Field(
        default="auto", description="Transport to the coordinator (default: gRPC)."
    )
    health: str = Field(
        default="", description="HTTP: /healthz, /readyz, /metrics, as 127.0.0.1:7790. Empty: none."
    )
    devices_max: int = Field(default=10_000, ge=1, le=100_000, description="Devices in its pool.")
    blobs_mib: int = Field(
        default=4096, ge=64, le=2**22, description="Cache of bundles, weights and frozen parts."
    )
    outbox_mib: int = Field(
        default=256, ge=1, le=2**20, description="What waits for the coordinator while it is gone."
    )
    helps: bool = Field(
        default=False,
        description="Hold what unmasks for runs that name this edge. Its operator is not the "
        "coordinator's.",
    )
    helps_min: int = Field(
        default=3, ge=3, le=700, description="Help with no sum of fewer devices than this."
    )
    deny_list_days: int = Field(
        default=7,
        ge=1,
        le=365,
        description="Help with no sum when the CA has signed the newest deny list that the edge "
        "could get longer ago than this.",
    )
    serve: Texts = Field(
        default=(), description="Bundles with weights of which it runs parts for its devices."
    )
    split: bool = Field(
        default=False,
        description="Train a part of the model with devices, in runs that allow it: their programs "
        "run in the edge's process. Not together with `serve`.",
    )
    number: int | None = Field(
        default=None, ge=1, description="Which edge it is; only with `insecure`."
    )
    federation: str = Field(default="", description="Whose edge it is; only with `insecure`.")
    insecure: bool = Field(
        default=False, description="No TLS: a peer's name is not verified. On loopback only."
    )


class DataConfig(Section):
    """The device's own data."""

    source: str = Field(
        default="",
        description="FILE.npz, FILE.csv, an image folder, sensor:FOLDER, python:MODULE:FUNCTION "
        "or entry:NAME.",
    )
    label: str = Field(
        default="", description="A CSV's label column, by name or number. Empty: the last."
    )
    columns: Texts = Field(default=(), description="A CSV's feature columns. Empty: all others.")
    split: str = Field(
        default="",
        description="A CSV's column of 0 and 1: rows with 1 only judge. Empty: query_fraction.",
    )
    classes: Texts = Field(
        default=(),
        description="What text labels and class folders are called, in the model's order.",
    )
    query_fraction: float = Field(
        default=0.2,
        gt=0.0,
        lt=1.0,
        description="Of the rows, how many only judge and are never trained on.",
    )
    bytes_max: int = Field(
        default=2**30, ge=1, description="Memory that the data may take, in bytes."
    )


class ConditionsConfig(Section):
    """When the device may work. Of powered to fresh: absent means find out."""

    powered: bool | None = Field(default=None, description="It has power.")
    unmetered: bool | None = Field(default=None, description="Its network costs nothing.")
    idle: bool | None = Field(default=None, description="The device is not in use.")
    consented: bool | None = Field(default=None, description="Its owner has agreed.")
    fresh: bool | None = Field(default=None, description="Its data is new.")
    consent_file: Folder | None = Field(
        default=None, description="Holds yes or no. Without it: no."
    )
    metered_interfaces: Texts = Field(
        default=("wwan*", "ppp*", "rmnet*", "usb*"),
        description="Network interfaces that cost money.",
    )
    load_max: float = Field(
        default=0.5,
        ge=0.0,
        description="Share of the processors that may be busy while it counts as idle.",
    )
    battery_min: int = Field(
        default=101,
        ge=0,
        le=101,
        description="Percent at which a battery counts as power. 101: never.",
    )
    celsius_max: float = Field(default=80.0, description="Hotter than this it is not idle.")
    storage_mib: int = Field(
        default=4096, ge=1, description="Room for bundles, weights, frozen parts and models."
    )
    poll_s: float = Field(default=15.0, gt=0.0, le=3600.0, description="How often to look.")


class WorkerConfig(Section):
    """What the owner gives to training."""

    memory_mib: int = Field(
        default=2048,
        ge=1,
        description="Memory of a training process; a program that would need more is refused.",
    )
    compile_memory_mib: int = Field(default=2048, ge=1, description="Memory of a compiler process.")
    cpu_s: int = Field(default=3600, ge=1, description="Processor seconds of one job.")
    wall_s: int = Field(default=3600, ge=1, description="Seconds of one job by the clock.")
    files: int = Field(default=128, ge=32, description="Open files.")
    nice: int = Field(default=10, ge=0, le=19, description="Added to the niceness.")
    sandbox: Literal["prefer", "require"] = Field(default="prefer", description=_SANDBOX)
    operations_max: int = Field(
        default=2**50, ge=1, description="Arithmetic operations of one call of a program."
    )
    backend: Literal["native", "reference"] = Field(
        default="native", description="What runs programs."
    )
    artifacts: Texts = Field(
        default=(),
        description="Files of `delian build`: their programs are not compiled on the device.",
    )
    checkpoint_s: int = Field(
        default=30, ge=0, description="Seconds between checkpoints of a training by windows."
    )


class BudgetConfig(Section):
    """What a device's updates may disclose over its lifetime, over all runs."""

    epsilon: float | None = Field(
        default=None,
        gt=0.0,
        description="Refuse tasks whose update would bring the device's own account above this "
        "epsilon, and all tasks without noise of the devices. Absent: count only.",
    )
    delta: float = Field(default=1e-6, gt=0.0, lt=1.0, description="The delta of that epsilon.")


class MasksConfig(Section):
    """What a device's owner asks of secure aggregation."""

    required: bool | None = Field(
        default=None,
        description="Take no task whose updates edges or the coordinator could read. Absent: yes "
        "for a device with a certificate. false: take plain tasks too, and show them every update.",
    )
    cohort_min: int | None = Field(
        default=None,
        ge=3,
        le=1000,
        description="Be in no sum of fewer devices than this. Absent: as the federation's terms "
        "say; without terms 3.",
    )
    corrupt: float | None = Field(
        default=None,
        ge=0.0,
        lt=1.0,
        description="Ask for masks that hold when this share of the devices works with the "
        "coordinator. Absent: as the federation's terms say; without terms 0.05.",
    )
    deny_list_days: int = Field(
        default=7,
        ge=1,
        le=365,
        description="Take no masked task when the CA has signed the newest deny list that the "
        "device could get longer ago than this.",
    )
    helpers: Texts = Field(
        default=(),
        description="Edges that may hold what unmasks, in runs that have helpers: 4, or 4:KEY with "
        "the 64 hexadecimal digits of the one key that it may have. Empty: none.",
    )
    helpers_min: int = Field(
        default=1, ge=1, le=3, description="Take helpers only where there are so many at least."
    )


class OfferedConfig(Section):
    """A table that questions may read."""

    path: str = Field(
        description="A CSV, TSV or Parquet file, several by a pattern (visits-*.csv), or a "
        "database of SQLite or DuckDB."
    )
    columns: Texts = Field(default=(), description="Columns that may be read. Empty: all.")
    relation: str = Field(
        default="", description="The table of a database. Empty: as the table is called."
    )


class QuestionsConfig(Section):
    """What `delian ask` may ask this device's tables. Without tables nothing is answered."""

    tables: dict[str, OfferedConfig] = Field(
        default_factory=dict, description="The tables, by the name that questions use."
    )
    methods: Texts = Field(default=(), description="Methods that may be asked. Empty: all.")
    floor: int = Field(
        default=5,
        ge=1,
        description="Fewer rows are not answered about, and no two questions may differ by so few.",
    )
    per_day: int = Field(default=100, ge=1, description="Questions in 24 hours.")
    noise_min: float = Field(
        default=0.0,
        ge=0.0,
        le=1e4,
        description="The least noise, in lengths of what one row can change; groups of a question "
        "with so much may be of any size. 0: none is needed.",
    )
    fine: bool = Field(
        default=False,
        description="Answer methods whose sums are about fewer rows than the floor: boosted trees, "
        "random forests, survival at exact times.",
    )


class ScriptConfig(Section):
    """A command of the owner's that trains in the place of a run's program."""

    command: str = Field(
        min_length=1, description="The program and its arguments, as in a shell: python train.py."
    )
    folder: Folder | None = Field(
        default=None, description="Where it is started. Absent: where the agent was."
    )
    client: int | None = Field(
        default=None, ge=0, description="The script's `task.client`. Absent: the device's number."
    )
    clients: int | None = Field(
        default=None,
        ge=1,
        description="The script's `task.clients`, for scripts that take a part of common data.",
    )


class DeviceConfig(Section):
    """A device: `delian device run`."""

    state: Folder = Field(
        default_factory=lambda: state_home() / "device", description="Folder for all that it keeps."
    )
    identity: Folder | None = Field(
        default=None,
        description="Folder of its key and certificate. Absent: `identity` in the state.",
    )
    homes: Texts = Field(
        default=(),
        description="Where to go, in order: host:port of the coordinator, edge-3@host:port, "
        "edge-3@mqtts://host:port. Empty: as enrolment said.",
    )
    data: DataConfig = Field(default_factory=DataConfig)
    conditions: ConditionsConfig = Field(default_factory=ConditionsConfig)
    worker: WorkerConfig = Field(default_factory=WorkerConfig)
    questions: QuestionsConfig = Field(default_factory=QuestionsConfig)
    scripts: dict[str, ScriptConfig] = Field(
        default_factory=dict,
        description="Training scripts, by the name that runs use. Without one no such run is "
        "trained for.",
    )
    split: bool = Field(
        default=False,
        description="Train with the edge, in runs that allow it: the edge can read activations and "
        "gradients of single examples. false: train the whole model here.",
    )
    masks: MasksConfig = Field(default_factory=MasksConfig)
    budget: BudgetConfig = Field(default_factory=BudgetConfig)
    inference: Folder | None = Field(
        default=None,
        description="Unix socket that serves the personal model. Absent: in the state.",
    )
    broker_authority: Folder | None = Field(default=None, description=_BROKER_AUTHORITY)
    blobs_mib: int = Field(
        default=2048,
        ge=1,
        le=2**22,
        description="Room for bundles, weights and frozen parts; a larger task is declined.",
    )
    personal_margin: float = Field(
        default=0.05,
        ge=0.0,
        description="A new personal model may judge worse by this share and still be taken.",
    )
    artifact_root: Folder | None = Field(
        default=None,
        description="root.pub of the signer of bundles; others are not run. Absent: what `delian "
        "join --artifact-root` left; without that, the root key of the federation's terms.",
    )
    signed: bool = Field(
        default=True,
        description="Run only signed bundles, where a root key or the federation's terms are "
        "known. false: also run unsigned ones, whose author can read single updates.",
    )
    transport: Transport = Field(
        default="auto", description="Transport where a home offers both (default: gRPC)."
    )
    number: int | None = Field(
        default=None, ge=0, description="Which device it is; only with `insecure`."
    )
    federation: str = Field(default="", description="Whose device it is; only with `insecure`.")
    insecure: bool = Field(default=False, description="No TLS. On loopback only.")


class OperatorConfig(Section):
    """The operator that runs `delian run`, `fleet` and `model`."""

    coordinator: str = Field(
        default=f"127.0.0.1:{GRPC_PORT}", description="host:port of the coordinator."
    )
    authority: OptionalAddress = Field(
        default="",
        description="host:port of `delian authority run`, for tokens and revocations. Empty: the "
        "coordinator has the CA's key.",
    )
    identity: Folder = Field(
        default_factory=lambda: state_home() / "operator",
        description="Folder of the operator's key and certificate.",
    )
    artifacts: Folder | None = Field(
        default=None,
        description="Folder of the key that signs bundles. Absent: `artifacts` in the identity, "
        "where `delian ca issue operator` puts one.",
    )
    insecure: bool = Field(default=False, description="No TLS. On loopback only.")


class Config(Section):
    """All sections. A process reads its own and the first two."""

    log: LogConfig = Field(default_factory=LogConfig)
    trace: TraceConfig = Field(default_factory=TraceConfig)
    authority: AuthorityConfig = Field(default_factory=AuthorityConfig)
    cloud: CloudConfig = Field(default_factory=CloudConfig)
    edge: EdgeConfig = Field(default_factory=EdgeConfig)
    device: DeviceConfig = Field(default_factory=DeviceConfig)
    operator: OperatorConfig = Field(default_factory=OperatorConfig)
