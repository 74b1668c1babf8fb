"""The command that installs an extra, right for how Delian itself was installed."""

from __future__ import annotations

import functools
from pathlib import Path


def install(*extras: str) -> str:
    """`pip install '...[extras]'`: from the checkout, the repository or the index that it is from.

    The source is what pip recorded (PEP 610, direct_url.json).
    """
    wanted = f"[{','.join(extras)}]"
    source = _source()
    if source == "index":
        return f"pip install 'delian{wanted}'"
    if "://" in source:
        return f"pip install 'delian{wanted} @ {source}'"
    return f"pip install '{source}{wanted}'"


@functools.cache
def _source() -> str:
    """`index`, the address of a repository or archive, or a folder; `.` where it has gone."""
    # Here, for they load much, and a device's training process loads this module.
    import json
    from importlib.metadata import PackageNotFoundError, distribution
    from urllib.parse import unquote, urlparse

    checkout = Path(__file__).resolve().parents[2]
    if (checkout / "pyproject.toml").is_file():
        return str(checkout)
    try:
        recorded = distribution("delian").read_text("direct_url.json")
        said = json.loads(recorded) if recorded else {}
        url = str(said.get("url", ""))
        if not url:
            return "index"
        if "vcs_info" in said:
            return f"{said['vcs_info']['vcs']}+{url}"
        if "dir_info" not in said:
            return url
        folder = unquote(urlparse(url).path)
        return folder if Path(folder, "pyproject.toml").is_file() else "."
    except (PackageNotFoundError, ValueError, KeyError, TypeError, OSError):
        return "."
