"""Pipelines: the order is a function of integers, and a place in it goes on to the same bits."""

from __future__ import annotations

import delian as dl
import numpy as np
import pytest
from delian.core.common.errors import DelianError
from delian.core.learning.data.formats.array_rows import ArrayRows
from delian.core.learning.data.packed import packed_writer
from delian.core.learning.data.pipeline.row_order import shuffled

ROWS = 103


def source(rows=ROWS):
    numbers = np.arange(rows, dtype=np.int32)
    return np.repeat(numbers[:, None], 3, 1).astype(np.uint8), numbers


def scaled(x):
    return (x.astype(np.float32) - np.float32(3.5)) / np.float32(1.25)


def pipelines():
    pipeline = dl.data.Pipeline(source())
    yield "plain", pipeline.batch(10)
    yield "shuffled", pipeline.shuffle().batch(10)
    yield "windows", pipeline.shuffle(window=32, block=4).batch(10)
    yield "shard", pipeline.shard(1, 3).shuffle().batch(10, partial=False)
    yield "repeated rows", pipeline.shuffle().repeat(3).batch(10)
    yield "repeated batches", pipeline.shuffle(window=20, block=5).batch(10).repeat(3)
    yield "random", pipeline.map(jittered, random=True).shuffle().batch(10).take(7)
    yield "cached", pipeline.map(scaled, on="x").cache().shuffle().batch(10)
    yield "compiled", pipeline.shuffle().batch(10).map(dl.compile(scaled), on="x")


def jittered(x, y, rng):
    return x + rng.normal(size=x.shape), y


def bits(items):
    return [tuple(column.tobytes() for column in item) for item in items]


PIPELINES = [pytest.param(p, id=name) for name, p in pipelines()]


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_a_place_goes_on_to_the_same_bits(pipeline):
    whole = bits(pipeline.run(7, 2, epoch=3))
    assert len(whole) == len(pipeline)
    for place in (0, 1, len(whole) - 1, len(whole)):
        reading = pipeline.run(7, 2, epoch=3)
        first = [next(reading) for _ in range(place)]
        state = reading.state()
        assert all(isinstance(n, int) for n in state)
        assert bits(first) + bits(pipeline.resume(state)) == whole


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_threads_change_nothing(pipeline):
    whole = bits(pipeline.run(7, 2))
    assert bits(pipeline.prefetch(5, threads=3).run(7, 2)) == whole
    with pipeline.prefetch(2).run(7, 2) as reading:
        next(reading)


@pytest.mark.parametrize("window", [None, 16, 40, 1000])
def test_every_row_once_an_epoch_in_another_order(window):
    pipeline = dl.data.Pipeline(source()).shuffle(window=window, block=5).batch(8)
    epochs = [np.concatenate([y for _, y in pipeline.run(1, epoch=e)]) for e in range(3)]
    for seen in epochs:
        np.testing.assert_array_equal(np.sort(seen), np.arange(ROWS))
    assert not any(np.array_equal(epochs[0], other) for other in epochs[1:])
    others = np.concatenate([y for _, y in pipeline.run(2)])
    assert not np.array_equal(epochs[0], others)


def test_repeated_epochs_are_those_of_one_run_each():
    pipeline = dl.data.Pipeline(source()).shuffle().batch(10)
    apart = [item for epoch in (0, 1) for item in bits(pipeline.run(5, epoch=epoch))]
    assert bits(pipeline.repeat(2).run(5)) == apart


def test_an_order_keeps_its_bits():
    """Of a later version too: a place in it may be in a journal."""
    assert shuffled(8, 1, 2).tolist() == [4, 2, 0, 3, 1, 7, 5, 6]
    assert np.array_equal(np.sort(shuffled(1000, 3)), np.arange(1000))


def test_shards_are_all_rows_once():
    pipeline = dl.data.Pipeline(source())
    seen = [y for k in range(4) for _, y in pipeline.shard(k, 4)]
    assert seen == list(range(ROWS))


