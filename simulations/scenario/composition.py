"""A scenario's keys as a chain, and a chain as a scenario's keys: two ways to write one thing.

The chain is what is run, what is refused (`core.learning.aggregate.stage_order`), and what reports
show. Which key is which number of a stage is said at the plan's fields (`Key.stage`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple
from typing import TYPE_CHECKING, Any

from ...core.common.errors import DelianError
from ...core.learning.aggregate import chains
from ...core.learning.aggregate.chains import Chain
from ...core.learning.plan_settings import settings
from .settings_table import conflict

if TYPE_CHECKING:
    from .scenario import Scenario

__all__ = ["chain_of", "governed", "keys_of", "written_out"]

#: The keys of the server's stage, in the order of its fields.
SERVER = ("server_optimizer", "server_learning_rate", "server_decay_rounds")
#: Numbers of a stage that stand for an absent key.
_ABSENT = {"privacy.bits": 0, "privacy.cohort_min": 0, "privacy.cohorts": 1}


def chain_of(scenario: Scenario, masked: bool = False) -> Chain:
    """The chain that a scenario's keys stand for.

    masked: whether updates are masked where the scenario leaves it open. Raises ChainError for
    keys that do not go together.
    """
    made, chosen = scenario.plan(masked).chain, scenario.algorithm
    # An algorithm of the user's own brings a server's optimiser where the scenario names none.
    if chosen.name == "python" and not chosen.model_fields_set & {*SERVER}:
        return made
    server = chains.server(*(getattr(chosen, key) for key in SERVER))
    return chains.chain(*made.stages, server)


def keys_of(chain: Chain) -> dict[str, dict[str, Any]]:
    """The tables that say what a chain does; keys that are not in them are to be absent."""
    tables: dict[str, dict[str, Any]] = {"privacy": {}, "round": {}}
    for setting in settings().values():
        group, _, number = setting.key.stage.partition(".")
        stage = chain.get(group) if number else None
        if stage is not None:
            value = getattr(stage, number)
            if value != _ABSENT.get(setting.path):
                tables[setting.table][setting.name] = value
    there = {group: chain.get(group) is not None for group in ("mask", "noise", "rotate")}
    tables["privacy"] |= {
        "aggregation": "secure" if there["mask"] else "plain",
        "rotated": there["rotate"],
    }
    if there["noise"]:
        tables["privacy"]["noise"] = "central" if chain.central else "distributed"
    tables["round"]["mode"] = "buffered" if chain.get("fedbuff") else "synchronous"
    if (rule := chain.get("rule")) is not None:
        tables["round"]["rule"] = rule.rule
    if (server := chain.get("server")) is not None:
        tables["algorithm"] = dict(zip(SERVER, astuple(server), strict=True))
    return tables


def written_out(raw: Mapping[str, Any]) -> dict[str, Any]:
    """A scenario's raw tables with `chain` replaced by the keys that it stands for.

    Raises a conflict where one of those keys is given as well, and for a chain that is malformed.
    """
    try:
        tables = keys_of(chains.read(raw["chain"]))
    except DelianError as fault:
        raise conflict("chain", fault.message, fault.hint) from fault
    out = {key: value for key, value in raw.items() if key != "chain"}
    for name, table in tables.items():
        given = raw.get(name, {})
        if not isinstance(given, dict):
            continue  # the check of the tables reports it
        if twice := sorted(given.keys() & _governed(name)):
            raise conflict(f"{name}.{twice[0]}", "the chain says it too")
        out[name] = {**given, **table}
    return out


def governed(raw: Mapping[str, Any], chain: str) -> dict[str, Any]:
    """A scenario's raw tables with this chain in the place of the keys that say one."""
    out = {**raw, "chain": chain}
    for name in ("privacy", "round", *(["algorithm"] if "server" in chain else [])):
        if isinstance(out.get(name), dict):
            out[name] = {k: v for k, v in out[name].items() if k not in _governed(name)}
    return out


def _governed(table: str) -> set[str]:
    """The keys of a table that a chain stands for; those of its server's optimiser too."""
    if table == "algorithm":
        return {*SERVER}
    return {s.name for s in settings().values() if s.table == table and s.key.stage}
