"""`delian artifact`: signs bundles, and the keys that may sign them.

offline$   delian artifact root-init ROOT
operator$  delian artifact key-init                           # the key that signs runs
offline$   delian artifact root-sign ROOT --federation farm --key alice=key.pub
operator$  cp keys ~/.local/state/delian/operator/artifacts/  # from now on `run submit` signs
coordinator$ delian ca terms --artifact-root root.pub         # devices that join get the root key

`delian ca init` and `delian ca issue operator` do all this for a new federation.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...core.common.errors import DelianError
from ..identity.identity_commands import seconds_of
from ..options import AsJson, ConfigFile
from ..output import echo, tell

if TYPE_CHECKING:
    from ...core.wire.artifact_pb2 import ArtifactManifest
    from ...core.wire.enrolment_pb2 import FederationTerms
    from ...core.wire.operator_pb2 import PlanMessage
    from ..settings import OperatorConfig

app = typer.Typer(help="Sign bundles, and manage the keys that may.", no_args_is_help=True)

Root = Annotated[Path, typer.Argument(metavar="ROOT", help="The root key's folder.")]
Keys = Annotated[
    Path | None,
    typer.Option("--keys", help="The online key's folder. (default: operator.artifacts)"),
]
Valid = Annotated[str, typer.Option("--valid", help="How long it counts: 24h, 90d.")]
Line = Annotated[
    str | None,
    typer.Option("--line", help="What it is a version of; newer ones replace older ones."),
]


@app.command("root-init")
def root_init(folder: Root, as_json: AsJson = False) -> None:
    """Make a root key. Do it on a machine without a network, and keep the folder there.

    Devices get root.pub; the holder of root.pem decides what they run.
    """
    from ...core.node.identity.artifacts.artifact_keys import RootFolder
    from ...core.node.identity.artifacts.manifest import fingerprint

    made = RootFolder.create(folder)
    facts = {"folder": str(folder), "fingerprint": fingerprint(made.public)}
    tell(facts, as_json, lambda: [f"{folder / 'root.pub'}  {facts['fingerprint']}"])


@app.command("key-init")
def key_init(
    folder: Annotated[
        Path | None, typer.Argument(help="Where. (default: operator.artifacts)")
    ] = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Make an online key, which counts once the root has signed it."""
    from ...core.node.identity.artifacts.artifact_keys import OnlineFolder
    from ...core.node.identity.artifacts.manifest import fingerprint

    made = OnlineFolder.create(_folder(folder, config))
    facts = {"folder": str(made.folder), "fingerprint": fingerprint(made.public)}
    tell(facts, as_json, lambda: [f"{made.folder / 'key.pub'}  {facts['fingerprint']}"])


