"""A cascade's machine by its table, and its driver over models and links that fail."""

from __future__ import annotations

import asyncio
import random

import numpy as np
import pytest
from delian.core.common.errors import DelianError
from delian.core.placement.cascade.cascade_driver import CascadeDriver
from delian.core.placement.cascade.hard_examples import CloudOnly, EdgeOnly, Random, Says, Threshold
from delian.core.placement.cascade.machine import (
    REQUESTS_MAX,
    TABLE,
    AskAbove,
    Asked,
    By,
    Cascade,
    CascadeError,
    CascadePlan,
    LargeRan,
    Late,
    Mode,
    Phase,
    Reply,
    RunSmall,
    SmallRan,
)
from delian.core.protocol.machine import IGNORE, Backoff
from delian.core.protocol.ports import MS
from support.virtual_time import run as run_virtually

EASY = np.array([[9.0, 0.0]], np.float32)
HARD = np.array([[0.1, 0.0]], np.float32)
LARGE = np.array([[0.0, 5.0]], np.float32)
FIRST, THEN = Mode.INFERENCE_THEN_MINING, Mode.MINING_THEN_INFERENCE
PAUSE = Backoff(100, 800, 10**18)
THRESHOLD = Threshold(0.9)


def machine(chosen=THRESHOLD, mode=FIRST, **more):
    return Cascade(CascadePlan(chosen, mode, above_ns=50, pause=PAUSE, **more))


def replied(effects):
    (reply,) = effects
    assert isinstance(reply, Reply)
    return reply


# The machine, inference first.


def test_an_easy_example_never_goes_up():
    cascade = machine()
    assert cascade.handle(Asked(1, 100), 0) == [RunSmall(1)]
    reply = replied(cascade.handle(SmallRan(1, EASY), 10))
    assert (reply.answer is EASY, reply.by, reply.hard, reply.why) == (True, By.SMALL, False, "")


def test_a_hard_example_is_answered_above():
    cascade = machine()
    cascade.handle(Asked(1, 100), 0)
    assert cascade.handle(SmallRan(1, HARD), 10) == [AskAbove(1, 60)]
    reply = replied(cascade.handle(LargeRan(1, LARGE), 30))
    assert (reply.answer is LARGE, reply.by, reply.hard) == (True, By.LARGE, True)


@pytest.mark.parametrize("event", [LargeRan(1, None), Late(1)])
def test_the_small_answer_stands_where_above_fails_or_is_late(event):
    cascade = machine()
    cascade.handle(Asked(1, 40), 0)
    assert cascade.handle(SmallRan(1, HARD), 10) == [AskAbove(1, 40)]  # the deadline is nearer
    reply = replied(cascade.handle(event, 40))
    assert (reply.answer is HARD, reply.by, reply.hard) == (True, By.SMALL, True)
    assert "above" in reply.why


def test_an_answer_after_the_reply_is_dropped():
    cascade = machine()
    cascade.handle(Asked(1, 100), 0)
    cascade.handle(SmallRan(1, HARD), 10)
    cascade.handle(Late(1), 60)
    assert cascade.handle(LargeRan(1, LARGE), 70) == []
    assert cascade.state.counts["dropped"] == 1


def test_without_time_nothing_goes_up():
    cascade = machine()
    cascade.handle(Asked(1, 10), 0)
    assert replied(cascade.handle(SmallRan(1, HARD), 10)).why == "no time to ask above"


def test_a_small_model_that_fails_leaves_it_to_above():
    cascade = machine()
    cascade.handle(Asked(1, 400), 0)
    assert cascade.handle(SmallRan(1, None), 10) == [AskAbove(1, 400)]
    reply = replied(cascade.handle(LargeRan(1, LARGE), 20))
    assert (reply.by, reply.hard) == (By.LARGE, None)
    cascade.handle(Asked(2, 400), 20)
    cascade.handle(SmallRan(2, None), 30)
    reply = replied(cascade.handle(LargeRan(2, None), 40))
    assert (reply.answer, reply.by) == (None, By.NEITHER)
    assert reply.why == "the model here failed, and above failed"


def test_above_is_left_alone_after_failures_and_tried_again():
    cascade = machine(failures=2)
    for request in (1, 2):
        cascade.handle(Asked(request, 1000), 0)
        cascade.handle(SmallRan(request, HARD), 0)
        cascade.handle(LargeRan(request, None), 10)
    # Until 110 nobody waits.
    cascade.handle(Asked(3, 1000), 100)
    assert "2 times in a row" in replied(cascade.handle(SmallRan(3, HARD), 100)).why
    # Then one tries, and the others still do not wait.
    for request in (4, 5):
        cascade.handle(Asked(request, 1000), 110)
    assert cascade.handle(SmallRan(4, HARD), 110) == [AskAbove(4, 160)]
    assert replied(cascade.handle(SmallRan(5, HARD), 120)).by is By.SMALL
    # It fails: the pause is twice as long.
    cascade.handle(Late(4), 160)
    cascade.handle(Asked(6, 1000), 350)
    assert replied(cascade.handle(SmallRan(6, HARD), 350)).by is By.SMALL
    cascade.handle(Asked(7, 1000), 360)
    assert cascade.handle(SmallRan(7, HARD), 360) == [AskAbove(7, 410)]
    # It answers: all go up again.
    cascade.handle(LargeRan(7, LARGE), 370)
    cascade.handle(Asked(8, 1000), 370)
    assert cascade.handle(SmallRan(8, HARD), 370) == [AskAbove(8, 420)]


