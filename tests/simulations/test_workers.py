from __future__ import annotations

import threading

import pytest
from delian.simulations.workers import Workers


def test_results_come_back_whoever_made_them():
    with Workers(3, "test") as workers:
        pending = [workers.submit(lambda i=i: i * i) for i in range(20)]
        assert [p.result() for p in pending] == [i * i for i in range(20)]


def test_what_the_work_raises_is_raised_where_its_result_is_asked_for():
    with Workers(1, "test") as workers:
        failing = workers.submit(lambda: 1 // 0)
        following = workers.submit(lambda: 7)
        with pytest.raises(ZeroDivisionError):
            failing.result()
        assert following.result() == 7


def test_what_is_called_off_before_its_turn_is_never_done():
    go, done = threading.Event(), []
    with Workers(1, "test") as workers:
        first = workers.submit(lambda: go.wait(60))
        second = workers.submit(lambda: done.append(2))
        third = workers.submit(lambda: done.append(3))
        assert second.cancel()
        go.set()
        assert first.result()
        third.result()
    assert done == [3]


def test_leaving_waits_for_what_was_submitted():
    done = []
    with Workers(2, "test") as workers:
        for i in range(10):
            workers.submit(lambda i=i: done.append(i))
    assert sorted(done) == list(range(10))
    assert not [t for t in threading.enumerate() if t.name.startswith("test-")]
