"""Who masks with whom."""

from __future__ import annotations

from collections import Counter
from itertools import permutations

import pytest
from delian.core.privacy.secagg.graph import neighbours, permutation
from delian.core.privacy.secagg.params import Graph, parameters
from delian.core.privacy.secagg.secure_errors import SecureError
from hypothesis import given, settings
from hypothesis import strategies as st

SEED = bytes(range(32))


def test_the_order_of_a_seed_never_changes():
    assert permutation(10, SEED) == [6, 3, 0, 5, 2, 4, 7, 1, 9, 8]


@given(st.integers(1, 300), st.binary(min_size=32, max_size=32))
def test_an_order_has_every_member_once(members, seed):
    assert sorted(permutation(members, seed)) == list(range(members))


def test_all_orders_are_as_likely():
    drawn = Counter(tuple(permutation(3, i.to_bytes(32, "little"))) for i in range(6_000))
    assert set(drawn) == set(permutations(range(3)))
    # Five degrees of freedom: above 30 once in 10^5 for a fair draw; these seeds are fixed.
    assert sum((n - 1_000) ** 2 / 1_000 for n in drawn.values()) < 30


@settings(max_examples=50, deadline=None)
@given(st.integers(3, 200), st.binary(min_size=32, max_size=32))
def test_neighbours_are_mutual_distinct_and_as_many_as_the_degree(members, seed):
    graph = parameters(members, 0.1, 0.1)
    order = permutation(members, seed)
    near = [neighbours(graph, order, index) for index in range(members)]
    for index, list_ in enumerate(near):
        assert list_ == sorted(set(list_)) and index not in list_
        assert len(list_) == graph.degree
        assert all(index in near[other] for other in list_)


def test_neighbours_stand_close_on_the_ring():
    order = [4, 2, 0, 5, 1, 3]
    assert neighbours(Graph(2, 2, False), order, 4) == [2, 3]
    assert neighbours(Graph(4, 3, False), order, 0) == [1, 2, 4, 5]


def test_a_seed_of_another_length_is_refused():
    with pytest.raises(SecureError):
        permutation(5, b"short")
