"""What a device's configuration says of questions, as the agent takes it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ...core.common.errors import DelianError

if TYPE_CHECKING:
    from ...core.statistics.site_rules import OwnerRules
    from ..settings import QuestionsConfig


def offered_tables(given: Sequence[str] | None) -> dict[str, dict[str, str]] | None:
    """The tables of `--table NAME=FILE`; None where there are none. Raises DelianError."""
    found = {}
    for text in given or ():
        name, equals, path = text.partition("=")
        if not equals or not name or not path:
            raise DelianError(f"--table {text}: this is not NAME=FILE", "--table patients=mine.csv")
        found[name] = {"path": path}
    return found or None


def question_rules(config: QuestionsConfig) -> OwnerRules:
    """The owner's rules for questions, with paths that mean the same in the answering process."""
    from ...core.statistics.site_rules import OwnerRules
    from ...core.statistics.sql.rows_data import Offered

    tables = {
        name: Offered(str(Path(each.path).expanduser().absolute()), each.columns, each.relation)
        for name, each in config.tables.items()
    }
    return OwnerRules(**{**dict(config), "tables": tables})
