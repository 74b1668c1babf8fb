"""TLS 1.3 for aiomqtt: a context of the standard library made of a node's files."""

from __future__ import annotations

import ssl
from pathlib import Path

from .certificates import IdentityError, TlsFiles


def client_context(files: TlsFiles, authority: Path | None = None) -> ssl.SSLContext:
    """For aiomqtt: TLS 1.3, the node's certificate, host name checked.

    authority: PEM of the CA to trust, where the broker's certificate is not from the federation's
    CA. Raises IdentityError.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    try:
        context.load_cert_chain(files.certificate, files.key)
        context.load_verify_locations(authority or files.authority)
    except (OSError, ssl.SSLError) as error:
        raise IdentityError(f"cannot use the certificate {files.certificate}: {error}") from None
    return context
