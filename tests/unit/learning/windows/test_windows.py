"""Windows of stored rows, trainings over them, and what a training goes on from."""

from __future__ import annotations

import dataclasses
import math
import threading
import tracemalloc

import numpy as np
import pytest
from delian.core.common.errors import DelianError
from delian.core.compiler import random
from delian.core.learning import Classification, FedAvg, Samples, SampleSet
from delian.core.learning.build.bundle_builder import build
from delian.core.learning.bundle import Leaf
from delian.core.learning.data.fit import MisfitError, fit
from delian.core.learning.data.rows import NoDataError, Rows
from delian.core.learning.data.stored_rows import HeldRows, StoredArrays
from delian.core.learning.nn import Mlp, adam
from delian.core.learning.runtime import Runtime
from delian.core.learning.windows.reading_thread import ReadingThread
from delian.core.learning.windows.window_checkpoint import Checkpoint, Subject
from delian.core.learning.windows.window_rows import UnreadableError, WindowRows
from delian.core.learning.windows.window_training import (
    first_rows,
    scores,
    subject_of,
    train,
)

KEY = random.key(9)
CAPACITY = 16
WANTED = (
    Leaf("data.x", "f32", (CAPACITY, 3)),
    Leaf("data.y", "i32", (CAPACITY,)),
    Leaf("data.support", "i64", ()),
    Leaf("data.query", "i64", ()),
)


def some_rows(count: int, query: np.ndarray | None = None) -> Rows:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(count, 3)).astype(np.float32)
    x[:, 0] = np.arange(count)
    return Rows(x, np.arange(count) % 2, query)


def windows(rows, fraction: float = 0.25, bytes_max: int = 1 << 20) -> WindowRows:
    stored = HeldRows(rows, 1) if isinstance(rows, Rows) else rows
    return WindowRows(stored, WANTED, classes=2, query_fraction=fraction, bytes_max=bytes_max)


def numbers(window) -> list[int]:
    """The numbers of a window's rows, which the rows carry."""
    return [int(x) for x in window.arrays[0][: window.rows, 0]]


# ---------------------------------------------------------------- windows


def test_each_row_is_trained_on_once_a_pass_or_judges_and_never_both():
    made = windows(some_rows(100))
    for epoch in range(2):
        trained = []
        for window in range(made.windows.count):
            trained += numbers(made.training(KEY, epoch, window, made.buffers()))
        judged = [n for w in made.judging([made.buffers()]) for n in numbers(w)]
        assert sorted(trained + judged) == list(range(100))
        assert judged == sorted(judged)
    assert 10 < len(judged) < 40


def test_rows_judge_that_would_judge_in_one_call():
    """Of data that fits: the split of a row is its own, whatever reads it."""
    rows = some_rows(60)
    wide = tuple(
        dataclasses.replace(leaf, shape=(60, *leaf.shape[1:])) if leaf.shape else leaf
        for leaf in WANTED
    )
    x, _, support, query = fit(rows, wide, classes=2, query_fraction=0.25)
    made = windows(rows)
    judged = [n for w in made.judging([made.buffers()]) for n in numbers(w)]
    assert judged == [int(n) for n in x[int(support) : int(support) + int(query), 0]]


def test_windows_that_judge_are_full_but_for_the_last():
    made = windows(some_rows(400), fraction=0.5)
    sizes = [w.rows for w in made.judging([made.buffers(), made.buffers()])]
    assert set(sizes[:-1]) == {CAPACITY}
    assert 0 < sizes[-1] <= CAPACITY


def test_the_datas_own_split_is_kept():
    query = np.arange(50) % 10 == 0
    made = windows(some_rows(50, query))
    judged = [n for w in made.judging([made.buffers()]) for n in numbers(w)]
    assert judged == [0, 10, 20, 30, 40]


def test_a_window_is_the_same_whatever_was_in_its_buffer():
    made, used = windows(some_rows(100)), None
    fresh = made.training(KEY, 0, 5, made.buffers()).arrays
    used = made.buffers()
    for window in (0, 1, 5):
        dirty = made.training(KEY, 0, window, used).arrays
    for a, b in zip(fresh, dirty, strict=True):
        np.testing.assert_array_equal(a, b)
    assert int(fresh[3]) == 0 < int(fresh[2]) < CAPACITY
    assert not fresh[0][int(fresh[2]) :].any()


def test_rows_that_do_not_fit_are_named():
    rows = some_rows(100)
    rows.y[37] = 5
    made = windows(rows)
    with pytest.raises(UnreadableError, match=r"rows 0..99: row 37 has a label"):
        list(made.judging([made.buffers()]))


