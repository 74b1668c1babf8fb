"""A running device goes by the federation's newest terms, without a restart."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import numpy as np
from delian.cli.fleet.device_commands import device_settings
from delian.cli.settings import Config
from delian.core.node.identity.authority.authority import Authority, issue_to
from delian.core.node.identity.authority.founding import publish
from delian.core.node.identity.authority.terms import published
from delian.core.node.identity.pki.certificates import Role, TlsMaterial
from delian.core.node.identity.pki.identity_folder import HomeAddress, IdentityFolder
from delian.core.privacy.secagg.client import ClientState
from delian.core.protocol.ports import Node, Tier
from delian.device.agent.daemon import _Agent


class Running:
    """A device's parts without links, which joined before its federation had terms."""

    def __init__(self, folder, **changes):
        np.savez(folder / "data.npz", x=np.zeros((4, 2), np.float32), y=np.zeros(4, np.int32))
        self.authority = Authority.create(folder / "ca", "farm")
        key, issued = issue_to(self.authority, Role.DEVICE, 5)
        home = HomeAddress(Node(Tier.EDGE, 0), grpc="127.0.0.1:1")
        self.own = IdentityFolder(folder / "identity")
        material = TlsMaterial(key, issued.chain, self.authority.pem)
        self.own.store(material, renew_after_s=9e9, homes=(home,))
        config = Config().device.model_copy(update={"state": folder, **changes})
        data = config.data.model_copy(update={"source": str(folder / "data.npz")})
        self.agent = _Agent(device_settings(config.model_copy(update={"data": data})))
        self.machine = self.agent._make(None)
        self.agent.driver = SimpleNamespace(machine=self.machine)

    def renewed(self, **terms):
        """A renewal brings new terms."""
        publish(self.authority, **terms)
        self.own.take_terms(published(self.authority.folder), self.authority.pem, "farm")
        asyncio.run(self.agent._sign_anew())
        return self.machine.owner.policy


def test_new_terms_count_from_the_next_task_on(tmp_path):
    device = Running(tmp_path)
    assert device.machine.owner.policy.floor.cohort_min == 3 and device.agent.gate is None
    policy = device.renewed(cohort_min=12, epsilon=8.0, fresh=True)
    assert policy.floor.cohort_min == 12 and policy.floor.log.required
    assert [cap.epsilon for cap in policy.caps] == [8.0]
    assert device.agent.settings.policy is policy, "the status shows it"
    assert device.agent.gate is not None and device.agent.runner.gate is device.agent.gate
    assert device.renewed(cohort_min=20).floor.cohort_min == 20


def test_the_owner_s_word_still_goes_first(tmp_path):
    masks = Config().device.masks.model_copy(update={"cohort_min": 5})
    device = Running(tmp_path, masks=masks, signed=False)
    assert device.renewed(cohort_min=12).floor.cohort_min == 5
    assert device.agent.gate is None and device.agent.runner.gate is None


def test_a_session_goes_on_by_the_terms_that_it_began_with(tmp_path):
    device = Running(tmp_path)
    device.machine.state.session = ClientState(5)
    assert device.renewed(cohort_min=12).floor.cohort_min == 3
    device.machine.state.session = None
    assert device.renewed().floor.cohort_min == 12


def test_a_renewal_wakes_the_device(tmp_path):
    device, taken = Running(tmp_path), []

    async def scenario():
        done = asyncio.Event()

        async def taking():
            taken.append(device.agent._renewed.is_set())
            done.set()

        device.agent._sign_anew = taking
        keeping = asyncio.create_task(device.agent._keep_signing())
        device.agent._renewed.set()
        await done.wait()
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)

    asyncio.run(scenario())
    assert taken == [False]