def test_maps_of_rows_and_batches_agree_with_numpy():
    x, y = source()
    for step in (
        dl.data.Pipeline((x, y)).map(scaled, on="x").batch(10),
        dl.data.Pipeline((x, y)).batch(10).map(scaled, on="x"),
        dl.data.Pipeline((x, y)).batch(10).map(dl.compile(scaled), on="x"),
        dl.data.Pipeline((x, y)).batch(10).map(lambda a, b: (scaled(a), b)),
    ):
        np.testing.assert_array_equal(np.concatenate([a for a, _ in step]), scaled(x))
        np.testing.assert_array_equal(np.concatenate([b for _, b in step]), y)


IN_MEMORY = {
    "arrays": lambda rows: rows.shuffle(),
    "a shard": lambda rows: rows.shard(1, 3).shuffle().repeat(2),
    "a cache": lambda rows: rows.cache().shuffle(),
    "a cache that is too small": lambda rows: rows.cache(bytes_max=1000).shuffle(),
    "a cache of mapped rows": lambda rows: rows.map(lambda a, b: (a * 2, b, b)).cache().shuffle(),
    "windows": lambda rows: rows.shuffle(window=20, block=4),
    "windows of a cache": lambda rows: rows.cache().shuffle(window=16, block=3),
    "one window": lambda rows: rows.take(7).shuffle(window=6, block=6),
    "mapped rows": lambda rows: rows.shuffle().map(lambda a, b: (a * 2, b)),
}


@pytest.mark.parametrize("form", IN_MEMORY)
def test_a_compiled_function_after_a_gather_gives_the_same_bits_alone(form):
    x, y = np.random.default_rng(0).normal(size=(50, 7)).astype(np.float32), np.arange(50)
    function = dl.compile(lambda v: np.tanh(v) * np.float32(0.3) + v / np.float32(3))
    fused = IN_MEMORY[form](dl.data.Pipeline((x, y))).batch(8).map(function, on="x")
    apart = IN_MEMORY[form](dl.data.Pipeline((x, y))).batch(8).map(lambda v: function(v), on="x")
    for epoch in range(3):
        assert bits(fused.run(4, epoch=epoch)) == bits(apart.run(4, epoch=epoch))


def test_rows_of_other_structure():
    pipeline = dl.data.Pipeline(source()).map(lambda x, y: (x, y, y * 2)).batch(4)
    assert [column.shape for column in pipeline[0]] == [(4, 3), (4,), (4,)]
    assert dl.data.Pipeline(source()).map(lambda x, y: x.sum()).batch(4)[1][0].tolist() == [
        12,
        15,
        18,
        21,
    ]


def test_a_cache_makes_each_row_once_and_keeps_its_limit():
    made = []

    def counted(x):
        made.append(int(x[0]))
        return x.astype(np.float64)

    cached = dl.data.Pipeline(source()).map(counted, on="x").cache(bytes_max=50 * 28)
    pipeline = cached.shuffle().batch(10)
    for epoch in range(3):
        list(pipeline.run(epoch=epoch))
    assert sorted(set(made)) == list(range(ROWS))
    assert all(made.count(row) == (1 if row < 50 else 3) for row in range(ROWS))


def test_a_cache_in_a_file_serves_later_pipelines_of_the_same_data(tmp_path, monkeypatch):
    monkeypatch.setattr(packed_writer, "block_rows", lambda rows, row_bytes: 20)
    np.save(tmp_path / "x.npy", source()[0])
    np.save(tmp_path / "y.npy", source()[1])
    made = []

    def counted(x):
        made.append(1)
        return scaled(x)

    def read():
        step = dl.data.Pipeline(tmp_path).map(counted, on="x").cache(file=tmp_path / "c.npz")
        return bits(step.shuffle().batch(10).run(1))

    first = read()
    count = len(made)
    assert read() == first
    assert len(made) == count
    np.save(tmp_path / "x.npy", source()[0] + 1)
    assert read() != first
    (tmp_path / "c.npz").write_bytes(b"torn")
    read()


