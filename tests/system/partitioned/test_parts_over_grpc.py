"""Parts of a program over gRPC: every cut gives the whole's answer, and every request has one."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from delian.core.placement.subgraphs.machines.asker import AskerSettings
from delian.core.placement.subgraphs.machines.part_ports import Work
from delian.core.placement.subgraphs.request_driver import RefusedError


def test_every_cut_over_three_tiers_gives_the_answer_of_the_whole(tiers, model, x):
    async def run():
        wanted = tiers.whole(model, x)
        async with tiers.both(model) as (cloud, edge):
            for cut in tiers.cuts_of(model):
                async with tiers.device(model, [cut], edge.address) as device:
                    await tiers.until(device.open)
                    if device.courses:
                        answered = await tiers.by_parts(device, x)
                    else:
                        answered = await device.driver.request((x,), 10.0)
                        assert answered.by is Work.WHOLE
                    assert not answered.fallback
                    np.testing.assert_array_equal(answered.results[0], wanted)
            assert edge.parts.driver.answered and cloud.parts.driver.answered

    asyncio.run(run())


@pytest.mark.parametrize(("wire", "most"), [("f16", 5e-3), ("i8", 0.1)])
def test_a_narrow_wire_costs_digits_and_no_more(tiers, model, x, wire, most):
    async def run():
        wanted = tiers.whole(model, x)
        async with tiers.Upper(tiers.EDGE, [model]) as edge:
            for cut in tiers.cuts_of(model, tiers=2, wire=wire)[1:-1]:
                async with tiers.device(model, [cut], edge.address) as device:
                    await tiers.until(device.open)
                    (got,) = (await tiers.by_parts(device, x)).results
                    assert 0 < np.abs(got - wanted).max() < most

    asyncio.run(run())


def test_requests_in_a_row_and_at_once_are_all_answered_each_with_its_own(tiers, model):
    async def run():
        rng = np.random.default_rng(0)
        inputs = [rng.standard_normal((4, 6)).astype(np.float32) for _ in range(60)]
        cut = tiers.cuts_of(model)[8]
        async with tiers.both(model) as (_cloud, edge):
            settings = AskerSettings(under_way=8)
            async with (
                tiers.device(model, [cut], edge.address, settings=settings) as one,
                tiers.device(model, [cut], edge.address, node=tiers.OTHER) as two,
            ):
                await tiers.until(lambda: one.open() and two.open())
                asked = [d.driver.request((x,), 10.0) for x in inputs for d in (one, two)]
                for x, got in zip(np.repeat(inputs, 2, axis=0), asked, strict=True):
                    answered = await got
                    np.testing.assert_array_equal(answered.results[0], tiers.whole(model, x))

    asyncio.run(run())


def test_a_node_without_the_bundle_refuses_and_the_device_answers_alone(tiers, model, x):
    async def run():
        other = tiers.make_model(seed=2)  # the same program, other weights
        async with tiers.Upper(tiers.EDGE, [other]) as edge:
            cuts = tiers.cuts_of(model, tiers=2)
            async with tiers.device(model, cuts, edge.address, local_s=1e-3) as device:
                counts = edge.parts.driver.counts
                await tiers.until(lambda: counts["refused: SUBGRAPH_UNKNOWN"] >= len(cuts) - 1)
                answered = await device.driver.request((x,), 10.0)
                assert answered.by is Work.WHOLE
                np.testing.assert_array_equal(answered.results[0], tiers.whole(model, x))

    asyncio.run(run())


def test_a_device_that_nobody_can_be_asked_for_answers_alone(tiers, model, x):
    async def run():
        async with tiers.device(model, tiers.cuts_of(model), None, local_s=1e-3) as device:
            answered = await device.driver.request((x,), 10.0)
            assert answered.by is Work.WHOLE

    asyncio.run(run())


def test_an_edge_that_goes_takes_no_request_with_it_and_is_used_again_when_it_is_back(
    tiers, model, x
):
    async def run():
        cuts = tiers.cuts_of(model, tiers=2)[1:-1]
        async with (
            tiers.Upper(tiers.EDGE, [model]) as edge,
            tiers.device(model, cuts, edge.address, local_s=0.5) as device,
        ):
            await tiers.until(device.open)
            await tiers.by_parts(device, x)
            asked = [device.driver.request((x,), 10.0) for _ in range(20)]
            await asyncio.sleep(0)
            await edge.hub.close()
            answers = [await got for got in asked]
            assert {a.by for a in answers} <= {Work.PART, Work.REST, Work.WHOLE}
            for answered in answers:
                np.testing.assert_array_equal(answered.results[0], tiers.whole(model, x))
            await tiers.until(lambda: not device.open())
            edge.hub.address = edge.address
            await edge.hub.start()
            await tiers.until(device.open)
            await tiers.by_parts(device, x)

    asyncio.run(run())


def test_a_cloud_that_goes_leaves_the_rest_to_the_edge(tiers, model, x):
    async def run():
        cut = tiers.cuts_of(model)[8]
        assert set(cut.labels) == {0, 1, 2}
        async with (
            tiers.both(model) as (cloud, edge),
            tiers.device(model, [cut], edge.address) as device,
        ):
            await tiers.until(device.open)
            await device.driver.request((x,), 10.0)
            await cloud.hub.close()
            before = cloud.parts.driver.answered
            answered = await tiers.by_parts(device, x)
            np.testing.assert_array_equal(answered.results[0], tiers.whole(model, x))
            assert cloud.parts.driver.answered == before

    asyncio.run(run())


def test_a_driver_that_is_closed_leaves_nobody_waiting(tiers, model, x):
    async def run():
        async with tiers.Upper(tiers.EDGE, [model]) as edge:
            cuts, wanted = tiers.cuts_of(model, tiers=2)[1:-1], tiers.whole(model, x)
            async with tiers.device(model, cuts, edge.address) as device:
                await tiers.until(device.open)
                asked = [device.driver.request((x,), 10.0) for _ in range(5)]
            done, left = await asyncio.wait(asked, timeout=tiers.WAIT_S)
            assert len(done) == 5 and not left
            for got in done:
                fault = got.exception()
                assert fault is None or isinstance(fault, RefusedError)
                assert fault is not None or (got.result().results[0] == wanted).all()

    asyncio.run(run())


def test_requests_that_come_together_are_run_together_and_answered_apart(tiers, model):
    async def run():
        rng = np.random.default_rng(0)
        inputs = [rng.standard_normal((4, 6)).astype(np.float32) for _ in range(40)]
        cut = tiers.cuts_of(model, tiers=2)[1]
        settings = AskerSettings(under_way=40)
        async with (
            tiers.Upper(tiers.EDGE, [model]) as edge,
            tiers.device(model, [cut], edge.address, settings=settings) as device,
        ):
            await tiers.until(device.open)
            (prepared,) = edge.parts.driver._cuts.values()
            ready = False
            async with asyncio.timeout(tiers.WAIT_S):
                while not ready:
                    ready = bool(prepared.wide)
                    asked = [device.driver.request((x,), 10.0) for x in inputs]
                    for x, got in zip(inputs, asked, strict=True):
                        (answer,) = (await got).results
                        wanted = tiers.whole(model, x)
                        np.testing.assert_allclose(answer, wanted, rtol=1e-4, atol=1e-6)

    asyncio.run(run())
