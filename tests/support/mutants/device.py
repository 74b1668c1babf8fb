"""Planted bugs of a device: of what it trains, where it asks, and what it tells."""

from __future__ import annotations

from typing import Any

from delian.core.protocol.ports import ProgramFinished, SetTimer
from delian.device.protocol.device_actions import Device
from delian.device.protocol.device_triggers import Trigger as DeviceTrigger
from delian.device.protocol.machine import DeviceMachine

from .planting import Patch, mutant, replace_action


@mutant("again", "once", "sum", seed=6)
def trains_what_is_done(patch: Patch) -> None:
    """A device takes a task again that it has answered."""
    read = DeviceMachine._read_task

    def read_any(self: Any, task: Any) -> Any:
        trigger, subject = read(self, task)
        again = trigger is DeviceTrigger.UNWANTED
        return (DeviceTrigger.TASK if again else trigger), subject

    patch.setattr(DeviceMachine, "_read_task", read_any)


@mutant("progress", seed=2)
def never_goes_to_another_home(patch: Patch) -> None:
    """A device asks its first home for ever."""
    replace_action(patch, DeviceMachine, Device, "rehome", Device.repeat_check_in)


@mutant("progress", seed=2)
def sets_no_timer_after_restart(patch: Patch) -> None:
    """A device that starts again checks in once, and never again when no answer comes."""
    start = Device.start

    def start_once(self: Any, stored: Any) -> None:
        start(self, stored)
        self.out.effects[:] = [e for e in self.out.effects if not isinstance(e, SetTimer)]

    replace_action(patch, DeviceMachine, Device, "start", start_once)


@mutant("private", seed=0)
def tells_its_examples(patch: Patch) -> None:
    """A device counts its check-ins from its number of examples."""
    read = DeviceMachine.read

    def read_and_tell(self: Any, event: Any) -> Any:
        found = read(self, event)
        if isinstance(event, ProgramFinished) and found[0] is DeviceTrigger.TRAINED:
            self.state.sequence = event.outcome.examples - 1
        return found

    patch.setattr(DeviceMachine, "read", read_and_tell)
