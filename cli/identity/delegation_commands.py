"""`delian authority request`, `ca delegate`, `authority accept`, `ca list`.

An organisation's own authority under the federation's root.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..options import AsJson, ConfigFile
from ..output import table, tell, write_out
from .identity_commands import AuthorityFolder, day, key_place, open_authority

if TYPE_CHECKING:
    from ...core.node.identity.authority.delegation import Delegation

#: The root's answer to a request, next to the CA's folder that it came from.
ANSWER_FILE = "authority-{number}.pem"


def request(
    folder: Annotated[Path, typer.Argument(help="The folder of the issuing authority.")],
    federation: Annotated[str, typer.Option("--federation", help="The federation's name.")],
    site: Annotated[str, typer.Option("--site", help="The site of all its nodes.")],
    module: Annotated[
        Path | None,
        typer.Option("--pkcs11", metavar="MODULE", help="Make the key in a token: its library."),
    ] = None,
    token: Annotated[
        str | None, typer.Option("--token", metavar="LABEL", help="With --pkcs11: which token.")
    ] = None,
    pin_file: Annotated[
        Path | None, typer.Option("--pin-file", help="With --pkcs11: the file with the PIN.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make the key of an organisation's own authority, and the request for its certificate.

    The key stays in the folder (or in the token). Send the request to the operator of the
    federation's root authority; it is not secret. Repeated, it gives a request for the same key.
    """
    from ...core.node.identity.authority.delegation import REQUEST, request_authority

    place = key_place(federation, module, token, pin_file)
    request_authority(folder, federation, site, place)
    path = folder / REQUEST
    facts = {"federation": federation, "site": site, "request": str(path)}
    lines = [
        f"{path} is the request for the site {site} of the federation {federation}",
        f"next  at the root: delian ca delegate {REQUEST} --site {site}",
        f"then  delian authority accept {folder} ANSWER --fingerprint OF_THE_ROOT",
    ]
    tell(facts, as_json, lambda: lines)


def delegate(
    file: Annotated[
        Path, typer.Argument(metavar="REQUEST", help="From `delian authority request`.")
    ],
    site: Annotated[
        str, typer.Option("--site", help="The organisation's site: of all nodes that it enrols.")
    ],
    domains: Annotated[
        list[str] | None,
        typer.Option(
            "--domain",
            help="A DNS domain below which its servers have names. May be repeated.",
        ),
    ] = None,
    number: Annotated[
        int | None,
        typer.Option(
            "--number",
            min=1,
            max=4095,
            help="Another certificate for this issuing authority. (default: a new authority)",
        ),
    ] = None,
    nodes: Annotated[
        int | None,
        typer.Option(
            "--nodes", min=1, help="How many devices, and edges, it may enrol. (default: 32768)"
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="The answer. (default: authority-NUMBER.pem)")
    ] = None,
    folder: AuthorityFolder = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Let an organisation enrol its own nodes: a certificate for its authority, under this root.

    Make sure that the request comes from the organisation. Its authority names devices, edges and
    owners of its own site, and no other holder. What it signs is in the certificate log, and
    `delian ca revoke authority-NUMBER` voids all of it.
    """
    from ...core.node.identity.pki.certificates import (
        REQUEST_BYTES_MAX,
        load_certificate,
        read_file,
    )
    from ...core.node.identity.pki.intermediate import read_issuing

    authority = open_authority(folder, config)
    content = read_file(file, REQUEST_BYTES_MAX)
    chain = authority.delegate(content, site, domains or (), number=number, nodes=nodes)
    made = read_issuing(load_certificate(chain), authority.root)
    path = out or Path(ANSWER_FILE.format(number=made.number))
    write_out(path, chain)
    facts = {
        "name": f"authority-{made.number}",
        "number": made.number,
        "site": made.site,
        "domains": list(made.domains),
        "ends": made.not_after,
        "answer": str(path),
        "fingerprint": authority.fingerprint,
    }
    lines = [
        f"authority-{made.number} enrols the nodes of the site {made.site}, until"
        f" {day(made.not_after)}",
        f"domains      {', '.join(made.domains) or 'only its own'}",
        f"answer       {path}, for: delian authority accept FOLDER {path.name}",
        f"fingerprint  {authority.fingerprint} (send it by another channel than the answer)",
    ]
    tell(facts, as_json, lambda: lines)


def accept(
    folder: Annotated[Path, typer.Argument(help="The folder of `delian authority request`.")],
    answer: Annotated[Path, typer.Argument(help="From `delian ca delegate`.")],
    fingerprint: Annotated[
        str,
        typer.Option(
            "--fingerprint", help="Of the root's certificate, as its operator says it by phone."
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Take the root's answer to a request, or its answer to a later one.

    It is refused unless it is for the folder's key, federation and site, and of the root with this
    fingerprint.
    """
    from ...core.node.identity.authority.delegation import accept_authority
    from ...core.node.identity.pki.certificates import CERTIFICATE_BYTES_MAX, read_file

    made = accept_authority(folder, read_file(answer, CERTIFICATE_BYTES_MAX), fingerprint)
    facts = {
        "name": f"authority-{made.number}",
        "number": made.number,
        "federation": made.federation,
        "site": made.site,
        "domains": list(made.domains),
        "ends": made.not_after,
    }
    lines = [
        f"{folder} is authority-{made.number} of the federation {made.federation}, for the site"
        f" {made.site}",
        f"ends  {day(made.not_after)}; before, take another certificate in the same way",
        "next  delian authority run, with authority.superior = HOST:PORT of the root",
    ]
    tell(facts, as_json, lambda: lines)


def issuers(
    folder: AuthorityFolder = None, config: ConfigFile = None, as_json: AsJson = False
) -> None:
    """List the issuing authorities under a root: which organisation enrols its own nodes."""
    authority = open_authority(folder, config)
    denied = set(authority.denied().authorities())
    found = [_facts(one, one.number in denied) for one in authority.delegations()]
    names = ("name", "site", "domains", "nodes", "ends", "state")

    def lines() -> list[str]:
        rows = [
            {**each, "domains": ",".join(each["domains"]), "ends": day(each["ends"])}
            for each in found
        ]
        return table(names, [[row[name] for name in names] for row in rows])

    tell({"authorities": found}, as_json, lines)


def _facts(one: Delegation, revoked: bool) -> dict[str, Any]:
    return {
        "name": f"authority-{one.number}",
        "number": one.number,
        "site": one.site,
        "domains": list(one.domains),
        "nodes": one.nodes,
        "ends": one.not_after,
        "state": "revoked" if revoked else "",
    }
