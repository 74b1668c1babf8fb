"""A witness of certificate logs: it signs a head only if it continues the last one that it signed.

A CA with a witness cannot show two groups of devices two logs: the witness signs one of them. A
witness belongs to another organisation than the CA. It needs no certificate of the federation, and
trusts nothing but the CA's key that its owner gave it. Its folder holds

    witness.pem                  the key, Ed25519, mode 0600
    witness.pub                  the public key, for `delian ca terms --witness`
    federations/NAME/ca.pem      the CA of a federation whose heads it signs
    federations/NAME/log.head    the last head that it signed (`Checkpoint`)
    federations/NAME/log.fork    evidence, if the CA showed another log (`log_copy`)

A head is on the disk before its signature leaves, so a restarted witness signs no other. A witness
whose folder was restored from an older copy may sign a fork from that copy on: do not restore it,
make a new witness.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ....wire.log_pb2 import CosignAsk, CosignReply
from ..artifacts.manifest import load_private, new_key, public_pem, raw
from ..pki.certificates import (
    CERTIFICATE_BYTES_MAX,
    KEY_BYTES_MAX,
    IdentityError,
    check_federation,
    key_pem,
    load_certificate,
    read_file,
)
from ..pki.ledger import FolderLock, private_folder, write_file
from ..pki.root_certificate import federation_of
from .certificate_log import read_checkpoint
from .log_copy import HEAD_FILE, accept
from .log_entries import LogError, LogHead, LogRollback, cosign, read_head

KEY_FILE, PUBLIC_FILE, CA_FILE = "witness.pem", "witness.pub", "ca.pem"
#: Federations of one witness.
FEDERATIONS_MAX: Final = 1_000


class Witness:
    """A witness's folder. One process runs it."""

    def __init__(self, folder: Path) -> None:
        """Opens what `create` made. Raises IdentityError."""
        self.folder = folder
        path = folder / KEY_FILE
        if not path.exists():
            raise IdentityError(
                f"{folder} holds no witness", f"make one with: delian witness init {folder}"
            )
        self._key: Ed25519PrivateKey = load_private(read_file(path, KEY_BYTES_MAX), str(path))
        self._lock = FolderLock(folder)

    @classmethod
    def create(cls, folder: Path) -> Witness:
        """Makes a witness with a new key. Raises IdentityError where there is one already."""
        private_folder(folder)
        if (folder / KEY_FILE).exists():
            raise IdentityError(f"{folder} holds a witness already", "name another folder")
        key = new_key()
        write_file(folder / KEY_FILE, key_pem(key), 0o600)
        write_file(folder / PUBLIC_FILE, public_pem(key.public_key()))
        return cls(folder)

    @property
    def public(self) -> bytes:
        """Its Ed25519 public key, 32 bytes."""
        return raw(self._key.public_key())

    def add(self, authority: bytes) -> str:
        """Signs the heads of one more federation from now on.

        authority: its CA's certificate, PEM. Gives the federation's name. Raises IdentityError,
        also if the name has another CA here.
        """
        certificate = load_certificate(authority)
        federation = federation_of(certificate)
        with self._lock.held():
            own = self._folder_of(federation)
            if (own / CA_FILE).exists():
                if load_certificate(read_file(own / CA_FILE, CERTIFICATE_BYTES_MAX)) == certificate:
                    return federation
                raise IdentityError(f"the federation {federation} has another CA here")
            if len(self.federations()) >= FEDERATIONS_MAX:
                raise IdentityError(f"a witness has at most {FEDERATIONS_MAX} federations")
            private_folder(own)
            write_file(own / CA_FILE, certificate.public_bytes(serialization.Encoding.PEM))
        return federation

    def federations(self) -> dict[str, LogHead | None]:
        """The federations whose heads it signs, and the last head of each. Raises IdentityError."""
        folders = sorted((self.folder / "federations").glob(f"*/{CA_FILE}"))
        heads = {path.parent.name: read_checkpoint(path.parent / HEAD_FILE) for path in folders}
        return {
            name: None if kept is None else read_head(kept.head) for name, kept in heads.items()
        }

    def cosign(self, asked: CosignAsk) -> CosignReply:
        """The answer to an authority.

        A cosignature of a head that continues the last one, or the size of the last one where the
        proof starts elsewhere. Raises LogFork, with the evidence kept, and IdentityError.
        """
        update = asked.update
        federation = read_head(update.checkpoint.head).federation
        own = self._folder_of(federation)
        if not (own / CA_FILE).exists():
            raise LogError(f"this witness signs no heads of the federation {federation}")
        authority = load_certificate(read_file(own / CA_FILE, CERTIFICATE_BYTES_MAX))
        with self._lock.held():
            known = read_checkpoint(own / HEAD_FILE)
            size = 0 if known is None else read_head(known.head).size
            if update.old_size != size:
                return CosignReply(size=size)
            try:
                head = accept(own, (known, update), authority, federation, None)
            except LogRollback:
                return CosignReply(size=size)
            kept = update.checkpoint
            del kept.cosignatures[:]
            write_file(own / HEAD_FILE, kept.SerializeToString(deterministic=True))
            return CosignReply(cosignature=cosign(self._key, kept.head), size=head.size)

    def _folder_of(self, federation: str) -> Path:
        return self.folder / "federations" / check_federation(federation)
