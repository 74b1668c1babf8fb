"""What a site's owner allows, and what no two questions may do together."""

from __future__ import annotations

import numpy as np
import pytest
from delian.core.common.errors import DelianError
from delian.core.statistics.methods.aggregates import Aggregates
from delian.core.statistics.request import Request, Rows
from delian.core.statistics.site_rules import OwnerRules
from delian.core.statistics.site_table import Table
from delian.core.statistics.sql.rows_data import Offered, Refused, SiteRows

RULES = OwnerRules({"patients": Offered("patients.csv", ("age", "sex"))}, floor=5)


def request(column: str = "age", where: str = "", noise: float = 0.0) -> Request:
    limits = {column: (0.0, 1.0)}
    return Request(Aggregates((("avg", column),), limits=limits), Rows("patients", where), noise)


def rows(places: list[int], total: int = 1000) -> SiteRows:
    return SiteRows(Table({"age": np.zeros(len(places))}), np.array(places, np.int64), total)


def reason(call) -> str:
    with pytest.raises(Refused) as refused:
        call()
    return refused.value.reason


def test_only_what_is_offered_is_asked_about() -> None:
    assert RULES.check(request()).by_table == {"patients": ("age",)}
    assert reason(lambda: RULES.check(request("income"))) == "columns"
    assert reason(lambda: RULES.check(request(where="income > 3"))) == "columns"
    assert reason(lambda: OwnerRules().check(request())) == "tables"
    other = Request(Aggregates(), Rows("salaries"))
    assert reason(lambda: RULES.check(other)) == "tables"


def test_methods_and_noise_are_the_owner_s_to_choose() -> None:
    some = OwnerRules(RULES.tables, methods=("glm",))
    assert reason(lambda: some.check(request())) == "method"
    noised = OwnerRules(RULES.tables, noise_min=2.0)
    assert reason(lambda: noised.check(request(noise=1.9))) == "noise"
    noised.check(request(noise=2.0))


def test_a_question_keeps_no_smaller_groups_than_the_owner_s_floor() -> None:
    for floor in (1, 4, float("nan"), True):
        asked = Request(Aggregates(floor=floor), Rows("patients"))
        assert reason(lambda asked=asked: RULES.check(asked)) == "floor"
    RULES.check(Request(Aggregates(floor=5), Rows("patients")))


def test_fewer_rows_than_the_floor_are_refused() -> None:
    found = RULES.check(request())
    assert reason(lambda: RULES.check_rows(request(), found, rows([1, 2, 3, 4]), b"")) == "floor"
    assert RULES.check_rows(request(), found, rows([1, 2, 3, 4, 5]), b"")
    many = rows([7] * 100)  # a join: one row of the table, a hundred times
    assert reason(lambda: RULES.check_rows(request(), found, many, b"")) == "floor"


def test_rows_that_differ_from_another_question_s_by_few_are_refused() -> None:
    found = RULES.check(request())
    history = RULES.check_rows(request(), found, rows(list(range(100))), b"")
    assert RULES.check_rows(request(), found, rows(list(range(100))), history) == b""
    fewer, more = rows(list(range(99))), rows(list(range(104)))
    swapped = rows([*range(1, 100), 500])
    for near in (fewer, more, swapped):
        assert reason(lambda near=near: RULES.check_rows(request(), found, near, history)) == (
            "difference"
        )
    apart = RULES.check_rows(request(), found, rows(list(range(95))), history)
    # Two steps of five lie between 100 and 90; 93 lies near one of them.
    both = history + apart
    assert reason(lambda: RULES.check_rows(request(), found, rows(list(range(93))), both)) == (
        "difference"
    )


def test_rows_that_were_added_to_the_table_count() -> None:
    found = RULES.check(request())
    history = RULES.check_rows(request(), found, rows(list(range(100)), 100), b"")
    grown = rows(list(range(102)), 102)
    assert reason(lambda: RULES.check_rows(request(), found, grown, history)) == "difference"
    assert RULES.check_rows(request(), found, rows(list(range(110)), 110), history)


@pytest.mark.parametrize("cut", [1, 30, 71, 72, 73])
def test_a_damaged_history_is_an_error_and_no_permission(cut: int) -> None:
    found = RULES.check(request())
    history = RULES.check_rows(request(), found, rows(list(range(100))), b"")
    with pytest.raises(DelianError):
        RULES.check_rows(request(), found, rows([1, 2, 3, 4, 5]), history[:cut])


def test_the_rules_travel_to_the_answering_process() -> None:
    rules = OwnerRules(RULES.tables, ("glm",), 7, 9, 0.5)
    assert OwnerRules.from_json(rules.to_json()) == rules


@pytest.mark.parametrize(
    "wrong", [{"floor": 0}, {"per_day": 0}, {"noise_min": -1.0}, {"tables": {'a"b': Offered("x")}}]
)
def test_rules_that_make_no_sense_are_refused(wrong) -> None:
    with pytest.raises(DelianError):
        OwnerRules(**wrong)
