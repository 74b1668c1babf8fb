"""What a process imports to open a store."""

from __future__ import annotations

import subprocess
import sys

OPENING = """
import asyncio, sys
from delian.cloud.store.database import Database

async def main():
    await (await Database.open(sys.argv[1])).close()

asyncio.run(main())
print("alembic" in sys.modules)
"""


def test_alembic_is_imported_only_where_tables_change(tmp_path):
    def opened() -> str:
        command = [sys.executable, "-c", OPENING, tmp_path / "s.db"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    assert [opened(), opened()] == ["True", "False"]