@app.command("root-sign")
def root_sign(
    folder: Root,
    federation: Annotated[str, typer.Option("--federation", help="The federation's name.")],
    key: Annotated[
        list[str], typer.Option("--key", metavar="NAME=KEY.pub", help="May be given again.")
    ],
    out: Annotated[Path, typer.Option("--out", help="Where to write the signed list.")] = Path(
        "keys"
    ),
    valid: Valid = "365d",
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the keys of the last list, and add these.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Sign the list of the online keys that count.

    Those that are left out count no more, on each device from when it first sees the new list.
    """
    from ...core.node.identity.artifacts.artifact_keys import RootFolder
    from ...core.node.identity.pki.ledger import write_file

    root = RootFolder(folder)
    online = (root.online() if keep else {}) | _online(key)
    keys = root.sign(federation, online, valid_s=seconds_of(valid))
    write_file(out, (folder / "keys").read_bytes())
    facts = {
        "version": keys.version,
        "keys": [k.name for k in keys.keys],
        "expires_s": keys.expires_s,
        "file": str(out),
    }
    tell(
        facts,
        as_json,
        lambda: [f"{out}: list {keys.version} of {federation}, until {_day(keys.expires_s)}"],
    )


@app.command("sign")
def sign(
    bundle: Annotated[Path, typer.Argument(help="The .bundle that devices are to run.")],
    out: Annotated[Path, typer.Option("--out", help="Where to write the signed manifest.")],
    line: Line = None,
    keys: Keys = None,
    valid: Valid = "90d",
    target: Annotated[
        list[str] | None,
        typer.Option("--target", help="linux-x86_64, linux-aarch64, ...; none given: any."),
    ] = None,
    cohort_min: Annotated[
        int, typer.Option("--cohort-min", min=0, help="Updates masked among at least so many.")
    ] = 0,
    corrupt: Annotated[
        float, typer.Option("--corrupt", min=0.0, max=0.5, help="Masked against this share.")
    ] = 0.0,
    memory_mib: Annotated[int, typer.Option("--memory-mib", min=0, help="0: the owner's.")] = 0,
    cpu_s: Annotated[int, typer.Option("--cpu-s", min=0, help="0: the owner's.")] = 0,
    wall_s: Annotated[int, typer.Option("--wall-s", min=0, help="0: the owner's.")] = 0,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Sign a bundle where the key is, to submit it elsewhere.

    `delian run submit --bundle BUNDLE --manifest FILE`.
    """
    import hashlib

    from ...core.learning.bundle import load
    from ...core.node.identity.artifacts.artifact_keys import OnlineFolder
    from ...core.node.identity.artifacts.manifest import ANY
    from ...core.node.identity.pki.ledger import write_file
    from ...core.wire.artifact_pb2 import ArtifactLimits
    from ...core.wire.blob_pb2 import BlobRef

    built = load(bundle)
    content = built.bare().to_bytes()
    signed = OnlineFolder(_folder(keys, config)).sign(
        line or bundle.stem,
        BlobRef(digest=hashlib.sha256(content).digest(), size=len(content)),
        clip=built.manifest.clip,
        dimension=built.manifest.dimension,
        cohort_min=cohort_min,
        corrupt=corrupt,
        targets=tuple(target or (ANY,)),
        limits=ArtifactLimits(memory_mib=memory_mib, cpu_s=cpu_s, wall_s=wall_s),
        valid_s=seconds_of(valid),
    )
    write_file(out, signed)
    facts = _facts(_manifest(signed))
    tell(facts, as_json, lambda: _lines(facts))


@app.command("verify")
def verify(
    file: Annotated[Path, typer.Argument(help="A signed manifest, or a signed list of keys.")],
    root: Annotated[Path, typer.Option("--root", help="root.pub.")],
    bundle: Annotated[
        Path | None, typer.Option("--bundle", help="Also whether it is for this bundle.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check a signed file as a device does, and show what it says.

    Exits with 2 when it does not hold.
    """
    from ...core.node.identity.artifacts import manifest as m
    from ...core.wire.blob_pb2 import BlobRef

    content, public = _bytes(file), m.load_public(_bytes(root), str(root))
    signed, now = m.read(content), time.time()
    keys = m.verify_keys(signed, public, now)
    facts: dict[str, Any] = {
        "federation": keys.federation,
        "list": keys.version,
        "keys": [key.name for key in keys.keys],
        "list_expires_s": keys.expires_s,
    }
    if signed.manifest or bundle is not None:
        found = m.verify(content, public, keys.federation, now)
        if bundle is not None:
            import hashlib

            from ...core.learning.bundle import load

            bare = load(bundle).bare().to_bytes()
            ref = BlobRef(digest=hashlib.sha256(bare).digest(), size=len(bare))
            m.check_bundle(found.manifest, ref, next(iter(found.manifest.targets)))
        facts.update(_facts(found.manifest))
    tell(facts, as_json, lambda: _lines(facts))


# ---------------------------------------------------------------- for `delian run submit`


def check_can_sign(folder: Path | None, terms: FederationTerms | None) -> None:
    """Raises DelianError where there is no key to sign with.

    Warns where devices of these terms do not know its root key.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    from ...core.node.identity.artifacts.artifact_keys import OnlineFolder
    from ...core.node.identity.artifacts.manifest import verify_keys

    root = terms.artifact_root if terms is not None else b""
    federation = terms.federation if terms is not None else "NAME"
    where = folder or Path("KEYS")
    sign = f"delian artifact root-sign ROOT --federation {federation} --keep"
    if not (where / "key.pem").exists():
        raise DelianError(
            f"there is no key in {where} to sign the bundle with, and devices refuse unsigned ones",
            f"make a key with: delian artifact key-init {where}\nthen, where the root key is:"
            f" {sign} --key alice={where / 'key.pub'} --out {where / 'keys'}",
        )
    signed, _ = OnlineFolder(where).keys()
    if root:
        try:
            verify_keys(signed, Ed25519PublicKey.from_public_bytes(root), time.time())
        except DelianError as error:
            # The terms stored with the identity may be older than the devices'.
            echo(f"warning: devices may refuse the bundle: {error.message}", err=True)


def signed_plan(
    plan: PlanMessage, folder: Path | None, given: Path | None, line: str | None
) -> bytes:
    """What goes into a plan's `manifest`, its bundle and ring being set.

    The file that was given, or what the key in the folder signs; empty where there is neither.
    Raises DelianError.
    """
    from ...core.node.identity.artifacts.artifact_keys import OnlineFolder, sign_plan
    from ...core.node.identity.artifacts.manifest import check_bundle

    if given is not None:
        content = _bytes(given)
        manifest = _manifest(content)
        check_bundle(manifest, plan.bundle, next(iter(manifest.targets), ""))
        return content
    if folder is None or not (folder / "key.pem").exists():
        if line is not None:
            raise DelianError(
                f"--line: there is no key in {folder} to sign with",
                "make one with: delian artifact key-init",
            )
        return b""
    return sign_plan(OnlineFolder(folder), plan, line)


# ---------------------------------------------------------------- parts


def _folder(given: Path | None, config: Path | None) -> Path:
    from ..config import load

    return given or signing_folder(load(config).config.operator)


def signing_folder(operator: OperatorConfig) -> Path:
    """Where the key is that signs bundles: as configured, or with the operator's identity."""
    return operator.artifacts or operator.identity / "artifacts"


def _online(given: Sequence[str]) -> dict[str, Any]:
    from ...core.node.identity.artifacts.manifest import load_public

    found: dict[str, Any] = {}
    for text in given:
        name, equals, path = text.partition("=")
        if not equals or not name or name in found:
            raise DelianError(f"--key {text}: this is not NAME=KEY.pub, each name once")
        found[name] = load_public(_bytes(Path(path)), path)
    return found


def _bytes(path: Path) -> bytes:
    from ...core.privacy.task_limits import MANIFEST_BYTES_MAX

    try:
        with path.open("rb") as file:
            return file.read(MANIFEST_BYTES_MAX + 1)
    except OSError as error:
        raise DelianError(
            f"cannot read {path}: {error.strerror}", "check the path and its permissions"
        ) from None


def _manifest(content: bytes) -> ArtifactManifest:
    """The content of a signed manifest, whatever key signed it."""
    from google.protobuf.message import DecodeError

    from ...core.node.identity.artifacts.manifest import read
    from ...core.wire.artifact_pb2 import ArtifactManifest

    try:
        return ArtifactManifest.FromString(read(content).manifest)
    except DecodeError:
        raise DelianError("this is no signed manifest") from None


def _facts(manifest: ArtifactManifest) -> dict[str, Any]:
    limits = manifest.limits
    return {
        "line": manifest.line,
        "sequence": manifest.sequence,
        "bundle": manifest.bundle.digest.hex(),
        "targets": list(manifest.targets),
        "expires_s": manifest.expires_s,
        "clip": manifest.clip,
        "dimension": manifest.dimension,
        "cohort_min": manifest.cohort_min,
        "corrupt": manifest.corrupt,
        "noise": manifest.noise,
        "central": manifest.central,
        "limits": {n: getattr(limits, n) for n in ("memory_mib", "cpu_s", "wall_s")},
    }


def _lines(facts: dict[str, Any]) -> list[str]:
    def text(name: str, value: Any) -> str:
        if name.endswith("expires_s"):
            return _day(value)
        return ", ".join(map(str, value)) if isinstance(value, list) else str(value)

    return [f"{n.replace('_', ' '):<16} {text(n, v)}" for n, v in facts.items()]


def _day(unix_s: int) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(unix_s))
