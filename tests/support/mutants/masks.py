"""Planted bugs of secure aggregation: of sessions on both sides, and of edges that help."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from delian.cloud.protocol import helpers, staleness
from delian.cloud.protocol.run import Run
from delian.core.privacy.secagg import client, helper, kdf, server
from delian.core.privacy.secagg.client import ClientSession
from delian.core.privacy.secagg.client import Phase as ClientPhase
from delian.core.privacy.secagg.server import ServerSession
from delian.core.wire.secure_pb2 import Survivors
from delian.device.protocol.acceptance import Acceptance

from .planting import Patch, mutant


@mutant("ledger", seed=4)
def makes_the_same_keys_again(patch: Patch) -> None:
    """A device makes the keys of every attempt of one secret that never moves on."""
    patch.setattr(kdf, "session_secret", lambda master, session: kdf.hkdf(master, b"session"))
    patch.setattr(kdf, "ratchet", lambda master: master)


@mutant("sum", "machine", "progress", seed=0)
def adds_every_mask(patch: Patch) -> None:
    """A device adds all its masks, also those that it should subtract."""
    patch.setattr(client, "sign_towards", lambda own, other: 1)


@mutant("sum", "machine", "progress", seed=0)
def gives_the_other_share(patch: Patch) -> None:
    """A device gives shares of the mask keys of those in the sum, and not of their seeds."""
    opened = kdf.open_sealed

    def turned(*arguments: Any) -> bytes:
        plain = opened(*arguments)
        return plain[32:] + plain[:32]

    patch.setattr(kdf, "open_sealed", turned)


@mutant("ledger", seed=28)
def signs_whatever_it_is_told(patch: Patch) -> None:
    """A coordinator that asks again names other survivors, and a device signs those too."""
    answer, hear = ServerSession.answer, ClientSession.take_survivors
    told = set()

    def other(self: Any, device: int) -> Any:
        message = answer(self, device)
        name = (self.state.leaves, device)  # of one session
        if isinstance(message, Survivors) and name in told:
            members = bytearray(message.members)
            for index, member in enumerate(self.state.members):
                if member != device and members[index >> 3] >> (index & 7) & 1:
                    members[index >> 3] ^= 1 << (index & 7)
                    break
            message.members = bytes(members)
        if isinstance(message, Survivors):
            told.add(name)
        return message

    def sign(self: Any, survivors: Any) -> Any:
        self.state.heard.pop("Survivors", None)
        if self.state.phase is ClientPhase.CONSENTED:
            self.state.phase = ClientPhase.MASKED
        return hear(self, survivors)

    patch.setattr(ServerSession, "answer", other)
    patch.setattr(ClientSession, "take_survivors", sign)


@mutant("sum", "machine", "progress", seed=0)
def needs_one_share_less(patch: Patch) -> None:
    """A coordinator makes a secret of one share less than it takes."""
    recover = server.recover

    def too_early(shares: Any, threshold: int, public: Any) -> Any:
        few = dict(sorted(shares.items())[: threshold - 1])
        return recover(few, threshold - 1, None)

    patch.setattr(server, "recover", too_early)


@mutant("sum", seed=0)
def reads_the_sum_with_its_masks(patch: Patch) -> None:
    """A coordinator takes the masked sum for the sum."""
    opened = Run.opened

    def masked(self: Any, attempt: Any, outcome: Any) -> str:
        total = attempt.total
        why = opened(self, attempt, outcome)
        attempt.total = total
        return why

    patch.setattr(Run, "opened", masked)


@mutant("sum", "lost", "machine", "progress", seed=0)
def unmasks_for_others(patch: Patch) -> None:
    """A coordinator leaves a device of the sum out of the survivors."""
    survivors = ServerSession.survivors

    def without_one(self: Any, devices: Any) -> Any:
        return survivors(self, sorted(devices)[1:])

    patch.setattr(ServerSession, "survivors", without_one)


@mutant("sum", seed=8)
def shows_every_batch_by_one_number(patch: Patch) -> None:
    """A coordinator does not count the batches that it shows to helpers."""
    make = helpers.Helpers.new_batch

    def first_again(self: Any, pieces: Any) -> Any:
        self.state.batches = 0
        return make(self, pieces)

    patch.setattr(helpers.Helpers, "new_batch", first_again)


@mutant("sum", "progress", seed=8)
def has_single_devices_unmasked(patch: Patch) -> None:
    """A coordinator asks for sums of as few devices as there happen to be of a model."""
    grouped = helpers.grouped
    patch.setattr(helpers, "grouped", lambda waves, least, room: grouped(waves, 1, room))


@mutant("sum", seed=24)
def leaves_the_second_helper_s_masks_in(patch: Patch) -> None:
    """A coordinator makes a model when the first helper has answered."""
    unmask = helpers.Helpers.unmask

    def content_with_one(self: Any, message: Any) -> None:
        for batch in self.state.opening:
            batch.requests = {e: r for e, r in batch.requests.items() if e == message.edge}
        unmask(self, message)

    patch.setattr(helpers.Helpers, "unmask", content_with_one)


@mutant("sum", seed=8)
def a_helper_leaves_a_mask_out(patch: Patch) -> None:
    """An edge that helps adds up the masks of all but one."""
    answer = helper.Helper.answer

    def without_one(self: Any, request: Any, ledger: Any) -> Any:
        found = answer(self, request, ledger)
        return replace(found, keys=found.keys[1:])

    patch.setattr(helper.Helper, "answer", without_one)


@mutant("helper", "once", "sum", "lost", seed=8)
def opens_seeds_twice(patch: Patch) -> None:
    """A helper keeps no ledger, and a coordinator uses a wave's first piece again."""
    take = staleness.take

    def keep(wave: Any) -> Any:
        kept = (wave.total, wave.unused, wave.seeds)
        piece = take(wave)
        if wave.helpers:
            wave.total, wave.unused, wave.seeds = kept
        return piece

    patch.setattr(helper, "_note", lambda *what: True)
    patch.setattr(staleness, "take", keep)


@mutant("attack", seed=92)
def verifies_no_neighbour(patch: Patch) -> None:
    """A device takes its neighbours' keys without looking at who signed them."""
    patch.setattr(ClientSession, "_check_neighbour", lambda self, *what: None)


@mutant("attack", seed=44)
def verifies_no_task(patch: Patch) -> None:
    """A device begins tasks without looking at who signed them."""
    patch.setattr(Acceptance, "check", lambda self, task: None)
