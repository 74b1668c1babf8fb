"""`SplitModel` and `delian device ask`, over an edge in this process that runs the other parts."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from dataclasses import replace

import numpy as np
import pytest
from delian.cli.main import app
from delian.core.common.errors import DelianError
from delian.core.compiler.ir import DType, TensorType
from delian.core.learning import Classification, FedAvg, Samples, SampleSet, nn
from delian.core.learning.build.bundle_builder import build
from delian.core.node.identity.pki.roles import Guard
from delian.core.node.net.grpc.grpc_server import GrpcHub
from delian.core.node.net.switch import Switch
from delian.core.placement.cut.cut import Cut
from delian.core.placement.cut.link_model import LinkProfile
from delian.core.placement.cut.placement_plan import Piece, PlacementPlan
from delian.core.placement.cut.value_graph import depends
from delian.core.placement.subgraphs.part_programs import Model
from delian.core.placement.subgraphs.parts_host import PartsHost
from delian.core.protocol.ports import Node, Tier
from delian.device.serving.split_model import SplitModel, SplitSettings
from typer.testing import CliRunner

REFERENCE = SplitSettings(backend="reference")
OPEN_S = 120.0


@pytest.fixture(scope="module")
def bundle():
    rows = SampleSet(
        np.random.default_rng(0).integers(0, 17, (12, 4, 4)).astype(np.uint8),
        np.arange(12, dtype=np.int32) % 3,
        np.array(8),
        np.array(3),
    )
    return build(
        Classification("split", lambda key: nn.Mlp.init(key, 16, (5,), 3), Samples(4, 1 / 16)),
        FedAvg(local=nn.sgd(0.1), server=nn.sgd(1.0)),
        rows,
        example=TensorType(DType.F32, (2, 4, 4)),
        clip=5.0,
        clients_max=4,
        weight_max=8.0,
        seed=1,
    )


@pytest.fixture(scope="module")
def plan(bundle) -> PlacementPlan:
    """The first half here, the second above; nobody's measurements say otherwise."""
    model = Model.of(bundle)
    moving = depends(model.function, model.resident)
    labels, seen = [], 0
    for moves in moving:
        labels.append(-1 if not moves else int(seen >= sum(moving) // 2))
        seen += moves
    cut = Cut(tuple(labels), bundle=bundle.content_hash(), program="infer")
    piece = Piece(1.0, 1e12, cut.to_bytes(), (0.0, 0.0), (40,), (24,), (0.0,), (0, 0))
    link = LinkProfile(1e9, 1e9, 0.0)
    return PlacementPlan(bundle.content_hash(), "infer", ("", ""), (link,), "latency", (piece,))


@contextlib.contextmanager
def edge(models):
    """An edge in a thread of its own; its "host:port"."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    def call(work):
        return asyncio.run_coroutine_threadsafe(work, loop).result(OPEN_S)

    async def start():
        node = Node(Tier.EDGE, 1)
        guard = Guard("insecure", Tier.EDGE)
        parts = PartsHost(models, node, guard, "insecure", False, backend="reference")
        hub = GrpcHub(Switch(), "127.0.0.1:0", None, guard, servicers=(parts.service.add,))
        return parts, hub, await hub.start()

    parts, hub, port = call(start())
    try:
        yield f"edge-1@127.0.0.1:{port}", parts
    finally:
        call(parts.close())
        call(hub.close())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def slow(monkeypatch):
    """A device that takes a second for the whole."""

    def measure(self, program):
        return 1.0 if program.function.name == "infer" else 1e-4

    monkeypatch.setattr("delian.core.placement.subgraphs.part_programs.Programs.measure", measure)


def test_batches_of_any_length_are_answered_as_the_program_answers_them(bundle, plan, monkeypatch):
    slow(monkeypatch)
    rng = np.random.default_rng(3)
    with (
        edge([Model.of(bundle)]) as (home, parts),
        SplitModel(bundle, plan, [home], number=4, settings=REFERENCE) as model,
    ):
        assert model.wait_open(OPEN_S)
        for rows in (1, 2, 5, 0):
            x = rng.integers(0, 17, (rows, 4, 4)).astype(np.float32)
            padded = np.zeros((6, 4, 4), np.float32)
            padded[:rows] = x
            wanted = np.concatenate([model.alone(padded[i : i + 2]) for i in (0, 2, 4)])[:rows]
            np.testing.assert_array_equal(model.predict(x), wanted)
        assert model.facts.answered.get("part", 0) > 0 < parts.driver.answered


def test_a_stream_is_answered_in_its_order(bundle, plan, monkeypatch):
    slow(monkeypatch)
    rng = np.random.default_rng(4)
    batches = [rng.integers(0, 17, (2, 4, 4)).astype(np.float32) for _ in range(50)]
    with (
        edge([Model.of(bundle)]) as (home, _),
        SplitModel(bundle, plan, [home], number=4, settings=REFERENCE) as model,
    ):
        assert model.wait_open(OPEN_S)
        for x, answer in zip(batches, model.stream(iter(batches)), strict=True):
            np.testing.assert_array_equal(answer, model.alone(x))


def test_a_batch_that_is_longer_than_any_line_is_answered_whole(bundle, plan):
    with SplitModel(bundle, plan, number=4, settings=REFERENCE) as model:
        assert model.predict(np.zeros((1_400, 16))).shape == (1_400, 3)


def test_without_anybody_above_the_device_answers(bundle, plan):
    with SplitModel(bundle, plan, number=4, settings=REFERENCE) as model:
        assert not model.connected
        assert model.predict(np.zeros((3, 16))).shape == (3, 3)
        assert model.facts.answered == {"whole": 2}


def test_what_does_not_fit_is_said(bundle, plan):
    with SplitModel(bundle, plan, number=4, settings=REFERENCE) as model:
        with pytest.raises(DelianError, match="batch"):
            model.predict(np.zeros((3, 5)))
        with pytest.raises(DelianError, match="input"):
            model.ask(np.zeros((1, 4, 4)))
    other = PlacementPlan("0" * 64, "infer", plan.profiles, plan.links, "latency", plan.pieces)
    with pytest.raises(DelianError, match="another bundle"):
        SplitModel(bundle, other, number=4, settings=REFERENCE)


def test_the_command_asks_and_says_who_answered(bundle, plan, tmp_path):
    bundle.save(tmp_path / "model.dlb")
    (tmp_path / "plan.json").write_text(plan.to_json())
    np.save(tmp_path / "x.npy", np.zeros((3, 4, 4), np.float32))
    with edge([Model.of(bundle)]) as (home, _):
        arguments = [
            *("device", "ask", str(tmp_path / "model.dlb"), str(tmp_path / "x.npy")),
            *("--plan", str(tmp_path / "plan.json"), "--home", home),
            *("--insecure", "--number", "4", "--out", str(tmp_path / "out.npy"), "--json"),
            *("--set", "device.worker.backend=reference"),
        ]
        ran = CliRunner().invoke(app, arguments)
    assert ran.exit_code == 0, ran.output
    said = json.loads(ran.stdout)
    assert len(said["labels"]) == 3 and sum(said["answered"].values()) == 2
    assert np.load(tmp_path / "out.npy").shape == (3, 3)


def test_an_input_that_is_kept_goes_up_by_no_plan(bundle, plan) -> None:
    keep = SplitSettings(backend="reference", keep_input=True)
    with SplitModel(bundle, plan, ["127.0.0.1:1"], number=0, settings=keep) as model:
        assert model.plan == plan  # what goes up is computed of the input
    moving = depends(Model.of(bundle).function, Model.of(bundle).resident)
    cut = Cut(
        tuple(1 if moves else -1 for moves in moving),
        bundle=bundle.content_hash(),
        program="infer",
    )
    above = replace(plan, pieces=(replace(plan.pieces[0], cut=cut.to_bytes()),))
    with pytest.raises(DelianError, match="may go no higher than 0"):
        SplitModel(bundle, above, ["127.0.0.1:1"], number=0, settings=keep)
