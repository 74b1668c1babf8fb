"""Files as columns: separators, commas in numbers, gzip, JSON; damage is named with its line."""

import gzip
import json

import numpy as np
import pytest
from delian.core.common.errors import DelianError
from delian.core.learning.data.tabular import delimited, json_tables
from delian.core.learning.data.tabular.columns import typed
from delian.core.learning.data.tabular.table_files import read_columns, table_suffix

ROWS = [("1", "a b"), ("2.5", "c, d"), ("", "e\nf")]


def file(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize("separator", [",", ";", "|", "\t"])
def test_the_separator_is_the_one_that_gives_all_records_as_many_fields(tmp_path, separator):
    text = f"n{separator}words\n" + "".join(f'{n}{separator}"{w}"\n' for n, w in ROWS)
    found = read_columns(file(tmp_path, "own.csv", text))
    assert found["n"][:2].tolist() == [1, 2.5] and np.isnan(found["n"][2])
    assert found["words"].tolist() == ["a b", "c, d", "e\nf"]


def test_commas_in_names_do_not_make_a_file_of_semicolons_one_of_commas(tmp_path):
    text = "price, net, in euro;size, in cm\n" + "1,5;2\n" * 3
    found = read_columns(file(tmp_path, "own.csv", text))
    assert {name: values.tolist() for name, values in found.items()} == {
        "price, net, in euro": [1.5] * 3,
        "size, in cm": [2.0] * 3,
    }


@pytest.mark.parametrize(
    ("fields", "semicolons", "found"),
    [
        (["1,5", "-2,25"], False, [1.5, -2.25]),
        (["1.234,5", "7"], True, [1234.5, 7]),
        (["1,234", "5,678"], True, [1.234, 5.678]),
        (["1,234,567", "12"], False, [1234567, 12]),
        (["1,234.5", "2"], False, [1234.5, 2]),
        (["1,234", "5,678"], False, None),  # thousands, or fractions
        (["1,5", "x"], True, None),
        (["1,5,2", "3"], True, None),
        (["1_000", "2"], False, None),
        (["true", "False"], False, [1, 0]),
        (["5%", "12.5 %"], False, [5, 12.5]),
        (["$1,234.50", "$7"], False, [1234.5, 7]),
        (["1,5 €", "3 €"], True, [1.5, 3]),
        (["5%", "7"], False, None),
    ],
)
def test_numbers_with_commas_are_read_where_there_is_one_reading(fields, semicolons, found):
    values = typed(fields, semicolons)
    assert values.tolist() == (fields if found is None else found)


@pytest.mark.parametrize("name", ["own.csv.gz", "own.CSV.GZ", "own.jsonl.gz", "own.json"])
def test_gzip_and_json_hold_the_same_table(tmp_path, name):
    rows = [{"a": 1, "b": "x", "c": {"d": True}}, {"a": None, "b": "y", "c": {"d": False}}]
    text = "a,b,c.d\n1,x,true\n,y,false\n"
    if "json" in name:
        text = json.dumps(rows) if name.endswith("json") else "\n".join(map(json.dumps, rows))
    content = gzip.compress(text.encode()) if name.lower().endswith("gz") else text.encode()
    found = read_columns(file(tmp_path, name, content))
    assert found["a"][0] == 1 and np.isnan(found["a"][1])
    assert found["b"].tolist() == ["x", "y"] and found["c.d"].tolist() == [1, 0]


def test_rows_of_json_may_leave_out_keys_and_hold_lists(tmp_path):
    text = '{"a": "1"}\n\n{"b": [1, 2], "a": "2.5"}\n{"a": NaN}\n'
    found = read_columns(file(tmp_path, "own.jsonl", text))
    assert found["b"].tolist() == ["", "[1.0, 2.0]", ""]
    assert found["a"].tolist()[:2] == ["1", "2.5"] or found["a"][:2].tolist() == [1, 2.5]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.csv", 'a,b\n1,"x\ny"\n2\n', "a.csv:4: 1 field, and the first row has 2"),
        (
            "a.csv",
            'a,b\n1,x\n"2,y\n3,z\n',
            "a.csv:3: a quote is opened in the row that begins here",
        ),
        ("a.csv", b"a,b\n1,caf\xe9\n", "in line 2"),
        ("a.csv", "a,b\n1,x\n".encode("utf-16"), "UTF-16"),
        ("a.csv", b"a,b\n1,x\0\n", "a.csv:2: a byte that is zero"),
        ("a.csv", "a\n" + "x" * (delimited.FIELD_CHARS_MAX + 1), "a.csv:2: cannot be read: field"),
        (
            "a.csv.gz",
            gzip.compress(b"a,b\n" + bytes(range(32, 96)) * 90, mtime=0)[:-20],
            "no whole gzip",
        ),
        ("a.csv.gz", b"a,b\n1,2\n", "not a whole gzip file"),
        ("a.jsonl", '{"a": 1}\n{"a": \n', "a.jsonl:2: no JSON"),
        ("a.jsonl", '{"a": 1}\n[1]\n', "a.jsonl:2: a list, and each row is an object"),
        ("a.jsonl", '{"a": Infinity}\n', "a.jsonl:1: no JSON that is read here"),
        ("a.jsonl", '{"a":' * 5000 + "1" + "}" * 5000, "a.jsonl:1:"),
        ("a.jsonl", "\n\n", "is empty"),
        ("a.csv", gzip.compress(b"a,b\n1,2\n", mtime=0), "is gzip, and no text"),
        ("a.csv", b"PK\x03\x04" + bytes(50), "is a spreadsheet or a zip archive"),
        ("a.json", b"PAR1" + bytes(50), "is Parquet, and no text"),
        ("a.csv", "My table\n\na,b\n1,2\n", "a.csv:3: 2 fields, and the first row has 1"),
        ("a.json", '[{"a": 1},\n {"a" 2}]', "a.json:2: no JSON"),
        ("a.json", "[" * 100_000, "a.json:1: no JSON"),
        ("a.jsonl", json.dumps({"a": "x" * (1 << 18)}), "`a` has 262144 characters"),
    ],
)
def test_what_is_damaged_is_named_with_its_line(tmp_path, name, content, said):
    with pytest.raises(DelianError) as caught:
        read_columns(file(tmp_path, name, content))
    assert said.replace("no whole", "not a whole") in caught.value.message and caught.value.hint


