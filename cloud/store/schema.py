"""The coordinator's tables.

This file owns their shape; `migrations` brings older ones to it, and a test holds the two against
each other.

Times are Unix times in ms. Digests are SHA-256, 32 bytes. Messages are kept as protobuf, facts as
JSON text. Tokens, certificates and the deny list are not here: they are the CA's, in its folder.
"""

from __future__ import annotations

from typing import Any, ClassVar

from sqlalchemy import (
    JSON,
    BigInteger,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Text,
    UniqueConstraint,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

#: SQLite numbers rows by itself only where the key is of its own integer type.
_Id = BigInteger().with_variant(Integer(), "sqlite")
_Digest = LargeBinary(32)


class Base(DeclarativeBase):
    """Constraints have names, so that a migration can name them in any database."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map: ClassVar[dict[Any, Any]] = {int: BigInteger(), dict[str, Any]: JSON()}


class Lease(Base):
    """The process that writes to this database: one row.

    Each coordinator that opens it takes the next generation, and every transaction asks for its
    own: one that was overtaken writes nothing.
    """

    __tablename__ = "lease"

    id: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    generation: Mapped[int]
    owner: Mapped[str] = mapped_column(String(256))
    since_ms: Mapped[int]


class NodeRow(Base):
    """A node that has been enrolled, or was seen.

    Rows stay for ever: numbers are not used twice.
    """

    __tablename__ = "nodes"

    tier: Mapped[str] = mapped_column(String(8), primary_key=True)
    number: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    labels: Mapped[dict[str, Any]]
    state: Mapped[str] = mapped_column(String(16), default="")
    """"" or "revoked"."""
    serial: Mapped[str] = mapped_column(String(64), default="")
    """Of its certificate, hexadecimal."""
    certificate_ends_ms: Mapped[int] = mapped_column(default=0)
    enrolled_ms: Mapped[int] = mapped_column(default=0)
    seen_ms: Mapped[int] = mapped_column(default=0)
    home: Mapped[int | None]
    """The edge that a device was last seen at."""
    site: Mapped[str] = mapped_column(String(63), default="", server_default="", index=True)
    """That its token was for; empty: none.

    Which edges are out of service the coordinator's machine knows.
    """


class RunRow(Base):
    """A run."""

    __tablename__ = "runs"

    run: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    plan: Mapped[bytes]
    """A PlanMessage."""
    phase: Mapped[str] = mapped_column(String(16))
    round: Mapped[int] = mapped_column(default=1)
    """The one at hand."""
    attempt: Mapped[int] = mapped_column(default=1)
    """Likewise."""
    weights: Mapped[bytes] = mapped_column(_Digest)
    weights_size: Mapped[int]
    created_ms: Mapped[int]
    ended_ms: Mapped[int] = mapped_column(default=0)
    why: Mapped[str] = mapped_column(Text, default="")
    cloned_from: Mapped[int | None]
    request: Mapped[bytes | None] = mapped_column(LargeBinary(16), index=True, unique=True)
    """What the operator drew for it; a repetition finds the run by it."""


class RoundRow(Base):
    """An attempt at a round that is over."""

    __tablename__ = "rounds"
    __table_args__ = (Index(None, "run", "round"),)

    id: Mapped[int] = mapped_column(_Id, primary_key=True)
    run: Mapped[int] = mapped_column(ForeignKey("runs.run"))
    round: Mapped[int]
    attempt: Mapped[int]
    succeeded: Mapped[bool]
    why: Mapped[str] = mapped_column(Text)
    ended_ms: Mapped[int]
    selected: Mapped[int]
    reported: Mapped[int]
    weight: Mapped[float]
    refused: Mapped[dict[str, Any]]
    """Device -> FailureReason."""
    devices: Mapped[bytes]
    """Zlib of JSON {"selected": [...], "reported": [...]}."""
    parent: Mapped[bytes | None] = mapped_column(_Digest)
    model: Mapped[bytes | None] = mapped_column(_Digest)


class EvaluationRow(Base):
    """What devices said of a model, together."""

    __tablename__ = "evaluations"
    __table_args__ = (Index(None, "run", "round"),)

    id: Mapped[int] = mapped_column(_Id, primary_key=True)
    run: Mapped[int] = mapped_column(ForeignKey("runs.run"))
    round: Mapped[int]
    model: Mapped[bytes] = mapped_column(_Digest)
    devices: Mapped[int]
    metrics: Mapped[dict[str, Any]]
    time_ms: Mapped[int]


class EventRow(Base):
    """An event of a run, as WatchRun sends it."""

    __tablename__ = "run_events"

    run: Mapped[int] = mapped_column(ForeignKey("runs.run"), primary_key=True, autoincrement=False)
    sequence: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    time_ms: Mapped[int]
    kind: Mapped[str] = mapped_column(String(32))
    facts: Mapped[str] = mapped_column(Text)
    """A JSON object."""


class ModelRow(Base):
    """A model."""

    __tablename__ = "models"
    __table_args__ = (UniqueConstraint("run", "round"),)

    id: Mapped[int] = mapped_column(_Id, primary_key=True)
    digest: Mapped[bytes] = mapped_column(_Digest, index=True)
    size: Mapped[int]
    bundle: Mapped[bytes] = mapped_column(_Digest)
    bundle_size: Mapped[int]
    run: Mapped[int] = mapped_column(ForeignKey("runs.run"))
    round: Mapped[int]
    """The one that made it; zero: what its run began from."""
    parent: Mapped[bytes | None] = mapped_column(_Digest)
    created_ms: Mapped[int]
    metrics: Mapped[dict[str, Any]]
    kept: Mapped[bool] = mapped_column(default=True)
    """Its weights are in the store; a model whose weights were dropped is still known."""


class AliasMove(Base):
    """One move of an alias; none is ever changed."""

    __tablename__ = "alias_moves"

    id: Mapped[int] = mapped_column(_Id, primary_key=True)
    alias: Mapped[str] = mapped_column(String(64), index=True)
    model: Mapped[int] = mapped_column(ForeignKey("models.id"))
    previous: Mapped[int | None]
    """The move that it goes back to when it is rolled back."""
    action: Mapped[str] = mapped_column(String(16))
    """"promote" or "rollback"."""
    time_ms: Mapped[int]
    by: Mapped[str] = mapped_column(String(128))
    """Whose order."""


class AliasRow(Base):
    """Where an alias points now: to the model of this move."""

    __tablename__ = "aliases"

    alias: Mapped[str] = mapped_column(String(64), primary_key=True)
    move: Mapped[int] = mapped_column(ForeignKey("alias_moves.id"))


class EntryRow(Base):
    """An entry of a node's journal: in `body`, or in a pack."""

    __tablename__ = "journal_entries"

    node: Mapped[str] = mapped_column(String(32), primary_key=True)
    sequence: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    body: Mapped[bytes | None]
    pack: Mapped[str | None] = mapped_column(String(128))
    start: Mapped[int] = mapped_column(default=0)
    length: Mapped[int]
    crc: Mapped[int]
    """See `store.journal`."""


class SnapshotRow(Base):
    """A node's newest snapshot. It stands for all entries up to `sequence`."""

    __tablename__ = "journal_snapshots"

    node: Mapped[str] = mapped_column(String(32), primary_key=True)
    sequence: Mapped[int]
    body: Mapped[bytes | None]
    pack: Mapped[str | None] = mapped_column(String(128))
    length: Mapped[int]
    crc: Mapped[int]


class AuditEntryRow(Base):
    """An entry of the chain of aggregates (`cloud.service.audit`)."""

    __tablename__ = "audit_entries"

    sequence: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    body: Mapped[bytes]
    """Its line; none is ever changed."""
    hash: Mapped[bytes] = mapped_column(_Digest)


class AuditCheckpointRow(Base):
    """A signature over the chain up to an entry."""

    __tablename__ = "audit_checkpoints"

    sequence: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    head: Mapped[bytes] = mapped_column(_Digest)
    time_ms: Mapped[int]
    certificate: Mapped[bytes]
    """DER."""
    signature: Mapped[bytes]
