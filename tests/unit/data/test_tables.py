"""Tables: types found by content, text as features, labels and numbers, and what is refused."""

from pathlib import Path

import numpy as np
import pytest
from delian.core.common.errors import DelianError
from delian.core.learning.data.federated_data import scaling_of
from delian.core.learning.data.labelled_arrays import federate
from delian.core.learning.data.partition.deal import Deal
from delian.core.learning.data.tabular.columns import frame_columns
from delian.core.learning.data.tabular.fitted_features import features_of
from delian.core.learning.data.tabular.table_files import read_columns
from delian.core.learning.data.tabular.tables import TableChoice, labelled_pair, table_of
from delian.simulations.statistics.prepared_tables import prepared

CHOICE = TableChoice()


def read_table(path: Path, choice: TableChoice):
    return table_of(read_columns(path), path.name, choice)


def fitted(rows, devices: int = 3):
    """(features, their names, notes) by the rows of so many devices."""
    found = prepared(rows, [np.arange(k, len(rows), devices) for k in range(devices)])
    return features_of(rows, found), found.encoding.names, rows.notes + found.notes


def written(tmp_path: Path, text: str, name: str = "own.csv") -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def test_numbers_text_and_labels_are_told_apart(tmp_path):
    text = "size,colour,flag,kind\n" + 2 * "1,red,true,cat\n2.5,blue,false,dog\n3,green,true,cat\n"
    rows = read_table(written(tmp_path, text), CHOICE)
    x, names, _ = fitted(rows)
    assert names == ("size", "colour=blue", "colour=green", "colour=red", "flag")
    np.testing.assert_array_equal(
        x[:3], np.array([[1, 0, 0, 1, 1], [2.5, 1, 0, 0, 0], [3, 0, 1, 0, 1]], np.float32)
    )
    assert rows.label_names == ("cat", "dog") and rows.y.tolist() == [0, 1, 0] * 2
    assert rows.target_name == "kind" and rows.y.dtype == np.int32


@pytest.mark.parametrize("comma", [",", ";", "\t"])
def test_the_separator_is_found(tmp_path, comma):
    rows = read_table(written(tmp_path, f"a{comma}y\n1{comma}u\n2{comma}v\n"), CHOICE)
    assert rows.columns["a"].tolist() == [1, 2] and rows.label_names == ("u", "v")


def test_a_file_without_names_numbers_its_columns(tmp_path):
    path = written(tmp_path, "1,10,0\n2,20,1\n" * 5)
    assert read_table(path, CHOICE).target_name == "2"
    assert read_table(path, TableChoice(target="0", targets="numbers")).columns.keys() == {"1", "2"}


def test_labels_from_one_become_labels_from_zero(tmp_path):
    rows = read_table(written(tmp_path, "a,y\n" + "1,1\n2,2\n3,3\n" * 6), CHOICE)
    assert rows.label_names == ("1", "2", "3") and set(rows.y.tolist()) == {0, 1, 2}


def test_whole_numbers_of_many_values_are_numbers(tmp_path):
    rows = read_table(written(tmp_path, "a,y\n" + "".join(f"{k},{k}\n" for k in range(90))), CHOICE)
    assert rows.y.dtype == np.float32 and rows.label_names == ()


def test_what_is_missing_is_filled_or_left_out_and_said(tmp_path):
    text = "id,name,a,y\n" + "".join(f"{k},n{k},{'' if k in (3, 9) else k},u\n" for k in range(40))
    text += "40,n40,40,v\n41,n41,41,\n"
    rows = read_table(written(tmp_path, text), CHOICE)
    x, names, notes = fitted(rows)
    assert names == ("a", "a: missing") and len(rows.y) == 41
    assert x[3, 0] == np.float32(np.mean([k for k in range(41) if k not in (3, 9)]))
    assert x[:, 1].tolist() == [float(k in (3, 9)) for k in range(41)]
    assert notes == (
        "1 row without `y` is left out",
        "column `id` has another whole number in each row and is left out",
        "2 missing values of `a` are filled with its mean; a feature says so",
        "column `name` has another text in each row and is left out",
    )


def test_a_device_column_is_the_natural_partition():
    columns = frame_columns(
        {"a": np.arange(6.0), "device": np.array(list("xxyyzz")), "y": np.arange(6) % 2}
    )
    rows = table_of(columns, "a frame", TableChoice(target="y", targets="labels"))
    assert rows.owner_names == ("x", "y", "z") and rows.owners.tolist() == [0, 0, 1, 1, 2, 2]
    assert tuple(rows.columns) == ("a",)


def test_a_frame_of_objects_and_dates_is_read():
    columns = frame_columns(
        {
            "a": np.array([1, None, 3], object),
            "when": np.array(["2026-01-01", "2026-01-02", "2026-01-02"], "datetime64[D]"),
            "y": np.array(["u", "v", "u"], object),
        }
    )
    rows = table_of(columns, "a frame", CHOICE)
    assert rows.columns["a"][[0, 2]].tolist() == [1, 3] and np.isnan(rows.columns["a"][1])
    x, names, _ = fitted(rows)
    assert names[:3] == ("a", "when", "when: sin of year")
    assert np.diff(x[:, 1]).tolist() == [1, 0]  # days


