"""What `delian run watch` shows of a run's events, in words."""

from __future__ import annotations

from typing import Any

#: Phases behind which nothing comes.
OVER = ("done", "cancelled", "failed")


def sentence(kind: str, facts: dict[str, Any], rounds: int) -> str:
    """An event of a run of so many rounds. facts: as docs/operating.md lists them, by kind."""
    why = f": {facts['why']}" if facts.get("why") else ""
    if kind == "round":
        end = f"model {facts['model'][:16]}" if facts["succeeded"] else f"failed{why}"
        refused = _refused(facts["refused"])
        return (
            f"round {facts['round']}/{rounds} attempt {facts['attempt']}: {facts['reported']} of"
            f" {facts['selected']} devices reported, {refused}; {end}{_so_far(facts)}"
        )
    if kind == "evaluation":
        told = " ".join(f"{k}={v:.4g}" for k, v in sorted(facts["metrics"].items()))
        return f"model {facts['round']} judged by {facts['devices']} devices: {told}"
    if kind == "phase":
        return f"{facts['phase']}{why}{_so_far(facts) if facts['phase'] in OVER else ''}"
    if kind == "outlook":
        return f"waiting: {facts['said']}"
    if kind == "rolled_back":
        return (
            f"round {facts['round'] - 1} is rolled back to model {facts['to']}: personal"
            f" loss={facts['loss']:.4g} (best {facts['best']:.4g})"
            f" accuracy={facts['accuracy']:.4g} (best {facts['best_accuracy']:.4g})"
        )
    if kind in ("session", "session_step"):
        return _of_session(kind, facts, why)
    return f"{kind.replace('_', ' ')}{why}"


def _refused(reasons: dict[str, int]) -> str:
    """How many devices gave no update, and why."""
    each = ", ".join(f"{name.replace('_', ' ')} {n}" for name, n in sorted(reasons.items()))
    return f"{sum(reasons.values())} could not" + (f" ({each})" if each else "")


def _so_far(facts: dict[str, Any]) -> str:
    """What an event says of its run's budget, if anything."""
    spent = facts.get("privacy")
    return f"; epsilon {spent['epsilon']:.3g} at delta {spent['delta']:g} is spent" if spent else ""


def _of_session(kind: str, facts: dict[str, Any], why: str) -> str:
    """Of secure aggregation: a step that begins, or a session that is over."""
    name = f"round {facts['round']} attempt {facts['attempt']}"
    if kind == "session_step":
        silent = f", {facts['silent']} silent" if facts["silent"] else ""
        return f"{name}: {facts['phase']}, with {facts['devices']} devices{silent}"
    if why:
        return f"{name}: masked sum failed{why}"
    took = ", ".join(f"{step} {seconds:.1f} s" for step, seconds in facts["seconds"].items())
    gone = facts["asked"] - facts["summed"]
    return (
        f"{name}: masked sum of {facts['summed']} of {facts['asked']} devices is open,"
        f" {gone} dropped out ({took})"
    )
