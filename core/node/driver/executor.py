"""Where a node's programs run: in its process, in a subprocess with limits, or nowhere (a test)."""

from __future__ import annotations

from typing import Protocol

from ...protocol.ports import NewModel, Outcome, ProgramStopped, RunProgram


class ProgramRunner(Protocol):
    """Runs the programs that one node's machine asks for, from the blobs of its store."""

    async def run(self, program: RunProgram) -> Outcome | NewModel | ProgramStopped:
        """Runs to the end and says what came of it.

        What the bundle, the data or the machine are to blame for is a ProgramStopped with its
        reason; the blobs of a NewModel are durable in the node's store when this returns. An
        exception is a fault of the runner's own: the driver logs it and sends the machine
        PROGRAM_FAILED. Several may run at once; `program.ticket` identifies them. The task that
        awaits this may be cancelled: then what was started is stopped before it ends.
        """

    async def cancel(self, ticket: int) -> None:
        """Stops what runs under this ticket, if anything does; its outcome is of no use."""
