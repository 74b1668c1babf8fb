"""What a data source loads into the process that asks for it."""

from __future__ import annotations

import subprocess
import sys


def test_an_agent_loads_no_package_to_ask_for_versions(tmp_path):
    """It lives for months on small devices; the training process loads what reads the data."""
    path = tmp_path / "rows.parquet"
    path.write_bytes(b"PAR1")
    code = (
        "import sys; from delian.core.learning.data.sources import *;"
        f"s = DataSettings({str(path)!r}); check_source(s); assert version_of(s);"
        "assert not {'pyarrow', 'PIL', 'datasets', 'torch'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