def test_those_on_their_way_when_above_vanished_do_not_lengthen_the_pause():
    cascade = machine(failures=2)
    for request in range(10):
        cascade.handle(Asked(request, 1000), 0)
        cascade.handle(SmallRan(request, HARD), 0)
    for request in range(10):
        cascade.handle(Late(request), 50)
    assert (cascade.state.streak, cascade.state.rests_until) == (2, 150)


# The machine, choosing first.


def test_a_choice_before_inference_runs_one_model():
    cascade = machine(CloudOnly(), THEN, small_ns=20)
    assert cascade.handle(Asked(1, 60), 0) == [AskAbove(1, 40)]  # time for the small one is kept
    assert replied(cascade.handle(LargeRan(1, LARGE), 30)).by is By.LARGE
    cascade = machine(EdgeOnly(), THEN)
    assert cascade.handle(Asked(1, 60), 0) == [RunSmall(1)]
    reply = replied(cascade.handle(SmallRan(1, HARD), 30))
    assert (reply.by, reply.hard) == (By.SMALL, False)


def test_the_small_model_runs_after_all_and_may_be_overtaken():
    cascade = machine(CloudOnly(), THEN, small_ns=20)
    cascade.handle(Asked(1, 60), 0)
    assert cascade.handle(Late(1), 40) == [RunSmall(1)]
    assert cascade.handle(LargeRan(1, None), 45) == []  # it was late, and now it failed
    reply = replied(cascade.handle(SmallRan(1, EASY), 55))
    assert (reply.by, reply.hard, reply.why) == (By.SMALL, True, "above was late")
    cascade.handle(Asked(2, 160), 100)
    cascade.handle(Late(2), 140)
    assert replied(cascade.handle(LargeRan(2, LARGE), 150)).by is By.LARGE


def test_where_both_fail_it_is_said_once():
    cascade = machine(CloudOnly(), THEN)
    cascade.handle(Asked(1, 60), 0)
    cascade.handle(LargeRan(1, None), 10)
    reply = replied(cascade.handle(SmallRan(1, None), 20))
    assert (reply.answer, reply.by) == (None, By.NEITHER)
    cascade = machine(EdgeOnly(), THEN)
    cascade.handle(Asked(1, 60), 0)
    assert cascade.handle(SmallRan(1, None), 20) == [AskAbove(1, 60)]  # nobody else is left
    assert replied(cascade.handle(Late(1), 60)).by is By.NEITHER


def test_a_router_s_answer_is_what_the_filter_reads():
    cascade = machine(THRESHOLD, THEN)
    assert cascade.handle(Asked(1, 60, seen=EASY), 0) == [RunSmall(1)]
    assert cascade.handle(Asked(2, 60, seen=HARD), 0) == [AskAbove(2, 50)]


def test_random_choices_are_those_of_the_request_s_number():
    cascade = machine(Random(0.5), THEN)
    went = [cascade.handle(Asked(n, 10**6), 0) == [AskAbove(n, 50)] for n in range(200)]
    again = machine(Random(0.5), THEN)
    assert went[::-1] == [
        again.handle(Asked(n, 10**6), 0) == [AskAbove(n, 50)] for n in reversed(range(200))
    ]
    assert 70 < sum(went) < 130


# What holds in any order of events.


@pytest.mark.parametrize("mode", [FIRST, THEN])
def test_every_request_is_answered_exactly_once_whatever_happens(mode):
    for seed in range(150):
        draw = random.Random(seed)
        chosen = CloudOnly() if mode is THEN and seed % 2 else THRESHOLD
        cascade = machine(chosen, mode, small_ns=5, failures=draw.randint(1, 3))
        answered, events, now = [], [], 0

        def carry_out(effects, draw=draw, answered=answered, events=events):
            for effect in effects:
                if isinstance(effect, Reply):
                    answered.append(effect.request)
                elif isinstance(effect, RunSmall):
                    answer = draw.choice([EASY, HARD, None])
                    events.append(SmallRan(effect.request, answer))
                else:
                    above = LargeRan(effect.request, draw.choice([LARGE, None]))
                    # The timer fires in any case, before the answer, after it or instead of it.
                    events.append(Late(effect.request))
                    events.extend([above] * draw.randint(0, 2))

        for request in range(20):
            seen = draw.choice([EASY, HARD])
            carry_out(cascade.handle(Asked(request, now + draw.randint(1, 90), seen), now))
            for _ in range(draw.randint(0, 4)):
                if events:
                    now += draw.randint(0, 30)
                    carry_out(cascade.handle(events.pop(draw.randrange(len(events))), now))
        while events:
            now += draw.randint(0, 30)
            carry_out(cascade.handle(events.pop(draw.randrange(len(events))), now))
        assert sorted(answered) == list(range(20))
        assert not cascade.state.requests


