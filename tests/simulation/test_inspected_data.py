"""`delian data show` on a user's data: what it says of columns, and what it finds wrong."""

import io
import json

import numpy as np
import pytest
from delian.cli.main import app
from typer.testing import CliRunner


def shown(*arguments):
    """(what is known, as JSON; what a terminal shows)"""
    words = ["data", "show", *map(str, arguments)]
    runs = [
        CliRunner().invoke(app, [*words, *more], catch_exceptions=False)
        for more in ([], ["--json"])
    ]
    assert all(each.exit_code == 0 for each in runs), runs[0].output
    return json.loads(runs[1].stdout), runs[0].stdout


def found(known):
    return {each["kind"]: each for each in known["findings"]}


def table(tmp_path, columns, name="own.csv"):
    lines = [
        ",".join(columns),
        *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True)),
    ]
    (tmp_path / name).write_text("\n".join(lines) + "\n")
    return tmp_path / name


def plain(n=200):
    """Columns in which nothing is wrong."""
    draw = np.random.default_rng(0)
    x = draw.normal(size=n).round(4)
    return {"x": x, "z": draw.normal(size=n).round(4)}, np.where(
        x + draw.normal(size=n) > 0, "u", "v"
    )


def test_clean_data_has_no_findings(tmp_path):
    columns, y = plain()
    known, text = shown(table(tmp_path, {**columns, "y": y}))
    assert known["findings"] == [] and "wrong" not in text
    assert [(c["column"], c["role"], c["kind"]) for c in known["columns"]] == [
        ("x", "feature", "number"),
        ("z", "feature", "number"),
        ("y", "target", "category"),
    ]


def test_columns_are_listed_with_what_is_in_them(tmp_path):
    columns, y = plain()
    more = {
        "client": [f"c{k % 8}" for k in range(200)],
        "when": [f"2026-01-{1 + k % 28:02d}" for k in range(200)],
        "city": ["Rome" if k % 3 else "" for k in range(200)],
        "key": [f"id-{k}" for k in range(200)],
        "same": ["x"] * 200,
        "gone": [""] * 200,
    }
    known, text = shown(
        table(tmp_path, {**more, **columns, "y": y}), "--out", tmp_path / "page.html"
    )
    facts = {each["column"]: each for each in known["columns"]}
    assert facts["client"]["role"] == "device" and facts["y"]["role"] == "target"
    assert (facts["when"]["low"], facts["when"]["high"]) == ("2026-01-01", "2026-01-28")
    assert facts["city"]["missing"] == 67 and facts["city"]["values"] == [["Rome", 133]]
    assert {n: facts[n]["kind"] for n in ("key", "same", "gone")} == {
        "key": "id",
        "same": "constant",
        "gone": "empty",
    }
    assert all(facts[n]["role"] == "left out" for n in ("key", "same", "gone"))
    assert {"id", "constant", "empty"} <= set(found(known))
    assert "2026-01-01 to 2026-01-28" in text and "67 (34%)" in text
    page = (tmp_path / "page.html").read_text()
    assert "<h2>Columns</h2>" in page and "<code>same</code> has one value" in page


@pytest.mark.parametrize(
    ("name", "leak"),
    [
        ("copy", lambda y, k: "yes" if y == "u" else "no"),
        ("ranges", lambda y, k: k / 1000 + (5 if y == "u" else 3)),
        ("codes", lambda y, k: f"{y}{k % 20}"),
    ],
)
def test_columns_that_give_the_label_away_are_wrong(tmp_path, name, leak):
    columns, y = plain()
    known, text = shown(
        table(tmp_path, {**columns, name: [leak(v, k) for k, v in enumerate(y)], "y": y})
    )
    assert found(known)["leak"]["column"] == name and found(known)["leak"]["level"] == "wrong"
    assert f"`{name}`" in text and "hint:" in text


def test_a_number_in_other_units_is_a_copy(tmp_path):
    columns, _ = plain()
    price = columns["x"] * 3 + 7
    known, _ = shown(table(tmp_path, {**columns, "cents": price * 100, "price": price}))
    assert found(known)["leak"]["column"] in ("x", "cents")


def test_imbalance_and_labels_of_few_rows(tmp_path):
    columns, _ = plain(400)
    y = ["a"] * 380 + ["b"] * 16 + ["c"] * 4
    known, _ = shown(table(tmp_path, {**columns, "y": y}))
    kinds = found(known)
    assert "95% of the rows have the label `a`, and 4 have `c`" in kinds["imbalance"]["text"]
    assert "`c` has fewer than 10 rows" in kinds["few_rows"]["text"]


def test_duplicates_across_train_and_query_and_devices(tmp_path):
    columns, y = plain()
    twice = {name: [*values, *values] for name, values in {**columns, "y": y}.items()}
    known, _ = shown(table(tmp_path, twice))
    kinds = found(known)
    assert kinds["duplicates"]["level"] == "wrong" and "duplicates_across" in kinds
    device = {**twice, "client": [f"c{k % 8}" for k in range(400)]}
    kinds = found(shown(table(tmp_path, device))[0])
    assert "duplicates" in kinds and "duplicates_across" not in kinds


