"""`dl.stats`: exact answers about the data of many sites, from Python.

Sites are a list, each a file (CSV, TSV, Parquet), a data frame or a dict of arrays, or a live
federation:

    dl.stats.ask(files, "SELECT sex, count(*), avg(bmi) FROM patients GROUP BY sex")
    dl.stats.glm(files, "relapse ~ age + C(sex)", family="logistic").coefficients
    with dl.stats.federation("cloud.example:7443", "operator") as sites:
        print(dl.stats.cox(sites, "Surv(days, died) ~ age", table="patients"))

Each function takes the method's settings by name (docs/statistics.md), and

    table, where, columns    the table (or joins), a condition in SQL, computed columns by name
    noise                    what each site adds, in lengths of what one row changes; 0: none
    floor                    rows that a category or a group has at least

and raises StatisticsError where the data have no answer. The answer prints as a table, and has
`to_dict()`; `page` writes it with its plots.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...core.statistics.answer import Answer
from ...core.statistics.building import build, finder
from ...core.statistics.request import Request, Rows
from .local_sites import LocalSites

if TYPE_CHECKING:
    from ...core.node.service.live_sites import LiveSites, Terms
    from ...core.statistics.methods.column_values import ValuesAnswer
    from ...core.statistics.methods.correlations import CorrelationsAnswer
    from ...core.statistics.methods.cross_table import CrossTableAnswer
    from ...core.statistics.methods.description import DescriptionAnswer
    from ...core.statistics.methods.histogram import HistogramAnswer
    from ...core.statistics.methods.kmeans import KMeansAnswer
    from ...core.statistics.methods.mean_comparison import MeanComparisonAnswer
    from ...core.statistics.methods.mixed_model import MixedModelAnswer
    from ...core.statistics.methods.mixtures import MixtureAnswer
    from ...core.statistics.methods.pca import PCAAnswer
    from ...core.statistics.methods.quantiles import QuantilesAnswer
    from ...core.statistics.methods.random_forest import RandomForestAnswer
    from ...core.statistics.methods.survival_curves import SurvivalAnswer
    from ...core.statistics.regression.regression_answer import RegressionAnswer
    from ...core.statistics.survival.cox_answer import CoxAnswer
    from ...core.statistics.trees.trees_answer import TreesAnswer

FLOOR = 5


@contextmanager
def federation(
    coordinator: str,
    identity: str | Path | None = None,
    *,
    artifacts: str | Path | None = None,
    terms: Terms | None = None,
) -> Iterator[LiveSites]:
    """The sites of a live federation.

    Args:
        coordinator: its "host:port".
        identity: the operator's folder; None: no TLS, on this machine alone.
        artifacts: the folder of the key that signs questions. None: `artifacts` in the identity.
        terms: how many sites are asked, and for how long.

    Raises:
        DelianError: the coordinator does not answer, or fewer than three sites are there.
    """
    from ...core.node.service.live_sites import LiveSites
    from ...core.node.service.operator_client import connected

    own = None if identity is None else Path(identity)
    signing = Path(artifacts) if artifacts is not None else own and own / "artifacts"
    with connected(coordinator, own, signing) as client:
        yield LiveSites(client, terms)


def ask(
    sites: Any,
    question: str,
    formula: str = "",
    *,
    table: str = "",
    where: str = "",
    columns: Mapping[str, str] | None = None,
    noise: float = 0.0,
    floor: int = FLOOR,
    **settings: Any,
) -> Any:
    """Asks a question: a SELECT statement, or a method by its name.

    Args:
        sites: a list of files, data frames or dicts of arrays, one a site; or `federation`'s.
        question: a SELECT statement, or a method's name.
        formula: of a method: `y ~ a + C(b)`, `Surv(time, event) ~ a`.
        table: the table, or joins of tables. "": the only one that there is.
        where: a condition in SQL. "": all rows.
        columns: columns to compute, an expression in SQL by name.
        noise: what each site adds, in lengths of what one row can change; 0: none.
        floor: rows that a category or a group has at least.
        settings: the method's; of a SELECT `categories` and `limits`.

    Returns:
        The method's answer.

    Raises:
        StatisticsError: the question makes no sense, or the data have no answer to it.
    """
    asked = sites if hasattr(sites, "answer") else LocalSites(_listed(sites))
    if question.lstrip()[:6].lower() == "select":
        from ...core.statistics.sql.select_statement import selected

        found = selected(question, floor=floor, noise=noise, **settings)
        return found.present(asked.answer(found.request))
    rows = Rows(table, where, dict(columns or {}))
    find = finder(asked.answer, rows, floor, noise)
    made = build(question, formula, settings, find, floor)
    return asked.answer(Request(made, rows, noise))


def page(answer: Answer, path: str | Path, asked: str = "") -> None:
    """Writes an answer as an HTML page with its plots.

    Args:
        answer: of one of these functions.
        path: the file.
        asked: the question, as the page shows it.
    """
    from .answer_page import write_page

    write_page(Path(path), answer, asked)


def _listed(sites: Any) -> Sequence[Any]:
    return [sites] if isinstance(sites, str | Path | Mapping) else list(sites)


# ---------------------------------------------------------------- descriptions


def values(sites: Any, *names: str, **settings: Any) -> ValuesAnswer:
    """The values of columns and the rows of each, found without looking at rows."""
    found: ValuesAnswer = ask(sites, "values", of=names, **settings)
    return found


def describe(sites: Any, *names: str, **settings: Any) -> DescriptionAnswer:
    """Rows, missing values, means, standard deviations and quartiles of columns of numbers."""
    found: DescriptionAnswer = ask(sites, "description", of=names, **settings)
    return found


def quantiles(sites: Any, *names: str, **settings: Any) -> QuantilesAnswer:
    """Quantiles of columns, each with the bracket that it lies in."""
    found: QuantilesAnswer = ask(sites, "quantiles", of=names, **settings)
    return found


def histogram(sites: Any, column: str, **settings: Any) -> HistogramAnswer:
    """The rows of a column by bins."""
    found: HistogramAnswer = ask(sites, "histogram", column=column, **settings)
    return found


def correlations(sites: Any, *names: str, **settings: Any) -> CorrelationsAnswer:
    """Pearson's correlations of columns of numbers, with their covariances."""
    found: CorrelationsAnswer = ask(sites, "correlations", of=names, **settings)
    return found


