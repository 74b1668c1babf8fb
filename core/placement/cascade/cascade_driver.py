"""Runs a cascade's machine with real models, and whatever link there is to the large one.

    driver = CascadeDriver(plan, small=model, above=client, clock=WallClock())
    reply = await driver.ask(x, deadline=clock.now() + 200 * MS)

The link is one callable: `await above(x, until)` gives the large model's answer, or raises
DelianError or OSError where there is none; what takes it longer than until `until` ns is cancelled.
A whole model above is a cut of a program where everything is above, so whatever runs such a cut
serves here, and so does a function of this process. Models below run in threads: one call into
compiled code, with Python's lock released.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeAlias

from ...common.errors import DelianError
from ...compiler.ir import Array
from ...protocol.ports import SECOND, Clock
from . import machine

Above: TypeAlias = Callable[[Array, int], Awaitable[Array]]
Model: TypeAlias = Callable[[Array], Array]


class CascadeDriver:
    """Answers requests by a cascade, many at a time; for one event loop.

    small: the device's model, x -> answer. above: the link. router: what a filter that looks reads
    before any model runs, x -> answer; in mining-then-inference alone.
    """

    def __init__(
        self,
        plan: machine.CascadePlan,
        small: Model,
        above: Above,
        clock: Clock,
        router: Model | None = None,
    ) -> None:
        if plan.mode is machine.Mode.MINING_THEN_INFERENCE and plan.chosen.looks and router is None:
            raise machine.CascadeError(
                f"{plan.chosen.name} reads an answer, and with {plan.mode} none is there before the"
                " choice",
                f"give a router, or choose {machine.Mode.INFERENCE_THEN_MINING}",
            )
        self.machine = machine.Cascade(plan)
        self._small, self._above, self._router, self._clock = small, above, router, clock
        self._next = 0
        self._inputs: dict[int, Array] = {}
        self._replies: dict[int, asyncio.Future[machine.Reply]] = {}
        # What runs for a request; the machine's answer ends it.
        self._tasks: dict[int, list[asyncio.Task[None]]] = {}

    async def ask(self, x: Array, deadline: int) -> machine.Reply:
        """The answer to x [B, ...], by `deadline` ns where that can be.

        Cancelling it cancels what runs for it above. Raises CascadeError where no model answered,
        or too many requests are open.
        """
        seen = None
        plan = self.machine.plan
        if self._router is not None and plan.mode is machine.Mode.MINING_THEN_INFERENCE:
            seen = await asyncio.to_thread(self._router, x)
        number, self._next = self._next, self._next + len(x)
        reply: asyncio.Future[machine.Reply] = asyncio.get_running_loop().create_future()
        self._inputs[number], self._replies[number] = x, reply
        try:
            self._tell(machine.Asked(number, deadline, seen))
            found = await reply
        finally:
            del self._inputs[number], self._replies[number]
            for task in self._tasks.pop(number, ()):
                task.cancel()
            self.machine.forget(number)
        if found.answer is None:
            raise machine.CascadeError(found.why, "look for why in the logs of both tiers")
        return found

    def _tell(self, event: machine.Event) -> None:
        for effect in self.machine.handle(event, self._clock.now()):
            self._do(effect)

    def _do(self, effect: machine.Effect) -> None:
        number = effect.request
        if isinstance(effect, machine.Reply):
            if not self._replies[number].done():
                self._replies[number].set_result(effect)
            return
        work = (
            self._run(number) if isinstance(effect, machine.RunSmall) else self._up(number, effect)
        )
        task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(partial(self._ended, number))
        self._tasks.setdefault(number, []).append(task)

    def _ended(self, number: int, task: asyncio.Task[None]) -> None:
        """Passes the exception of a task without an answer to the caller."""
        reply = self._replies.get(number)
        if reply is None or reply.done() or task.cancelled():
            return
        if (error := task.exception()) is not None:
            reply.set_exception(error)

    async def _run(self, number: int) -> None:
        try:
            answer = await asyncio.to_thread(self._small, self._inputs[number])
        except (DelianError, ArithmeticError, ValueError, MemoryError):
            answer = None
        self._tell(machine.SmallRan(number, answer))

    async def _up(self, number: int, effect: machine.AskAbove) -> None:
        left = (effect.until - self._clock.now()) / SECOND
        try:
            async with asyncio.timeout(max(0.0, left)):
                answer = await self._above(self._inputs[number], effect.until)
        except TimeoutError:
            self._tell(machine.Late(number))
        except (DelianError, OSError):
            self._tell(machine.LargeRan(number, None))
        else:
            self._tell(machine.LargeRan(number, answer))
