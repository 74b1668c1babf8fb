"""The first shape of the tables."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Creates the tables."""
    op.create_table(
        "journal_entries",
        sa.Column("node", sa.String(length=32), nullable=False),
        sa.Column("sequence", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=True),
        sa.Column("pack", sa.String(length=128), nullable=True),
        sa.Column("start", sa.BigInteger(), nullable=False),
        sa.Column("length", sa.BigInteger(), nullable=False),
        sa.Column("crc", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("node", "sequence", name=op.f("pk_journal_entries")),
    )
    op.create_table(
        "journal_snapshots",
        sa.Column("node", sa.String(length=32), nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=True),
        sa.Column("pack", sa.String(length=128), nullable=True),
        sa.Column("length", sa.BigInteger(), nullable=False),
        sa.Column("crc", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("node", name=op.f("pk_journal_snapshots")),
    )
    op.create_table(
        "lease",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("owner", sa.String(length=256), nullable=False),
        sa.Column("since_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_lease")),
    )
    op.create_table(
        "nodes",
        sa.Column("tier", sa.String(length=8), nullable=False),
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("labels", sa.JSON(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("serial", sa.String(length=64), nullable=False),
        sa.Column("certificate_ends_ms", sa.BigInteger(), nullable=False),
        sa.Column("enrolled_ms", sa.BigInteger(), nullable=False),
        sa.Column("seen_ms", sa.BigInteger(), nullable=False),
        sa.Column("home", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("tier", "number", name=op.f("pk_nodes")),
    )
    op.create_table(
        "runs",
        sa.Column("run", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("plan", sa.LargeBinary(), nullable=False),
        sa.Column("phase", sa.String(length=16), nullable=False),
        sa.Column("round", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.BigInteger(), nullable=False),
        sa.Column("weights", sa.LargeBinary(length=32), nullable=False),
        sa.Column("weights_size", sa.BigInteger(), nullable=False),
        sa.Column("created_ms", sa.BigInteger(), nullable=False),
        sa.Column("ended_ms", sa.BigInteger(), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("cloned_from", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("run", name=op.f("pk_runs")),
    )
    op.create_table(
        "evaluations",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("run", sa.BigInteger(), nullable=False),
        sa.Column("round", sa.BigInteger(), nullable=False),
        sa.Column("model", sa.LargeBinary(length=32), nullable=False),
        sa.Column("devices", sa.BigInteger(), nullable=False),
        sa.Column("metrics", sa.JSON(), nullable=False),
        sa.Column("time_ms", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["runs.run"], name=op.f("fk_evaluations_run")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_evaluations")),
    )
    op.create_index(op.f("ix_evaluations_run_round"), "evaluations", ["run", "round"], unique=False)
    op.create_table(
        "models",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("digest", sa.LargeBinary(length=32), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("bundle", sa.LargeBinary(length=32), nullable=False),
        sa.Column("bundle_size", sa.BigInteger(), nullable=False),
        sa.Column("run", sa.BigInteger(), nullable=False),
        sa.Column("round", sa.BigInteger(), nullable=False),
        sa.Column("parent", sa.LargeBinary(length=32), nullable=True),
        sa.Column("created_ms", sa.BigInteger(), nullable=False),
        sa.Column("metrics", sa.JSON(), nullable=False),
        sa.Column("kept", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["runs.run"], name=op.f("fk_models_run")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_models")),
        sa.UniqueConstraint("run", "round", name=op.f("uq_models_run_round")),
    )
    op.create_index(op.f("ix_models_digest"), "models", ["digest"], unique=False)
    op.create_table(
        "rounds",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("run", sa.BigInteger(), nullable=False),
        sa.Column("round", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.BigInteger(), nullable=False),
        sa.Column("succeeded", sa.Boolean(), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("ended_ms", sa.BigInteger(), nullable=False),
        sa.Column("selected", sa.BigInteger(), nullable=False),
        sa.Column("reported", sa.BigInteger(), nullable=False),
        sa.Column("weight", sa.Double(), nullable=False),
        sa.Column("refused", sa.JSON(), nullable=False),
        sa.Column("devices", sa.LargeBinary(), nullable=False),
        sa.Column("parent", sa.LargeBinary(length=32), nullable=True),
        sa.Column("model", sa.LargeBinary(length=32), nullable=True),
        sa.ForeignKeyConstraint(["run"], ["runs.run"], name=op.f("fk_rounds_run")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_rounds")),
    )
    op.create_index(op.f("ix_rounds_run_round"), "rounds", ["run", "round"], unique=False)
    op.create_table(
        "run_events",
        sa.Column("run", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("sequence", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("time_ms", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("facts", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["runs.run"], name=op.f("fk_run_events_run")),
        sa.PrimaryKeyConstraint("run", "sequence", name=op.f("pk_run_events")),
    )
    op.create_table(
        "alias_moves",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("alias", sa.String(length=64), nullable=False),
        sa.Column("model", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("previous", sa.BigInteger(), nullable=True),
        sa.Column("action", sa.String(length=16), nullable=False),
        sa.Column("time_ms", sa.BigInteger(), nullable=False),
        sa.Column("by", sa.String(length=128), nullable=False),
        sa.ForeignKeyConstraint(["model"], ["models.id"], name=op.f("fk_alias_moves_model")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_alias_moves")),
    )
    op.create_index(op.f("ix_alias_moves_alias"), "alias_moves", ["alias"], unique=False)
    op.create_table(
        "aliases",
        sa.Column("alias", sa.String(length=64), nullable=False),
        sa.Column("move", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.ForeignKeyConstraint(["move"], ["alias_moves.id"], name=op.f("fk_aliases_move")),
        sa.PrimaryKeyConstraint("alias", name=op.f("pk_aliases")),
    )
