"""What columns are and become: the same by masked sums as by the pooled rows, within floors."""

import numpy as np
import pytest
from delian.core.common.errors import DelianError
from delian.core.learning.data.tabular.encoding import Encoder, Encoding
from delian.core.learning.data.tabular.hashed_words import frequencies, vectors, weights_of
from delian.core.statistics.building import build
from delian.core.statistics.methods.preparation import Preparation
from delian.core.statistics.site_table import Table
from delian.simulations.statistics.local_sites import LocalSites

N = 240
WORDS = ["stop", "the", "press", "and", "read", "all", "about", "this", "new", "story", "today"]


def columns():
    draw = np.random.default_rng(2)
    number = draw.normal(1000, 3, N)
    number[:20] = np.nan
    city = draw.choice(["Rome", "Oslo", "Bern", ""], N, p=[0.5, 0.3, 0.1, 0.1]).astype("<U8")
    city[5:9] = ["a", "b", "c", "d"]
    return {
        "number": number,
        "city": city,
        "when": np.array([f"2026-0{1 + k % 9}-1{k % 10} 0{k % 7}:30" for k in range(N)]),
        "story": np.array([" ".join(draw.choice(WORDS, 8)) + f" {k}" for k in range(N)], object),
        "key": np.array([f"k{k}" for k in range(N)]),
        "same": np.array(["x"] * N),
        "none": np.full(N, np.nan),
        "nearly": np.array([f"{k}.5" if k % 50 else "unknown" for k in range(N)]),
        "zip": np.array([f"z{k % 60}" for k in range(N)]),
    }


def asked(sites: int, masked: bool, floor: int = 5, owners: int = 1):
    table = columns()
    parts = [np.arange(s, N, sites) for s in range(sites)]
    tables = [Table({n: v[part] for n, v in table.items()}, floor=owners) for part in parts]
    return LocalSites(tables, masked=masked).answer(Preparation(tuple(table), floor))


def test_kinds_are_found_and_masks_change_nothing():
    found = asked(4, masked=True)
    assert {each.column: each.kind for each in found.columns} == {
        "number": "number",
        "city": "category",
        "when": "date",
        "story": "text",
        "key": "id",
        "same": "constant",
        "none": "empty",
        "nearly": "number",
        "zip": "values",
    }
    assert asked(4, masked=False).columns == found.columns


def test_any_number_of_sites_finds_what_the_pooled_rows_have():
    pooled, split = asked(1, masked=False), asked(6, masked=False)
    for one, other in zip(pooled.columns, split.columns, strict=True):
        assert (one.kind, one.rows, one.levels) == (other.kind, other.rows, other.levels)
        if one.mean is not None:
            np.testing.assert_allclose(other.mean, one.mean, rtol=1e-12)
            np.testing.assert_allclose(other.deviation, one.deviation, rtol=1e-9)
    values = columns()["number"]
    (number, *_) = split.columns
    np.testing.assert_allclose(number.mean, np.nanmean(values), rtol=1e-12)
    np.testing.assert_allclose(number.deviation, np.nanstd(values), rtol=1e-9)


def test_columns_become_features_with_indicators_rare_values_and_weights():
    found = asked(4, masked=False)
    encoding = Encoding(tuple(e.encoder for e in found.columns if e.encoder is not None))
    table = columns()
    x = encoding.encode(table)
    names = list(encoding.names)
    assert x.shape == (N, len(names)) and np.isfinite(x).all()
    assert names[:2] == ["number", "number: missing"]
    assert x[:20, 0].tolist() == [np.float32(np.nanmean(table["number"]))] * 20
    assert x[:, 1].tolist() == [1.0] * 20 + [0.0] * (N - 20)
    levels = ["city=Rome", "city=Oslo", "city=Bern", "city: missing"]
    assert names[2:6] == levels
    for k, level in enumerate(("Rome", "Oslo", "Bern", "")):
        np.testing.assert_array_equal(x[:, 2 + k], table["city"] == level)
    assert x[5:9, 2:6].sum() == 0  # four rows of rare values: fewer than the floor
    assert "when: sin of day" in names and "nearly" in names
    texts = table["story"].tolist()
    weights = weights_of(frequencies(texts, 1024), N)
    first = names.index("story #0")
    np.testing.assert_array_equal(x[:, first : first + 1024], vectors(texts, weights))
    assert encoding.plain.sum() == 1024
    assert Encoding.from_json(encoding.to_json()) == encoding


def test_rare_values_of_enough_rows_are_one_category():
    table = {"c": np.array(["a"] * 50 + ["b"] * 40 + [f"r{k}" for k in range(10)])}
    found = LocalSites([Table(table)], masked=False).answer(Preparation(("c",)))
    encoder = found.columns[0].encoder
    assert encoder.names() == ["c=a", "c=b", "c: other"]
    new = encoder.features(np.array(["a", "b", "r3", "never seen", ""]))
    assert new.argmax(axis=1).tolist() == [0, 1, 2, 2, 0]


def test_what_few_rows_of_a_site_have_is_not_counted_there():
    found = {each.column: each for each in asked(4, masked=True, owners=8).columns}
    assert found["number"].missing == 0 or found["number"].missing >= 8
    assert found["number"].encoder is not None and found["same"].kind == "constant"
    assert all(count >= 8 for _, count in found["city"].levels)


def test_sites_may_differ_in_how_a_column_is_written():
    sites = [
        Table({"n": np.array([1.0, 2.0, np.nan] * 20)}),
        Table({"n": np.array(["3", "4", "-"] * 20)}),
        Table({"n": np.array([5.0, 6.0, 7.0] * 20)}),
    ]
    found = LocalSites(sites).answer(Preparation(("n",))).columns[0]
    # A third of one site's values are no numbers: too many.
    assert found.kind == "category"
    sites[1] = Table({"n": np.array(["3", "4"] * 28 + ["-"] * 4)})
    found = LocalSites(sites).answer(Preparation(("n",))).columns[0]
    assert found.kind == "number" and found.odd == 4 and found.missing == 24


@pytest.mark.parametrize(
    "said",
    [
        None,
        [],
        [{"column": "a"}],
        [{"column": "a", "kind": "picture"}],
        [{"column": "a", "kind": "category"}],
        [{"column": "a", "kind": "text", "weights": [1.0] * (1 << 15)}],
        [{"column": "a", "kind": "date", "cycles": ["century"]}],
        ["a"],
    ],
)
def test_a_report_that_was_changed_is_refused(said):
    with pytest.raises(DelianError, match="report"):
        Encoding.from_json({"encoders": said})


def test_rows_to_predict_need_the_columns_that_were_learnt():
    encoding = Encoding((Encoder("age", "number", 40.0, missing=True),))
    assert encoding.encode({"age": np.array([np.nan, 3.0])}).tolist() == [[40, 1], [3, 0]]
    with pytest.raises(DelianError, match="no column `age`"):
        encoding.encode({"size": np.array([1.0])})
    with pytest.raises(DelianError, match="no number in column `age`, but 'old'"):
        encoding.encode({"age": np.array(["old", ""])})


def test_columns_are_listed_as_a_command_line_has_them():
    assert build("preparation", settings={"of": "age, city"}).columns() == ("age", "city")