def test_rows_that_name_many_columns_are_refused_before_there_is_memory_for_them(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(json_tables, "CELLS_MAX", 1000)
    text = "\n".join(json.dumps({f"c{k}": k}) for k in range(40))
    with pytest.raises(DelianError, match=r"a\.jsonl:26: 26 columns so far, of 40 rows"):
        read_columns(file(tmp_path, "a.jsonl", text))


def test_gzip_that_unpacks_to_more_than_a_table_may_have_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(delimited, "TABLE_BYTES_MAX", 1 << 16)
    with pytest.raises(DelianError, match="unpacks to more than"):
        read_columns(file(tmp_path, "a.csv.gz", gzip.compress(b"1,2\n" * (1 << 15))))


def test_one_long_text_does_not_widen_all_others(tmp_path):
    lines = ["x"] * 1000 + ["long " * 10_000]
    found = read_columns(file(tmp_path, "a.csv", "t,n\n" + "".join(f"{t},1\n" for t in lines)))
    assert found["t"].nbytes < 1 << 16 and len(found["t"][1000]) == 49_999


def test_suffixes_are_those_of_tables():
    from pathlib import Path

    assert table_suffix(Path("a.B.jsonl.gz")) == ".jsonl.gz" and table_suffix(Path("a.pq")) == ".pq"
    assert not table_suffix(Path("a.tar.gz"))


def test_parquet_keeps_types_and_its_files_are_read_batch_by_batch(tmp_path, monkeypatch):
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    from delian.core.learning.data.tabular import arrow_tables

    table = arrow.table(
        {
            "n": [1, None, 3],
            "t": ["x", None, "y"],
            "b": [True, False, None],
            "d": arrow.array([0, 1, None], arrow.date32()),
            "c": arrow.array(["u", "v", "u"]).dictionary_encode(),
            "nested": [[1], [2], None],
            "raw": [b"1", b"2", b"3"],
        }
    )
    parquet.write_table(table, tmp_path / "a.parquet")
    found = arrow_tables.read_parquet([tmp_path / "a.parquet"])
    assert found.columns["t"].tolist() == ["x", "", "y"] and found.columns["b"][0] == 1
    assert found.columns["d"].tolist() == ["1970-01-01", "1970-01-02", ""]
    assert found.columns["c"].tolist() == ["u", "v", "u"] and np.isnan(found.columns["n"][1])
    assert [note.partition("`")[2].partition("`")[0] for note in found.left_out] == [
        "nested",
        "raw",
    ]
    monkeypatch.setattr(arrow_tables, "TABLE_BYTES_MAX", 64)
    with pytest.raises(DelianError, match="too large for a table"):
        read_columns(tmp_path / "a.parquet")
    monkeypatch.undo()
    content = (tmp_path / "a.parquet").read_bytes()
    for damaged in (content[:-5], content[: len(content) // 2], b"PAR1", b""):
        (tmp_path / "b.parquet").write_bytes(damaged)
        with pytest.raises(DelianError, match="not a whole Parquet file"):
            read_columns(tmp_path / "b.parquet")


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("name,2019,2020\nx,1,2\ny,3,4\nx,5,6\ny,7,8\n", ["name", "2019", "2020"]),
        ("id,1,2\n7,0.5,1\n8,0.25,3\n", ["id", "1", "2"]),
        ("5.1,3.5,setosa\n4.9,3.0,setosa\n6.2,2.9,virginica\n", ["0", "1", "2"]),
        ("1,2\n3,4\n", ["0", "1"]),
        ("r1,5\nr2,6\nr3,7\n", ["0", "1"]),
        ("a,b\nc,d\n", ["a", "b"]),
    ],
)
def test_names_of_columns_may_be_numbers_and_rows_may_have_texts(tmp_path, text, names):
    assert list(read_columns(file(tmp_path, "own.csv", text))) == names


@pytest.mark.parametrize(
    "text",
    [
        '{"a": [1, 2], "b": ["x", "y"]}',
        '{"a": {"0": 1, "1": 2}, "b": {"0": "x", "1": "y"}}',
        '[{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]',
    ],
)
def test_json_of_columns_is_read_as_one_of_rows(tmp_path, text):
    found = read_columns(file(tmp_path, "own.json", text))
    assert found["a"].tolist() == [1, 2] and found["b"].tolist() == ["x", "y"]


def test_a_number_beyond_all_floats_is_kept_as_what_it_is(tmp_path):
    found = read_columns(file(tmp_path, "own.json", '{"a": ["u", 1e999], "b": [1, -1e999]}'))
    assert found["a"].tolist() == ["u", "inf"] and found["b"].tolist() == [1, -np.inf]


@pytest.mark.parametrize("closed", [True, False])
def test_a_quote_that_is_left_open_takes_no_rows(tmp_path, closed):
    text = 'a,b\n1,x\n2,"y\n3,z\n4,u'
    if closed:
        assert read_columns(file(tmp_path, "a.csv", text + '"'))["b"].tolist() == [
            "x",
            "y\n3,z\n4,u",
        ]
        return
    with pytest.raises(DelianError, match=r"a.csv:3: a quote is opened .* never closed"):
        read_columns(file(tmp_path, "a.csv", text))


@pytest.mark.parametrize("form", ["new_file", "new_stream"])
def test_files_of_arrow_are_tables_and_damaged_ones_are_refused(tmp_path, form):
    arrow = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.ipc")
    table = arrow.table({"n": [1.5, None], "t": ["x", "y"]})
    path = tmp_path / "own.feather"
    with arrow.OSFile(str(path), "wb") as out, getattr(arrow.ipc, form)(out, table.schema) as file:
        file.write_table(table)
    found = read_columns(path)
    assert found["t"].tolist() == ["x", "y"] and found["n"][0] == 1.5 and np.isnan(found["n"][1])
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(DelianError, match="not a whole file of Arrow"):
        read_columns(path)
