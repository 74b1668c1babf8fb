"""Attacks of an operator that runs the coordinator and has the CA's key: sybils.

A sybil is a device that does not exist, with a certificate that the CA's key has signed and keys
that the operator has. In a cohort of a device and sybils, the sum minus the sybils' updates is the
device's update. Each way here shows the receiver of a Cohort such a cohort, or a log in which it
would stand; `core.privacy.secagg.logged` has what devices check.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from ....core.privacy.secagg import kdf, transcript
from ....core.privacy.secagg.cohort import names
from ....core.privacy.secagg.member_identity import SimulatedIdentity
from ....core.privacy.secagg.simulated_log import SimulatedLog
from ....core.privacy.secagg.transcript import Session
from ....core.wire.log_pb2 import LogUpdate
from ....core.wire.secure_pb2 import Cohort, KeyBundle

if TYPE_CHECKING:
    from .attacks import Attacker, Talk
    from .federation_log import FederationLog

#: Numbers of sybils: no device has them, and they are in no log.
SYBILS_FROM: Final = 2**30


def sybil(session: Session, number: int, seed: int) -> KeyBundle:
    """The keys of a device that does not exist, under a certificate that is as good as any."""
    secret = kdf.session_secret(number.to_bytes(32, "little"), session.task)
    sealing = kdf.public_key(kdf.sealing_secret(secret))
    mask = kdf.public_key(kdf.mask_secret(secret))
    signed = transcript.signed_bundle(session, number, sealing, mask)
    signature = SimulatedIdentity(number, seed).sign(signed)
    return KeyBundle(
        **names(session, number), sealing_key=sealing, mask_key=mask, signature=signature
    )


def _alone(attacker: Attacker, talk: Talk, told: Cohort) -> Cohort | None:
    """A cohort of its receiver and sybils, as many as it had members.

    None: the receiver's keys did not pass here.
    """
    own = talk.bundles.get(told.device)
    if own is None:
        return None
    count = len(told.leaves) // transcript.DIGEST_BYTES - 1
    numbers = range(SYBILS_FROM, SYBILS_FROM + count)
    bundles = [own, *(sybil(talk.session, number, attacker.seed) for number in numbers)]
    made = attacker.forged(talk, told, bundles)
    return None if made is told else made


def _unlogged_sybils(attacker: Attacker, log: FederationLog, talk: Talk, told: Cohort) -> Cohort:
    """The true log, in which the sybils are not."""
    return _alone(attacker, talk, told) or told


def _other_proofs(attacker: Attacker, log: FederationLog, talk: Talk, told: Cohort) -> Cohort:
    """The true cohort and log, with the places of other certificates."""
    made = Cohort()
    made.CopyFrom(told)
    numbers = range(SYBILS_FROM, SYBILS_FROM + len(told.neighbours))
    made.log.CopyFrom(log.proof(told.log.update, numbers))
    return made


def _rolled_back_log(attacker: Attacker, log: FederationLog, talk: Talk, told: Cohort) -> Cohort:
    """The head of a smaller tree than the one that the receiver has accepted, if there is one."""
    if not told.log.update.old_size:
        return told
    made = Cohort()
    made.CopyFrom(told)
    made.log.update.checkpoint.CopyFrom(log.signed(told.log.update.old_size - 1))
    return made


def _forked_log(attacker: Attacker, log: FederationLog, talk: Talk, told: Cohort) -> Cohort:
    """Another log, with the sybils where the receiver knows others.

    All witnesses have signed it: only the receiver can detect it.
    """
    made = _alone(attacker, talk, told)
    if made is None:
        return told
    old = told.log.update.old_size
    numbers = [bundle.device for bundle in made.neighbours]
    return _shown(made, SimulatedLog(attacker.seed, [*numbers, *range(old)]), numbers, ())


def _unwitnessed_log(attacker: Attacker, log: FederationLog, talk: Talk, told: Cohort) -> Cohort:
    """The log that the receiver knows, with the sybils after it.

    It is shown to this device alone, so the witnesses, one of which colludes with the operator, do
    not sign it.
    """
    made = _alone(attacker, talk, told)
    if made is None:
        return told
    numbers = [bundle.device for bundle in made.neighbours]
    fork, tree = SimulatedLog(attacker.seed), log.copy.tree()
    for index in range(told.log.update.old_size):
        fork.add(tree.leaf(index))
    for number in numbers:
        fork.log(number)
    return _shown(made, fork, numbers, (0,))


def _shown(
    made: Cohort, fork: SimulatedLog, numbers: list[int], witnesses: tuple[int, ...]
) -> Cohort:
    """A cohort with the proofs of a fork. witnesses: which have signed its head; empty: all."""
    head = fork.head(witnesses=witnesses) if witnesses else fork.head()
    old, tree = made.log.update.old_size, fork.tree()
    assert head.signed is not None
    update = LogUpdate(
        old_size=old, checkpoint=head.signed, consistency=tree.consistency(old, head.size)
    )
    indices = [fork.index_of(number) for number in numbers]
    made.log.update.CopyFrom(update)
    made.log.inclusion = tree.inclusion(sorted(indices), head.size)
    made.log.ClearField("indices")
    made.log.indices.extend(indices)
    return made


#: What is shown in the place of a true Cohort, by the name of the attack.
WAYS: Final[Mapping[str, Callable[[Attacker, FederationLog, Talk, Cohort], Cohort]]] = {
    "UNLOGGED_SYBILS": _unlogged_sybils,
    "OTHER_PROOFS": _other_proofs,
    "ROLLED_BACK_LOG": _rolled_back_log,
    "FORKED_LOG": _forked_log,
    "UNWITNESSED_LOG": _unwitnessed_log,
}
