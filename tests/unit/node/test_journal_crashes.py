"""The journal on a disk that fails: whatever was acknowledged is there afterwards, and nothing that
was not asked for."""

from __future__ import annotations

import contextlib
import hashlib
import itertools

import pytest
from delian.core.node.storage.memory_storage import MemoryDisk
from delian.core.node.storage.segments import JournalError, Segments
from delian.core.protocol.random_streams import Streams
from hypothesis import given, settings
from hypothesis import strategies as st


class Stopped(BaseException):
    """The process, or the machine, ends here."""


class Countdown:
    """Stops the disk at its n-th operation from now."""

    def __init__(self) -> None:
        self.left: int | None = None

    def __call__(self, operation: str) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                self.left = None
                raise Stopped


def salts(seed: bytes = b""):
    numbers = itertools.count()
    return lambda size: hashlib.sha256(seed + b"%d" % next(numbers)).digest()[:size]


class Node:
    """Somebody who uses a journal, and remembers what it must hold."""

    def __init__(self, seed: int, segment_bytes_max: int) -> None:
        self.countdown = Countdown()
        self.disk = MemoryDisk(self.countdown)
        self.salts = salts(b"%d" % seed)
        self.segment_bytes_max = segment_bytes_max
        self.rng = Streams(seed)
        self.entries: list[bytes] = []  # acknowledged
        self.asked: list[bytes] = []  # of the append that was interrupted
        self.snapshots = False
        self.journal = self.open()
        self.journal.load()

    def open(self) -> Segments:
        return Segments(self.disk, self.salts, self.segment_bytes_max)

    def append(self, sizes: list[int]) -> None:
        first = len(self.entries)
        self.asked = [b"%d." % (first + i) * size for i, size in enumerate(sizes)]
        self.journal.append(self.asked)
        self.entries += self.asked
        self.asked = []

    def checkpoint(self) -> None:
        self.journal.checkpoint(b"%d" % len(self.entries))

    def recover(self) -> None:
        self.journal = self.open()
        snapshot, after = self.journal.load()
        covered = 0 if snapshot is None else int(snapshot)
        assert covered <= len(self.entries)
        whole = self.entries[:covered] + after
        # All that was acknowledged; of what was not, all or nothing.
        assert whole in (self.entries, self.entries + self.asked)
        self.entries, self.asked = whole, []


STEPS = st.one_of(
    st.lists(st.integers(0, 400), min_size=1, max_size=4),
    st.just("checkpoint"),
    st.tuples(st.sampled_from(["killed", "power fails"]), st.integers(0, 7)),
)


@settings(max_examples=400, deadline=None)
@given(st.integers(0, 2**32), st.lists(STEPS, max_size=30), st.sampled_from([1, 900, 10**6]))
def test_after_any_crash_all_that_was_acknowledged_is_there(seed, steps, segment_bytes_max):
    node = Node(seed, segment_bytes_max)
    due = ""
    for step in [*steps, ("power fails", 0), [1]]:
        if isinstance(step, tuple):
            due, node.countdown.left = step
            continue
        try:
            if due == "power fails" and node.countdown.left == 0:
                raise Stopped
            node.checkpoint() if step == "checkpoint" else node.append(step)
        except Stopped:
            node.countdown.left = None
            if due == "power fails":
                node.disk.crash(node.rng)
            due = ""
            node.recover()


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.lists(st.integers(0, 5), min_size=1, max_size=6))
def test_a_recovery_that_is_itself_interrupted_loses_nothing(seed, stops):
    node = Node(seed, 900)
    for sizes in ([3], [200, 100], [1], [300]):
        node.append(sizes)
    node.checkpoint()
    node.append([50, 50])
    node.countdown.left = stops[0]
    with contextlib.suppress(Stopped):
        node.append([20])
        node.append([20])
        node.append([20])
    for stop in stops:
        node.disk.crash(node.rng)
        node.countdown.left = stop
        with contextlib.suppress(Stopped):
            node.recover()
            node.append([20])
    node.countdown.left = None
    node.recover()


def test_a_journal_that_was_interrupted_takes_nothing_more():
    node = Node(1, 900)
    node.append([3])
    node.countdown.left = 0
    with pytest.raises(Stopped):
        node.append([3])
    with pytest.raises(JournalError, match="interrupted"):
        node.append([3])
    with pytest.raises(JournalError, match="interrupted"):
        node.checkpoint()
    node.recover()


@pytest.mark.parametrize("room", range(0, 720, 17))
def test_a_full_disk_is_an_error_and_leaves_what_was_acknowledged(room):
    node = Node(7, 600)
    node.disk.bytes_max = room
    with pytest.raises(JournalError, match="No space left"):
        for i in range(40):
            node.append([30])
            if i % 5 == 4:
                node.checkpoint()
    acknowledged = list(node.entries)
    with pytest.raises(JournalError, match="takes nothing"):
        node.append([1])
    node.asked = [b"%d." % len(acknowledged) * 30]
    node.disk.bytes_max = None
    node.recover()
    node.append([5])
    node.recover()
    assert node.entries[: len(acknowledged)] == acknowledged


def written(*appends: int, segment_bytes_max: int = 10**6) -> tuple[MemoryDisk, Segments]:
    disk = MemoryDisk()
    journal = Segments(disk, salts(), segment_bytes_max)
    journal.load()
    for number, size in enumerate(appends):
        journal.append([b"%d" % number * size])
    return disk, Segments(disk, salts(b"x"), segment_bytes_max)


