"""`delian bundle`: what a bundle can disclose of a device's data, for the device's owner."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...core.common.errors import DelianError
from ..options import AsJson
from ..output import table, tell

if TYPE_CHECKING:
    from ...core.wire.artifact_pb2 import ArtifactManifest

app = typer.Typer(help="Show what a bundle does and what it can disclose.", no_args_is_help=True)

REFUSED = 1
#: Characters of a line of text.
WIDTH = 96
#: Source lines that are named of a program, unless all are asked for.
LINES = 6


@app.callback()
def bundle() -> None:
    """A group, however few commands it has."""


@app.command("explain")
def explain(
    file: Annotated[Path, typer.Argument(help="A .bundle.")],
    manifest: Annotated[
        Path | None, typer.Option("--manifest", help="The signed manifest that came with it.")
    ] = None,
    root: Annotated[
        Path | None, typer.Option("--root", help="root.pub, to check the manifest with.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Name every line that chooses.")] = False,
    as_json: AsJson = False,
) -> None:
    """Say in plain words what a bundle takes, sends and can choose by.

    Exits with 1 when devices refuse it.

    The answer is an analysis of the programs, not of what their author says: an output that is said
    not to depend on something does not. It cannot judge the choices; what remains open stands at
    the end.
    """
    from ...core.learning.bundle import load
    from ...core.learning.disclosure.explained import explained

    loaded = load(file)
    facts = {"bundle": str(file), **explained(loaded), "signed": None}
    if root is not None and manifest is None:
        raise DelianError("--root checks a manifest, and there is none", "add --manifest FILE")
    if manifest is not None:
        facts["signed"] = _signed(manifest, root, loaded.bare().to_bytes())
    tell(facts, as_json, lambda: list(_lines(facts, every)))
    if facts["refused"]:
        raise typer.Exit(REFUSED)


def _signed(file: Path, root: Path | None, content: bytes) -> dict[str, Any]:
    """The facts of a signed manifest of this bundle; with a root key they are checked.

    Raises DelianError.
    """
    import hashlib
    import time

    from ...core.common.files import read_at_most
    from ...core.node.identity.artifacts import manifest as m
    from ...core.privacy.task_limits import MANIFEST_BYTES_MAX
    from ...core.wire.artifact_pb2 import ArtifactManifest
    from ...core.wire.blob_pb2 import BlobRef

    try:
        signed = read_at_most(file, MANIFEST_BYTES_MAX)
        key = None if root is None else read_at_most(root, 16 * 1024)
    except OSError as error:
        raise DelianError(
            f"{error.filename or file}: cannot be read: {error.strerror}",
            "check the path and its permissions",
        ) from None
    carried = m.read(signed)
    if key is not None:
        public = m.load_public(key, str(root))
        federation = m.verify_keys(carried, public, time.time()).federation
        found = m.verify(signed, public, federation, time.time()).manifest
    else:
        try:
            found = ArtifactManifest.FromString(carried.manifest)
        except ValueError:
            raise DelianError(f"{file}: no signed manifest") from None
    ref = BlobRef(digest=hashlib.sha256(content).digest(), size=len(content))
    m.check_bundle(found, ref, next(iter(found.targets), ""))
    return {"checked": key is not None, **_plan(found)}


def _plan(found: ArtifactManifest) -> dict[str, Any]:
    return {
        "federation": found.federation,
        "line": found.line,
        "sequence": found.sequence,
        "expires_s": found.expires_s,
        "clip": found.clip,
        "cohort_min": found.cohort_min,
        "corrupt": found.corrupt,
        "noise": found.noise,
        "central": found.central,
        "memory_mib": found.limits.memory_mib,
        "cpu_s": found.limits.cpu_s,
        "wall_s": found.limits.wall_s,
    }


# ---------------------------------------------------------------- for people


def _lines(facts: dict[str, Any], every: bool) -> Iterator[str]:
    yield f"{facts['bundle']}: task {facts['task']}, algorithm {facts['algorithm']}"
    yield f"hash {facts['hash']}"
    if facts["refused"]:
        yield ""
        yield from _text(f"REFUSED BY DEVICES: {facts['refused']}.")
    yield from _heading("What goes in, on the device")
    rows = [[d["name"], d["type"], _bytes(d["bytes"])] for d in facts["data"]]
    yield from _indented(table(("DATA", "TYPE", "AT MOST"), rows))
    yield from _text("No program takes the device's number, name, place or time.")
    yield from _sending(facts)
    yield from _depending(facts)
    yield from _choosing(facts, every)
    yield from _plan_lines(facts)
    yield from _costs(facts)
    yield from _open(facts)


def _sending(facts: dict[str, Any]) -> Iterator[str]:
    update = facts.get("update")
    if update is None:
        return
    yield from _heading("What leaves the device")
    rows = update["rows"]
    yield from _text(
        f"In a training round: {update['numbers']:,} numbers ({_bytes(update['bytes'])}), of a norm"
        f" of at most {update['clip']:g} together, and its share of {update['weight_max']:g} as a"
        " weight." + (f" There is room in it for about {rows:,} rows of data." if rows else "")
    )
    yield from _text(
        "Whether it answers: a device says so where an update is not finite, or training failed or"
        " took too long. Masks do not hide that."
    )
    yield from _text(
        f"In an evaluation: {facts['evaluation']} numbers, which are means over the device's rows:"
        " loss and accuracy of the shared model and of the device's own, and how many rows."
    )
    kept = facts["client_state"]
    yield from _text(
        f"It keeps {kept:,} numbers from round to round; they stay on the device."
        if kept
        else "It keeps nothing from round to round."
    )


def _depending(facts: dict[str, Any]) -> Iterator[str]:
    yield from _heading("What depends on what")
    rows = []
    for name, program in facts["programs"].items():
        for output in program["outputs"]:
            rows.append(
                [
                    name,
                    output["kind"],
                    f"{output['numbers']:,}",
                    "SENT" if output["leaves"] else "stays",
                    _named(output["values"], output["random"]),
                    _named(output["selects"], output["random_selects"]),
                ]
            )
    head = ("PROGRAM", "GIVES", "NUMBERS", "", "COMPUTED FROM", "CHOSEN BY")
    yield from _indented(table(head, rows))
    yield from _text(
        "What is not named has no influence on it, whatever the other inputs are. An evaluation is"
        " made twice: with the shared model, and with the one that personalise gives."
    )


def _choosing(facts: dict[str, Any], every: bool) -> Iterator[str]:
    sent = facts.get("sent")
    if sent is None:
        return
    yield from _heading("What can choose what is sent")
    yield from _answer("the device's number", False, "no program takes it")
    how = "a program uses the key otherwise" if sent["key"] else "keys are used for random numbers"
    yield from _answer("the device's key", sent["key"], how)
    said = "shuffling and dropout do, and so may a lottery"
    yield from _answer("random numbers", sent["random_selects"], said)
    said = "labels, batches and ReLUs do, and so may a test for one row"
    yield from _answer("data", sent["data_selects"], said)
    for name in ("client_update", "evaluate"):
        yield from _places(name, facts["programs"][name]["choices"], every)
    yield ""
    yield from _text("Files and lines are those that the bundle names.")


def _places(name: str, choices: list[dict[str, Any]], every: bool) -> Iterator[str]:
    shown = choices if every else choices[:LINES]
    rows = [
        [c["line"] or "-", " ".join(c["operations"]), _named(c["by"], c["random"])] for c in shown
    ]
    if rows:
        yield ""
        yield from _indented(table((f"{name} CHOOSES AT", "BY OPERATIONS", "BY"), rows))
    if len(shown) < len(choices):
        yield f"  ... and at {len(choices) - len(shown)} more lines (--all)"


def _plan_lines(facts: dict[str, Any]) -> Iterator[str]:
    signed = facts["signed"]
    yield from _heading("Masks, noise and limits")
    if facts.get("update") and not facts["update"]["noise"]:
        yield from _text("The bundle adds no noise: a sum says exactly what its devices sent.")
    elif facts.get("update"):
        noise, where = (
            facts["update"]["noise"],
            "coordinator" if facts["update"]["central"] else "devices",
        )
        yield from _text(f"The sum has noise of {noise:g} clips, added by the {where}.")
    if signed is None:
        yield from _text(
            "Whether updates are masked is in a run's plan and not in a bundle: --manifest shows"
            " what was signed. Limits of time and memory are the device owner's."
        )
        return
    checked = "checked" if signed["checked"] else "NOT CHECKED: name the root key with --root"
    yield from _text(
        f"Signed for {signed['federation']} as {signed['line']} {signed['sequence']} ({checked})."
    )
    masks = (
        f"Updates are masked among at least {signed['cohort_min']} devices, against"
        f" {signed['corrupt']:.0%} of them."
        if signed["cohort_min"]
        else "Updates need not be masked: edges and the coordinator may read each one."
    )
    yield from _text(f"{masks} The clip is at most {signed['clip']:g}.")
    limits = [
        f"{signed[key]} {unit}"
        for key, unit in (("memory_mib", "MiB"), ("cpu_s", "s of CPU"), ("wall_s", "s"))
        if signed[key]
    ]
    yield from _text(f"At most {', '.join(limits)}." if limits else "The owner's limits hold.")


def _costs(facts: dict[str, Any]) -> Iterator[str]:
    yield from _heading("What it costs")
    rows = []
    for name, program in facts["programs"].items():
        loops = program["loops"]
        said = (
            f"{loops['total']}, {loops['fixed']} of them of known trips" if loops["total"] else "-"
        )
        if loops["open"]:
            said += f", {loops['open']} open"
        rows.append(
            [
                name,
                program["runs"],
                f"{program['operations']:,}",
                f"{program['flops']:,}",
                said,
                _named(loops["depend"], loops["random"]),
            ]
        )
    head = ("PROGRAM", "RUNS AT", "OPERATIONS", "FLOP A TRIP", "LOOPS", "TRIPS DEPEND ON")
    yield from _indented(table(head, rows))


def _open(facts: dict[str, Any]) -> Iterator[str]:
    sent = facts.get("sent")
    if sent is None:
        return
    yield from _heading("What this cannot show")
    if sent["data"]:
        yield from _text(
            "What is sent depends on the data, as it must to train. Arithmetic alone can choose as"
            " sharply as a comparison. So it cannot be excluded that something is sent only where a"
            " device has a certain row, or that the sum of all updates shows it."
        )
    if sent["random_selects"]:
        yield from _text(
            "A choice by random numbers may let few devices of a round send something, so that a"
            " sum is the sum of few. Its author cannot name them: keys have a part that only the"
            " device knows."
        )
    yield from _text(
        "How long training takes, and whether it ends, may depend on the data too. Noise"
        " bounds what a sum discloses of one device; others read the program before they"
        " sign it, which keeps a bundle's author honest."
    )


def _answer(what: str, can: bool, why: str) -> Iterator[str]:
    yield f"  {what:<22}{'YES' if can else 'no':<5}{why if can else _NO.get(what, why)}"


_NO = {
    "random numbers": "no operation chooses by what is drawn",
    "data": "no operation chooses by data",
}


def _named(kinds: list[str], random: bool) -> str:
    return ", ".join([*kinds, *(["random numbers"] if random else [])]) or "-"


def _heading(text: str) -> Iterator[str]:
    yield ""
    yield text


def _text(text: str) -> Iterator[str]:
    for part in text.split("\n"):
        yield from textwrap.wrap(part, WIDTH, initial_indent="  ", subsequent_indent="  ")


def _indented(lines: list[str]) -> Iterator[str]:
    return (f"  {line}" for line in lines)


def _bytes(count: int) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count = count / 1000  # type: ignore[assignment]
    return f"{count:.1f} GB"
