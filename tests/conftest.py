"""What every test may ask for: real data from outside the project, and results nobody computed."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from support.guard import pytest_itemcollected, pytest_pyfunc_call, pytest_runtest_protocol  # noqa: F401

CHECKOUT = Path(__file__).resolve().parents[1]
# An example may take as long as a busy machine takes for it: what is tested is what comes of it.
# Examples are the same in each run, so that only a change can fail a test. New examples are drawn
# by hand: pytest --hypothesis-profile=search
ANY_SPEED = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("search", **ANY_SPEED)
settings.register_profile("delian", derandomize=True, **ANY_SPEED)
settings.load_profile("delian")


#: Generators of test modules and their states after import. Kept with their owner, as ids recur.
_DRAWS: dict[int, tuple[np.random.BitGenerator, Any]] = {}


def pytest_configure(config: pytest.Config) -> None:
    """Compiled programs of tests have a cache beside the user's, which is kept between runs."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    os.environ.setdefault("DELIAN_CACHE", str(caches / "delian-tests"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `-n`, each worker gets tests that follow one another, and steals from others when it has
    none left: what a module's tests share (daemons, brokers, compiled programs) is made once, and
    not in every worker.
    """
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log) if config.getvalue("dist") == "load" else None


def pytest_make_parametrize_id(config: pytest.Config, val: object, argname: str) -> str | None:
    """Bytes are named by their argument: packed ones may hold the time at which they were made,
    and workers that collect at other seconds would find other tests.
    """
    return argname if isinstance(val, bytes) else None


@pytest.fixture(autouse=True)
def same_draws(request: pytest.FixtureRequest) -> None:
    """A module's generators start each test in one state: draws do not depend on other tests.

    Else what a test draws would depend on the tests that ran earlier in its worker.
    """
    for value in vars(request.module).values():
        if isinstance(value, np.random.Generator):
            bits = value.bit_generator
            bits.state = _DRAWS.setdefault(id(bits), (bits, bits.state))[1]


@pytest.fixture(scope="session", autouse=True)
def verified_passes() -> None:
    """The IR is verified after each pass of the compiler that changed it, in the whole suite."""
    from delian.core.compiler.passes import pass_manager

    pass_manager.VERIFY = True


@pytest.fixture(scope="session")
def checkout() -> Path:
    """The repository's root."""
    return CHECKOUT


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder with Omniglot and Shakespeare; where it is absent, the test is skipped."""
    folder = Path(os.environ.get("DELIAN_DATA", CHECKOUT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"no data in {folder}; set DELIAN_DATA")
    return folder


@pytest.fixture(scope="session")
def peeking() -> Callable[[Any], Any]:
    """The same bundle with a `client_update` that compares a device's key with a number, as
    somebody who leaves the checks out would build it.
    """
    from delian.core.compiler.ir import Builder, DType, TensorType

    def make(bundle: Any) -> Any:
        update = bundle.programs["client_update"]
        place = update.param_types.index(TensorType(DType.U32, (2,)))
        b = Builder(update.param_types)
        known = b("broadcast", b.constant(np.uint32(7)), shape=(2,), dims=())
        b("eq", b.params[place], known)
        body = b.finish(b.inline(update.body, b.params))
        programs = {**bundle.programs, "client_update": update.with_body(body)}
        return replace(bundle, programs=programs)

    return make


@pytest.fixture(scope="session")
def make_result() -> Callable[..., object]:
    """Makes a plausible SimulationResult of a scenario without running it."""
    from delian.simulations.runs.result import DeviceRecord, RoundRecord, SimulationResult, Spread
    from delian.simulations.scenario.datasets import load_data

    def make(scenario, *, rounds=None, shared=0.7, personal=0.9, seed=0):
        rng = np.random.default_rng(seed)
        data = load_data(scenario)
        selected = math.ceil(scenario.round.cohort * scenario.round.over_selection)
        done = scenario.rounds if rounds is None else rounds
        records = []
        for i in range(1, done + 1):
            grown = 1 - math.exp(-i / 5)
            reported = selected - int(rng.integers(0, 3))
            records.append(
                RoundRecord(
                    round=i,
                    selected=selected,
                    reported=reported,
                    dropped=selected - reported,
                    late=0,
                    refused=0,
                    spare=0,
                    applied=True,
                    bytes={
                        "device_edge_up": 20_000 * reported,
                        "device_edge_down": 20_000 * selected,
                        "edge_cloud_up": 60_000,
                        "edge_cloud_down": 60_000,
                    },
                    seconds={"device_compute": 4.0, "device_edge": 2.0, "waiting": 9.0},
                    virtual_seconds=3.5,
                    global_accuracy=shared * grown,
                    personalised_accuracy=personal * grown,
                    global_spread=Spread(shared * grown * 0.8, min(1.0, shared * grown * 1.2)),
                )
            )
        devices = [
            DeviceRecord(
                device=i,
                name=data.names[i],
                edge=i % scenario.fleet.edges,
                examples=data.card.examples[i],
                held_out=i in data.held_out,
                rounds=0 if i in data.held_out else 3,
                accuracy_before=float(np.clip(rng.normal(shared, 0.1), 0, 1)),
                accuracy_after=float(np.clip(rng.normal(personal, 0.05), 0, 1)),
            )
            for i in range(len(data.devices))
        ]
        return SimulationResult(
            scenario=scenario,
            rounds=tuple(records),
            devices=tuple(devices),
            parameters=4810,
            trace_hash="0123456789abcdef" * 4,
            data=data.card.to_json(),
            host={"total_seconds": 12.5, "updates_per_second": 640.0, "threads": 2},
            stopped_by="interrupt" if done < scenario.rounds else None,
        )

    return make
