"""What waits for the cloud: its order, its limits, and that it survives."""

from __future__ import annotations

import os
import threading

import pytest
from delian.core.common.errors import DelianError
from delian.edge.service import outbox as module
from delian.edge.service.outbox import Outbox, Priority


class Clock:
    now = 1_000_000

    def __call__(self) -> int:
        return self.now


def contents(box: Outbox, rows: int = 100) -> list[bytes]:
    return [item.content for item in box.take(rows)]


def test_the_important_goes_first_and_among_equals_the_oldest(tmp_path):
    box = Outbox(tmp_path / "o.db")
    for content, priority in ((b"t1", 0), (b"s1", 3), (b"p1", 1), (b"s2", 3), (b"t2", 0)):
        assert box.put(content, priority)
    assert contents(box) == [b"s1", b"s2", b"p1", b"t1", b"t2"]
    assert contents(box, rows=2) == [b"s1", b"s2"]
    taken = box.take(3)
    assert box.count() == 5, "what was not confirmed is still there"
    box.done([item.id for item in taken])
    assert contents(box) == [b"t1", b"t2"]
    box.close()
    box.close()


def test_a_key_replaces_what_had_it(tmp_path):
    box = Outbox(tmp_path / "o.db")
    box.put(b"old", Priority.STATE, key="hello")
    box.put(b"other", Priority.STATE)
    box.put(b"new", Priority.STATE, key="hello")
    assert contents(box) == [b"other", b"new"]


def test_a_full_outbox_loses_the_least_important_and_of_these_the_oldest(tmp_path):
    row = 1000 + module._ROW_BYTES
    box = Outbox(tmp_path / "o.db", bytes_max=4 * row)
    for i, priority in enumerate((0, 3, 0, 1)):
        assert box.put(b"%d" % i * 1000, priority)
    assert box.put(b"4" * 1000, 1)
    assert [c[:1] for c in contents(box)] == [b"1", b"3", b"4", b"2"]
    assert not box.put(b"5" * 4000, 0), "less important than all that is there"
    assert box.put(b"6" * 3 * 1000, 2)
    assert [c[:1] for c in contents(box)] == [b"1", b"6"]
    assert box.evicted >= 4 and box.size() <= 4 * row
    assert not box.put(b"x" * (module.ITEM_BYTES_MAX + 1), 3)
    assert box.refused == 1


def test_what_nobody_wants_any_more_is_not_sent(tmp_path):
    clock = Clock()
    box = Outbox(tmp_path / "o.db", now_ms=clock)
    box.put(b"brief", Priority.SUM, valid_ms=50)
    box.put(b"long", Priority.SUM, valid_ms=5_000)
    box.put(b"ever", Priority.TELEMETRY)
    clock.now += 50
    assert contents(box) == [b"long", b"ever"]
    clock.now += 10_000_000
    assert contents(box) == [b"ever"]
    assert box.expired == 2


def test_one_batch_has_its_own_limit_and_always_something_in_it(tmp_path):
    box = Outbox(tmp_path / "o.db")
    for _ in range(3):
        box.put(b"x" * 1000, 0)
    assert len(box.take(bytes_max=10)) == 1
    assert len(box.take(bytes_max=2500)) == 2
    assert Outbox(tmp_path / "empty.db").take() == []


def test_a_damaged_file_is_set_aside(tmp_path):
    path = tmp_path / "o.db"
    path.write_bytes(os.urandom(8192))
    box = Outbox(path)
    assert box.put(b"x", 1) and contents(box) == [b"x"]
    assert (tmp_path / "o.damaged").exists()
    with pytest.raises(DelianError, match="cannot be opened"):
        Outbox(path / "within a file" / "o.db")
    with pytest.raises(DelianError):
        Outbox(path, bytes_max=0)


class Held:
    """A connection in which one thread's transaction stops behind its first statement, until
    another thread has got as far, or cannot.
    """

    def __init__(self, db) -> None:
        self._db, self.begun, self.other = db, threading.Event(), threading.Event()

    def __getattr__(self, name):
        return getattr(self._db, name)

    def __enter__(self):
        return self._db.__enter__() and self

    def __exit__(self, *fault):
        return self._db.__exit__(*fault)

    def execute(self, sql, *values):
        done = self._db.execute(sql, *values)
        if sql.startswith("DELETE FROM outbox WHERE key"):
            if self.begun.is_set():
                self.other.set()
            self.begun.set()
            self.other.wait(1.0)
        return done


def test_two_threads_that_put_the_same_message_lose_none(tmp_path):
    box = Outbox(tmp_path / "o.db")
    box._db = held = Held(box._db)
    kept = []

    def put() -> None:
        kept.append(box.put(b"sum", Priority.SUM, key="sum 1"))

    first, second = threading.Thread(target=put), threading.Thread(target=put)
    first.start()
    assert held.begun.wait(60)
    second.start()
    first.join()
    second.join()
    assert kept == [True, True] and contents(box) == [b"sum"]
