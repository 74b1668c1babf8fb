"""Several parties that plot together: each stands between its node and the network (`attacks`).

They share the keys of the corrupt devices. What one has changed passes the next at the same node,
or the one at an edge below. A message that several have changed may be refused for a reason of any
of them. What comes of each plot is counted: how often it was drawn, how often it changed something,
for which reasons devices found it out, and in how many seeds nothing came of it (harmless).
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from ....core.protocol.ports import Effect, Event, Node, Received, Record
from ....core.wire.round_pb2 import EdgeTask
from ..oracles import found_out
from ..oracles.edge_book import Name, OracleFailure, name_of
from .attacks import BUNDLES, Plot, Plotter, Scheme, fingerprint
from .hostile_bundles import EXPOSED, RECORD, REFUSED, BundlePlotter

if TYPE_CHECKING:
    from ..simulated_node import Host
    from ..world import World

#: How the counts of a world name what came of a plot (`counts`).
PREFIX: Final = "plot"
#: Plots that change tasks.
_BY_TASK: Final = BUNDLES | {
    Plot.NO_MASKS,
    Plot.SMALL_PLAN,
    Plot.LARGE_NOISE_PLAN,
    Plot.OTHER_MODEL,
    Plot.OTHER_PLAN,
    Plot.OTHER_KEY,
}
DRAWN, DONE, FOUND, HARMLESS = "drawn", "done", "found", "harmless"


class Cabal:
    """All attackers of a world: they pass all that their nodes send and receive."""

    def __init__(self, world: World, schemes: tuple[Scheme, ...]) -> None:
        # At a node tasks are changed first: what follows is for the sessions that they make.
        self.schemes = schemes = tuple(sorted(schemes, key=lambda s: s.plot not in _BY_TASK))
        self._nodes = frozenset(scheme.where for scheme in schemes)
        self._world = world
        self._plotters = [
            (BundlePlotter if scheme.plot in BUNDLES else Plotter)(world, scheme)
            for scheme in schemes
        ]
        # Messages that a device can see to be bad, and the party that changed them.
        self._marks: dict[bytes, frozenset[Plot]] = {}
        self._good: set[bytes] = set()  # what was changed: another party may undo it
        self.reasons: Counter[tuple[Plot, str]] = Counter()
        self.exposed: set[Plot] = (
            set()
        )  # by which a sum has disclosed less than its devices' updates
        self.found = 0  # changed messages that devices have found out

    @property
    def plotted(self) -> set[Name]:
        """The attempts that an attacker has changed."""
        return set().union(*(plotter.plotted for plotter in self._plotters))

    def meddled(self, name: Name) -> bool:
        return any(name in plotter.plotted for plotter in self._plotters)

    def stands_at(self, node: Node) -> bool:
        return node in self._nodes

    # ------------------------------------------------ what passes

    def hears(self, host: Host, sender: Node, message: Any) -> None:
        """A message comes in; the machine gets it too."""
        for scheme, plotter in zip(self.schemes, self._plotters, strict=True):
            if scheme.where == host.node:
                plotter.hears(host, sender, message)

    def says(self, node: Node, to: Node, message: Any) -> list[Any]:
        """What leaves a node in the place of a message."""
        said = [message]
        for scheme, plotter in zip(self.schemes, self._plotters, strict=True):
            if scheme.where == node:
                said = [o for one in said for o in self._changed(scheme.plot, plotter, to, one)]
        return said

    def _changed(
        self, plot: Plot, plotter: Plotter | BundlePlotter, to: Node, message: Any
    ) -> list[Any]:
        said = plotter.says(to, message)
        if not plotter.changed:
            return said
        marks = [at for at in map(_mark, said) if at in plotter.changed]
        if not marks:
            return said
        own = _mark(message)
        before = self._marks.get(own, frozenset())
        if not before and own not in marks:
            self._good.add(own)
        for at in marks:
            if at not in self._good:
                self._marks[at] = self._marks.get(at, frozenset()) | before | {plot}
        return said

    # ------------------------------------------------ what comes of it

    def check(self, host: Host, event: Event, effects: list[Effect]) -> None:
        """A device has handled an event. Raises OracleFailure where it took a changed message."""
        if type(event) is not Received:
            return
        plots = self._marks.get(fingerprint(event.message)) if self._marks else None
        if plots and not self._world.withholds:
            plots -= {Plot.WITHHELD_DENY_LIST}  # devices have the list by now
        if plots:
            name = name_of(event.message)
            others = {
                scheme.plot
                for scheme, plotter in zip(self.schemes, self._plotters, strict=True)
                if name in plotter.plotted or scheme.plot is Plot.WITHHELD_DENY_LIST
            }
            reasons = found_out.check(host, plots, event, effects, others)
            self.found += bool(reasons)
            both = [(p, r) for p in plots | others for r in reasons & found_out.reasons_of(p)]
            self.reasons.update(both)
            return
        for effect in effects:
            if type(effect) is Record and effect.kind == "session":
                self._notice(event.message, str(effect.fields.get("reason", "")))

    def _notice(self, message: Any, reason: str) -> None:
        """A device ends a session for what no single message shows."""
        for scheme, plotter in zip(self.schemes, self._plotters, strict=True):
            shows = reason in found_out.LATER.get(scheme.plot, ())
            if shows and name_of(message) in plotter.plotted:
                self.reasons[scheme.plot, reason] += 1

    def gated(self, host: Host, name: Name, reason: str) -> None:
        """A device's gate has refused a program for this reason; empty: it runs.

        Raises OracleFailure where that is not what the plot, or honest work, leads to.
        """
        plots = self._bundles_of(name)
        wanted = {REFUSED.get(plot, "") for plot in plots} or {""}
        if not plots and self.meddled(name):
            wanted |= {"masks", "noise", "ring"}  # of a plan that another plot has changed
        if reason not in wanted:
            what = f"refused for {reason}" if reason else "the device runs it"
            told = ", ".join(sorted(plots)) or "an honest bundle"
            raise OracleFailure("plot", f"{host.node}, {name}: {told}: {what}")
        self.found += bool(reason)
        self.reasons.update((plot, reason) for plot in plots if reason)

    def summed(self, name: Name, devices: tuple[int, ...], least: int) -> None:
        """The coordinator reads a masked sum. least: the devices of one, as planned."""
        gates = self._world.gates
        if gates is not None and name in gates.exposed:
            told = gates.exposed[name].answering.intersection(devices)
            if 0 < len(told) < least:
                self.exposed.update(self._bundles_of(name))

    def _bundles_of(self, name: Name) -> set[Plot]:
        both = zip(self.schemes, self._plotters, strict=True)
        return {s.plot for s, p in both if s.plot in BUNDLES and name in p.plotted}

    def _read_record(self) -> None:
        """What readers of the record find at the end. Raises OracleFailure."""
        assert self._world.gates is not None
        for name in sorted(self._world.gates.unpublished()):
            plots = self._bundles_of(name)
            if not plots:
                raise OracleFailure("plot", f"{name}: an honest bundle is not in the record")
            self.reasons.update((plot, RECORD) for plot in plots)

    def count(self, counts: Counter[str]) -> None:
        """Adds what came of each plot to a world's counts, at the end of its seed.

        Raises OracleFailure where the record hides a bundle that devices have run.
        """
        self._read_record()
        for scheme, plotter in zip(self.schemes, self._plotters, strict=True):
            plot = scheme.plot
            counts[key(plot, DRAWN)] += 1
            counts[key(plot, DONE)] += bool(plotter.plotted)
            found = {reason for at, reason in self.reasons if at is plot}
            for reason in sorted(found):
                counts[key(plot, FOUND, reason)] += 1
            counts[key(plot, EXPOSED)] += plot in self.exposed
            nothing = not (found or plot in self.exposed)
            counts[key(plot, HARMLESS)] += bool(plotter.plotted) and nothing
        together = len({(s.where.tier, s.where.number) for s in self.schemes})
        counts[f"{PREFIX}s of {len(self.schemes)} at {together}"] += 1


def key(plot: Plot, what: str, reason: str = "") -> str:
    """The name of a count."""
    return ": ".join(part for part in (f"{PREFIX} {plot.name.lower()}", what, reason) if part)


def _mark(message: Any) -> bytes:
    """What a device gets of a message."""
    return fingerprint(message.task if type(message) is EdgeTask else message)
