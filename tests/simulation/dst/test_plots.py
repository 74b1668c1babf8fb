"""A coordinator or an edge that plots, with the keys of some devices: honest devices end the
session and say why, no second share leaves, and the run goes on when it is over.

What must never happen (a second share, a second set, an update without masks) the auditor watches
in all of them; `OracleFailure` would end a test. That it would is shown too, with devices that have
one check less.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from delian.core.privacy.secagg.client import ClientSession
from delian.core.protocol.ports import CLOUD, Node, Tier
from delian.device.protocol.acceptance import Acceptance
from delian.device.protocol.secure_session import Sessions
from delian.simulations.dst.draws import Dice
from delian.simulations.dst.hostile.attacks import BUNDLES, LOGGED, Plot, Scheme
from delian.simulations.dst.hostile.hostile_bundles import Gates
from delian.simulations.dst.oracles import found_out
from delian.simulations.dst.oracles.edge_book import OracleFailure
from delian.simulations.dst.oracles.found_out import ANSWERS, ELSEWHERE, LATER
from delian.simulations.dst.swarm import PLOT_AT, PLOT_EVERY, Weather, conspirators, draw, plotted
from delian.simulations.dst.world import World

ROUNDS = 2
EDGE = Node(Tier.EDGE, 1)
#: Those that are about messages of a session.
PLOTS = [plot for plot in Plot if plot not in BUNDLES]
#: What devices record of each when the coordinator does it to all of them.
REASONS = {
    Plot.NO_MASKS: {"unmasked"},
    Plot.SMALL_PLAN: {"policy"},
    Plot.LARGE_NOISE_PLAN: {"noise"},
    Plot.OTHER_MODEL: {"signature"},
    Plot.OTHER_PLAN: {"signature"},
    Plot.OTHER_KEY: {"signature"},
    Plot.UNSIGNED_KEYS: {"signature"},
    Plot.FOREIGN_KEYS: {"signature"},
    Plot.OLD_KEYS: {"bundle"},
    Plot.TWO_SEATS: {"roster"},
    Plot.SMALL_COHORT: {"small"},
    Plot.SECOND_ROSTER: {"equivocation"},
    Plot.WITHHELD_SHARES: {"few"},
    Plot.TWO_SURVIVORS: {"consent"},
    Plot.SECOND_SURVIVORS: {"equivocation", "consent"},
    Plot.BOTH_SHARES: {"equivocation"},
    Plot.SMALL_SUM: {"small"},
    Plot.FORGED_CONSENTS: {"consent"},
    Plot.UNLOGGED_SYBILS: {"log"},
    Plot.WITHHELD_DENY_LIST: {"deny list"},
    Plot.OTHER_PROOFS: {"log"},
    Plot.ROLLED_BACK_LOG: {"log rollback"},
    Plot.FORKED_LOG: {"log fork"},
    Plot.UNWITNESSED_LOG: {"log witnesses"},
}
#: Those of another list are strangers to one another: nobody answers, and nobody notices. What is
#: said again is stale.
UNNOTICED = {Plot.TWO_ROSTERS, Plot.REPLAY}
#: These come too late for the sum of the first set, or never: the attempt gives a model.
NOTHING_LOST = {Plot.BOTH_SHARES, Plot.REPLAY}


def world(plot: Plot | None, where: Node = CLOUD, sessions: int = 1) -> World:
    """Twelve devices at two edges, masked rounds, no fault but this."""
    shape = replace(
        plotted(Dice(7, "plots"), draw(0, 12, 2)[0]),
        secure=True,
        cohort=8,
        orders=(),
        rounds=ROUNDS,
        attempts_max=500,
        evaluate_every=0,
        buffer=0,
        concurrency=0,
        pool_min=0,
        patience=0,
        round_s=16.0,
    )
    scheme = plot and Scheme(plot, where, sessions, conspirators(Dice(8, "plots"), shape))
    return World(3, shape, Weather(heal_s=200.0, scheme=scheme))


def reasons(one: World) -> set[str]:
    return {kind.partition(" ")[2] for kind in one.counts if kind.startswith("session ")}


def models(one: World) -> int:
    return sum(book.models for book in one.auditor.runs.values())


def test_every_plot_has_an_answer():
    assert REASONS.keys() | UNNOTICED == set(PLOTS)
    assert ANSWERS.keys() | ELSEWHERE.keys() == set(PLOTS)
    assert all(reasons == REASONS[plot] for plot, reasons in LATER.items())
    assert not ANSWERS.keys() & ELSEWHERE.keys()
    assert all(REASONS[plot] <= reasons for plot, reasons in ANSWERS.items())


@pytest.mark.parametrize("plot", PLOTS, ids=lambda p: p.name.lower())
def test_a_coordinator_that_plots_is_found_out_and_the_next_round_goes_on(plot):
    one = world(plot)
    one.run()
    assert reasons(one) == REASONS.get(plot, set())
    assert models(one) == ROUNDS
    assert one.plotter.plotted
    assert bool(one.plotter.found) == (plot in ANSWERS), "the oracle has seen it found out"
    whole = one.counts["round"] == ROUNDS
    assert whole == (plot in NOTHING_LOST), "an attempt more where one has failed"


@pytest.mark.parametrize(
    "plot",
    [
        Plot.NO_MASKS,
        Plot.OTHER_MODEL,
        Plot.OTHER_KEY,
        Plot.UNSIGNED_KEYS,
        Plot.TWO_SURVIVORS,
        Plot.SECOND_ROSTER,
    ],
    ids=lambda p: p.name.lower(),
)
def test_an_edge_that_plots_gets_no_further(plot):
    one = world(plot, EDGE, sessions=2)
    one.run()
    assert models(one) == ROUNDS and one.plotter.plotted
    assert bool(one.plotter.found) == (plot in ANSWERS)


def test_without_a_plot_nobody_complains():
    one = world(None)
    one.run()
    assert not reasons(one) and models(one) == ROUNDS and one.counts["round"] == ROUNDS


class TestWithoutTheCheckTheAuditorSeesIt:
    def broken(self, plot: Plot) -> str:
        with pytest.raises(OracleFailure) as caught:
            world(plot).run()
        assert caught.value.oracle == "ledger"
        return caught.value.what

    def test_masks_that_the_owner_wants(self, monkeypatch):
        monkeypatch.setattr(Acceptance, "lacks_masks", lambda self, task: False)
        monkeypatch.setattr(found_out, "check", lambda *told: frozenset())
        monkeypatch.setattr(Gates, "refusal", lambda *told: "")  # signed were masks
        assert "shows its update" in self.broken(Plot.NO_MASKS)

    def test_consents_of_the_same_set(self, monkeypatch):
        monkeypatch.setattr(ClientSession, "_check_consents", lambda self, request: None)
        assert "two sets" in self.broken(Plot.TWO_SURVIVORS)

    def test_one_set_a_device(self, monkeypatch):
        take = Sessions.take

        def forgetful(self, message):
            self.state.session.heard.pop("Survivors", None)
            if type(message).__name__ == "Survivors" and self.state.session.consent is not None:
                self.state.session.phase = type(self.state.session.phase).MASKED
            return take(self, message)

        monkeypatch.setattr(Sessions, "take", forgetful)
        assert "signs two sets" in self.broken(Plot.SECOND_SURVIVORS)


#: A check that is missing on devices, and the plots that show it.
MISSING = {
    "the coordinator's signature": (
        Acceptance,
        "check",
        [(Plot.OTHER_MODEL, EDGE), (Plot.OTHER_KEY, EDGE), (Plot.LARGE_NOISE_PLAN, CLOUD)],
    ),
    "neighbours' keys": (
        ClientSession,
        "_check_neighbour",
        [
            (Plot.UNSIGNED_KEYS, CLOUD),
            (Plot.FOREIGN_KEYS, CLOUD),
            (Plot.OLD_KEYS, CLOUD),
            (Plot.TWO_SEATS, CLOUD),
            (Plot.OTHER_MODEL, CLOUD),
            (Plot.OTHER_KEY, CLOUD),
        ],
    ),
    "neighbours' consents": (ClientSession, "_check_consents", [(Plot.FORGED_CONSENTS, CLOUD)]),
    "masks that the owner wants": (Acceptance, "check", [(Plot.NO_MASKS, EDGE)]),
    "the survivors": (ClientSession, "_check_survivors", [(Plot.SMALL_SUM, CLOUD)]),
    "the plan": (ClientSession, "_check_policy", [(Plot.SMALL_PLAN, CLOUD)]),
}


@pytest.mark.parametrize(
    ("missing", "plot", "where"),
    [(name, *one) for name, (_, _, plots) in MISSING.items() for one in plots],
    ids=str,
)
def test_a_device_without_a_check_takes_a_changed_message_and_the_oracle_sees_it(
    monkeypatch, missing, plot, where
):
    owner, check, _ = MISSING[missing]
    monkeypatch.setattr(owner, check, lambda self, *rest: None)
    with pytest.raises(OracleFailure) as caught:
        world(plot, where, sessions=2).run()
    assert caught.value.oracle == "plot", caught.value


@pytest.mark.parametrize("where", [CLOUD, EDGE], ids=str)
@pytest.mark.parametrize("plot", sorted(LOGGED), ids=lambda p: p.name.lower())
def test_a_device_that_does_not_look_at_the_log_takes_sybils_and_the_oracle_sees_it(
    monkeypatch, plot, where
):
    monkeypatch.setattr(ClientSession, "_check_log", lambda self, cohort: self.state.log)
    with pytest.raises(OracleFailure, match="the device took it") as caught:
        world(plot, where, sessions=2).run()
    assert caught.value.oracle == "plot"


@pytest.mark.parametrize("plot", [None, Plot.SMALL_SUM, Plot.FORKED_LOG])
def test_devices_that_refuse_the_true_log_are_a_failure(plot):
    one = world(plot)
    one.log.look_at_end()
    one.counts["session log fork"] += 1
    if plot is Plot.FORKED_LOG:
        one.log.look_at_end()
        return
    with pytest.raises(OracleFailure, match="refuse the true log: log fork") as caught:
        one.log.look_at_end()
    assert caught.value.oracle == "log"


def test_every_eighth_seed_plots_each_thing_in_time():
    drawn = [draw(seed, 64, 3)[1].scheme for seed in range(8 * 300)]
    for seed, scheme in enumerate(drawn):
        assert (scheme is not None) == (seed % PLOT_EVERY == PLOT_AT and seed % 10 > 0)
    schemes = [s for s in drawn if s is not None]
    assert {s.plot for s in schemes} == set(Plot)
    assert {s.where == CLOUD for s in schemes} == {True, False}
    assert all(len(s.conspirators) == 2 for s in schemes)
