"""The site of a node."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the site to nodes."""
    site = sa.Column("site", sa.String(length=63), nullable=False, server_default="")
    op.add_column("nodes", site)
    op.create_index(op.f("ix_nodes_site"), "nodes", ["site"])
