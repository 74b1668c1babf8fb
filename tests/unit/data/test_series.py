"""Time series: windows by hand, no row on both sides of the split, fits by training rows alone."""

import numpy as np
import pytest
from delian.core.common.errors import DelianError
from delian.core.learning.data.labelled_arrays import federate
from delian.core.learning.data.partition.deal import Deal
from delian.core.learning.data.tabular.columns import typed
from delian.core.learning.data.tabular.encoding import Encoding
from delian.core.learning.data.tabular.series import WindowChoice, last_windows, series_of
from delian.core.learning.data.tabular.tables import TableChoice
from delian.simulations.statistics.prepared_tables import prepared

CHOICE = TableChoice()


def table(entities=4, rows=60, seed=0):
    """Columns of several series, shuffled."""
    draw = np.random.default_rng(seed)
    n = entities * rows
    entity, step = np.arange(n) % entities, np.arange(n) // entities
    order = draw.permutation(n)
    return {
        "when": np.array([f"2026-02-{1 + t // 24:02d} {t % 24:02d}:00" for t in step])[order],
        "sensor": np.array([f"s{e}" for e in entity])[order],
        "load": (100.0 * entity + step)[order],
        "state": np.array(["low", "high"])[(step // 5) % 2][order],
    }


def windows(columns, target="load", how=None, **kept):
    how = how or WindowChoice(6, 2)
    return series_of(columns, "own", TableChoice(target), how, 0.25, **kept)


def test_windows_of_a_short_series_are_those_made_by_hand():
    columns = {"t": np.arange(8.0), "y": np.arange(8.0) + 0.5}
    rows = series_of(columns, "own", CHOICE, WindowChoice(2, 1, time="t"), 0.4, pieces=1)
    # Rows 0 to 4 are before the split, rows 5 to 7 behind it.
    assert rows.windows.tolist() == [[0, 1], [1, 2], [2, 3], [5, 6]]
    assert rows.y.tolist() == [[2.5], [3.5], [4.5], [7.5]]
    assert rows.query.tolist() == [False, False, False, True]
    assert rows.columns["y"].tolist() == columns["y"].tolist()  # its own past is a feature
    assert rows.notes[-1] == "training windows end before 5, windows that judge begin then"


def test_what_follows_is_that_of_the_same_series_in_order_of_time():
    rows = windows(table())
    load = rows.columns["load"]
    assert rows.y.shape == (len(rows), 2) and rows.y.dtype == np.float32
    for window, follows, owner in zip(rows.windows, rows.y, rows.owners, strict=True):
        values = load[window]
        assert (values // 100 == owner).all() and np.diff(values).tolist() == [1] * 5
        assert follows.tolist() == [values[-1] + 1, values[-1] + 2]


@pytest.mark.parametrize(("horizon", "stride"), [(1, 1), (3, 1), (2, 4)])
@pytest.mark.parametrize("target", ["load", "state"])
def test_no_row_is_on_both_sides_and_nothing_later_is_trained_on(target, horizon, stride):
    rows = windows(table(), target, WindowChoice(5, horizon, stride))
    steps = rows.columns["load"] % 100 if "load" in rows.columns else None
    reach = 5 + (horizon if target == "load" else 0)
    touched = rows.windows[:, :1] + np.arange(reach)
    trained, judged = touched[~rows.query], touched[rows.query]
    assert len(trained) and len(judged) and not np.intersect1d(trained, judged).size
    assert steps[trained].max() < steps[judged].min()


def test_labels_are_those_of_the_last_row_and_no_feature():
    columns = table()
    rows = windows(columns, "state")
    assert "state" not in rows.columns and rows.label_names == ("high", "low")
    step = rows.columns["load"][rows.windows[:, -1]] % 100
    assert rows.y.tolist() == [int((s // 5) % 2 == 0) for s in step]


def federated(columns, **kept):
    return federate(
        windows(columns, **kept),
        deal=Deal(partition="natural", min_examples=2),
        devices=None,
        query_fraction=0.25,
        held_out_devices=1,
        seed=3,
        standardise=True,
        fit=prepared,
    )


def test_scaling_and_fits_are_of_training_rows_alone():
    columns = table()
    made = federated(columns)
    assert made.example_shape == (6, 2)
    late = np.array([day >= "2026-02-02 21:00" for day in columns["when"]])
    columns["load"] = np.where(late, -1e6, columns["load"])
    columns["state"] = np.where(late, "another", columns["state"])
    changed = federated(columns)
    assert changed.scaling == made.scaling
    assert changed.card.preparation == made.card.preparation
    for before, after in zip(made.devices, changed.devices, strict=True):
        n = before.support
        order = [np.lexsort(d.x[:n].reshape(n, -1).T) for d in (before, after)]
        np.testing.assert_array_equal(before.x[:n][order[0]], after.x[:n][order[1]])


def test_steps_of_a_window_have_one_scale():
    made = federated(table())
    trained = [made.devices[k] for k in made.training]
    rows = np.concatenate([d.x[: d.support].reshape(-1, d.x.shape[-1]) for d in trained])
    np.testing.assert_allclose(made.scaling.shift, rows.mean(axis=0), rtol=1e-5)
    assert len(made.scaling.shift) == made.example_shape[-1]


def test_a_single_series_is_cut_into_pieces_that_have_both_sides():
    columns = {name: values for name, values in table(1, 400).items() if name != "sensor"}
    rows = windows(columns, pieces=5)
    assert rows.owner_names == tuple(f"piece {k}" for k in range(1, 6))
    for piece in range(5):
        own = rows.owners == piece
        assert rows.query[own].any() and not rows.query[own].all()
    last = [rows.windows[(rows.owners == k) & ~rows.query].max() for k in range(5)]
    first = [rows.windows[(rows.owners == k) & ~rows.query].min() for k in range(5)]
    assert all(a < b for a, b in zip(last, first[1:], strict=False))
    assert len(windows(columns).owner_names) >= 4


def test_series_that_end_before_the_split_and_rows_without_a_target_are_left_out():
    columns = table()
    gone = (columns["sensor"] == "s3") & (columns["load"] % 100 > 30)
    columns = {name: values[~gone] for name, values in columns.items()}
    columns["load"] = np.where(columns["load"] == 110, np.nan, columns["load"])
    rows = windows(columns)
    assert sorted(set(rows.owners.tolist())) == [0, 1, 2]
    assert (
        "1 of `sensor` have no windows on both sides of the split, and are left out" in rows.notes
    )
    assert "2 windows without `load` are left out" in rows.notes
    assert np.isfinite(rows.y).all()


def test_steps_that_are_not_even_are_noted():
    columns = table(1, 100)
    kept = columns["load"] % 10 != 3
    rows = windows({name: values[kept] for name, values in columns.items()})
    assert "10 of 89 steps between rows are not as long as the others" in rows.notes[0]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda c: c.pop("sensor"), "rows have the time of another in `when`"),
        (lambda c: c.update(when=np.where(c["load"] == 7, "soon", c["when"])), "'soon' in the"),
        (lambda c: c.update(sensor=np.where(c["load"] == 7, "", c["sensor"])), "1 row has no `s"),
        (lambda c: c.update(load=np.where(c["load"] == 7, np.inf, c["load"])), "not finite"),
        (lambda c: c.update(load=np.full(240, np.nan)), "is empty"),
    ],
)
def test_what_is_no_series_is_refused(change, said):
    columns = table()
    change(columns)
    with pytest.raises(DelianError) as caught:
        windows(columns)
    assert said in caught.value.message and caught.value.hint


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (WindowChoice(50), "the longest has 60 rows, and a window has 51"),
        (WindowChoice(6, time="then"), "no column `then`"),
    ],
)
def test_windows_that_do_not_fit_are_refused(how, said):
    with pytest.raises(DelianError, match=said):
        windows(table(), how=how)


def test_too_many_windows_are_refused_before_there_is_memory_for_them(monkeypatch):
    from delian.core.learning.data.tabular import series

    monkeypatch.setattr(series, "WINDOWS_MAX", 100)
    with pytest.raises(DelianError, match=r"windows; at most 100"):
        windows(table())


def test_a_prediction_takes_the_last_rows_of_each_series_in_any_order():
    columns = table()
    rows = windows(columns)
    fitted = prepared(rows, [np.arange(len(columns["load"]))])
    encoding = Encoding.from_json(fitted.encoding.to_json())
    assert encoding == fitted.encoding
    x = encoding.examples(columns)
    assert x.shape[:2] == (4, 6)
    place = encoding.names.index("load")
    assert x[:, :, place].tolist() == [[100.0 * e + t for t in range(54, 60)] for e in range(4)]
    few = {name: values[:10] for name, values in columns.items()}
    with pytest.raises(DelianError, match=r"rows of `s\d`, and the model takes the last 6"):
        last_windows(few, encoding.series)


def test_times_may_be_numbers_and_dates_of_any_usual_form():
    for times in (
        np.arange(40.0),
        typed([f"{1 + k % 28}.{1 + k // 28}.2026" for k in range(40)]),
        typed([f"2026-01-01T{k // 2:02d}:{30 * (k % 2):02d}:00+02:00" for k in range(40)]),
    ):
        columns = {"ds": times, "v": np.arange(40.0) + 0.5}
        rows = series_of(columns, "own", CHOICE, WindowChoice(3), 0.3, pieces=1)
        assert rows.series.time == "ds" and rows.columns["v"].tolist() == columns["v"].tolist()
