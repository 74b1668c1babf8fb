"""What a CA's folder knows for good.

The names that it has revoked, and the numbers that it has given out.

    denied.jsonl    a line for each revocation; never shortened
    numbers.jsonl   the last number of each role

Hold the folder's lock while calling anything here but `mark`.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path

from ..pki.certificates import NUMBER_BITS, NUMBER_MAX, IdentityError, Role
from ..pki.ledger import Entry, Ledger
from .deny_list import FOR_GOOD, NODES_MAX, DenyList, Name

log = logging.getLogger("delian.identity")

#: Numbers that are left out after a restore: more than were given out since the backup.
SKIPPED = 10_000
_HOLDER = re.compile(rf"({'|'.join(set(Role) - {Role.NOBODY})})-(0|[1-9][0-9]{{0,18}})")


def holder_of(name: str) -> Name | None:
    """Role and number of "device-5"; None: the text names no holder."""
    parts = _HOLDER.fullmatch(name.lower())
    if parts is None or int(parts[2]) > NUMBER_MAX:
        return None
    return Role(parts[1]), int(parts[2])


class Revocations:
    """The names that are revoked, in one file that grows by a line for each."""

    def __init__(self, folder: Path) -> None:
        self._ledger = Ledger(folder / "denied.jsonl")
        self._names: dict[Name, int] = {}
        self._version = 1  # 0 is what a node has that has no list
        self._serials: list[Entry] = []  # of the format before this one

    def mark(self) -> tuple[int, ...]:
        """Changes whenever the file does; may be asked without the lock."""
        return self._ledger.mark()

    def refresh(self) -> None:
        """Reads what other processes have added. Raises IdentityError when the file is damaged."""
        self._ledger.news(self._forget, self._take)

    def before(self, name: Name) -> int:
        """Certificates of that holder that begin before this Unix time are void."""
        return self._names.get(name, 0)

    def listed(self) -> DenyList:
        """The list of now, not signed."""
        return DenyList(self._version, dict(self._names))

    def numbers(self, role: Role) -> list[int]:
        """The revoked numbers of a role, of all authorities."""
        return [number for other, number in self._names if other is role]

    def add(self, name: Name, before: int, why: str, now_s: float) -> bool:
        """Revokes a name; durable on return. False: it was revoked before, and later."""
        if before <= self.before(name):
            return False
        entry = {
            "name": f"{name[0].value}-{name[1]}",
            "before": before,
            "version": self._next_version(now_s),
            "why": why[:256],
            "at": int(now_s),
        }
        self._ledger.append(entry)
        self._take(entry)
        return True

    def raise_version(self, now_s: float) -> int:
        """A version that is newer than any that this CA has given out by now; durable."""
        entry = {"version": self._next_version(now_s), "at": int(now_s)}
        self._ledger.append(entry)
        self._take(entry)
        return self._version

    def migrate(self, backdate_s: int, now_s: float) -> None:
        """Rewrites a file of the format that listed serial numbers.

        Each name of which a certificate was denied is revoked, the coordinator's up to that time.
        Raises IdentityError where a serial number stands without a name: its holder must be revoked
        by name.
        """
        if not self._serials:
            return
        unknown = [
            e for e in self._serials if e["name"] == "unknown" and int(e["not_after"]) > now_s
        ]
        if unknown:
            raise IdentityError(
                f"{self._ledger.path} denies the certificate {unknown[0]['serial']}, whose holder"
                " it does not name",
                'put the holder, as "device-5", in the place of "unknown" in that line',
            )
        names: dict[Name, Entry] = {}
        for entry in self._serials:
            holder = holder_of(str(entry["name"]))
            if holder is None:
                log.warning("not kept on the deny list: %s is no node", entry["name"])
                continue
            at = int(entry.get("at", now_s))
            before = at - backdate_s + 1 if holder[0] is Role.CLOUD else FOR_GOOD
            kept = {"name": entry["name"], "before": before, "at": at, "why": entry.get("why", "")}
            if holder not in names or names[holder]["before"] < before:
                names[holder] = kept
        for holder, before in self._names.items():
            name = f"{holder[0].value}-{holder[1]}"
            names[holder] = {"name": name, "before": before}
        version = self._next_version(now_s)
        entries = [{**entry, "version": version} for entry in names.values()]
        self._ledger.rewrite([{"version": version}, *entries])
        self._forget()
        for entry in entries:
            self._take(entry)
        self._version = version

    def _next_version(self, now_s: float) -> int:
        """Versions are Unix time where that is higher than the one before.

        A CA that was restored from a backup does not give another list a version that nodes have
        seen.
        """
        return max(self._version + 1, int(now_s))

    def _take(self, entry: Entry) -> None:
        self._version = max(self._version, int(entry["version"]))
        if "serial" in entry:
            self._serials.append(entry)
        elif "name" in entry:
            holder = holder_of(str(entry["name"]))
            if holder is None:
                raise ValueError("no holder")
            self._names[holder] = max(self.before(holder), int(entry["before"]))

    def _forget(self) -> None:
        self._names.clear()
        self._serials.clear()


class Numbers:
    """The last number of each role.

    The registry of nodes counts as well, in another place: a number is above both, so restoring one
    of the two from an older copy gives no number twice.
    """

    def __init__(self, folder: Path, authority: int = 0) -> None:
        """authority: whose numbers these are."""
        self._base = authority << NUMBER_BITS
        self._ledger = Ledger(folder / "numbers.jsonl")
        self._last: dict[str, int] = {}
        self._lines = 0

    def refresh(self) -> None:
        """Reads what other processes have added. Raises IdentityError when the file is damaged."""
        self._ledger.news(self._forget, self._take)

    def last(self, role: Role) -> int:
        """The largest number that was given out; one below `first`: none was."""
        return self._last.get(role.value, self._base)

    @property
    def first(self) -> int:
        """The first number of a role."""
        return self._base + 1

    def spare(self, reserved: int) -> int:
        """Numbers that can be given out yet, of all roles. reserved: that others may give out."""
        used = sum(number - self._base for number in self._last.values())
        return NODES_MAX - reserved - used

    def note(self, role: Role, number: int) -> None:
        """Records a number that is in use; durable on return."""
        if number > self.last(role):
            entry = {"role": role.value, "number": number}
            self._ledger.append(entry)
            self._take(entry)

    def give(self, role: Role, number: int, reserved: int = 0) -> None:
        """Gives a number out, durable on return.

        Raises IdentityError when it may have been given out before, or when there are no more: the
        deny list must have room for every name.
        """
        if number <= self.last(role):
            raise IdentityError(f"the number of {role.value}-{number} was given out before")
        if number - self.last(role) > self.spare(reserved):
            raise IdentityError(
                f"{NODES_MAX} numbers were given out or delegated, and a federation has no more",
                "make a new federation",
            )
        self.note(role, number)

    def compact(self) -> None:
        """Rewrites the file with a line for each role."""
        if self._lines > 2 * len(Role):
            lines = [{"role": role, "number": number} for role, number in self._last.items()]
            self._ledger.rewrite(lines)
            self._lines = len(lines)

    def _take(self, entry: Entry) -> None:
        role = str(entry["role"])
        self._last[role] = max(self._last.get(role, 0), int(entry["number"]))
        self._lines += 1

    def _forget(self) -> None:
        self._last.clear()
        self._lines = 0
