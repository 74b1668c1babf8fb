"""Design matrices and formulas are those of patsy: same columns, same names, same numbers."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from delian.core.statistics.design import Design
from delian.core.statistics.formula import parse_formula
from delian.core.statistics.site_table import Table
from delian.core.statistics.sums import StatisticsError

CATEGORIES = {"sex": ("f", "m"), "arm": ("none", "low", "high"), "g": ("0", "1")}

FORMULAS = [
    "y ~ a",
    "y ~ a - 1",
    "y ~ 0 + C(sex)",
    "y ~ C(arm) + a + b",
    "y ~ a + C(sex) + a:C(sex)",
    "y ~ a:C(sex)",
    "y ~ C(sex):C(arm)",
    "y ~ C(sex):C(arm) - 1",
    "y ~ C(sex) + C(sex):C(arm)",
    "y ~ C(sex)*C(arm)*a",
    "y ~ C(sex)*C(arm)*C(g) - 1",
    "y ~ a*b + a:b:C(g) + C(arm)",
    "y ~ (a + b)*C(arm) - b",
    "y ~ a:b + b:a + a + a",
    "y ~ C(sex):C(arm):C(g)",
    "y ~ 1",
    "y ~ C(arm):b - 1 + C(sex)",
    "y ~ sex + arm",
    "y ~ (a + C(sex)):(b + C(arm))",
]


def people(n: int = 60) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(4)
    return {
        "y": draw.normal(size=n),
        "a": draw.normal(size=n),
        "b": draw.normal(5, 2, size=n),
        **{c: draw.choice(levels, n) for c, levels in CATEGORIES.items()},
    }


@pytest.mark.parametrize("formula", FORMULAS)
def test_a_formula_gives_the_matrix_that_patsy_gives(formula: str) -> None:
    patsy = pytest.importorskip("patsy")
    pandas = pytest.importorskip("pandas")
    data = people()
    frame = pandas.DataFrame(
        {k: pandas.Categorical(v, CATEGORIES[k]) if k in CATEGORIES else v for k, v in data.items()}
    )
    judge = patsy.dmatrix(formula.split("~")[1], frame)
    read = parse_formula(formula)
    design = Design(read.predictors, CATEGORIES, read.intercept)
    made = design.of(Table(data), ["y"])
    assert design.names == tuple(judge.design_info.column_names)
    np.testing.assert_array_equal(made.matrix, np.asarray(judge))
    np.testing.assert_array_equal(made.others["y"], data["y"])


def test_rows_that_miss_a_value_or_have_another_category_are_left_out_and_counted() -> None:
    table = Table(
        {
            "a": np.array([1.0, np.nan, 3, 4, 5]),
            "sex": np.array(["m", "x", "x", "", "f"]),
            "y": np.array([0.0, 1, 2, 3, 4]),
        }
    )
    made = Design(("a", "sex"), {"sex": ("f", "m")}).of(table, ["y"])
    assert (made.rows, made.missing, made.unlisted) == (2, 2, 1)
    assert made.kept.tolist() == [True, False, False, False, True]
    np.testing.assert_array_equal(made.matrix, [[1, 1, 1], [1, 0, 5]])


def test_the_columns_read_are_named_once() -> None:
    design = Design(("a:C(sex)", "b", "a"), {"sex": ("f", "m")})
    assert design.columns() == ("a", "sex", "b")


@pytest.mark.parametrize(
    ("predictors", "categories"),
    [
        (("C(sex)",), {}),
        (("",), {}),
        (("a:",), {}),
        (("a:b:c:d:e:f:g",), {}),
        (("sex",), {"sex": ("f",)}),
        (("sex",), {"sex": ("f", "f")}),
        (("sex",), {"sex": "fm"}),
        (("k",), {"k": tuple(map(str, range(600)))}),
        (tuple(f"x{i}" for i in range(300)), {}),
        (("a:b:c:d:e:f",), {c: tuple(map(str, range(2700))) for c in "abcdef"}),
    ],
)
def test_a_design_that_makes_no_sense_is_refused(predictors, categories) -> None:
    with pytest.raises(StatisticsError):
        Design(predictors, categories)


def test_survival_outcomes_and_quoted_names_are_read() -> None:
    assert parse_formula("Surv(days, dead) ~ age").outcome == ("days", "dead")
    assert parse_formula("Surv(start, stop, dead) ~ age").outcome == ("start", "stop", "dead")
    assert parse_formula("`body mass` ~ `years old` + C(`a b`)").predictors == (
        "years old",
        "C(a b)",
    )
    assert not parse_formula("y ~ a + 0").intercept
    assert parse_formula("y ~ a - 1 + 1").intercept


@pytest.mark.parametrize(
    ("text", "at", "what"),
    [
        ("", 1, "name of a column"),
        ("y", 2, "`~`"),
        ("y ~", 4, "name of a column"),
        ("y ~ a +", 8, "name of a column"),
        ("y ~ log(a)", 8, "not known"),
        ("y ~ a**2", 6, "`**`"),
        ("y ~ a + 2", 9, "0 and 1"),
        ("y ~ (a + b", 11, "`)`"),
        ("y ~ a b", 7, "not expected"),
        ("y ~ a:1", 7, "number"),
        ("y ~ C(a, Sum)", 8, "reference"),
        ("y ~ __import__('os')", 15, "not known"),
        ("Surv(t) ~ a", 7, "Surv"),
        ("y ~ " + "(" * 40 + "a" + ")" * 40, 22, "nested"),
        ("y ~ a:b:c:d:e:f:g", 17, "product"),
    ],
)
def test_a_wrong_formula_is_refused_with_its_place(text: str, at: int, what: str) -> None:
    with pytest.raises(StatisticsError) as fault:
        parse_formula(text)
    assert f"character {at}:" in fault.value.message and what in fault.value.message


def test_no_text_of_signs_and_names_breaks_the_parser() -> None:
    for parts in itertools.product(["y", "~", "+", "C(", ")", ":", "1", "*"], repeat=4):
        for text in ("".join(parts), "y~" + "".join(parts)):
            try:
                parse_formula(text)
            except StatisticsError as fault:
                assert "character" in fault.message
    with pytest.raises(StatisticsError):
        parse_formula("y ~ " + "a + " * 2000 + "a")
