"""What a device's text is to the coordinator: from a plain adapter update it is read off.

The attack is that on the span of a layer's inputs (Petrov et al. 2024, "DAGER"), for LoRA. One step
changes B of a layer by

    dB = s sum_t (A^T x_t) dy_t^T,   x_t the layer's input at position t, dy_t its output's slope

so the columns of dB lie in the span of A^T x_t over t, which has fewer dimensions than the rank. In
the first block x_t is a function of position and token alone, and A is known: the coordinator tries
every token at every position, and those of the text are the ones in the span. (UTR, arXiv
2601.17533, reads deeper layers too.)

What the coordinator and the edges see is taken from a simulated federation: every message to them.
"""

from __future__ import annotations

from typing import Any

import delian as dl
import numpy as np
import pytest
from delian.core.compiler.ir import DType, TensorType
from delian.core.learning import Classification, FedAvg, Samples, SampleSet
from delian.core.learning.adapters import adapter_roles
from delian.core.learning.build.bundle_builder import build
from delian.core.learning.leaf_roles import Roles
from delian.core.learning.nn import LayerNorm, TransformerBlock, sgd
from delian.core.learning.nn.transformers import sinusoids
from delian.core.learning.runtime import Runtime
from delian.core.protocol import ports
from delian.core.wire.round_pb2 import Upload
from delian.simulations.federation.federation import Federation
from delian.simulations.federation.fleet import Fleet
from delian.simulations.federation.training_threads import NoWorkers
from delian.simulations.runs.compiled_training import CompiledTraining
from delian.simulations.scenario.federation_plan import FederationPlan

VOCABULARY, WIDTH, STEPS, RANK, DEVICES = 300, 32, 6, 16, 12
#: Binomial of 72 tokens with 1/300: more than this is seen less than once in ten thousand times.
CHANCE_MAX = 4


@dl.module
class Reader:
    """A small language model with a tied head."""

    table: Any
    block: TransformerBlock
    norm: LayerNorm

    def __call__(self, ids: Any) -> Any:
        x = self.table[ids.astype(np.int64)] + sinusoids(STEPS, WIDTH)
        return self.norm(self.block(x)) @ self.table.T


def reader() -> Any:
    key = dl.random.key(1)
    table = np.asarray(dl.random.normal(dl.random.fold_in(key, 1), (VOCABULARY, WIDTH)))
    block = TransformerBlock.init(dl.random.fold_in(key, 2), WIDTH, 4, causal=True)
    made = Reader(table, block, LayerNorm.init(WIDTH))
    return dl.lora(made, RANK, targets=("value",), alpha=16.0)


MODEL = reader()
TEXTS = np.random.default_rng(5).integers(0, VOCABULARY, (DEVICES, STEPS + 1)).astype(np.int32)


def device(number: int) -> SampleSet:
    """A device with one sentence."""
    x, y = np.zeros((2, STEPS), np.int32), np.zeros((2, STEPS), np.int32)
    x[0], y[0] = TEXTS[number, :-1], TEXTS[number, 1:]
    return SampleSet(x, y, np.array(1, np.int64), np.array(1, np.int64))


@pytest.fixture(scope="module")
def runtime() -> Runtime:
    made = build(
        Classification("reader", lambda key: MODEL, Samples(1, 1.0)),
        FedAvg(local=sgd(0.5)),
        device(0),
        example=TensorType(DType.I32, (1, STEPS)),
        clip=1.0,
        clients_max=DEVICES,
        weight_max=1.0,
        seed=1,
        roles=Roles(frozen=adapter_roles(MODEL)),
    )
    return Runtime(made, "reference")


def uploads(runtime: Runtime, aggregation: str) -> dict[int, Any]:
    """By device, the vector that edges and the coordinator receive of it, u32[L]."""
    seen: dict[int, Any] = {}

    def observe(now: int, host: Any, event: ports.Event) -> None:
        if isinstance(event, ports.Received) and isinstance(event.message, Upload):
            content = event.message.vector if event.vector is None else event.vector
            seen[event.message.device] = np.frombuffer(bytes(content), "<u4")

    training = CompiledTraining(
        runtime,
        runtime.bundle.weights,
        [device(k) for k in range(DEVICES)],
        lambda data: 1,
        NoWorkers(),
        lambda done, most: None,
    )
    plan = FederationPlan.of(
        rounds=1,
        cohort=DEVICES,
        reports_min=DEVICES,
        over_selection=1.0,
        ring=runtime.ring,
        fleet=Fleet(DEVICES, 2),
        aggregation=aggregation,
        **({"cohort_min": 10, "corrupt": 0.1, "dropout": 0.1} if aggregation == "secure" else {}),
    )
    federation = Federation(plan, training, seed=1, observer=observe)
    result = federation.run()
    assert not result.failed and len(seen) == DEVICES
    return seen


def attack(runtime: Runtime, vector: Any) -> Any:
    """The tokens at each position that an update gives away: i64[STEPS]."""
    update = (vector[:-1].view(np.int32) / runtime.ring.scale).astype(np.float64)
    places = [leaf.name for leaf in runtime.manifest.state]
    leaves = runtime.views(update.astype(np.float32), runtime.manifest.state)
    change = leaves[places.index("block.attention.value.weight.b")].astype(np.float64)
    adapter = MODEL.block.attention.value.weight
    # The span of the inputs: as many directions as there are positions.
    u, _, _ = np.linalg.svd(change, full_matrices=False)
    span = u[:, :STEPS]
    found = []
    for position in range(STEPS):
        x = np.asarray(MODEL.table) + sinusoids(STEPS, WIDTH)[position]
        tried = np.asarray(MODEL.block.norm(x[None])[0], np.float64) @ adapter.a
        beside = tried - tried @ span @ span.T
        found.append(np.argmin(np.linalg.norm(beside, axis=1) / np.linalg.norm(tried, axis=1)))
    return np.array(found)


def read_off(runtime: Runtime, aggregation: str) -> int:
    """How many of the devices' tokens the coordinator reads."""
    seen = uploads(runtime, aggregation)
    return sum(int(np.sum(attack(runtime, seen[d]) == TEXTS[d, :-1])) for d in range(DEVICES))


def test_a_plain_adapter_update_is_the_text(runtime: Runtime) -> None:
    assert read_off(runtime, "plain") == DEVICES * STEPS


def test_from_what_the_coordinator_sees_it_is_at_chance(runtime: Runtime) -> None:
    """With masks, which are the default of runs; without them this test fails."""
    assert read_off(runtime, "secure") <= CHANCE_MAX
