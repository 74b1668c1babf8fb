from __future__ import annotations

import threading

import pytest
from delian.simulations.federation.training import AHEAD_BYTES, AHEAD_MAX, are_helped
from delian.simulations.federation.training_threads import Workers


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


def held(workers, go):
    """Work that keeps the one thread until `go`; it has begun."""
    begun = threading.Event()
    pending = workers.submit(lambda: (begun.set(), go.wait(60))[1])
    assert begun.wait(60)
    return pending


def test_who_waits_does_what_waits_in_its_order():
    go, done = threading.Event(), []
    with Workers(2, "test", helped=True) as workers:
        first = held(workers, go)
        rest = [workers.submit(lambda i=i: done.append(i)) for i in range(3)]
        rest.append(workers.submit(go.set))
        assert first.result() and done == [0, 1, 2]
        assert [p.result() for p in rest] == [None] * 4


def test_what_others_work_raises_waits_for_who_asks():
    go = threading.Event()
    with Workers(2, "test", helped=True) as workers:
        first = held(workers, go)
        failing, _ = workers.submit(lambda: 1 // 0), workers.submit(go.set)
        assert first.result()
        with pytest.raises(ZeroDivisionError):
            failing.result()


def test_ctrl_c_in_others_work_ends_who_helps():
    go = threading.Event()

    def struck():
        go.set()
        raise KeyboardInterrupt

    with Workers(2, "test", helped=True) as workers:
        first = held(workers, go)
        workers.submit(struck)
        with pytest.raises(KeyboardInterrupt):
            first.result()


@pytest.mark.parametrize(
    ("threads", "bytes", "helped"),
    [
        (1, 100, False),
        (2, 100, True),
        (AHEAD_MAX, 100, True),
        (AHEAD_MAX + 1, 100, False),
        (2, AHEAD_BYTES // 2, True),
        (3, AHEAD_BYTES // 2, False),
        (2, AHEAD_BYTES, False),
    ],
)
def test_who_handles_events_trains_where_others_have_enough_to_go_on_with(threads, bytes, helped):
    assert are_helped(threads, bytes) is helped