def test_whatever_a_source_raises_is_an_error_of_its_rows():
    class Broken(HeldRows):
        def read(self, start: int, stop: int) -> Rows:
            raise KeyError("shard 7")

    made = windows(Broken(some_rows(100)))
    with pytest.raises(UnreadableError, match=r"KeyError: 'shard 7'"):
        made.training(KEY, 0, 0, made.buffers())

    class Short(HeldRows):
        def read(self, start: int, stop: int) -> Rows:
            return HeldRows.read(self, start, stop - 1)

    with pytest.raises(UnreadableError, match="99 rows came"):
        list(windows(Short(some_rows(100))).judging([made.buffers()]))


def test_windows_that_take_too_much_memory_are_refused_before_they_are_made():
    tracemalloc.start()
    try:
        large = (Leaf("data.x", "f32", (1 << 20, 1 << 16)), *WANTED[1:])
        with pytest.raises(DelianError, match="2 windows of rows takes 549755814016 bytes"):
            WindowRows(
                HeldRows(some_rows(9)), large, classes=2, query_fraction=0.2, bytes_max=1 << 30
            )
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_episodes_have_no_windows():
    images = (Leaf("data.images", "u8", (5, 4, 2, 2)), Leaf("data.characters", "i64", ()))
    with pytest.raises(MisfitError, match="episodes, and not rows"):
        WindowRows(HeldRows(some_rows(9)), images, classes=2, query_fraction=0.2, bytes_max=99)


# ---------------------------------------------------------------- training


@pytest.fixture(scope="module")
def bundle():
    task = Classification("t", lambda key: Mlp.init(key, 3, (4,), 2), Samples(4, 1.0))
    example = np.zeros((2, 3), np.float32)
    empty = np.zeros((CAPACITY, 3), np.float32), np.zeros(CAPACITY, np.int32)
    return build(
        task,
        FedAvg(epochs=2, local=adam(0.01), personal_steps=2),
        SampleSet(*empty, np.array(8), np.array(3)),
        example=example,
        clients_max=4,
        weight_max=100.0,
        seed=1,
        clip=5.0,
        windows=True,
    )


@pytest.fixture(scope="module")
def runtime(bundle):
    return Runtime(bundle, "reference")


def test_a_training_goes_on_from_any_window_to_the_same_bits(runtime, bundle):
    made, taken = windows(some_rows(70)), []

    def keep(place, carry) -> None:
        subject = subject_of("b", bundle.weights, None, KEY, made)
        checkpoint = Checkpoint(subject, place.epoch, place.window, list(carry))
        taken.append((subject, checkpoint.to_bytes()))

    whole = train(runtime, bundle.weights, made, KEY, passed=keep)
    assert len(taken) == 2 * made.windows.count
    assert whole.update.finite
    for subject, record in taken:
        resumed = Checkpoint.parse(record, subject, bundle.manifest.carry)
        again = train(runtime, bundle.weights, windows(some_rows(70)), KEY, resumed=resumed)
        np.testing.assert_array_equal(again.update.vector, whole.update.vector)
        assert (again.update.loss, again.rows) == (whole.update.loss, whole.rows)


def test_reading_ahead_changes_nothing_but_the_thread_that_reads(runtime, bundle):
    class Threads(HeldRows):
        seen: set[str]

        def read(self, start: int, stop: int) -> Rows:
            self.seen.add(threading.current_thread().name)
            return HeldRows.read(self, start, stop)

    plain = train(runtime, bundle.weights, windows(some_rows(70)), KEY)
    source = Threads(some_rows(70), 1)
    source.seen = set()
    reading = ReadingThread()
    reading.start()
    try:
        ahead = train(runtime, bundle.weights, windows(source), KEY, reading=reading)
    finally:
        reading.close()
    assert source.seen == {"delian-reading"}
    np.testing.assert_array_equal(ahead.update.vector, plain.update.vector)


def test_an_error_of_the_reading_thread_is_that_of_the_training(runtime, bundle):
    rows = some_rows(70)
    rows.y[69] = 9
    reading = ReadingThread()
    reading.start()
    try:
        with pytest.raises(UnreadableError, match="has a label that"):
            train(runtime, bundle.weights, windows(rows), KEY, reading=reading)
    finally:
        reading.close()


def test_what_a_thread_does_first_may_fail():
    def refuse() -> None:
        raise OSError("no walls")

    reading = ReadingThread()
    with pytest.raises(OSError, match="no walls"):
        reading.start(refuse)
    reading.close()