def test_values_that_are_no_numbers_and_much_that_is_missing(tmp_path):
    columns, y = plain()
    odd = [v if k % 50 else "unknown" for k, v in enumerate(columns["x"])]
    few = ["" if k % 4 else v for k, v in enumerate(columns["z"])]
    known, _ = shown(table(tmp_path, {"odd": odd, "few": few, "y": y}))
    kinds = found(known)
    assert "4 values are none: `unknown`" in kinds["mixed"]["text"]
    assert kinds["missing"]["column"] == "few" and "75%" in kinds["missing"]["text"]


def test_texts_that_are_empty_or_have_two_labels(tmp_path):
    for label in "ab":
        (tmp_path / label).mkdir()
        for k in range(40):
            words = f"text number {label} {k}" if k > 2 else ("" if k else "the same words")
            (tmp_path / label / f"{k}.txt").write_text(words)
    known, _ = shown(tmp_path)
    kinds = found(known)
    assert "4 texts of `text` are empty" in kinds["empty_texts"]["text"]
    assert "1 text of `text` has more than one label" in kinds["two_labels"]["text"]


def test_numbers_far_from_the_others_and_devices_of_one_label(tmp_path):
    columns, _ = plain(400)
    price = [1e6 if k == 7 else v for k, v in enumerate(columns["z"] * 10)]
    known, _ = shown(table(tmp_path, {"x": columns["x"], "price": price}))
    assert "1 number to learn is more than 10 deviations" in found(known)["outliers"]["text"]
    y = ["a" if k % 8 < 3 else "b" for k in range(400)]
    known, _ = shown(
        table(tmp_path, {**columns, "client": [f"c{k % 8}" for k in range(400)], "y": y})
    )
    assert "8 of 8 devices have rows of one label alone" in found(known)["one_label"]["text"]


def test_images_that_are_broken_odd_or_of_several_forms(tmp_path):
    image = pytest.importorskip("PIL.Image")
    draw = np.random.default_rng(0)
    for label in "ab":
        (tmp_path / label).mkdir()
        for k in range(30):
            size = (20, 90) if (label, k) == ("a", 3) else (20, 22)
            made = image.fromarray(draw.integers(0, 256, (*size, 3)).astype(np.uint8))
            made.convert("L" if k % 2 else "RGB").save(tmp_path / label / f"{k}.png")
    out = io.BytesIO()
    made.save(out, "PNG")
    (tmp_path / "b" / "cut.png").write_bytes(out.getvalue()[:-60])
    known, text = shown(tmp_path)
    kinds = found(known)
    assert "1 of 61 files is no image: `b/cut.png`" in kinds["broken"]["text"]
    assert "1 image has a size unlike" in kinds["odd_size"]["text"]
    assert known["images"]["modes"] == {"RGB": 30, "L": 30} and "modes" in kinds
    assert known["images"]["width"] == [22, 22, 90] and "61, of which 1 are broken" in text


@pytest.mark.parametrize("values", [("x", "y"), (1.5, 90.25)], ids=["category", "number"])
def test_a_column_gives_away_a_label_of_few_rows(tmp_path, values):
    columns, _ = plain(300)
    rare = np.arange(300) % 50 == 7
    leak = [values[k] for k in rare.astype(int)]
    y = np.where(rare, "fraud", "ok")
    known, _ = shown(table(tmp_path, {**columns, "code": leak, "y": y}))
    assert found(known)["leak"]["column"] == "code"
    leak[0], leak[7] = leak[7], leak[0]  # what fits all but two rows is not known to be a leak
    known, _ = shown(table(tmp_path, {**columns, "code": leak, "y": y}))
    assert "leak" not in found(known)


def test_categories_that_are_numbers_are_named(tmp_path):
    columns, y = plain()
    grade = ["high" if k % 5 == 0 else k % 4 for k in range(200)]
    known, _ = shown(table(tmp_path, {**columns, "grade": grade, "y": y}))
    finding = found(known)["mixed"]
    assert finding["column"] == "grade" and "`high` in 40 of 200 rows" in finding["text"]


def test_what_is_shown_of_a_regression_stands_in_columns(tmp_path):
    columns, _ = plain()
    _, text = shown(table(tmp_path, {**columns, "y": np.arange(200) * 1.5}))
    facts = text.partition("\n\n")[0].splitlines()
    ends = {line.index(line.split("  ", 1)[1].strip()) for line in facts}
    assert len(ends) == 1 and "ranges of values" in text


def test_whole_numbers_called_time_may_be_a_series(tmp_path):
    columns, y = plain()
    known, _ = shown(table(tmp_path, {"time": np.arange(200), **columns, "y": y}))
    assert found(known)["series"]["column"] == "time"
    known, _ = shown(table(tmp_path, {"time": np.arange(200) / 7, **columns, "y": y}))
    assert "series" not in found(known)
