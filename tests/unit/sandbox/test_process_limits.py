"""The limit of processor time belongs to one job of a process that has many."""

from __future__ import annotations

import resource
from types import SimpleNamespace

import pytest
from delian.core.node.sandbox import process_limits
from delian.core.node.sandbox.process_limits import Limits, WorkerLimits


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A process whose processor time the test sets, and the limits that it was given."""
    state = SimpleNamespace(spent=0.0, limits={})

    def used(which: int) -> SimpleNamespace:
        return SimpleNamespace(ru_utime=state.spent, ru_stime=0.0)

    monkeypatch.setattr(resource, "getrusage", used)
    monkeypatch.setattr(
        resource, "setrlimit", lambda which, pair: state.limits.update({which: pair})
    )
    monkeypatch.setattr(resource, "getrlimit", lambda which: (resource.RLIM_INFINITY,) * 2)
    monkeypatch.setattr(process_limits.os, "nice", lambda by: 0)
    return state


def test_each_job_has_the_processor_time_of_one_from_its_beginning(
    process: SimpleNamespace,
) -> None:
    limits = Limits(WorkerLimits(cpu_s=600))
    limits.of_job()
    assert process.limits[resource.RLIMIT_CPU][0] == 1 + 600
    limits.running()
    process.spent = 599.5
    limits.of_job()
    assert process.limits[resource.RLIMIT_CPU][0] == 600 + 600


def test_what_runs_after_the_data_are_read_has_what_is_left(process: SimpleNamespace) -> None:
    limits = Limits(WorkerLimits(cpu_s=600))
    limits.of_job(cpu_s=10)
    process.spent = 5.0
    limits.running()
    assert process.limits[resource.RLIMIT_CPU][0] == 1 + 10
