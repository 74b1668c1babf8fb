"""`CascadeModel` and `delian device cascade`; an edge in this process has the large model."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading

import numpy as np
import pytest
from delian.cli.main import app
from delian.core.common.errors import DelianError
from delian.core.compiler.ir import DType, TensorType
from delian.core.learning import Classification, FedAvg, Samples, SampleSet, nn
from delian.core.learning.build.bundle_builder import build
from delian.core.learning.runtime import Runtime
from delian.core.node.identity.pki.roles import Guard
from delian.core.node.net.grpc.grpc_server import GrpcHub
from delian.core.node.net.switch import Switch
from delian.core.placement.cascade.hard_examples import CloudOnly, EdgeOnly, Threshold, hard
from delian.core.placement.subgraphs.part_programs import Model
from delian.core.placement.subgraphs.parts_host import PartsHost
from delian.core.protocol.ports import Node, Tier
from delian.device.serving.cascade_model import CascadeModel
from typer.testing import CliRunner

READY_S = 120.0
ROWS = np.random.default_rng(2).integers(0, 17, (9, 4, 4)).astype(np.float32)


def made(hidden, batch, shape=(4, 4), seed=1):
    rows = SampleSet(np.zeros((4, *shape), np.float32), np.arange(4) % 3, np.array(4), np.array(0))
    size = int(np.prod(shape))
    return build(
        Classification("cascade", lambda key: nn.Mlp.init(key, size, hidden, 3), Samples(4, 1 / 4)),
        FedAvg(),
        rows,
        example=TensorType(DType.F32, (batch, *shape)),
        clip=5.0,
        clients_max=4,
        weight_max=4.0,
        seed=seed,
    )


@pytest.fixture(scope="module")
def small():
    return made((), 1)


@pytest.fixture(scope="module")
def large():
    """For two rows at a time, each with an axis that the small one's have not."""
    return made((12,), 2, shape=(4, 4, 1), seed=5)


@contextlib.contextmanager
def edge(bundle):
    """An edge in a thread of its own that serves a bundle; its "host:port"."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    def call(work):
        return asyncio.run_coroutine_threadsafe(work, loop).result(READY_S)

    async def start():
        guard = Guard("insecure", Tier.EDGE)
        models = [Model.of(bundle)]
        node = Node(Tier.EDGE, 1)
        parts = PartsHost(models, node, guard, "insecure", False, backend="reference")
        hub = GrpcHub(Switch(), "127.0.0.1:0", None, guard, servicers=(parts.service.add,))
        return parts, hub, await hub.start()

    parts, hub, port = call(start())
    try:
        yield f"edge-1@127.0.0.1:{port}"
    finally:
        call(parts.close())
        call(hub.close())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def alone(bundle, rows):
    """What a bundle says of rows, one by one."""
    runtime = Runtime(bundle, "reference", programs=("infer",))
    kind = bundle.programs["infer"].body.params[-1].type
    answers = []
    for row in rows:
        batch = np.zeros(kind.shape, np.float32)
        batch[0] = row.reshape(kind.shape[1:])
        answers.append(runtime.infer(bundle.weights, batch)[:1])
    return np.concatenate(answers)


def test_each_row_is_answered_by_the_model_that_the_filter_says(small, large):
    here, above = alone(small, ROWS), alone(large, ROWS)
    chosen = Threshold(float(np.median(Threshold().confidence(here))))
    goes_up = hard(chosen, here)
    assert 0 < goes_up.sum() < len(ROWS)
    with (
        edge(large) as home,
        CascadeModel(
            small, large, chosen, [home], number=4, above_s=READY_S, backend="reference"
        ) as model,
    ):
        assert model.wait_ready(READY_S)
        answers = model.predict(ROWS, 2 * READY_S)
        np.testing.assert_array_equal(answers, np.where(goes_up[:, None], above, here))
        counts = model.facts
    assert (counts["large"], counts["small"]) == (goes_up.sum(), len(ROWS) - goes_up.sum())


def test_with_nobody_above_the_small_model_answers_all(small, large):
    home = "edge-1@127.0.0.1:9"  # where nobody listens
    with CascadeModel(
        small, large, CloudOnly(), [home], number=4, above_s=0.05, backend="reference"
    ) as model:
        np.testing.assert_array_equal(model.predict(ROWS), alone(small, ROWS))
        counts = model.facts
    assert counts["small"] == counts["hard"] == len(ROWS)
    assert sum(counts.get(why, 0) for why in ("late", "failed", "rested")) >= len(ROWS)


def test_the_command_answers_rows_and_says_who_did(small, large, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DELIAN_CACHE", str(tmp_path / "cache"))
    small.save(tmp_path / "small.bundle")
    large.save(tmp_path / "large.bundle")
    np.save("rows.npy", ROWS)

    def run(*more):
        call = ["device", "cascade", "small.bundle", "large.bundle", "rows.npy", "--insecure"]
        return CliRunner().invoke(app, [*call, "--number", "4", "--set", BACKEND, *more])

    with edge(large) as home:
        found = run(
            "--filter", "CloudOnly", "--above", "20", "--home", home, "--json", "--due", "40"
        )
    assert found.exit_code == 0, found.output
    said = json.loads(found.output)
    assert said["labels"] == alone(large, ROWS).argmax(-1).tolist()
    assert said["counts"]["large"] == len(ROWS)
    for more, words in (
        (("--filter", "EdgeOnly", "--threshold", "0.5"), "EdgeOnly has no threshold"),
        (("--threshold", "-3"), "from 0 to 1"),
        ((), "no upstream node is configured"),
    ):
        refused = run(*more)
        assert isinstance(refused.exception, DelianError) and words in str(refused.exception)


BACKEND = "device.worker.backend=reference"


def test_models_of_other_rows_are_refused(small):
    other = made((12,), 1, shape=(5,))
    with pytest.raises(DelianError, match=r"takes rows of \[4, 4\], the large one of \[5\]"):
        CascadeModel(small, other, EdgeOnly(), ["edge-1@127.0.0.1:9"], number=4)
