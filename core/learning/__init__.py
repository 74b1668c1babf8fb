"""Federated algorithms and personalization.

The built-in algorithms (`algorithms/`) are exported by their classes' names: `learn.FedAvg`. They
are found by `algorithm_registry`, and imported when they are first used.
"""

from typing import TYPE_CHECKING, Any

from ..common.lazy_exports import exported, lazily

if TYPE_CHECKING:
    from . import data as datasets  # noqa: F401
    from .aggregate.chains import *
    from .aggregate.stage_order import *
    from .algorithm import *
    from .algorithms import *
    from .hyperparameters import Bounds as Bounds
    from .hyperparameters import FromRun as FromRun
    from .partial import with_bundle as with_bundle
    from .sampling import *
    from .task import *
    from .token_tasks import *

_NAMES = {
    "algorithm": "About Algorithm ClientResult evaluate",
    "aggregate.chains": "Chain chain clip clipped_mean fedbuff geometric_median krum mask mean "
    "median moving_clip multi_krum noise quantise random_k rotate server top_k trimmed_mean",
    "aggregate.stage_order": "ChainError",
    "data": "=datasets",
    "hyperparameters": "Bounds FromRun",
    "partial": "with_bundle",
    "sampling": "Batch Episodes EpisodeTable Samples SampleSet",
    "task": "Classification Metrics Regression Task",
    "token_tasks": "MaskedToken NextToken",
}
_lazy, _lazy_names = lazily(__name__, _NAMES)
#: Without the built-in algorithms.
__all__ = exported(_NAMES)


def __getattr__(name: str) -> Any:
    if name == name.lower():
        return _lazy(name)  # a module's name: a device needs no registry of algorithms
    from .algorithm_registry import exported

    found = exported(name)
    if found is None:
        return _lazy(name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    from .algorithm_registry import algorithm_class, names

    kinds = map(algorithm_class, names())
    return sorted({*_lazy_names(), *(kind.__name__ for kind in kinds)})
