"""A scenario's keys as a chain, and a chain as a scenario's keys: two ways to write one thing.

The chain is what is run (`stage`), what is refused (`core.learning.aggregate.stage_order`),
and what reports show.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...core.common.errors import DelianError
from ...core.learning.aggregate import chains
from ...core.learning.aggregate.chains import Chain
from ...core.learning.aggregate.stage_order import ChainError
from ...core.learning.aggregate.stages import Stage
from .data_settings import conflict

if TYPE_CHECKING:
    from .scenario import Scenario

__all__ = ["ChainError", "chain_of", "governed", "key_of", "keys_of", "written_out"]

#: The keys that a chain stands for; those of its server's optimiser where it has one.
GOVERNED: Mapping[str, tuple[str, ...]] = {
    "privacy": (
        *("clip", "rotation", "bits", "kept", "top", "clip_quantile", "clip_rate", "aggregation"),
        *("cohort_min", "corrupt", "dropout", "helpers", "cohorts", "noise", "epsilon", "delta"),
    ),
    "round": ("mode", "staleness_max", "rule", "hostile"),
}
SERVER = ("server_optimizer", "server_learning_rate")
#: Which key to change where a stage does not go with another: its own, but for these.
_KEYS = {
    "top_k": "privacy.top",
    "moving_clip": "privacy.clip_quantile",
    "random_k": "privacy.kept",
    "noise": "privacy.noise",
    "rule": "round.rule",
    "mask": "privacy.cohorts",
}
_KEYS_OF_TWO = {
    ("rule", "mask"): "privacy.cohorts",
    ("mask", "mean"): "privacy.helpers",
    ("mask", "rule"): "privacy.helpers",
}


def chain_of(scenario: Scenario, masked: bool = False) -> Chain:
    """The chain that a scenario's keys are. masked: whether updates are, where it does not say.
    Raises ChainError for keys that do not go together.
    """
    privacy, round = scenario.privacy, scenario.round
    stages: list[Stage] = [] if privacy.top is None else [chains.top_k(privacy.top)]
    stages.append(chains.clip(privacy.clip))
    if privacy.rotation:
        stages.append(chains.rotate())
    stages.append(chains.quantise(privacy.bits or 0))
    if privacy.clip_quantile is not None:
        stages.append(chains.moving_clip(privacy.clip_quantile, privacy.clip_rate))
    if privacy.kept is not None:
        stages.append(chains.random_k(privacy.kept))
    noised = privacy.noise != "none"
    if is_masked(scenario, masked):
        least = privacy.cohort_min or 0
        shares = (privacy.corrupt, privacy.dropout)
        stages.append(chains.mask(scenario.cohorts, least, *shares, privacy.helpers))
    if noised:
        assert privacy.epsilon is not None
        noise = chains.noise(privacy.epsilon, privacy.delta)
        behind = privacy.noise == "central" or not isinstance(stages[-1], chains.mask)
        stages.insert(len(stages) if behind else len(stages) - 1, noise)
    if round.mode == "buffered":
        stages.append(chains.fedbuff(round.staleness_max or chains.fedbuff().staleness_max))
    if round.rule != "weighted_mean":
        stages.append(chains.MAKERS[round.rule](hostile=round.hostile))
    elif round.mode != "buffered":
        stages.append(chains.mean())
    chosen = scenario.algorithm
    # An algorithm of the user's own brings a server's optimiser where the scenario names none.
    if chosen.name != "python" or chosen.model_fields_set & {*SERVER}:
        stages.append(chains.server(chosen.server_optimizer, chosen.server_learning_rate))
    return chains.chain(*stages)


def is_masked(scenario: Scenario, by_default: bool) -> bool:
    """Whether updates are masked. by_default: where the scenario is silent."""
    asked = scenario.privacy
    if asked.aggregation is not None:
        return asked.aggregation == "secure"
    return by_default or asked.noise != "none" or asked.helpers > 0


def key_of(fault: ChainError) -> str:
    """The key that is to be changed."""
    return _KEYS_OF_TWO.get((fault.first, fault.second)) or _KEYS[fault.first]


def keys_of(chain: Chain) -> dict[str, dict[str, Any]]:
    """The tables that say what a chain does; keys that are not in them are to be absent."""
    mask, noise, moving = (chain.get(name) for name in ("mask", "noise", "moving_clip"))
    rule, buffered = chain.get("rule"), chain.get("fedbuff")
    sparse, top = chain.get("random_k"), chain.get("top_k")
    privacy: dict[str, Any] = {
        "clip": chain.get("clip").norm,
        "rotation": chain.get("rotate") is not None,
        "bits": chain.get("quantise").bits or None,
        "kept": sparse and sparse.share,
        "top": top and top.share,
        "clip_quantile": moving and moving.quantile,
        "clip_rate": moving and moving.rate,
        "aggregation": "secure" if mask else "plain",
    }
    if mask is not None:
        privacy |= {"corrupt": mask.corrupt, "dropout": mask.dropout, "helpers": mask.helpers}
        privacy["cohort_min"] = mask.least or None
        privacy["cohorts"] = mask.cohorts if mask.cohorts > 1 else None
    if noise is not None:
        privacy |= {"epsilon": noise.epsilon, "delta": noise.delta}
        privacy["noise"] = "central" if chain.central else "distributed"
    round: dict[str, Any] = {
        "mode": "buffered" if buffered else "synchronous",
        "staleness_max": buffered and buffered.staleness_max,
        "rule": rule and rule.rule,
        "hostile": rule and rule.hostile,
    }
    tables = {"privacy": privacy, "round": round}
    if (server := chain.get("server")) is not None:
        tables["algorithm"] = dict(
            zip(SERVER, (server.optimizer, server.learning_rate), strict=True)
        )
    return {
        name: {key: value for key, value in table.items() if value is not None}
        for name, table in tables.items()
    }


def written_out(raw: Mapping[str, Any]) -> dict[str, Any]:
    """A scenario's raw tables with `chain` as the keys that it stands for. Raises a conflict where
    one of those is given beside it, or the chain is none.
    """
    try:
        tables = keys_of(chains.read(raw["chain"]))
    except DelianError as fault:
        raise conflict("chain", fault.message, fault.hint) from fault
    out = {key: value for key, value in raw.items() if key != "chain"}
    for name, table in tables.items():
        given = raw.get(name, {})
        if not isinstance(given, dict):
            continue  # whoever checks tables says so
        twice = sorted(given.keys() & {*GOVERNED.get(name, SERVER)})
        if twice:
            raise conflict(f"{name}.{twice[0]}", "the chain says it too")
        out[name] = {**given, **table}
    return out


def governed(raw: Mapping[str, Any], chain: str) -> dict[str, Any]:
    """A scenario's raw tables with this chain in the place of the keys that say one."""
    tables = {**GOVERNED, "algorithm": SERVER if "server" in chain else ()}
    out = {**raw, "chain": chain}
    for name, keys in tables.items():
        if isinstance(out.get(name), dict):
            out[name] = {key: value for key, value in out[name].items() if key not in keys}
    return out