def cross_table(sites: Any, first: str, second: str, **settings: Any) -> CrossTableAnswer:
    """Rows by two columns of categories, with the chi-squared test of independence."""
    found: CrossTableAnswer = ask(sites, "cross_table", first=first, second=second, **settings)
    return found


def compare_means(sites: Any, formula: str, **settings: Any) -> MeanComparisonAnswer:
    """The means of an outcome by group: `bmi ~ sex`; Student's and Welch's t, or ANOVA."""
    found: MeanComparisonAnswer = ask(sites, "mean_comparison", formula, **settings)
    return found


# ---------------------------------------------------------------- models


def glm(sites: Any, formula: str, **settings: Any) -> RegressionAnswer:
    """A generalised linear model: `family="logistic"`, `"poisson"` and others."""
    found: RegressionAnswer = ask(sites, "glm", formula, **settings)
    return found


def cox(sites: Any, formula: str, **settings: Any) -> CoxAnswer:
    """Cox's proportional hazards: `Surv(time, event) ~ age + C(sex)`."""
    found: CoxAnswer = ask(sites, "cox", formula, **settings)
    return found


def survival(sites: Any, formula: str, **settings: Any) -> SurvivalAnswer:
    """Kaplan-Meier and Nelson-Aalen curves by group, with the log-rank test."""
    found: SurvivalAnswer = ask(sites, "survival_curves", formula, **settings)
    return found


def boosted_trees(sites: Any, target: str, features: Sequence[str], **settings: Any) -> TreesAnswer:
    """Gradient-boosted trees, split for split XGBoost's where features have few values."""
    found: TreesAnswer = ask(
        sites, "boosted_trees", target=target, features=tuple(features), **settings
    )
    return found


def random_forest(
    sites: Any, target: str, features: Sequence[str], **settings: Any
) -> RandomForestAnswer:
    """A random forest of bootstrapped trees."""
    found: RandomForestAnswer = ask(
        sites, "random_forest", target=target, features=tuple(features), **settings
    )
    return found


def mixed_model(sites: Any, formula: str, **settings: Any) -> MixedModelAnswer:
    """A linear mixed model with a random intercept of each site, and random slopes."""
    found: MixedModelAnswer = ask(sites, "mixed_model", formula, **settings)
    return found


# ---------------------------------------------------------------- structure


def pca(sites: Any, *names: str, **settings: Any) -> PCAAnswer:
    """Principal components of columns of numbers."""
    found: PCAAnswer = ask(sites, "pca", of=names, **settings)
    return found


def kmeans(sites: Any, *names: str, clusters: int, **settings: Any) -> KMeansAnswer:
    """Clusters of rows by columns of numbers."""
    found: KMeansAnswer = ask(sites, "kmeans", of=names, clusters=clusters, **settings)
    return found


def mixture(sites: Any, *names: str, clusters: int, **settings: Any) -> MixtureAnswer:
    """A mixture of normal distributions, by expectation maximisation."""
    found: MixtureAnswer = ask(sites, "mixture", of=names, clusters=clusters, **settings)
    return found


__all__ = [
    "Answer",
    "LocalSites",
    "ask",
    "boosted_trees",
    "compare_means",
    "correlations",
    "cox",
    "cross_table",
    "describe",
    "federation",
    "glm",
    "histogram",
    "kmeans",
    "mixed_model",
    "mixture",
    "page",
    "pca",
    "quantiles",
    "random_forest",
    "survival",
    "values",
]
