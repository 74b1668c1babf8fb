"""The personal model on disk: two slots, and what happens when a new one is worse or damaged."""

from __future__ import annotations

import numpy as np
import pytest
from delian.core.common.errors import DelianError
from delian.device.agent.personal_model import Judgement, NoModelError, PersonalStore, stamp


def judged(after: float, present: float | None = None, count: float = 5.0) -> Judgement:
    return Judgement(1.0, after, 0.5, 0.6, count, present)


@pytest.fixture
def store(tmp_path) -> PersonalStore:
    made = PersonalStore(tmp_path / "personal", margin=0.1)
    made.prepare()
    return made


def offer(store: PersonalStore, blobs, value: float, judgement: Judgement) -> bool:
    store.draft.write_bytes(np.full(3, value, "<f4").tobytes())
    return store.offer(blobs.path(blobs.bundle), blobs.bundle, judgement)


def content(store: PersonalStore) -> float:
    return float(np.fromfile(store.current().model, "<f4")[0])


def test_each_new_model_goes_into_the_other_slot(store, blobs):
    assert store.current() is None and stamp(store.folder) == 0
    assert offer(store, blobs, 1, judged(0.9))
    first = stamp(store.folder)
    assert (store.current().name, content(store)) == ("a", 1.0)
    assert offer(store, blobs, 2, judged(0.8, 0.9))
    assert (store.current().name, content(store)) == ("b", 2.0)
    assert stamp(store.folder) != first
    assert store.previous().name == "a"
    assert not store.draft.exists()


def test_a_model_that_judges_worse_by_more_than_the_margin_is_turned_down(store, blobs):
    offer(store, blobs, 1, judged(0.5))
    assert not offer(store, blobs, 2, judged(0.9, 0.5))
    assert content(store) == 1.0 and not store.draft.exists()
    assert offer(store, blobs, 3, judged(0.54, 0.5)), "within the margin"
    assert not offer(store, blobs, 4, judged(0.7, None)), "by what the served one said of itself"
    assert not offer(store, blobs, 5, judged(float("nan"), 0.5))
    assert content(store) == 3.0
    assert offer(store, blobs, 6, judged(float("nan"), None, count=0)), "nothing to judge by"


def test_the_served_model_may_be_taken_back(store, blobs):
    with pytest.raises(NoModelError):
        store.rollback()
    offer(store, blobs, 1, judged(0.9))
    with pytest.raises(NoModelError):
        store.rollback()
    offer(store, blobs, 2, judged(0.8))
    assert store.rollback().name == "a"
    assert content(store) == 1.0
    offer(store, blobs, 3, judged(0.7))
    assert (store.current().name, content(store)) == ("b", 3.0)


def test_a_damaged_slot_is_not_served_while_the_other_is_whole(store, blobs):
    offer(store, blobs, 1, judged(0.9))
    offer(store, blobs, 2, judged(0.8))
    model = store.current().model
    model.write_bytes(model.read_bytes()[:-1])
    assert content(store) == 1.0
    (store.folder / "current").write_text("{")
    assert store.current().name == "a"
    (store.folder / "a" / "facts.json").write_text("[]")
    assert store.current() is None
    assert offer(store, blobs, 3, judged(0.9)), "and a new one mends it"
    assert content(store) == 3.0


def test_bundles_that_no_slot_needs_are_forgotten(store, blobs):
    for i in range(4):
        digest = blobs.keep(b"bundle %d" % i)
        store.draft.write_bytes(b"1234")
        assert store.offer(blobs.path(digest), digest, judged(0.5))
    assert len(list((store.folder / "bundles").iterdir())) == 2
    assert store.current().bundle_path.read_bytes() == b"bundle 3"


def test_a_models_frozen_parts_stay_for_as_long_as_it_does(store, blobs):
    parts = [blobs.keep(b"part %d" % i) for i in range(4)]
    for i in range(3):
        mine = [blobs.path(parts[i]), blobs.path(parts[i + 1])]
        store.draft.write_bytes(b"1234")
        assert store.offer(blobs.path(blobs.bundle), blobs.bundle, judged(0.5), mine)
        assert [p.read_bytes() for p in store.current().frozen] == [
            b"part %d" % i,
            b"part %d" % (i + 1),
        ]
    left = {p.name for p in (store.folder / "frozen").iterdir()}
    assert left == {parts[i].hex() for i in (1, 2, 3)}, "of both slots"
    blobs.path(parts[3]).unlink()
    assert [p.read_bytes() for p in store.current().frozen] == [b"part 2", b"part 3"]


def test_a_slot_whose_frozen_part_is_missing_is_not_served(store, blobs):
    digest = blobs.keep(b"part")
    offer(store, blobs, 1, judged(0.9))
    store.draft.write_bytes(np.full(3, 2, "<f4").tobytes())
    store.offer(blobs.path(blobs.bundle), blobs.bundle, judged(0.8), [blobs.path(digest)])
    assert content(store) == 2.0
    store.current().frozen[0].unlink()
    assert content(store) == 1.0, "the other slot's"


def test_where_files_cannot_be_linked_parts_are_copied(store, blobs, monkeypatch):
    def refuse(file, place):
        raise OSError("no links here")

    monkeypatch.setattr("os.link", refuse)
    digest = blobs.keep(b"part")
    store.draft.write_bytes(b"1234")
    store.offer(blobs.path(blobs.bundle), blobs.bundle, judged(0.8), [blobs.path(digest)])
    assert [p.read_bytes() for p in store.current().frozen] == [b"part"]


def test_the_folder_is_its_owners_alone_and_a_crash_leaves_no_draft(store):
    assert store.folder.stat().st_mode & 0o077 == 0
    store.draft.write_bytes(b"half")
    store.prepare()
    assert not store.draft.exists()


def test_a_margin_that_makes_no_sense_is_refused(tmp_path):
    for wrong in (-0.1, float("nan")):
        with pytest.raises(DelianError):
            PersonalStore(tmp_path, wrong)