@pytest.mark.parametrize(
    ("text", "choice", "said"),
    [
        ("", CHOICE, "is empty"),
        ("a,y\n", CHOICE, "no rows"),
        ("a,y\n1\n", CHOICE, "own.csv:2: 1 field,"),
        ("a,a\n1,2\n", CHOICE, "two columns `a`"),
        ("a,y\n1,u\n", TableChoice(target="z"), "no column `z`; it has a, y"),
        ("a,y\n1,u\n2,u\n", CHOICE, "one value, u"),
        ("a,y\n1,u\n2,v\n", TableChoice(targets="numbers"), "is text"),
        ("y\nu\nv\n", CHOICE, "no column of features"),
        (
            "note,y\n" + "".join(f"text{i},{i % 2}\n" for i in range(40)),
            CHOICE,
            "column `note` has another text in each row",
        ),
        ("a,y\n1e60,u\n2,v\n", CHOICE, "row 1: `a` is not finite"),
        ("a,y\n1,1e60\n2,2.5\n", CHOICE, "row 1: `y` is not finite"),
        ("a,y\n1,\n2,\n", CHOICE, "is empty"),
    ],
)
def test_what_is_no_table_is_refused(tmp_path, text, choice, said):
    with pytest.raises(DelianError) as caught:
        fitted(read_table(written(tmp_path, text), choice))
    assert said in caught.value.message and caught.value.hint


def test_a_column_of_several_axes_is_refused():
    with pytest.raises(DelianError, match="shape"):
        frame_columns({"a": np.zeros((3, 2))})


def test_features_are_standardised_by_the_devices_that_train():
    rng = np.random.default_rng(0)
    columns = {
        "a": rng.normal(5, 3, 400),
        "b": rng.normal(7, 1, 400),
        "y": rng.normal(100, 20, 400),
    }
    rows = table_of(columns, "rows", TableChoice(targets="numbers"))
    made = federate(
        rows,
        deal=Deal(partition="iid", min_examples=4),
        devices=8,
        query_fraction=0.25,
        held_out_devices=2,
        seed=1,
        standardise=True,
        fit=prepared,
    )
    trained = np.concatenate([made.devices[k].x[: made.devices[k].support] for k in made.training])
    learnt = np.concatenate([made.devices[k].y[: made.devices[k].support] for k in made.training])
    scaled = (trained - np.array(made.scaling.shift)) * np.array(made.scaling.scale)
    np.testing.assert_allclose(scaled.mean(axis=0), [0, 0], atol=1e-6)
    np.testing.assert_allclose(scaled.std(axis=0), [1, 1], atol=1e-6)
    np.testing.assert_allclose(made.scaling.target_shift[0], learnt.mean(), rtol=1e-6)
    np.testing.assert_allclose(1 / made.scaling.target_scale[0], learnt.std(), rtol=1e-6)
    assert scaling_of(made.devices, made.held_out, False).target_shift == ()


def test_marks_of_excel_and_lines_within_quotes_are_read(tmp_path):
    path = tmp_path / "own.csv"
    path.write_bytes('\ufeffa,y\r\n1,"two\r\nlines"\r\n2,one\r\n'.encode())
    rows = read_table(path, CHOICE)
    assert tuple(rows.columns) == ("a",) and rows.label_names == ("one", "two\nlines")


def test_devices_and_pipes_are_no_files(tmp_path):
    for name in ("zero.csv", "zero.parquet"):
        (tmp_path / name).symlink_to("/dev/zero")
        with pytest.raises(DelianError, match="a device or a pipe"):
            read_columns(tmp_path / name)


@pytest.mark.parametrize(
    ("y", "kind", "names"),
    [
        (np.arange(60) % 3 + 1, np.int32, ("1", "2", "3")),
        ((np.arange(60) % 2).astype(float), np.int32, ("0", "1")),
        (np.array(["u", "v"] * 30), np.int32, ("u", "v")),
        (np.arange(60), np.float32, ()),
        (np.zeros((60, 2)), np.float32, ()),
    ],
)
def test_what_a_pair_learns_is_told_as_of_a_table(y, kind, names):
    rows = labelled_pair(np.ones((60, 2)), y)
    assert rows.y.dtype == kind and rows.label_names == names


@pytest.mark.parametrize(
    ("y", "said"),
    [
        (np.array([None] * 60), "missing, the first at row 0"),
        (np.ones(60), "one value"),
        (np.ones(50), "shape"),
        (np.full((60, 2), np.nan), "NaN or infinite"),
    ],
)
def test_what_a_pair_cannot_learn_is_refused(y, said):
    with pytest.raises(DelianError, match=said):
        labelled_pair(np.ones((60, 2)), y)
