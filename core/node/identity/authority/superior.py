"""The root authority, as an issuing authority asks it."""

from __future__ import annotations

from typing import Protocol

from ..pki.certificates import IdentityError
from .deny_list import DenyList


class Away(IdentityError):
    """The root authority does not answer, so an issuing authority issues and revokes nothing."""


class Superior(Protocol):
    """The root authority, as an issuing authority asks it.

    Calls block. All but `denied` raise Away while it does not answer, and IdentityError where it
    refuses.
    """

    def append(self, chain: bytes) -> None:
        """Adds a certificate to the federation's log; durable on return. chain: in DER."""

    def revoke(self, name: str, why: str) -> tuple[DenyList, bool]:
        """Revokes a holder of this authority; durable on return.

        Gives what `Authority.revoke` does.
        """

    def denied(self) -> DenyList:
        """The federation's deny list as it is known here; quick."""


class NoSuperior:
    """Stands for the root where an issuing authority's folder is only read."""

    def append(self, chain: bytes) -> None:
        raise _unconnected()

    def revoke(self, name: str, why: str) -> tuple[DenyList, bool]:
        raise _unconnected()

    def denied(self) -> DenyList:
        return DenyList()


def _unconnected() -> Away:
    return Away(
        "this is an issuing authority, which issues and revokes nothing without its root",
        "run `delian authority run` with authority.superior, and ask that",
    )
