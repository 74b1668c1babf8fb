"""`delian ca`: an authority's folder, wherever the key is kept."""

from __future__ import annotations

import re
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..options import ConfigFile
from ..output import echo, tell
from .terms_commands import terms_facts, terms_text

if TYPE_CHECKING:
    from ...core.node.identity.authority.authority import Authority
    from ...core.node.identity.pki.hsm import KeyPlace
    from ..settings import Config

ca = typer.Typer(help="The federation's certificate authority.", no_args_is_help=True)

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}

Folder = Annotated[Path, typer.Argument(help="The CA's folder.")]
AuthorityFolder = Annotated[
    Path | None,
    typer.Option(
        "--ca",
        help="The CA's folder. (default: of the configuration)",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


CohortMin = Annotated[
    int | None,
    typer.Option(
        "--cohort-min", min=3, max=1000, help="The smallest masked sum, in devices. (default: 10)"
    ),
]
Corrupt = Annotated[
    float | None,
    typer.Option(
        "--corrupt",
        min=0.0,
        max=0.5,
        help="The share of corrupt devices that masks withstand. (default: 0.05)",
    ),
]
Masks = Annotated[
    bool | None,
    typer.Option(
        "--require-masks/--allow-plain",
        help="Whether the coordinator refuses runs without masks. Devices refuse them in any case"
        " until their owners allow them. (default: it refuses)",
    ),
]
RootPub = Annotated[
    Path | None,
    typer.Option(
        "--artifact-root", help="root.pub of an existing root key. (default: one is made here)"
    ),
]


Superior = Annotated[
    str | None,
    typer.Option(
        "--superior",
        metavar="HOST:PORT",
        help="With the folder of an issuing authority: its root. (default: authority.superior)",
    ),
]


class Tier(StrEnum):
    """Roles that may join by a token."""

    DEVICE = "device"
    EDGE = "edge"
    CLOUD = "cloud"


class Rights(StrEnum):
    """What an operator may do."""

    VIEWER = "viewer"
    RUNNER = "runner"
    OWNER = "owner"
    ADMIN = "admin"


LogRequired = Annotated[
    bool | None,
    typer.Option(
        "--require-log/--no-log",
        help="Whether devices accept a neighbour only if its certificate is in the certificate log."
        " (default: they do)",
    ),
]
Witnesses = Annotated[
    list[Path] | None,
    typer.Option(
        "--witness",
        metavar="FILE",
        help="A witness of the certificate log: its witness.pub. Name all of them, each with an"
        " option of its own. (default: those before)",
    ),
]
Quorum = Annotated[
    int | None,
    typer.Option(
        "--quorum",
        min=0,
        max=16,
        help="How many witnesses must have signed the log's head. (default: as before; 0 at first)",
    ),
]
Epsilon = Annotated[
    float | None,
    typer.Option(
        "--epsilon",
        min=0.0,
        help="Privacy budget of a device over all runs, by the device's own account; 0:"
        " no cap. With a cap, runs need noise of the devices. (default: as before; 0 at first)",
    ),
]
Delta = Annotated[
    float | None,
    typer.Option("--delta", help="The delta of --epsilon. (default: as before; 1e-6 at first)"),
]


class Holder(StrEnum):
    """Holders for which `delian ca issue` makes an identity."""

    OPERATOR = "operator"
    CLOUD = "cloud"
    BROKER = "broker"


@ca.command("init")
def init(
    federation: Annotated[str, typer.Option("--federation", help="The federation's name.")],
    folder: Annotated[
        Path | None,
        typer.Argument(help="The CA's folder. (default: where `delian cloud run` looks for it)"),
    ] = None,
    cohort_min: CohortMin = None,
    corrupt: Corrupt = None,
    masks: Masks = None,
    artifact_root: RootPub = None,
    log_required: LogRequired = None,
    witnesses: Witnesses = None,
    quorum: Quorum = None,
    epsilon: Epsilon = None,
    delta: Delta = None,
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
    """Make a federation's CA.

    A key, which stays in this folder, its certificate, and the federation's terms, which each
    device gets when it joins.

    The key can enrol any node. Back the folder up: without it no node can join or renew.
    artifact-root in it is the key that decides which keys may sign runs: move it offline when the
    operators have their identities. A fleet of less than 10 devices needs a smaller --cohort-min; 3
    is the least. With --pkcs11 the key is made in a hardware token and never leaves it; the folder
    says where it is.
    """
    from ...core.node.identity.authority.authority import Authority
    from ...core.node.identity.authority.founding import publish
    from ..doctor_checks import ca_folder

    place = key_place(federation, module, token, pin_file)
    default = ca_folder(settings_of(None, {}))
    folder = folder or default
    made = Authority.create(folder, federation, token=place)
    next_step = "delian ca issue operator"
    if folder != default:
        next_step = f"delian ca issue operator OPERATOR --ca {folder}"
    held = publish(
        made,
        cohort_min=cohort_min,
        corrupt=corrupt,
        masks_required=masks,
        artifact_root=artifact_root,
        log_required=log_required,
        witnesses=witnesses or None,
        quorum=quorum,
        epsilon=epsilon,
        delta=delta,
        fresh=True,
    )
    tell(
        {**_facts(made), "terms": terms_facts(held)},
        as_json,
        lambda: [
            f"{folder} holds the CA of the federation {made.federation}",
            f"fingerprint  {made.fingerprint}",
            f"terms        {terms_text(held)}",
            f"next         {next_step}",
        ],
    )


def key_place(
    federation: str, module: Path | None, token: str | None, pin_file: Path | None
) -> KeyPlace | None:
    """Where the CA's key is to be; None: in its folder."""
    from ...core.common.errors import DelianError
    from ...core.node.identity.pki.hsm import KeyPlace

    if module is None and token is None and pin_file is None:
        return None
    if module is None or token is None or pin_file is None:
        raise DelianError(
            "a key in a token needs --pkcs11, --token and --pin-file",
            "--pkcs11 /usr/lib/softhsm/libsofthsm2.so --token LABEL --pin-file FILE",
        )
    return KeyPlace(
        module=str(module.absolute()),
        token=token,
        label=f"delian {federation}",
        pin_file=str(pin_file.absolute()),
    )


@ca.command("terms")
def set_terms(
    folder: Annotated[Path | None, typer.Argument(help="The CA's folder.")] = None,
    cohort_min: CohortMin = None,
    corrupt: Corrupt = None,
    masks: Masks = None,
    artifact_root: RootPub = None,
    log_required: LogRequired = None,
    witnesses: Witnesses = None,
    quorum: Quorum = None,
    epsilon: Epsilon = None,
    delta: Delta = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Show what the federation asks of its runs, or change it.

    On a CA that is older than terms, any option makes them, and a root key of artifacts. Devices
    get terms when they join and when they renew. A device keeps what it has against looser terms:
    a smaller sum, another root key, fewer or other witnesses of the certificate log, a larger
    epsilon; its owner accepts them by `delian device terms --accept`.
    """
    from ...core.common.errors import DelianError
    from ...core.node.identity.authority.founding import publish, terms_of

    authority = open_authority(folder, config)
    changes: dict[str, Any] = {
        "cohort_min": cohort_min,
        "corrupt": corrupt,
        "masks_required": masks,
        "artifact_root": artifact_root,
        "log_required": log_required,
        "witnesses": witnesses or None,
        "quorum": quorum,
        "epsilon": epsilon,
        "delta": delta,
    }
    if all(value is None for value in changes.values()):
        held = terms_of(authority)
        if held is None:
            raise DelianError(
                f"{authority.folder} has no terms", "make them with: delian ca terms --cohort-min N"
            )
    else:
        held = publish(authority, **changes)
    tell(terms_facts(held), as_json, lambda: [terms_text(held)])


@ca.command("show")
def show(
    folder: Annotated[Path | None, typer.Argument(help="The CA's folder.")] = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Show a CA: its name, its end, what it has issued and denied, which tokens are open."""
    from ...core.node.identity.authority.tokens import TokenBook

    authority = open_authority(folder, config)
    facts = _facts(authority)
    facts["issued"] = authority.issued()
    denied = authority.denied()
    facts["denied"] = {
        "version": denied.version,
        "names": sorted(f"{role.value}-{number}" for role, number in denied.names),
    }
    facts["tokens"] = TokenBook(authority.folder, authority.lock).open_tokens()
    lines = [
        f"federation   {authority.federation}{_kind(authority)}",
        f"fingerprint  {authority.fingerprint}",
        f"ends         {day(facts['ends'])}",
        f"issued       {len(facts['issued'])} certificates that have not ended",
        f"revoked      {len(denied.names)} names (deny list version {denied.version})",
        f"tokens       {len(facts['tokens'])} open",
    ]
    tell(facts, as_json, lambda: lines)


@ca.command("revoke")
def revoke(
    name: Annotated[str, typer.Argument(help="A node, as device-5 or edge-2.")],
    folder: AuthorityFolder = None,
    why: Annotated[str, typer.Option("--why", help="For the record.")] = "",
    superior: Superior = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Revoke a node for good: its certificates are void, and it gets no other.

    A running coordinator reads it at once and sends it to the edges. The node's owner joins again
    with a new token, under a new number. cloud-0, the coordinator, gets a new certificate when it
    starts. authority-3, an issuing authority, is revoked with all that it has let in.
    """
    denied, fresh = acting_authority(folder, config, superior).revoke(name, why)
    text = "revoked" if fresh else "was revoked already"
    facts = {"name": name, "revoked": fresh, "version": denied.version}
    tell(facts, as_json, lambda: [f"{name}: {text} (deny list version {denied.version})"])


@ca.command("restored")
def restored(
    folder: AuthorityFolder = None,
    copy: Annotated[
        Path | None,
        typer.Option(
            "--log",
            metavar="COPY",
            help="The newest copy of the certificate log: of `delian log watch`, or a"
            " coordinator's. Its entries since the backup are taken back.",
        ),
    ] = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Run this once after the CA and the coordinator's store were restored from a backup.

    It leaves out the numbers that were given to nodes since the backup, so that no number is given
    out twice, and raises the deny list's version, so that nodes take the list again. Then revoke
    again what was revoked since the backup. Nodes refuse a certificate log that lost entries: name
    its newest copy by --log.
    """
    authority = open_authority(folder, config)
    entries = 0 if copy is None else authority.log.take_back(copy)
    last = authority.restored()
    lines = [f"the next number of a {role} is {number + 1}" for role, number in last.items()]
    if copy is not None:
        lines.append(f"{entries} entries of the certificate log were taken back")
    tell({"last": last, "log_entries": entries}, as_json, lambda: lines)


@ca.command("issue")
def issue(
    holder: Annotated[Holder, typer.Argument(help="Holder of the identity.")],
    out: Annotated[
        Path | None,
        typer.Argument(
            help="The folder to write it to. (default: where an operator's commands, or `delian"
            " cloud run`, look for it; a broker has none)"
        ),
    ] = None,
    folder: AuthorityFolder = None,
    address: Annotated[
        list[str] | None,
        typer.Option("--address", help="Host name or IP address of a server. May be repeated."),
    ] = None,
    role: Annotated[
        Rights | None,
        typer.Option(
            "--role",
            help="Of an operator: viewer (reads runs, nodes, the record), runner (also starts and"
            " controls runs), owner (of a --site: reads runs, decides about the site's nodes and"
            " tokens), admin (all of it, and models' aliases). (default: admin; of an issuing"
            " authority: owner)",
        ),
    ] = None,
    site: Annotated[
        str,
        typer.Option(
            "--site",
            help="Of an owner: the organisation or place that it owns. (default: an issuing"
            " authority's own)",
        ),
    ] = "",
    superior: Superior = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Make an identity on the CA's machine: an operator's, the coordinator's, an MQTT broker's.

    A coordinator that has the CA's folder makes its own. A broker's folder gets key.pem, cert.pem
    and ca.pem; run it again before the certificate ends.
    """
    from ...core.common.errors import DelianError
    from ...core.node.identity.pki import local_identity
    from ...core.node.identity.pki.certificates import Role

    out = out or _own_folder(holder, config)
    authority = acting_authority(folder, config, superior)
    names = address or []
    if holder is Holder.OPERATOR and names:
        raise DelianError("an operator has no address", "leave --address out")
    if holder is not Holder.OPERATOR and (role is not None or site):
        raise DelianError("only an operator has a --role and a --site", "leave them out")
    facts: dict[str, Any] = {"holder": holder.value, "folder": str(out)}
    if holder is Holder.BROKER:
        facts["ends"] = local_identity.broker_files(authority, out, names)
    elif holder is Holder.CLOUD:
        own, facts["new"] = local_identity.coordinator_identity(authority, out, names)
        facts["name"], facts["ends"] = "cloud-0", own.facts().not_after
    else:
        rights = Role((role or (Rights.OWNER if authority.site else Rights.ADMIN)).value)
        identity = local_identity.operator_identity(authority, out, rights, site)
        facts["name"], facts["ends"] = identity.common_name, identity.not_after
        signs = rights not in (Role.VIEWER, Role.OWNER)  # they submit no runs
        if signs and not _sign_online(authority, out, identity.common_name):
            echo(_unsigned_key(out, identity.common_name), err=True)
    name = facts.get("name", "the broker")
    text = f"{out} holds the identity of {name}, until {day(facts['ends'])}"
    tell(facts, as_json, lambda: [text])


# ---------------------------------------------------------------- parts


def _own_folder(holder: Holder, config: Path | None) -> Path:
    """Where a holder looks for its identity. Raises DelianError for a broker."""
    from ...core.common.errors import DelianError

    settings = settings_of(config, {})
    if holder is Holder.OPERATOR:
        return settings.operator.identity
    if holder is Holder.CLOUD:
        return settings.cloud.identity or settings.cloud.state / "identity"
    raise DelianError("where do the broker's files go?", "delian ca issue broker FOLDER")


def seconds_of(text: str) -> int:
    """Seconds of "90m", "24h" or "7d"; raises DelianError."""
    from ...core.common.errors import DelianError

    parts = re.fullmatch(r"([1-9][0-9]{0,8})([smhd])", text.strip())
    if parts is None:
        raise DelianError(f"`{text}` is no time", "write 90m, 24h or 7d")
    return int(parts[1]) * _UNITS[parts[2]]


def settings_of(file: Path | None, flags: dict[str, Any]) -> Config:
    """The configuration of a file and flags. Raises DelianError."""
    from ..config import load

    return load(file, flags).config


def open_authority(folder: Path | None, file: Path | None) -> Any:
    """The authority of a folder, of either kind. Raises DelianError."""
    from ...core.node.identity.authority.authority import Authority
    from ..doctor_checks import ca_folder

    return Authority(folder or ca_folder(settings_of(file, {})))


def acting_authority(folder: Path | None, file: Path | None, superior: str | None) -> Any:
    """The same to issue and revoke.

    An issuing authority is connected to its root, as `superior` or the configuration names it.
    Raises DelianError.
    """
    from ...core.node.identity.authority.authority_folder import superior_of
    from ..doctor_checks import ca_folder

    settings = settings_of(file, {"authority.superior": superior})
    found = folder or ca_folder(settings)
    if superior_of(found) is None:
        return open_authority(found, None)
    from ...cloud.authority.root_client import open_authority as connected

    authority, above = connected(found, settings.authority.superior)
    assert above is not None
    above.refresh("")
    return authority


def _sign_online(authority: Authority, out: Path, name: str) -> bool:
    """Gives an operator a key that signs runs. Whether the root key has signed it."""
    from ...core.node.identity.authority.founding import ONLINE_FOLDER, add_online_key, root_folder

    return add_online_key(out / ONLINE_FOLDER, authority.federation, name, root_folder(authority))


def _unsigned_key(out: Path, name: str) -> str:
    return (
        f"{out / 'artifacts'} holds a key that signs runs, which the root key has not signed."
        " Where the root key is:\n"
        f"  delian artifact root-sign ROOT --federation NAME --keep --key {name}=key.pub\n"
        f"and put the file `keys` that it writes into {out / 'artifacts'}"
    )


def _kind(authority: Any) -> str:
    if authority.issuing is None:
        return ""
    return f", authority-{authority.number} for the site {authority.site}"


def _facts(authority: Any) -> dict[str, Any]:
    return {
        "federation": authority.federation,
        "authority": authority.number,
        "site": authority.site,
        "folder": str(authority.folder),
        "fingerprint": authority.fingerprint,
        "ends": int(authority.certificate.not_valid_after_utc.timestamp()),
    }


def day(unix_s: int) -> str:
    """The date of a Unix time, in local time."""
    return time.strftime("%Y-%m-%d", time.localtime(unix_s))