def test_a_torn_tail_is_left_out_wherever_it_ends():
    disk, _ = written(30, 30)
    whole = disk.read("log-00000000000000000001")
    for end in range(len(whole) - 30, len(whole)):
        torn = MemoryDisk()
        torn.append("log-00000000000000000001", [whole[:end]])
        journal = Segments(torn, salts(b"y"))
        assert journal.load() == (None, [b"0" * 30])
        journal.append([b"next"])
        again = Segments(torn, salts(b"z"))
        assert again.load() == (None, [b"0" * 30, b"next"])


@pytest.mark.parametrize("segment_bytes_max", [1, 10**6])
def test_damage_in_the_middle_is_an_error_that_says_where_and_touches_nothing(segment_bytes_max):
    sizes = (30, 31, 32)
    clean, _ = written(*sizes, segment_bytes_max=segment_bytes_max)
    for name in clean.list():
        if name == "mark":
            continue
        for offset in range(len(clean.read(name))):
            disk, journal = written(*sizes, segment_bytes_max=segment_bytes_max)
            disk.damage(name, offset)
            before = {n: disk.read(n) for n in disk.list()}
            with pytest.raises(JournalError, match=rf"{name} at byte \d+") as caught:
                journal.load()
            assert caught.value.hint
            assert {n: disk.read(n) for n in disk.list()} == before
            with pytest.raises(JournalError):
                journal.append([b"more"])


@pytest.mark.parametrize("segment_bytes_max", [1, 10**6])
def test_a_log_that_ends_before_what_was_acknowledged_is_refused(segment_bytes_max):
    clean, _ = written(30, 31, 32, segment_bytes_max=segment_bytes_max)
    *_, last = (name for name in clean.list() if name != "mark")
    for end in range(len(clean.read(last))):
        disk = _copy(clean, last, end)
        before = {name: disk.read(name) for name in disk.list()}
        with pytest.raises(JournalError, match="3 were acknowledged"):
            Segments(disk, salts()).load()
        assert {name: disk.read(name) for name in disk.list()} == before
    clean.remove(last)
    with pytest.raises(JournalError, match="3 were acknowledged"):
        Segments(clean, salts()).load()


def test_damage_that_the_mark_cannot_tell_from_a_torn_write_is_said():
    clean, _ = written(30, 31)
    name = "log-00000000000000000001"
    for content in (None, b"", b"x" * 20):  # as a power failure may leave the mark
        disk = _copy(clean, name, len(clean.read(name)) - 1)
        disk.remove("mark")
        if content is not None:
            disk.put("mark", content)
        journal = Segments(disk, salts())
        assert journal.load() == (None, [b"0" * 30])
        said = ["half a record"] if content is None else ["mark is damaged", "half a record"]
        assert all(word in remark for word, remark in zip(said, journal.remarks, strict=True))
        journal.append([b"next"])
        again = Segments(disk, salts(b"y"))
        assert again.load() == (None, [b"0" * 30, b"next"]) and not again.remarks


def _copy(disk: MemoryDisk, cut: str, end: int) -> MemoryDisk:
    """A disk with the same files, one of them cut."""
    made = MemoryDisk()
    for name in disk.list():
        made.append(name, [disk.read(name)[: end if name == cut else None]])
    return made


def test_a_missing_segment_is_an_error():
    disk, journal = written(5, 5, 5, segment_bytes_max=1)
    disk.remove("log-00000000000000000002")
    with pytest.raises(JournalError, match="does not begin with entry 2"):
        journal.load()


def test_a_damaged_snapshot_is_not_taken_for_a_new_node():
    disk, journal = written(5, 5)
    journal.load()
    journal.checkpoint(b"state")
    for offset in range(len(disk.read("snapshot-00000000000000000002"))):
        disk.damage("snapshot-00000000000000000002", offset)
        with pytest.raises(JournalError, match="snapshot"):
            Segments(disk, salts()).load()
        disk.damage("snapshot-00000000000000000002", offset)
    assert Segments(disk, salts()).load() == (b"state", [])


def test_a_damaged_snapshot_is_passed_over_while_its_entries_are_there():
    disk, journal = written(5, 5)
    journal.load()
    kept = {name: disk.read(name) for name in disk.list()}
    journal.checkpoint(b"state")
    disk.damage("snapshot-00000000000000000002", 34)
    for name, content in kept.items():
        disk.append(name, [content])
    assert Segments(disk, salts()).load() == (None, [b"0" * 5, b"1" * 5])


def test_a_damaged_first_snapshot_is_not_taken_for_a_new_node():
    disk, journal = written()
    journal.load()
    journal.checkpoint(b"new")
    disk.damage("snapshot-00000000000000000000", 3)
    with pytest.raises(JournalError, match="snapshot"):
        Segments(disk, salts()).load()


def test_an_entry_that_holds_a_record_does_not_pass_for_one():
    disk, journal = written(5)
    record = disk.read("log-00000000000000000001")[36:]
    journal.load()
    journal.append([record * 3])
    name = "log-00000000000000000002"
    torn = disk.read(name)
    disk.remove(name)
    disk.remove("mark")  # of before the append
    disk.append(name, [torn[:-1]])
    assert Segments(disk, salts(b"z")).load() == (None, [b"0" * 5])


def test_what_is_too_large_is_refused_before_anything_is_written():
    class Large(bytes):
        def __len__(self) -> int:
            return 2**31

    disk, journal = written(5)
    journal.load()
    with pytest.raises(JournalError, match="too much"):
        journal.append([b"", Large()])
    journal.append([b"fine"])
    assert Segments(disk, salts()).load() == (None, [b"0" * 5, b"fine"])
