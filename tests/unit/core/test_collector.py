"""Imports that Python's collector leaves alone."""

from __future__ import annotations

import gc
import weakref

import pytest
from delian.core.common.collector import unsearched


class Thing:
    """What a cycle is made of."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def as_before():
    gc.collect()
    yield
    gc.unfreeze()
    gc.enable()


def test_nothing_is_searched_inside_and_afterwards_it_is_as_before():
    before = gc.get_stats()
    with unsearched():
        assert not gc.isenabled()
        made = [[i] for i in range(20_000)]
        assert [s["collections"] for s in gc.get_stats()] == [s["collections"] for s in before]
    assert gc.isenabled() and gc.get_freeze_count() == 0 and len(made) == 20_000


def test_what_is_made_inside_is_old_and_a_cycle_of_it_is_found_with_all_else():
    with unsearched():
        kept, lost = Thing(), weakref.ref(Thing())
    assert any(each is kept for each in gc.get_objects(generation=2))
    assert not any(each is kept for each in gc.get_objects(generation=0))
    assert lost() is not None
    gc.collect()
    assert lost() is None


def test_who_has_switched_it_off_or_frozen_what_there_is_keeps_that():
    gc.disable()
    with unsearched():
        pass
    assert not gc.isenabled()
    gc.enable()
    gc.freeze()
    frozen = gc.get_freeze_count()
    with unsearched(), unsearched():
        pass
    assert gc.isenabled() and gc.get_freeze_count() >= frozen - 100 > 0


def test_an_import_that_fails_leaves_it_on():
    with pytest.raises(ImportError), unsearched():
        import delian.there_is_no_such_module  # noqa: F401
    assert gc.isenabled()
