"""Stores with each run the request that made it.

Which edges drain the coordinator's machine knows now: it is no longer stored with the node.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the request to runs; removes the draining state of nodes."""
    op.add_column("runs", sa.Column("request", sa.LargeBinary(length=16), nullable=True))
    op.create_index(op.f("ix_runs_request"), "runs", ["request"], unique=True)
    op.execute("UPDATE nodes SET state = '' WHERE state = 'draining'")
