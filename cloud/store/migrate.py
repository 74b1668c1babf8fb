"""Brings a database's tables to the shape that this version knows, by Alembic.

The steps are the modules of `migrations`, in the order in which their `down_revision`s chain them.
They run when a database is opened, in one transaction: both databases can take back a change of
tables. There is no way down: restore a backup instead. Alembic is imported where there is a step to
take: with what it needs, it is a sixth of the time in which a coordinator starts.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, inspect, text

from ...core.common.errors import DelianError
from .schema import Base

if TYPE_CHECKING:
    from alembic.config import Config
    from alembic.runtime.migration import MigrationContext
    from alembic.script import ScriptDirectory

#: The newest revision, which `head` finds among the modules of `migrations`.
HEAD = "0004"
_FOLDER = Path(__file__).with_name("migrations")


class StoreTooNew(DelianError):
    """The database was written by a newer version of delian."""


def _scripts() -> tuple[Config, ScriptDirectory]:
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(_FOLDER).replace("%", "%%"))
    config.set_main_option("version_locations", str(_FOLDER).replace("%", "%%"))
    config.set_main_option("path_separator", "newline")
    return config, ScriptDirectory.from_config(config)


def head() -> str:
    """The newest revision that this version knows."""
    return _scripts()[1].get_current_head() or ""


def current(connection: Connection) -> str:
    """The database's revision; empty: it has no tables yet."""
    if not inspect(connection).has_table("alembic_version"):
        return ""
    return connection.scalar(text("SELECT version_num FROM alembic_version")) or ""


def upgrade(connection: Connection, to: str = "head") -> None:
    """Brings the tables to revision `to`, in the caller's transaction. Raises StoreTooNew."""
    if current(connection) == (HEAD if to == "head" else to):
        return
    from alembic.runtime.environment import EnvironmentContext
    from alembic.util.exc import CommandError

    config, scripts = _scripts()

    def steps(revision: Any, context: MigrationContext) -> Any:
        return scripts._upgrade_revs(to, revision)

    with EnvironmentContext(config, scripts, fn=steps, destination_rev=to) as environment:
        environment.configure(connection=connection, target_metadata=Base.metadata)
        try:
            environment.run_migrations()
        except CommandError as fault:
            raise StoreTooNew(
                f"the database is of a revision that is not known here: {fault}",
                "it was written by a newer version of delian; install that one",
            ) from fault
