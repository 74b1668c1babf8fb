"""Planted bugs of the event loop and of stores, which no virtual world runs: tests find them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from delian.cloud.store import commits as commits
from delian.cloud.store import database_journal as database_journal
from delian.core.node.driver import effects as effects
from delian.core.node.driver.batches import Append
from delian.core.node.driver.driver import Driver
from delian.core.node.driver.effects import Effects
from delian.core.node.driver.timers import Timers
from delian.core.node.identity.pki import ledger as ledger
from delian.core.node.storage import segments
from delian.core.node.storage.blobs import FolderBlobs

from .planting import Patch

_TESTS = Path(__file__).parents[2]


@dataclass(frozen=True)
class StoreMutant:
    """A planted bug that one test of the default suite finds.

    test: its file and name, from the folder of all tests.
    """

    name: str
    what: str
    plant: Callable[[Patch], None]
    test: str

    @property
    def path(self) -> str:
        """The test as pytest takes it."""
        return str(_TESTS / self.test)


def found_by(test: str) -> Callable[[Callable[[Patch], None]], StoreMutant]:
    """Makes a mutant of the function that plants it."""

    def made(plant: Callable[[Patch], None]) -> StoreMutant:
        what = " ".join((plant.__doc__ or "").split())
        return StoreMutant(plant.__name__, what, plant, test)

    return made


@found_by(
    "unit/node/test_driver.py::"
    "test_nothing_leaves_before_it_is_durable_and_a_slow_disk_reorders_nothing"
)
def does_not_wait_for_the_append(patch: Patch) -> None:
    """The event loop's driver writes a batch after its effects."""
    carry_out = Driver._carry_out

    async def late(self: Any, steps: Any) -> None:
        steps = list(steps)
        await carry_out(self, iter([s for s in steps if not isinstance(s, Append)]))
        await carry_out(self, iter([s for s in steps if isinstance(s, Append)]))

    patch.setattr(Driver, "_carry_out", late)


@found_by("unit/node/test_driver_effects.py::test_a_stored_blob_is_checked_against_its_digest")
def keeps_whatever_arrives(patch: Patch) -> None:
    """A daemon keeps a blob whatever it hashes to."""

    async def keep(self: Any, effect: Any) -> bool:
        await self._blobs.put(effect.blob.content)
        return True

    patch.setattr(Effects, "_keep", keep)


@found_by(
    "unit/node/test_driver_effects.py::"
    "test_a_timer_that_is_cancelled_while_it_waits_in_the_inbox_does_not_fire"
)
def fires_cancelled_timers(patch: Patch) -> None:
    """A timer that was cancelled while it waited in the inbox reaches the machine."""
    patch.setattr(Timers, "take", lambda self, item: True)


@found_by(
    "unit/node/test_folder_blobs.py::"
    "test_a_blob_that_was_damaged_while_no_process_ran_is_not_here_and_can_come_again"
)
def trusts_the_names_of_blobs(patch: Patch) -> None:
    """A store takes a file for the blob that it is named after."""

    async def sound(self: Any, digest: bytes) -> bool:
        return True

    patch.setattr(FolderBlobs, "_is_sound", sound)


@found_by(
    "unit/node/test_journal_crashes.py::"
    "test_a_log_that_ends_before_what_was_acknowledged_is_refused"
)
def takes_a_cut_for_a_torn_end(patch: Patch) -> None:
    """A journal that was cut ends there in silence: its mark is not read."""
    patch.setattr(segments.Segments, "_read_mark", lambda self, names: 0)


@found_by("system/cloud/test_store.py::test_a_damaged_pack_is_found")
def trusts_packs(patch: Patch) -> None:
    """A coordinator takes any bytes for the entry that its database names."""

    patch.setattr(database_journal, "_fits", lambda *told: True)


@found_by("unit/cloud/test_store_damage.py::test_no_damage_of_the_log_gives_out_a_number_again")
def trusts_sqlite_to_have_all(patch: Patch) -> None:
    """A coordinator goes on with what SQLite makes of a damaged log: the mark is not read."""
    patch.setattr(commits.CommitCount, "lost", lambda self: 0)


@found_by("unit/identity/test_ledger.py::test_no_change_of_a_byte_and_no_cut_is_passed_over")
def takes_a_shorter_ledger(patch: Patch) -> None:
    """A CA whose ledger was cut at the end of a line has no entries after it."""
    patch.setattr(ledger.Ledger, "_check_end", lambda self, first: None)


@found_by(
    "unit/node/test_driver_effects.py::"
    "test_a_timer_whose_events_were_long_on_their_way_to_the_disk_waits_as_much_longer"
)
def counts_its_own_stall(patch: Patch) -> None:
    """A node that stood still counts that time as the silence of others."""
    patch.setattr(effects, "_missed", lambda stalled_ns: 0)


STORE_MUTANTS = [found for found in list(vars().values()) if isinstance(found, StoreMutant)]