def test_what_is_random_cannot_be_cached():
    for pipeline in (
        dl.data.Pipeline(source()).shuffle(),
        dl.data.Pipeline(source()).map(jittered, random=True),
    ):
        with pytest.raises(DelianError, match="would repeat one epoch"):
            pipeline.cache()
    with pytest.raises(DelianError, match="endless"):
        dl.data.Pipeline(source()).repeat().cache()


def test_a_pipeline_is_a_source_of_rows(tmp_path):
    stored = dl.data.Pipeline(source()).map(scaled, on="x").stored()
    assert (stored.rows, stored.row_type().shape, stored.row_type().dtype) == (ROWS, (3,), "f32")
    dl.data.pack(stored, tmp_path / "a.npz")
    np.testing.assert_array_equal(
        dl.data.open_rows(tmp_path / "a.npz").read(0, ROWS).x, scaled(source()[0])
    )
    with pytest.raises(DelianError, match="rows of 1 values"):
        dl.data.Pipeline(source()).map(lambda x, y: x).stored().read(0, 1)


def test_a_place_of_other_data_or_steps_is_refused():
    pipeline = dl.data.Pipeline(source()).shuffle().batch(10)
    state = pipeline.run(1).state()
    for other in (
        dl.data.Pipeline(source(90)).shuffle().batch(10),
        dl.data.Pipeline(source()).shuffle().batch(9),
        dl.data.Pipeline(source()).shuffle(window=20, block=2).batch(10),
    ):
        with pytest.raises(DelianError, match="have changed"):
            other.resume(state)
    for odd in ((), (1, 2), (state[0], 0, 10**9), (state[0], 0, -1), (state[0], 0, True)):
        with pytest.raises(DelianError):
            pipeline.resume(odd)


def test_errors_name_the_function_and_the_row():
    def broken(x, y):
        if y == 37:
            raise KeyError("lost")
        return x, y

    with pytest.raises(DelianError, match="broken raised KeyError for row 37"):
        list(dl.data.Pipeline(source()).map(broken).batch(10))
    with pytest.raises(DelianError, match="broken raised KeyError for row 37"):
        list(dl.data.Pipeline(source()).map(broken).batch(10).prefetch(3, threads=2))
    with pytest.raises(
        DelianError, match=r"gave float64\[2\] for row 5, and float64\[1\] for row 0"
    ):
        list(
            dl.data.Pipeline(source()).map(lambda x, y: (np.zeros(2 if y == 5 else 1), y)).batch(10)
        )


@pytest.mark.parametrize(
    "step",
    [
        lambda p: p.batch(0),
        lambda p: p.batch(10).batch(2),
        lambda p: p.batch(10).shuffle(),
        lambda p: p.batch(10).cache(),
        lambda p: p.batch(10).map(jittered, random=True),
        lambda p: p.batch(1000, partial=False),
        lambda p: p.shard(4, 4),
        lambda p: p.shard(0, 1000),
        lambda p: p.take(0),
        lambda p: p.repeat(0),
        lambda p: p.shuffle(window=3, block=4),
        lambda p: p.map(scaled, on="z"),
        lambda p: p.prefetch(2).batch(2),
        lambda p: p.prefetch(2).prefetch(2),
        lambda p: p.prefetch(0),
        lambda p: p.run(*range(20)),
        lambda p: len(p.repeat()),
    ],
)
def test_steps_that_make_no_sense_are_refused(step):
    with pytest.raises(DelianError):
        step(dl.data.Pipeline(source()))


def test_a_source_that_fails_in_a_window_fails_for_every_thread_that_waits():
    class Failing(ArrayRows):
        def read(self, start, stop):
            raise DelianError("the disk is gone")

        gather = None  # type: ignore[assignment]

    del Failing.gather
    rows = Failing(*source())
    rows.gather = lambda numbers: rows.read(0, 1)
    pipeline = dl.data.Pipeline(rows).shuffle(window=32, block=4).batch(4)
    with pytest.raises(DelianError, match="the disk is gone"):
        list(pipeline.prefetch(4, threads=4))
