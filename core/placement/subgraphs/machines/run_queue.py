"""What waits to be run on this tier, and what is run next.

Runs that could be one run wait in one queue: those of one cut, one work and one part, so that a
batch never mixes cuts. A queue is due when it fills a batch, when its first run has waited long
enough, or when waiting longer would miss its deadline; of those that are due the one whose deadline
is nearest goes first. While all workers are busy, queues fill by themselves: waiting on purpose
(`wait_ns`) only pays where requests come one by one to an idle tier.

A device has a queue too, with one lane: its runs come one after the other, and what has become
urgent overtakes.
"""

from __future__ import annotations

from dataclasses import dataclass

from ....protocol.ports import SECOND
from .part_ports import Run, Work
from .time_model import Drift


@dataclass(frozen=True, slots=True)
class Job:
    """One ticket's place in a queue."""

    ticket: int
    cut: bytes
    work: Work
    part: int | None
    deadline: int
    seconds: float
    """Predicted, alone."""
    queued_at: int

    @property
    def queue(self) -> tuple[bytes, Work, int | None]:
        return (self.cut, self.work, self.part)


@dataclass(slots=True)
class _Running:
    jobs: list[Job]
    began: int
    seconds: float  # predicted of all its jobs, those that were called off too


class RunQueue:
    """Queues and runs. lanes: tickets of one run; workers: runs under way at once."""

    def __init__(self, lanes: int = 1, wait_ns: int = 0, workers: int = 1) -> None:
        assert lanes >= 1 and wait_ns >= 0 and workers >= 1
        self._lanes, self._wait, self._workers = lanes, wait_ns, workers
        self._queues: dict[tuple[bytes, Work, int | None], list[Job]] = {}
        self._running: dict[int, _Running] = {}
        self._runs = 0
        self._drift = Drift()

    def __len__(self) -> int:
        """How many wait."""
        return sum(map(len, self._queues.values()))

    def add(self, job: Job) -> None:
        self._queues.setdefault(job.queue, []).append(job)

    def drop(self, ticket: int) -> list[int]:
        """Removes a ticket's jobs and gives the runs that no ticket needs now."""
        for queue in list(self._queues):
            kept = [j for j in self._queues[queue] if j.ticket != ticket]
            if kept:
                self._queues[queue] = kept
            else:
                del self._queues[queue]
        useless = []
        for number, running in self._running.items():
            kept = [j for j in running.jobs if j.ticket != ticket]
            if running.jobs and not kept:
                useless.append(number)
            running.jobs = kept
        return useless

    def start(self, now: int) -> list[Run]:
        """The runs that begin now."""
        begun = []
        while len(self._running) < self._workers:
            due = [q for q in self._queues.values() if now >= self._due(q)]
            if not due:
                break
            jobs = min(due, key=lambda q: min((j.deadline, j.ticket) for j in q))
            jobs.sort(key=lambda j: (j.deadline, j.ticket))
            batch, rest = jobs[: self._lanes], jobs[self._lanes :]
            first = batch[0]
            if rest:
                self._queues[first.queue] = rest
            else:
                del self._queues[first.queue]
            self._runs += 1
            self._running[self._runs] = _Running(batch, now, sum(j.seconds for j in batch))
            tickets = tuple(j.ticket for j in batch)
            begun.append(Run(self._runs, first.cut, first.work, first.part, tickets))
        return begun

    def next_at(self) -> int | None:
        """When the next queue is due, if a worker is free for it."""
        if len(self._running) >= self._workers or not self._queues:
            return None
        return min(map(self._due, self._queues.values()))

    def finished(self, run: int, now: int, measured: bool) -> list[Job]:
        """A run has ended: its wanted jobs. measured: whether its time counts."""
        running = self._running.pop(run, None)
        if running is None:
            return []
        if measured and running.jobs and running.seconds > 0:
            self._drift.measured(running.seconds, (now - running.began) / SECOND, now)
        return running.jobs

    def delay_s(self, now: int, deadline: int | None = None) -> float:
        """Predicted seconds until one more job begins, behind the more urgent ones."""
        overhead, ratio = self._drift.fit(now)
        under_way = sum(
            max(0.0, overhead + r.seconds * ratio - (now - r.began) / SECOND)
            for r in self._running.values()
        )
        queued = sum(
            j.seconds * ratio + overhead / self._lanes
            for q in self._queues.values()
            for j in q
            if deadline is None or j.deadline <= deadline
        )
        return (under_way + queued) / self._workers

    def expected_s(self, predicted: float, now: int) -> float:
        """Predicted seconds of work under the current load; zero stays zero."""
        return self._drift.seconds(predicted, now) if predicted > 0 else 0.0

    def _due(self, queue: list[Job]) -> int:
        """When a queue must not wait any longer."""
        if len(queue) >= self._lanes or not self._wait:
            return 0
        total = self._drift.seconds(sum(j.seconds for j in queue), queue[0].queued_at)
        latest = min(j.deadline for j in queue) - round(total * SECOND)
        return min(min(j.queued_at for j in queue) + self._wait, latest)
