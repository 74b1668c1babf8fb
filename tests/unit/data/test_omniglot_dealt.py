"""Characters dealt out at random, and turned ones, of a small file that is made here."""

from pathlib import Path

import numpy as np
import pytest
from delian.core.common.errors import DelianError
from delian.core.learning import data

ALPHABETS, EACH, PEOPLE = 3, 6, 4


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Three alphabets of six characters by four people: each drawing's first row says who and what,
    and its first column is dark, so that a turn can be seen.
    """
    path = tmp_path / "small.npz"
    character, drawer = np.divmod(np.arange(ALPHABETS * EACH * PEOPLE), PEOPLE)
    image = np.zeros((len(character), 28, 28), np.uint8)
    image[:, 5:20, 0] = 255
    image[:, 10, 10], image[:, 10, 11] = character, drawer
    names = np.array(["A", "B", "C"])
    np.savez(
        path,
        image=image,
        alphabet=character // EACH,
        character=character,
        drawer=drawer,
        alphabet_names=names,
    )
    return path


def characters_of(device: data.EpisodeData) -> list[tuple[int, int]]:
    """(character, quarters) of each row of a device's table."""
    found = []
    for row in device.x[: device.chars]:
        edges = [row[0][:, 0], row[0][-1], row[0][:, -1], row[0][0]]
        quarters = int(np.argmax([int(edge.astype(int).sum()) for edge in edges]))
        upright = np.rot90(row[0], -quarters)
        found.append((int(upright[10, 10]), quarters))
    return found


def test_random_characters_lie_on_devices_without_one_being_on_two(file: Path) -> None:
    federation = data.omniglot(file, drawers=4, dealt=data.Dealt(each=4, held_out=6, seed=1))
    sets = [characters_of(device) for device in federation.devices]
    everything = [c for each in sets for c, _ in each]
    assert sorted(everything) == list(range(18))
    assert sum(len(sets[i]) for i in federation.held_out) == 6
    assert [len(s) for s in sets] == [4, 4, 4, 6]
    assert all(quarters == 0 for each in sets for _, quarters in each)
    counts = np.array(federation.card.label_counts)
    assert counts.sum(axis=1).tolist() == list(federation.card.examples)


def test_turned_characters_are_new_ones_and_all_on_one_side_of_the_split(file: Path) -> None:
    deal = data.Dealt(each=12, held_out=6, seed=3)
    federation = data.omniglot(file, drawers=4, turns=4, dealt=deal)
    sets = [characters_of(device) for device in federation.devices]
    assert sorted(c for each in sets for c in each) == [(c, q) for c in range(18) for q in range(4)]
    held_out = {c for i in federation.held_out for c, _ in sets[i]}
    seen = {c for i in federation.training for c, _ in sets[i]}
    assert len(held_out) == 6 and not held_out & seen


def test_another_seed_deals_otherwise_and_the_same_alike(file: Path) -> None:
    def dealt(seed: int) -> list[list[tuple[int, int]]]:
        deal = data.Dealt(each=4, held_out=6, seed=seed)
        return [characters_of(d) for d in data.omniglot(file, dealt=deal).devices]

    assert dealt(1) == dealt(1) != dealt(2)


def test_an_alphabet_s_turns_are_on_its_device(file: Path) -> None:
    federation = data.omniglot(file, drawers=2, held_out_alphabets=1, turns=2)
    assert len(federation.devices) == 6 and federation.held_out == {4, 5}
    assert characters_of(federation.devices[2]) == [(c, q) for q in (0, 1) for c in range(6, 12)]


@pytest.mark.parametrize("held_out", [-1, 18])
def test_more_characters_than_there_are_cannot_be_held_out(file: Path, held_out: int) -> None:
    with pytest.raises(DelianError, match=f"hold out {held_out} of 18 characters"):
        data.omniglot(file, dealt=data.Dealt(each=4, held_out=held_out, seed=1))
