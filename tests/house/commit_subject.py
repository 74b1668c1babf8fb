"""Checks a commit message's first line: `area: what it does`, at most 72 characters.

python tests/house/commit_subject.py FILE      exit code 1, and why, where it is not
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

LENGTH_MAX = 72
_FORM = re.compile(r"(?:[a-z0-9_.-]+(?:[ /,]+[a-z0-9_.-]+)*: \S|Merge |Revert |fixup! |squash! )")


def fault(subject: str) -> str:
    """What is wrong with a subject; empty: nothing."""
    if len(subject) > LENGTH_MAX:
        return f"the subject has {len(subject)} characters, more than {LENGTH_MAX}"
    if not _FORM.match(subject):
        return "the subject is not `area: what it does` with a lower-case area"
    return ""


if __name__ == "__main__":
    first = Path(sys.argv[1]).read_text(encoding="utf-8").partition("\n")[0]
    if why := fault(first):
        sys.exit(f"{first!r}: {why}")
