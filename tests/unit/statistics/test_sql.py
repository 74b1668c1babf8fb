"""Questions in SQL: what they may be made of, and answers equal to those of one database."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
from delian.core.statistics.request import Rows
from delian.core.statistics.sql.expressions import expression, from_clause
from delian.core.statistics.sql.rows_data import Offered, Reader, Refused, wanted
from delian.core.statistics.sql.select_statement import selected
from delian.core.statistics.sums import StatisticsError
from delian.simulations.statistics.local_sites import LocalSites

ALLOWED = [
    "age > 50 and sex = 'f'",
    "a between 1 and 2 or b is not null",
    "case when x>1 then 'a' else 'b' end",
    "floor(age/10)*10",
    "a in (1,2,3)",
    "cast(x as double)",
    "year(d) = 2020",
    "x like 'a%'",
    "-x + 1.5e3",
    "date_diff('day', a, b)",
    "coalesce(x, 0) > least(a, b)",
]
REFUSED = [
    "(select 1)",
    "a in (select b from c)",
    "exists (select 1)",
    "read_csv('x')",
    "'x' in read_text('/etc/passwd')",
    "1; drop table x",
    "getenv('HOME')",
    "current_setting('x')",
    "a::json",
    "a::varchar[]",
    "*",
    "columns('.*')",
    "count(x)",
    "sum(x) over ()",
    "row_number() over ()",
    "random()",
    "now()",
    "a.b.c.d",
    "main.t.x",
    "1 from t",
    "1 limit 3",
    "?",
    "$1",
    "list_value(1,2)",
    "{'a':1}",
    "x[1]",
    "sleep(3)",
    "x as y",
    "x, y",
    "",
    "(" * 60 + "1" + ")" * 60 + " + " * 200 + "1",
    " and ".join(["a = 1"] * 300),
    "a = '" + "x" * 5000 + "'",
    "'",
    "\x00",
]
JOINS = [
    "(select 1) x",
    "read_csv('a')",
    "'/etc/passwd'",
    "a, b",
    "a cross join b",
    "a join b using (id)",
    "a natural join b",
    "a join b on true",
    "a join b on 1 = 1",
    "a full join b on a.x=b.x",
    "a asof join b on a.x=b.x",
    "main.a",
    "a tablesample 10%",
    "a where 1=1",
    "a join a on a.x = a.x",
    "a group by 1",
    "a; drop table a",
    "range(10)",
    "unnest([1,2])",
]


@pytest.mark.parametrize("text", ALLOWED)
def test_an_expression_of_listed_parts_is_taken(text: str) -> None:
    found = expression(text)
    assert found.columns and expression(found.sql) == found


@pytest.mark.parametrize("text", REFUSED)
def test_an_expression_of_anything_else_is_refused(text: str) -> None:
    with pytest.raises(StatisticsError):
        expression(text)


def test_a_comment_does_not_travel() -> None:
    assert expression("a > 1 -- and more").sql == "a > 1"


@pytest.mark.parametrize("text", JOINS)
def test_a_from_clause_of_anything_but_joined_tables_is_refused(text: str) -> None:
    offered = {"a": Offered("a.csv"), "b": Offered("b.csv")}
    with pytest.raises((StatisticsError, Refused)):
        from_clause(text)
        wanted(Rows(text), ("x",), offered)


@pytest.fixture(scope="module")
def clinics():
    """Five sites of two tables, and all rows in one database."""
    import pandas as pd

    draw = np.random.default_rng(3)
    patients, visits = [], []
    for site in range(5):
        n = 200
        age = draw.integers(18, 90, n).astype(float)
        age[draw.random(n) < 0.05] = np.nan
        patients.append(
            pd.DataFrame(
                {
                    "id": np.arange(n) + 1000 * site,
                    "age": age,
                    "x": draw.normal(1e6, 3, n),
                    "region": draw.choice(["north", "süd", "o'st"], n),
                    "k": draw.integers(0, 3, n),
                }
            )
        )
        owner = draw.choice(patients[-1]["id"], 500)
        visits.append(pd.DataFrame({"pid": owner, "cost": draw.gamma(2, 10, 500)}))
    database = importlib.import_module("duckdb").connect()
    database.register("patients", pd.concat(patients))
    database.register("visits", pd.concat(visits))
    sites = [{"patients": p, "visits": v} for p, v in zip(patients, visits, strict=True)]
    return LocalSites(sites), database


@pytest.mark.parametrize(
    "text",
    [
        "select count(*), count(age), avg(age) from patients",
        "select region, count(*) n, avg(x), stddev(x) from patients where age > 50"
        " group by region order by n desc",
        "select floor(age/20)*20 band, k, count(*), sum(age*k), variance(age) from patients"
        " where age is not null group by band, k having count(*) > 30 order by 1, 2 limit 5",
        "select p.region, count(*), avg(v.cost) from patients p join visits v on p.id = v.pid"
        " where p.age < 40 group by p.region order by p.region",
        "select case when age < 40 then 'young' else 'old' end g, avg(x) m from patients"
        " where age > 0 group by 1 order by m",
        "select k, count(*) from patients where region in ('süd', 'o''st') group by k order by k",
        "select avg(cost) from visits",
    ],
)
def test_the_answer_is_that_of_one_database(clinics, text: str) -> None:
    sites, database = clinics
    asked = selected(text, floor=1)
    (table,) = asked.present(sites.answer(asked.request)).tables
    shown = [i for i, name in enumerate(table.columns) if not name.endswith((" low", " high"))]
    rows = [[row[i] for i in shown] for row in table.rows]
    wanted_rows = database.execute(text).fetchall()
    assert len(rows) == len(wanted_rows)
    for row, other in zip(rows, wanted_rows, strict=True):
        for value, true in zip(row, other, strict=True):
            if isinstance(value, str) and not isinstance(true, str):
                value = float(value)
            assert value == true if isinstance(true, str) else value == pytest.approx(true, 1e-9)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("select * from patients", "neither an aggregate"),
        ("select age from patients", "neither an aggregate"),
        ("select max(age) from patients", "no sum"),
        ("select median(age) from patients", "no sum"),
        ("select count(distinct k) from patients", "DISTINCT"),
        ("select sum(distinct k) from patients", "DISTINCT"),
        ("delete from patients", "no question"),
        ("select count(*) from (select 1)", "names of tables"),
        ("with a as (select 1) select count(*) from a", "WITH"),
        ("select k, count(*) from patients group by rollup(k)", "ROLLUP"),
        ("select count(*) from patients union select 1", "no question"),
        ("select distinct k from patients", "DISTINCT"),
        ("selec count(*) from x", "cannot be read"),
        ("select count(*)", "FROM"),
        ("select k, count(*) from patients group by k having max(x) > 3", "no sum"),
        ("select k, count(*) from patients group by 7", "no such column"),
        ("select k, count(*) from patients group by k limit x", "LIMIT"),
        ("select count(*) from patients; select 1", "one statement"),
        ("select count(*) from patients qualify 1=1", "QUALIFY"),
    ],
)
def test_what_sums_cannot_answer_is_refused_with_the_part_at_fault(text: str, words: str) -> None:
    with pytest.raises(StatisticsError, match=words):
        selected(text)


@pytest.mark.parametrize(
    "text",
    [
        "select avg(region) from patients",
        "select count(*) from patients where nothing > 3",
        "select count(*) from patients where region > 3",
        "select count(*) from nowhere",
        "select avg(nothing) from patients",
        "select p.age, count(*) from patients p join visits v on p.id = v.pid group by w.age",
    ],
)
def test_what_does_not_fit_the_tables_is_an_error_and_not_an_answer(clinics, text: str) -> None:
    with pytest.raises(StatisticsError):
        asked = selected(text, floor=1)
        clinics[0].answer(asked.request)


def test_only_columns_that_the_owner_offers_are_read(tmp_path) -> None:
    path = tmp_path / "p.csv"
    path.write_text("id,age,name\n1,30,a\n2,40,b\n")
    offered = {"p": Offered(str(path), ("age",))}
    for rows, columns in [
        (Rows("p"), ("name",)),
        (Rows("p", "name = 'a'"), ("age",)),
        (Rows("p", columns={"n": "length(name)"}), ("n",)),
        (Rows("p", "NAME = 'a'"), ("age",)),
    ]:
        with pytest.raises(Refused):
            wanted(rows, columns, offered)
    found = wanted(Rows("p", "age > 35"), ("age",), offered)
    reader = Reader(found, offered)
    reader.load(1 << 28)
    rows = reader.rows(("age",))
    assert rows.places.tolist() == [1] and rows.total == 2


def test_nothing_is_read_from_files_once_the_tables_are_there(tmp_path) -> None:
    duckdb = importlib.import_module("duckdb")
    path = tmp_path / "p.csv"
    path.write_text("age\n30\n")
    offered = {"p": Offered(str(path))}
    reader = Reader(wanted(Rows("p", "age > 1"), ("age",), offered), offered)
    reader.load(1 << 28)
    for attack in (
        f"SELECT * FROM read_csv('{path}')",
        "SET enable_external_access=true",
        "INSTALL httpfs",
        f"COPY (SELECT 1) TO '{tmp_path}/out.csv'",
    ):
        with pytest.raises(duckdb.Error):
            reader._database.execute(attack)


@pytest.mark.parametrize("kind", ["sqlite", "duckdb", "csv", "pattern", "parquet"])
def test_a_table_is_a_file_or_in_a_database(tmp_path, kind: str) -> None:
    import sqlite3

    rows = [(1, 30.5, "a"), (2, None, "b"), (3, 50.0, None)]
    path, relation = tmp_path / f"clinic.{kind}", ""
    duckdb = importlib.import_module("duckdb")
    if kind == "sqlite":
        with sqlite3.connect(path) as database:
            database.execute("create table people (id integer, age real, name text)")
            database.executemany("insert into people values (?, ?, ?)", rows)
        relation = "people"
    elif kind == "csv":
        path.write_text("id,age,name\n1,30.5,a\n2,,b\n3,50.0,\n")
    elif kind == "pattern":
        path = tmp_path / "part-*.csv"
        (tmp_path / "part-1.csv").write_text("id,age,name\n1,30.5,a\n")
        (tmp_path / "part-2.csv").write_text("id,age,name\n2,,b\n3,50.0,\n")
    else:
        with duckdb.connect(str(path) if kind == "duckdb" else ":memory:") as database:
            database.execute("create table p (id integer, age double, name varchar)")
            database.executemany("insert into p values (?, ?, ?)", rows)
            if kind == "parquet":
                database.execute(f"copy p to '{path}' (format parquet)")
    offered = {"p": Offered(str(path), relation=relation)}
    for where, places in (("", [0, 1, 2]), ("id > 1", [1, 2])):
        reader = Reader(wanted(Rows("p", where), ("age", "name"), offered), offered)
        reader.load(1 << 28)
        found = reader.rows(("age", "name"))
        assert found.places.tolist() == places and found.total == 3
        ages, names = np.array([30.5, np.nan, 50.0]), np.array(["a", "b", ""])
        np.testing.assert_array_equal(found.table.numbers("age"), ages[places])
        assert found.table.texts("name").tolist() == names[places].tolist()
    for rows_, columns in ((Rows("p"), ("nothing",)), (Rows("p", "nothing > 1"), ("age",))):
        with pytest.raises(StatisticsError):
            reader = Reader(wanted(rows_, columns, offered), offered)
            reader.load(1 << 28)
            reader.rows(columns)


def test_a_file_that_is_no_database_is_an_error(tmp_path) -> None:
    for name in ("a.sqlite", "a.duckdb", "a.parquet", "a.csv", "nowhere.db"):
        path = tmp_path / name
        if "nowhere" not in name:
            path.write_bytes(b"\x00\xffnothing of the kind" * 50)
        offered = {"p": Offered(str(path))}
        with pytest.raises(StatisticsError):
            reader = Reader(wanted(Rows("p", "age > 1"), ("age",), offered), offered)
            reader.load(1 << 28)
            reader.rows(("age",))