def test_every_phase_but_the_last_has_a_way_out():
    left = {phase for r in TABLE for phase in r.phases if r.next not in (None, phase)}
    assert left == set(Phase) - {Phase.DONE}
    actions = {r.action for r in TABLE} - {IGNORE}
    assert all(getattr(Cascade, action.__name__) is action for action in actions)


def test_what_cannot_be_taken_is_refused():
    cascade = machine()
    for request in range(REQUESTS_MAX):
        cascade.handle(Asked(request, 100), 0)
    with pytest.raises(CascadeError, match="are open"):
        cascade.handle(Asked(REQUESTS_MAX, 100), 0)
    cascade.forget(5)
    cascade.handle(Asked(REQUESTS_MAX, 100), 0)
    with pytest.raises(CascadeError, match="open already"):
        cascade.handle(Asked(REQUESTS_MAX, 100), 0)
    with pytest.raises(CascadeError, match="above 0"):
        CascadePlan(THRESHOLD, above_ns=0)


# The driver.


class ByHand:
    """A clock that a test sets."""

    def __init__(self):
        self.time = 0

    def now(self):
        return self.time


def small(x):
    return x


async def large(x, until):
    return x + 100


def ask(driver, *inputs, deadline=10**12):
    async def all_of_them():
        return await asyncio.gather(*(driver.ask(x, deadline) for x in inputs))

    return run_virtually(all_of_them())


def plan(chosen=THRESHOLD, mode=FIRST, **more):
    return CascadePlan(chosen, mode, above_ns=10**12, **more)


def test_requests_side_by_side_get_their_own_answers():
    driver = CascadeDriver(plan(), small, large, ByHand())
    inputs = [np.array([[n, 0.0 if n % 2 else n]], np.float32) for n in range(9, 29)]
    replies = ask(driver, *inputs)
    for n, (x, reply) in enumerate(zip(inputs, replies, strict=True)):
        torn = n % 2 == 1
        assert reply.by is (By.LARGE if torn else By.SMALL)
        assert reply.answer.tolist() == (x + 100 if torn else x).tolist()
    assert driver.machine.state.counts["hard"] == 10


def test_a_link_that_fails_leaves_the_small_answer():
    async def gone(x, until):
        raise ConnectionError("nobody there")

    (reply,) = ask(CascadeDriver(plan(), small, gone, ByHand()), HARD)
    assert (reply.by, reply.answer is HARD) == (By.SMALL, True)


def test_a_link_that_hangs_is_cancelled_at_the_time_it_had():
    cancelled = []

    async def hangs(x, until):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(until)
            raise

    driver = CascadeDriver(CascadePlan(THRESHOLD, above_ns=20 * MS), small, hangs, ByHand())
    (reply,) = ask(driver, HARD)
    assert (reply.by, reply.why, cancelled) == (By.SMALL, "above was late", [20 * MS])


def test_a_small_model_that_fails_is_the_large_one_s_turn():
    def broken(x):
        raise DelianError("no such shape")

    (reply,) = ask(CascadeDriver(plan(), broken, large, ByHand()), HARD)
    assert reply.by is By.LARGE

    async def gone(x, until):
        raise DelianError("nobody there")

    with pytest.raises(CascadeError, match="the model here failed, and above failed"):
        ask(CascadeDriver(plan(), broken, gone, ByHand()), HARD)


def test_what_the_filter_cannot_read_reaches_who_asked():
    driver = CascadeDriver(plan(Threshold(says=Says.BOXES)), small, large, ByHand())
    with pytest.raises(DelianError, match="no boxes"):
        ask(driver, HARD)
    assert not driver.machine.state.requests


def test_a_request_that_is_given_up_is_forgotten():
    async def hangs(x, until):
        await asyncio.Event().wait()

    driver = CascadeDriver(plan(), small, hangs, ByHand())

    async def give_up():
        task = asyncio.ensure_future(driver.ask(HARD, 10**12))
        while not driver.machine.state.counts["asked"]:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run_virtually(give_up())
    assert not driver.machine.state.requests
    assert driver.machine.state.counts["forgotten"] == 1


def test_choosing_first_needs_something_to_look_at():
    with pytest.raises(CascadeError, match="router"):
        CascadeDriver(plan(mode=THEN), small, large, ByHand())
    driver = CascadeDriver(plan(mode=THEN), small, large, ByHand(), router=lambda x: -x)
    assert [r.by for r in ask(driver, EASY, HARD)] == [By.SMALL, By.LARGE]
