"""Questions answered by the real answering process: confined, counted, and kept track of."""

from __future__ import annotations

import asyncio
import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from delian.core.node.sandbox.process_limits import WorkerLimits
from delian.core.node.sandbox.worker_process import Stopped
from delian.core.protocol.ports import RunProgram
from delian.core.statistics.building import build
from delian.core.statistics.methods.aggregates import Aggregates
from delian.core.statistics.question import Step, step_bytes
from delian.core.statistics.request import Request, Rows
from delian.core.statistics.site_rules import OwnerRules
from delian.core.statistics.sql.rows_data import Offered
from delian.core.statistics.sums import SumPlan
from delian.core.wire.artifact_pb2 import ArtifactLimits
from delian.core.wire.round_pb2 import BAD_BUNDLE, NO_DATA, QUESTION_REFUSED, Task
from delian.device.agent.question_desk import DAY_S, QuestionDesk, read_log

ROWS = 40
LIMITS = ArtifactLimits()


class Site:
    """A desk over a table of 40 rows, and the blobs that its questions name."""

    def __init__(self, folder: Path, **rules) -> None:
        self.folder, self.now = folder, 1_000_000.0
        table = folder / "patients.csv"
        lines = [f"{n},{20 + n},{'fm'[n % 2]}" for n in range(ROWS)]
        table.write_text("id,age,sex\n" + "\n".join(lines) + "\n")
        self.table = table
        offered = {"patients": Offered(str(table))}
        self.rules = OwnerRules(**{"tables": offered, **rules})
        self.desk = self.opened()
        self.tickets = 0

    def opened(self) -> QuestionDesk:
        return QuestionDesk(
            self.rules,
            WorkerLimits(memory_mib=512),
            self.folder / "questions",
            lambda digest: self.folder / digest.hex(),
            lambda: self.now,
        )

    def put(self, content: bytes) -> bytes:
        digest = hashlib.sha256(content).digest()
        (self.folder / digest.hex()).write_bytes(content)
        return digest

    async def ask(self, request: Request, step: Step | None = None):
        step = step or request.question.ask().send(None)
        plan = SumPlan(step.sums, 5, request.noise)
        blobs = (self.put(request.to_bytes()), self.put(step_bytes(step)))
        self.tickets += 1
        task = Task(run=7)
        task.secure.suite = 1
        arguments = (np.zeros(2, np.uint32), plan.ring.message())
        program = RunProgram(self.tickets, "client_update", blobs, arguments, task)
        outcome = await self.desk.answer(program, LIMITS)
        return plan.decode(outcome.vector[:-1], int(outcome.vector[-1]))

    async def refused(self, request: Request, step: Step | None = None) -> tuple[int, str]:
        with pytest.raises(Stopped) as stop:
            await self.ask(request, step)
        return stop.value.reason, str(stop.value.head.get("refused", ""))

    def log(self):
        return [(e["answered"], e.get("refused", "")) for e in read_log(self.folder / "questions")]


def count(where: str = "", **more) -> Request:
    return Request(Aggregates(**more), Rows("patients", where))


def run(folder: Path, work, **rules) -> None:
    async def whole() -> None:
        site = Site(folder, **rules)
        try:
            await work(site)
        finally:
            await site.desk.close()

    asyncio.run(whole())


def test_a_question_is_answered_from_the_owner_s_table(tmp_path) -> None:
    async def work(site: Site) -> None:
        assert (await site.ask(count())).number("rows") == ROWS
        assert (await site.ask(count("age >= 30"))).number("rows") == 30
        (first, second) = read_log(tmp_path / "questions")
        assert first["answered"] and first["masked"] and first["run"] == 7
        assert json.loads(second["question"])["rows"]["where"] == "age >= 30"

    run(tmp_path, work)


def test_refusals_have_their_reason_and_are_logged(tmp_path) -> None:
    async def work(site: Site) -> None:
        await site.ask(count("age >= 30"))
        assert await site.refused(count("age >= 30 and id <> 20")) == (
            QUESTION_REFUSED,
            "difference",
        )
        assert await site.refused(count("id = 3")) == (QUESTION_REFUSED, "floor")
        other = Request(Aggregates(), Rows("salaries"))
        assert await site.refused(other) == (QUESTION_REFUSED, "tables")
        assert (await site.refused(count("nothing > 1")))[0] == BAD_BUNDLE
        assert (await site.refused(count("id > 1000")))[0] == NO_DATA
        assert (await site.ask(count("age >= 30"))).number("rows") == 30
        assert [reason for answered, reason in site.log() if not answered] == [
            "difference",
            "floor",
            "tables",
            "bad_bundle",
            "no_data",
        ]

    run(tmp_path, work)


def test_a_restarted_site_still_knows_what_was_asked(tmp_path) -> None:
    async def work(site: Site) -> None:
        await site.ask(count("age >= 30"))
        await site.desk.close()
        site.desk = site.opened()
        assert (await site.refused(count("age >= 30 and id <> 20")))[1] == "difference"

    run(tmp_path, work)


def test_so_many_questions_a_day_with_all_their_steps(tmp_path) -> None:
    async def work(site: Site) -> None:
        glm = Request(build("glm", "age ~ id"), Rows("patients"))
        asking = glm.question.ask()
        step = asking.send(None)
        for _ in range(3):
            step = asking.send(await site.ask(glm, step))
        await site.ask(count())
        assert (await site.refused(count("age >= 30"))) == (QUESTION_REFUSED, "day")
        await site.ask(glm, step)  # a question that was begun goes on
        site.now += DAY_S + 1
        await site.ask(count("age >= 30"))

    run(tmp_path, work, per_day=2)


def test_a_table_that_changed_or_went_between_questions(tmp_path) -> None:
    async def work(site: Site) -> None:
        await site.ask(count())
        whole = site.table.read_text()
        site.table.write_text(whole.replace("id,age", "id,years"))
        assert (await site.refused(count("age > 3")))[0] == BAD_BUNDLE
        site.table.unlink()
        assert (await site.refused(count("age > 30")))[0] == BAD_BUNDLE
        site.table.write_bytes(b'id,age\n1,\xff\xfe\n"2,3')
        assert (await site.refused(count("age > 31")))[0] == BAD_BUNDLE
        site.table.write_text(whole)
        assert (await site.ask(count("age > 32"))).number("rows") == 27

    run(tmp_path, work)


def test_a_site_that_offers_nothing_answers_nothing(tmp_path) -> None:
    async def work(site: Site) -> None:
        assert await site.refused(count()) == (QUESTION_REFUSED, "tables")

    run(tmp_path, work, tables={})


def test_a_hostile_step_costs_the_site_one_answer(tmp_path) -> None:
    async def work(site: Site) -> None:
        good = count(groups=("sex",), categories={"sex": ("f", "m")})
        step = good.question.ask().send(None)
        for bad in (
            Step("nothing", step.sums, step.arrays),
            Step("cells", step.sums, {}),
            Step("cells", step.sums, {"levels 0": np.full(4, 1 << 60, np.int64)}),
            Step("cells", step.sums[:1], step.arrays),
        ):
            assert (await site.refused(good, bad))[0] == BAD_BUNDLE
        assert (await site.ask(good))["rows"].tolist() == [20, 20]

    run(tmp_path, work)
