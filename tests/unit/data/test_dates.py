"""Dates in text: forms that are read, the order of day and month, and what is no date."""

import numpy as np
import pytest
from delian.core.learning.data.tabular.dates import date_text, day_of, days_of, order_of
from delian.core.statistics.methods.preparation import Preparation
from delian.core.statistics.site_table import Table
from delian.simulations.statistics.local_sites import LocalSites

DAY = 20_000  # 2024-10-04


@pytest.mark.parametrize(
    ("text", "days"),
    [
        ("2024-10-04", DAY),
        ("2024/10/4", DAY),
        ("4.10.2024", DAY),
        ("2024-10-04 12:00", DAY + 0.5),
        ("2024-10-04T18:00:00.000000000", DAY + 0.75),
        ("2024-10-04T00:00:00+02:00", DAY - 1 / 12),
        ("2024-10-04 06:00 PM", DAY + 0.75),
        ("2024-10-04 12:30am", DAY + 0.5 / 24),
        ("1970-01-01", 0),
        ("1969-12-31", -1),
        ("2024-13-04", None),
        ("2023-02-29", None),
        ("2024-10-04 25:00", None),
        ("2024-10-04 13:00 PM", None),
        ("2024-10/04", None),
        ("20241004", None),
        ("1.2", None),
        ("10/04/2024", None),
        ("2024-10-04 " + "1" * 99, None),
    ],
)
def test_days_since_1970(text, days):
    assert day_of(text) == (None if days is None else pytest.approx(days, abs=1e-9))
    if days is not None and days == int(days):
        assert day_of(date_text(days)) == days


def test_slashes_need_an_order_which_the_other_rows_give():
    american = np.array(["10/04/2024", "10/25/2024"])
    european = np.array(["04/10/2024", "25/10/2024"])
    open_ = np.array(["04/10/2024", "03/03/2024"])
    assert [order_of(each) for each in (american, european, open_)] == ["mdy", "dmy", ""]
    assert days_of(american, "mdy").tolist() == [DAY, DAY + 21]
    assert days_of(european, "dmy").tolist() == [DAY, DAY + 21]
    assert np.isnan(days_of(open_)).all()


def test_sites_find_the_order_together():
    # One site's days are all below 13: it could not say which comes first.
    first = Table({"when": np.array([f"{1 + k % 12}/{1 + k % 9}/2024" for k in range(60)])})
    other = Table({"when": np.array([f"{1 + k % 12}/{10 + k % 19}/2024" for k in range(60)])})
    found = LocalSites([first, first, other]).answer(Preparation(("when",))).columns[0]
    assert found.kind == "date" and found.encoder.order == "mdy"
    alone = LocalSites([first] * 3).answer(Preparation(("when",))).columns[0]
    assert alone.kind != "date"