def test_data_of_equal_rows_has_none_on_one_side(runtime, bundle):
    same = Rows(np.zeros((40, 3), np.float32), np.zeros(40, np.int64))
    made = windows(same, fraction=0.999)
    with pytest.raises(NoDataError, match="none of 40 rows is trained on"):
        train(runtime, bundle.weights, made, KEY)


def test_scores_are_the_sums_over_all_rows_that_judge(runtime, bundle):
    made = windows(some_rows(200))
    model = runtime.model_of(bundle.weights)
    (score,) = scores(runtime, [model], made, KEY)
    parts = [runtime.evaluate(model, w.arrays, KEY) for w in made.judging([made.buffers()])]
    assert len(parts) > 1
    assert score.count == sum(part.count for part in parts)
    assert score.loss == pytest.approx(sum(part.loss for part in parts))
    _, _, support, query = first_rows(made, KEY)
    assert int(support) > 0 == int(query)


def test_a_bundle_without_windows_says_so(bundle):
    plain = dataclasses.replace(
        bundle, manifest=dataclasses.replace(bundle.manifest, carry=(), passes=0)
    )
    with pytest.raises(DelianError, match="trains on rows in memory"):
        train(Runtime(plain, "reference"), bundle.weights, windows(some_rows(70)), KEY)


def sparse(path, dtype: str, *shape: int) -> None:
    """An .npy file of zeros that takes no room on a disk."""
    with path.open("wb") as file:
        header = {"descr": dtype, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        file.truncate(file.tell() + math.prod(shape) * np.dtype(dtype).itemsize)


@pytest.mark.parametrize("rows", [5_000_000, 1 << 33])
def test_memory_is_that_of_two_windows_whatever_the_data(tmp_path, rows):
    """Sparse files of 600 MB, and of 1.03 TB."""
    sparse(tmp_path / "x.npy", "<f4", rows, 30)
    sparse(tmp_path / "y.npy", "|u1", rows)
    large = tuple(
        dataclasses.replace(leaf, shape=(1 << 13, *leaf.shape[1:])) if leaf.shape else leaf
        for leaf in (Leaf("data.x", "f32", (CAPACITY, 30)), *WANTED[1:])
    )
    tracemalloc.start()
    try:
        made = WindowRows(
            StoredArrays(tmp_path), large, classes=2, query_fraction=0.2, bytes_max=1 << 22
        )
        into = made.buffers()
        seen = [
            made.training(KEY, 0, window, into).rows for window in (0, 1, made.windows.count - 1)
        ]
        assert all(seen)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


# ---------------------------------------------------------------- checkpoints

SUBJECT = Subject("b", "w", "", (1, 2), 7, 100)
CARRY = (Leaf("carry.a", "f32", (2, 3)), Leaf("carry.seen.support", "i64", ()))


def record(subject: Subject = SUBJECT) -> bytes:
    leaves = [np.arange(6, dtype=np.float32).reshape(2, 3), np.array(41)]
    return Checkpoint(subject, 3, 5, leaves).to_bytes()


def test_a_checkpoint_keeps_its_place_and_its_carry():
    found = Checkpoint.parse(record(), SUBJECT, CARRY)
    assert (found.epoch, found.window) == (3, 5)
    np.testing.assert_array_equal(found.carry[0], np.arange(6).reshape(2, 3))
    assert found.carry[1] == 41
    assert [leaf.dtype for leaf in found.carry] == [np.float32, np.int64]


@pytest.mark.parametrize(
    "other",
    [
        {"bundle": "c"},
        {"weights": "v"},
        {"key": (1, 3)},
        {"version": 8},
        {"rows": 99},
        {"kept": "k"},
    ],
)
def test_a_checkpoint_of_another_training_is_none_of_this_one(other):
    assert Checkpoint.parse(record(), dataclasses.replace(SUBJECT, **other), CARRY) is None


def test_data_whose_version_is_unknown_has_no_checkpoint():
    unknown = dataclasses.replace(SUBJECT, version=None)
    assert Checkpoint.parse(record(unknown), unknown, CARRY) is None


@pytest.mark.parametrize("damage", [lambda r: r[:-1], lambda r: b"", lambda r: b"x" + r[1:]])
def test_a_damaged_checkpoint_is_refused(damage):
    with pytest.raises(DelianError, match="damaged"):
        Checkpoint.parse(damage(record()), SUBJECT, CARRY)


def test_a_checkpoint_with_another_carry_is_refused():
    with pytest.raises(DelianError, match="too short a carry"):
        Checkpoint.parse(record(), SUBJECT, (*CARRY, CARRY[0]))
    with pytest.raises(DelianError, match="too long a carry"):
        Checkpoint.parse(record(), SUBJECT, CARRY[1:])
