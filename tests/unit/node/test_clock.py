"""A node's time, when somebody sets the computer's clock."""

from __future__ import annotations

from delian.core.node.driver.clock import SETTLED_NS, STEP_NS, SteadyClock

SECOND = 1_000_000_000
YEAR = 365 * 24 * 3600 * SECOND


class Computer:
    """A process on a computer. What it counts from its start on nobody sets; the clock somebody
    does, `set` ahead of that.
    """

    def __init__(self, began):
        self.counted, self.set = began, 0
        self.node = SteadyClock(self, lambda: self.counted + self.set)

    def now(self):
        return self.counted

    def wait(self, ns):
        """The node's time after a while, in which it looks every ten seconds."""
        for _ in range(ns // (10 * SECOND)):
            self.counted += 10 * SECOND
            now = self.node.now()
        return now


def test_a_node_that_began_before_its_clock_was_set_comes_to_the_present():
    computer = Computer(YEAR)
    assert computer.wait(100 * SECOND) == YEAR + 100 * SECOND
    computer.set += 50 * YEAR  # the network has told it
    assert computer.wait(SETTLED_NS) < 2 * YEAR, "it may be a mistake"
    assert computer.wait(20 * SECOND) == 51 * YEAR + 100 * SECOND + SETTLED_NS + 20 * SECOND


def test_a_node_that_was_there_before_comes_to_the_present_and_no_further():
    computer = Computer(YEAR)
    computer.node.raise_to(50 * YEAR)  # what it has seen in a life before
    assert computer.wait(100 * SECOND) == 50 * YEAR + 100 * SECOND
    computer.set += 49 * YEAR + 7 * 24 * 3600 * SECOND
    late = computer.wait(2 * SETTLED_NS)
    assert late == computer.counted + computer.set
    assert computer.wait(SETTLED_NS) == late + SETTLED_NS


def test_a_mistake_that_is_mended_soon_is_never_followed():
    computer = Computer(50 * YEAR)
    for _ in range(5):
        computer.set += YEAR
        computer.wait(SETTLED_NS // 2)
        computer.set -= YEAR
        computer.wait(20 * SECOND)
    assert computer.node.now() == computer.counted


def test_a_little_ahead_and_set_back_it_goes_on_as_it_did():
    computer = Computer(50 * YEAR)
    computer.set += STEP_NS - 1
    assert computer.wait(2 * SETTLED_NS) == computer.counted
    computer.set -= YEAR
    assert computer.wait(2 * SETTLED_NS) == computer.counted


def test_a_node_s_time_does_not_fall_when_it_is_started_with_an_earlier_clock():
    computer = Computer(YEAR)
    computer.node.raise_to(2 * YEAR)
    assert computer.node.now() == 2 * YEAR
    assert computer.wait(100 * SECOND) == 2 * YEAR + 100 * SECOND
