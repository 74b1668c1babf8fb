"""A process with a real journal, ended by SIGKILL: what it had answered is there afterwards."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from delian.core.node.driver.driver import Driver
from delian.core.node.storage.blobs import FolderBlobs
from delian.core.node.storage.journal import FileJournal
from support import node_bench as _bench

# Takes check-ins as fast as it can, and prints what it answers.
TESTS = Path(__file__).parents[2]
NODE = """
    import asyncio, sys
    from pathlib import Path
    from delian.core.node.storage.blobs import FolderBlobs
    from delian.core.node.driver.driver import Driver, DriverLimits
    from delian.core.node.storage.journal import FileJournal

    sys.path.insert(0, sys.argv[1])
    from support import node_bench as bench
    folder = Path(sys.argv[2])

    class Out:
        def send(self, sender, to, message, traceparent=""):
            sys.stdout.write(f"{message.sequence}\\n")
            sys.stdout.flush()

    async def main():
        driver = Driver(
            bench.Toy, FileJournal(folder / "journal"), Out(),
            FolderBlobs(folder / "blobs", 1000), bench.Runner(),
            limits=DriverLimits(batch_events_max=5, inbox_events_max=8, checkpoint_entries=40),
        )
        running = asyncio.ensure_future(driver.run())
        await driver.started()
        number = max(driver.machine.seen, default=0)
        while not running.done():
            number += 1
            if number not in (666, 777, 999):  # what the toy takes otherwise
                await driver.offer(bench.check_in(number))
        await running

    asyncio.run(main())
"""


async def recovered(folder: Path) -> list[int]:
    switch, runner = _bench.Switchboard(), _bench.Runner()
    blobs = FolderBlobs(folder / "blobs", 1000)
    driver = Driver(_bench.Toy, FileJournal(folder / "journal"), switch, blobs, runner)
    running = asyncio.ensure_future(driver.run())
    await driver.started()
    seen = list(driver.machine.seen)
    await driver.close()
    await running
    await blobs.close()
    return seen


@pytest.mark.parametrize("answers", [1, 90])
def test_what_a_killed_process_has_answered_is_there(tmp_path, answers):
    answered: list[int] = []
    for _ in range(2):
        child = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(NODE), str(TESTS), str(tmp_path)],
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            for _ in range(answers):
                answered.append(int(child.stdout.readline()))
        finally:
            child.kill()
            rest, _ = child.communicate(timeout=120)
        # The last line may be half of a number.
        answered += [int(line) for line in rest.splitlines(keepends=True) if line.endswith("\n")]
    assert answered == sorted(set(answered)), "nothing was answered twice"
    seen = asyncio.run(recovered(tmp_path))
    assert set(answered) <= set(seen) and seen == sorted(seen)
