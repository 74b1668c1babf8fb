"""The graph's degree and threshold: published numbers, and what they promise."""

from __future__ import annotations

from math import comb, floor

import pytest
from delian.core.privacy.secagg import params
from delian.core.privacy.secagg.params import Graph, parameters
from delian.core.privacy.secagg.secure_errors import SecureError

#: (members, corrupt, dropout, degree, threshold): the semi-malicious rows of
#: graph_parameter_finder_test.cc in google-parfait/federated-compute with 100 clients or more, and
#: as many neighbours as a byte has points. Its test asks for that degree and no higher threshold.
PUBLISHED = [
    (100, 0.3, 0.3, 92, 62),
    (100, 0.05, 0.33, 72, 39),
    (100, 0.33, 0.05, 42, 37),
    (1_000, 0.33, 0.05, 132, 109),
    (10_000, 0.33, 0.05, 178, 146),
    (100_000, 0.33, 0.05, 196, 160),
    (100, 0.05, 0.05, 16, 11),
    (1_000, 0.05, 0.05, 52, 37),
    (10_000, 0.05, 0.05, 62, 44),
    (100_000, 0.05, 0.05, 68, 48),
    (100, 0.33, 0.0, 26, 26),
    (1_000, 0.33, 0.0, 38, 37),
    (10_000, 0.33, 0.0, 42, 41),
    (100_000, 0.33, 0.0, 46, 45),
    (100, 0.0, 0.33, 68, 35),
    (1_000, 0.0, 0.33, 228, 115),
    (100, 0.0, 0.0, 2, 2),
    (1_000, 0.0, 0.0, 2, 2),
    (10_000, 0.0, 0.0, 2, 2),
    (100_000, 0.0, 0.0, 2, 2),
    (1_000_000, 0.33, 0.05, 212, 173),
    (1_000_000, 0.05, 0.05, 74, 52),
    (1_000_000, 0.33, 0.0, 50, 49),
    (1_000_000, 0.0, 0.0, 2, 2),
]
#: Those of the documentation, for 80 bits.
TABLE = [
    (100, 0.2, 0.1, 42, 32),
    (100, 0.1, 0.1, 32, 22),
    (1_000, 0.2, 0.1, 178, 136),
    (300, 0.1, 0.1, 76, 54),
    (32, 0.1, 0.1, 10, 7),
    (100, 1 / 3, 0.1, 54, 44),
    (100, 0.2, 0.3, 82, 52),
    (1_000, 0.1, 0.1, 120, 87),
]
#: A reimplementation in floating point gave these for 40 bits.
FORTY = [
    (1_000, 0.2, 0.1, 140, 104),
    (1_000, 0.1, 0.1, 96, 67),
    (10_000, 0.1, 0.1, 122, 85),
    (10_000, 0.2, 0.1, 184, 136),
    (100_000, 0.1, 0.1, 134, 93),
    (100_000, 0.2, 0.1, 204, 150),
]


@pytest.mark.parametrize(("members", "corrupt", "dropout", "degree", "threshold"), PUBLISHED)
def test_the_published_degrees_are_found(members, corrupt, dropout, degree, threshold):
    graph = parameters(members, corrupt, dropout, security=40)  # as in the publication
    assert graph.degree == degree
    assert graph.threshold <= threshold
    assert not graph.complete


@pytest.mark.parametrize(("members", "corrupt", "dropout", "degree", "threshold"), TABLE)
def test_the_table_of_the_documentation_is_found(members, corrupt, dropout, degree, threshold):
    assert parameters(members, corrupt, dropout) == Graph(degree, threshold, complete=False)


@pytest.mark.parametrize(("members", "corrupt", "dropout", "degree", "threshold"), FORTY)
def test_the_search_finds_those_of_another_implementation(
    members, corrupt, dropout, degree, threshold
):
    found = parameters(members, corrupt, dropout, security=40)
    assert found == Graph(degree, threshold, complete=False)


@pytest.mark.parametrize("corrupt", [0.0, 0.1, 0.2, 0.3])
@pytest.mark.parametrize("members", [*range(3, params.SPARSE_MIN)])
def test_small_cohorts_are_complete_and_never_give_both_secrets(members, corrupt):
    graph = parameters(members, corrupt, 0.1)
    assert graph.complete and graph.degree == members - 1
    assert 2 * graph.threshold > graph.degree + floor(corrupt * members + 1e-9)
    assert graph.threshold <= graph.degree - floor(0.1 * members)
    assert 2 * (graph.threshold - 1) <= graph.degree + floor(corrupt * members + 1e-9), "least"


def tail(members: int, marked: int, drawn: int, hits: range) -> float:
    ways = sum(comb(marked, x) * comb(members - marked, drawn - x) for x in hits)
    return ways / comb(members, drawn)


@pytest.mark.parametrize("members", [33, 50, 100, 257, 1_000])
@pytest.mark.parametrize(("corrupt", "dropout"), [(0.1, 0.1), (0.2, 0.1), (0.25, 0.05)])
def test_sparse_graphs_keep_their_promises(members, corrupt, dropout):
    """Computed here again, straight from the definitions."""
    graph = parameters(members, corrupt, dropout)
    bad = floor(corrupt * members + 1e-9)
    gone = floor(dropout * members + 1e-9)
    k, t = graph.degree, graph.threshold
    # A member of whom 2t <= k + c shares can be had has at least 2t - k corrupt neighbours.
    assert members * tail(members, bad, k, range(2 * t - k, k + 1)) <= 2.0**-81
    assert members * tail(members, members - gone, k, range(t)) < 2.0**-20
    if k <= bad + gone:
        gaps = members * (members - k - 1) / 2
        assert gaps * comb(bad + gone, k) / comb(members, k) < 2.0**-81


@pytest.mark.parametrize(
    ("members", "corrupt", "dropout"),
    [
        (2, 0.1, 0.1),
        (0, 0.1, 0.1),
        (100, 0.5, 0.5),
        (100, 0.2, 0.36),
        (100, -0.1, 0.1),
        (100, 0.1, 1.0),
        (100, 1.0, 0.0),
        (100, float("nan"), 0.1),
        (100, 0.1, float("nan")),
        (4, 0.3, 0.3),
        (1_000, 0.05, 0.33),  # 398 neighbours: more than a byte has points
    ],
)
def test_what_no_graph_bears_is_refused(members, corrupt, dropout):
    with pytest.raises(SecureError) as caught:
        parameters(members, corrupt, dropout)
    assert caught.value.reason in ("members", "parameters")
