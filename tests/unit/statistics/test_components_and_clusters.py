"""Principal components, k-means and mixtures are those of scikit-learn on the pooled rows."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from delian.core.common.errors import DelianError
from delian.core.statistics.methods.kmeans import KMeans
from delian.core.statistics.methods.mixtures import Mixture
from delian.core.statistics.methods.pca import PCA
from delian.core.statistics.question import Step
from delian.core.statistics.site_table import Table
from delian.core.statistics.sums import StatisticsError
from delian.simulations.statistics.local_sites import LocalSites

ROWS = 500
NAMES = ("a", "b", "c", "d")


@pytest.fixture(autouse=True)
def one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOKY_MAX_CPU_COUNT", "1")  # else joblib runs lscpu
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def matrix_of() -> np.ndarray:
    draw = np.random.default_rng(2)
    centres = np.array([[0, 0, 0, 0], [5, 1, -3, 0], [-4, 6, 0, 2]])
    rows = centres[draw.integers(0, 3, ROWS)] + draw.normal(size=(ROWS, 4)) @ draw.normal(
        size=(4, 4)
    )
    return rows * [1, 2, 0.5, 1] + [100, -5, 0, 3]


def sites_of(matrix: np.ndarray, **more: Any) -> LocalSites:
    return LocalSites(
        [dict(zip(NAMES, part.T, strict=True)) for part in np.array_split(matrix, 5)], **more
    )


def start_of(matrix: np.ndarray, clusters: int = 3) -> tuple[tuple[float, ...], ...]:
    return tuple(map(tuple, matrix[:clusters].tolist()))


def test_principal_components_are_those_of_scikit_learn() -> None:
    judge = pytest.importorskip("sklearn.decomposition").PCA
    matrix = matrix_of() * [1e6, 1, 1, 1e-3]
    for standardize in (False, True):
        found: Any = sites_of(matrix).answer(PCA(NAMES, standardize=standardize))
        scaled = matrix / matrix.std(axis=0) if standardize else matrix
        wanted = judge(svd_solver="full").fit(scaled)
        largest = np.abs(wanted.components_).argmax(axis=1)
        signs = np.sign(wanted.components_[np.arange(4), largest])
        components = wanted.components_ * signs[:, None]
        np.testing.assert_allclose(found.components, components, rtol=1e-6, atol=1e-9)
        np.testing.assert_allclose(found.variances[:2], wanted.explained_variance_[:2], rtol=1e-9)
        np.testing.assert_allclose(
            found.ratios[:2], wanted.explained_variance_ratio_[:2], rtol=1e-9
        )
        np.testing.assert_allclose(
            found.singular_values[:2], wanted.singular_values_[:2], rtol=1e-9
        )
    np.testing.assert_allclose(found.means, matrix.mean(axis=0), rtol=1e-9, atol=1e-12)
    few: Any = sites_of(matrix).answer(PCA(NAMES, components=2))
    assert few.components.shape == (2, 4) and "PC2" in str(few)


def test_k_means_is_that_of_scikit_learn_from_the_same_start() -> None:
    judge = pytest.importorskip("sklearn.cluster").KMeans
    matrix = matrix_of()
    start = start_of(matrix, 5)
    wanted = judge(5, init=np.array(start), n_init=1, tol=0.0).fit(matrix)
    found: Any = sites_of(matrix).answer(KMeans(NAMES, 5, start))
    np.testing.assert_allclose(found.centres, wanted.cluster_centers_, rtol=1e-10, atol=1e-10)
    np.testing.assert_array_equal(found.counts, np.bincount(wanted.labels_))
    assert found.inertia == pytest.approx(wanted.inertia_, rel=1e-12)
    assert found.iterations in (wanted.n_iter_, wanted.n_iter_ - 1)


def test_k_means_finds_its_own_start_and_works_in_spreads() -> None:
    matrix = matrix_of()
    judge = pytest.importorskip("sklearn.cluster").KMeans
    found: Any = sites_of(matrix).answer(KMeans(NAMES, 3, standardize=True, seed=1))
    spreads = matrix.std(axis=0)
    wanted = judge(3, n_init=10, random_state=0, tol=0.0).fit(matrix / spreads)
    assert found.inertia == pytest.approx(wanted.inertia_, rel=1e-9)
    again: Any = sites_of(matrix).answer(KMeans(NAMES, 3, standardize=True, seed=1))
    np.testing.assert_array_equal(found.centres, again.centres)


def test_an_empty_cluster_stays_where_it_was() -> None:
    matrix = matrix_of()
    start = (*start_of(matrix, 2), (1e6, 1e6, 1e6, 1e6))
    found: Any = sites_of(matrix).answer(KMeans(NAMES, 3, start))
    assert found.counts[2] == 0 and found.centres[2] == pytest.approx(1e6)
    assert any("no row" in note for note in found.notes)


@pytest.mark.parametrize("kind", ["full", "diag"])
def test_a_mixture_is_that_of_scikit_learn_from_the_same_start(kind: str) -> None:
    judge = pytest.importorskip("sklearn.mixture").GaussianMixture
    matrix, draw = matrix_of(), np.random.default_rng(5)
    start, weights = start_of(matrix), (0.5, 0.3, 0.2)
    factors = draw.normal(size=(3, 4, 4))
    covariances = factors @ factors.transpose(0, 2, 1) + 3 * np.eye(4)
    if kind == "diag":
        covariances = np.diagonal(covariances, axis1=1, axis2=2)
    precisions = 1 / covariances if kind == "diag" else np.linalg.inv(covariances)
    for tolerance, iterations in ((1e-3, 200), (0.0, 7)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            wanted = judge(
                3,
                covariance_type=kind,
                means_init=np.array(start),
                weights_init=np.array(weights),
                precisions_init=precisions,
                tol=tolerance,
                max_iter=iterations,
            ).fit(matrix)
        question = Mixture(
            NAMES,
            3,
            kind,
            start,
            weights,
            tuple(covariances.tolist()),
            tolerance=tolerance,
            iterations=iterations,
        )
        found: Any = sites_of(matrix).answer(question)
        np.testing.assert_allclose(found.weights, wanted.weights_, rtol=1e-8)
        np.testing.assert_allclose(found.means, wanted.means_, rtol=1e-8, atol=1e-8)
        np.testing.assert_allclose(found.covariances, wanted.covariances_, rtol=1e-7, atol=1e-8)
        assert found.log_likelihood / ROWS == pytest.approx(wanted.lower_bound_, rel=1e-9)
        assert found.iterations == wanted.n_iter_ and found.converged == wanted.converged_
    assert any("not converged" in note for note in found.notes)


def test_a_mixture_finds_its_own_start() -> None:
    judge = pytest.importorskip("sklearn.mixture").GaussianMixture
    matrix = matrix_of()
    found: Any = sites_of(matrix).answer(Mixture(NAMES, 3, tolerance=1e-9))
    wanted = judge(3, n_init=3, random_state=0, tol=1e-9, max_iter=500).fit(matrix)
    assert found.log_likelihood == pytest.approx(wanted.score(matrix) * ROWS, rel=1e-4)
    assert found.bic == pytest.approx(wanted.bic(matrix), rel=1e-4)


def test_a_site_that_drops_out_is_left_out() -> None:
    matrix = matrix_of()
    matrix[3, 2] = np.nan
    sites = sites_of(matrix, silent=lambda step: {4} if step >= 2 else ())
    kept = np.delete(matrix[:400], 3, axis=0)
    found: Any = sites.answer(PCA(NAMES))
    wanted = np.linalg.eigvalsh(np.cov(kept.T))[::-1]
    np.testing.assert_allclose(found.variances, wanted, rtol=1e-9)
    assert found.facts["rows left out"] == 1 and found.facts["sites"] == 4
    np.testing.assert_allclose(found.means, kept.mean(axis=0), rtol=1e-9)
    sites = sites_of(matrix, silent=lambda step: {4} if step >= 4 else ())
    judge = pytest.importorskip("sklearn.cluster").KMeans
    start = start_of(matrix)
    clusters: Any = sites.answer(KMeans(NAMES, 3, start))
    assert clusters.counts.sum() == len(kept) and clusters.notes
    nearest = judge(3, init=clusters.centres, n_init=1, tol=0.0).fit(kept)
    np.testing.assert_allclose(nearest.cluster_centers_, clusters.centres, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    "make",
    [
        lambda: PCA(()),
        lambda: PCA(("a", "a")),
        lambda: PCA(("a",), components=2),
        lambda: KMeans(("a",), 0),
        lambda: KMeans(("a",), 2, ((1.0,),)),
        lambda: KMeans(("a",), 1, ((np.nan,),)),
        lambda: KMeans(("a",), 2, starts=0),
        lambda: Mixture(("a",), 2, "tied"),
        lambda: Mixture(("a",), 2, weights=(0.5, 0.6)),
        lambda: Mixture(("a",), 2, covariances=((1.0,),)),
        lambda: Mixture(("a",), 2, iterations=0),
    ],
)
def test_settings_that_make_no_sense_are_refused(make: Any) -> None:
    with pytest.raises(StatisticsError):
        make()


def test_what_has_no_answer_is_a_clear_error() -> None:
    matrix = matrix_of()
    matrix[:, 0] = 1.5
    for question, what in (
        (PCA(("a",)), "constant"),
        (PCA(("a", "b"), standardize=True), "constant"),
        (Mixture(NAMES, 2), "constant"),
        (Mixture(("b",), 2, start=((0.0,), (1e9,)), covariances=([[-1.0]], [[1.0]])), "singular"),
        (KMeans(("x",), 2), "no column"),
    ):
        with pytest.raises(StatisticsError, match=what):
            sites_of(matrix).answer(question)


def test_hostile_steps_are_refused() -> None:
    table = Table(dict(zip(NAMES, matrix_of().T, strict=True)))
    scaling = {"means": np.zeros(4), "scales": np.ones(4)}
    good = {**scaling, "weights": np.full(2, 0.5), "centres": np.zeros((2, 4))}
    good["factors"] = np.stack([np.eye(4)] * 2)
    mixture, kmeans, pca = Mixture(NAMES, 2), KMeans(NAMES, 2), PCA(NAMES)
    assert mixture.measure(table, Step("expect", (), good), {})["rows"] == ROWS
    for name, wrong in (
        ("factors", np.zeros((2, 4, 4))),
        ("factors", np.ones((2, 4))),
        ("weights", np.zeros(2)),
        ("weights", np.ones(3)),
        ("scales", -np.ones(4)),
        ("centres", np.full((2, 4), np.inf)),
    ):
        for question, step in ((mixture, "expect"), (kmeans, "assign"), (pca, "products")):
            if question is mixture or name in ("scales", "centres"):
                arrays = {**good, name: wrong}
                if question is pca and name == "centres":
                    continue
                with pytest.raises(DelianError):
                    question.measure(table, Step(step, (), arrays), {})
    for question in (mixture, kmeans, pca):
        with pytest.raises(DelianError):
            question.measure(table, Step("rows", (), good), {})
