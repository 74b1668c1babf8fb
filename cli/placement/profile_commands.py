"""`delian profile`: what this node can do, and its link to the node above."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...core.common.errors import DelianError
from ..options import AsJson
from ..output import show_progress, table, tell, write_out

if TYPE_CHECKING:
    from ...core.compiler.ir import Function
    from ...core.placement.cut.link_model import LinkProfile
    from ...core.placement.cut.profile import NodeProfile

#: Classes whose rates are of arithmetic; the others move or combine numbers.
_ARITHMETIC = (
    "product",
    "convolution",
    "convolution_back",
    "depthwise",
    "depthwise_back",
    "loop",
    "tile",
)
_BYTES_IN_MB = 1e6
#: Watts, and joules a megabyte; beyond it is a slip of the pen.
_MOST = 1e6


def profile(
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Where the profile goes: node.json.")
    ] = None,
    seconds: Annotated[
        float, typer.Option("--seconds", min=0.0, max=3600.0, help="How long to measure.")
    ] = 10.0,
    bundle: Annotated[
        list[Path] | None,
        typer.Option("--bundle", help="Also time this bundle's infer, operation by operation."),
    ] = None,
    name: Annotated[str, typer.Option("--name", help="What to call this node.")] = "",
    memory: Annotated[
        str, typer.Option("--memory", help="What a part may take: 512MB. (default: what there is)")
    ] = "",
    watts: Annotated[
        float | None,
        typer.Option(
            "--watts", min=0.0, max=_MOST, help="What the processor draws at work; an estimate."
        ),
    ] = None,
    joules_per_mb: Annotated[
        float | None,
        typer.Option(
            "--joules-per-mb", min=0.0, max=_MOST, help="What the radio takes for a megabyte."
        ),
    ] = None,
    link: Annotated[
        str | None,
        typer.Option(
            "--link",
            metavar="HOME",
            help="Measure the link to host:port, or edge-3@host:port, instead of the node.",
        ),
    ] = None,
    identity: Annotated[
        Path | None,
        typer.Option("--identity", help="With --link: what `delian join` wrote. (default: no TLS)"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure this node through the kernels that programs run.

    Products, convolutions, loops, reductions, memory, calls. It takes about a minute, most of it
    compilation.

    The file is what delian partition reads. With --bundle the times of that very program are in it,
    which are more precise than what is worked out from classes of operations. Measure on a quiet
    machine. With --link it is the way to the node above that is measured: bandwidth up and down,
    latency one way, and loss, as delian partition takes them.
    """
    if link is not None:
        found = _measured_link(link, identity)
        tell({**found.body(), "text": found.text()}, as_json, found.text().splitlines)
        return
    from ...core.compiler.ir_codec import content_hash
    from ...core.placement.cut.measure import measure_node, measured_seconds
    from ...core.placement.cut.profile import TEXT_MAX
    from ...simulations.runs.host_facts import cpu_name
    from .partition_commands import parse_size

    if len(name) > TEXT_MAX:
        raise DelianError(f"--name of {len(name)} characters", f"at most {TEXT_MAX}")
    if out is not None and (out.is_dir() or not out.parent.is_dir()):
        raise DelianError(f"{out}: cannot be written", "-o node.json, in a folder that is there")
    programs = [_infer(file) for file in bundle or ()]
    say = _say(sys.stderr.isatty())
    made = measure_node(
        name=name or _host(),
        cpu=cpu_name(),
        date=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        memory=parse_size(memory, "--memory 512MB") if memory else memory_limit(),
        seconds=seconds,
        say=say,
    )
    made = made.with_energy(watts, None if joules_per_mb is None else joules_per_mb / _BYTES_IN_MB)
    for file, function in zip(bundle or (), programs, strict=True):
        say(f"infer of {file}")
        made = made.with_program(content_hash(function), measured_seconds(function))
    say("")
    if out is not None:
        write_out(out, made.to_json())
    facts = facts_of(made)
    tell(facts, as_json, lambda: _lines(facts, out))


def _measured_link(home: str, identity: Path | None) -> LinkProfile:
    """The link of this node, a device's or an edge's, to the one above. Raises DelianError."""
    import asyncio

    from ...core.node.identity.pki.certificates import channel_credentials
    from ...core.node.identity.pki.identity_folder import IdentityFolder
    from ...core.node.service.hosting import parse_home, who_is
    from ...core.placement.subgraphs.frames.probing import Prober
    from ...core.placement.subgraphs.frames.stream_client import Upstream
    from ...core.protocol.ports import CLOUD, Node, Tier

    above = parse_home(home)
    if not above.grpc:
        raise DelianError(f"{home}: parts are run over gRPC alone", "write host:port")
    own = None if identity is None else IdentityFolder(identity)
    tier = Tier.DEVICE if own is None else Tier(own.facts().role)
    who = who_is(tier, identity, insecure=own is None, number=1 if own is None else None)
    target = CLOUD if tier is Tier.EDGE else Node(Tier.EDGE, above.node.number)

    async def measure() -> LinkProfile:
        prober = Prober()
        shown = None if own is None else lambda: channel_credentials(own.material())
        upstream = Upstream(who.node, [(target, above.grpc)], prober, shown, who.federation)
        return await prober.measure(upstream)

    return asyncio.run(measure())


def read_profile(path: Path) -> NodeProfile:
    """A node's profile from its file. Raises DelianError."""
    from ...core.placement.cut.profile import BYTES_MAX, NodeProfile

    try:
        with path.open("rb") as stream:
            content = stream.read(BYTES_MAX + 1)
    except OSError as error:
        raise DelianError(
            f"{path}: cannot be read: {error.strerror}", "delian profile --out writes one"
        ) from None
    return NodeProfile.from_json(content, str(path))


def memory_limit(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Bytes that this process may have.

    What is available, or the least limit of its control group and those around it where that is
    less (Linux, both versions); None where neither is known.
    """
    found = []
    files = [groups / "memory.max", groups / "memory" / "memory.limit_in_bytes"]
    for line in _text(proc / "self" / "cgroup").splitlines():
        _, kinds, own = [*line.split(":", 2), "", ""][:3]
        inside = Path(own.lstrip("/"))
        for folder in (inside, *inside.parents):
            if not kinds:  # version 2
                files.append(groups / folder / "memory.max")
            elif "memory" in kinds.split(","):
                files.append(groups / "memory" / folder / "memory.limit_in_bytes")
    for path in files:
        text = _text(path)
        if text.isdigit():
            found.append(int(text))
    for line in _text(proc / "meminfo").splitlines():
        words = line.split()
        if len(words) > 1 and words[0] == "MemAvailable:" and words[1].isdigit():
            found.append(int(words[1]) * 1024)
    return min(found, default=None)


def facts_of(made: NodeProfile) -> dict[str, Any]:
    """What is said of a profile."""
    from ...core.placement.cut.costs import amount

    classes = {}
    for kind, samples in made.samples.items():
        rates = sorted(amount(kind, s.sizes) / s.seconds / 1e9 for s in samples)
        classes[kind] = {
            "samples": len(rates),
            "least": rates[0],
            "median": rates[len(rates) // 2],
            "most": rates[-1],
        }
    return {
        "name": made.name,
        "cpu": made.cpu,
        "date": made.date,
        "digest": made.digest(),
        "classes": classes,
        "functions_ns": {k: 1e9 * v for k, v in sorted(made.element_s.items())},
        "bandwidth": made.bandwidth,
        "memory": made.memory,
        "call_us": 1e6 * made.call_s,
        "argument_us": 1e6 * made.argument_s,
        "encode_ns": {k: 1e9 * v for k, v in made.encode_s.items()},
        "programs": {h: sum(times) for h, times in made.programs.items()},
    }


def _infer(file: Path) -> Function:
    from ...core.learning.bundle import load

    function = load(file).programs.get("infer")
    if function is None:
        raise DelianError(f"{file} has no program `infer`")
    return function


def _lines(facts: dict[str, Any], out: Path | None) -> list[str]:
    rows: list[Sequence[object]] = []
    for kind, rates in facts["classes"].items():
        unit = "GFLOP/s" if kind in _ARITHMETIC else "GB/s" if kind == "move" else "G elements/s"
        figures = [f"{rates[k]:.3g}" for k in ("least", "median", "most")]
        rows.append((kind.replace("_", " "), *figures, unit, rates["samples"]))
    lines = [f"{facts['name']}: {facts['cpu']}"]
    lines += table(("class", "least", "median", "most", "", "sizes"), rows)
    told = ", ".join(f"{k} {v:.2g}" for k, v in facts["functions_ns"].items() if "." not in k)
    lines.append(f"functions, ns an element: {told}")
    limit = "not known" if facts["memory"] is None else f"{facts['memory'] / 2**30:.1f} GiB"
    lines.append(f"memory: {facts['bandwidth'] / 1e9:.1f} GB/s, limit {limit}")
    lines.append(f"a call: {facts['call_us']:.1f} us, {facts['argument_us']:.2f} us an argument")
    lines += [f"infer {h[:12]}: {1e3 * s:.3f} ms" for h, s in facts["programs"].items()]
    return [*lines, *([str(out)] if out is not None else [])]


def _say(terminal: bool) -> Any:
    """Shows progress on one line of a terminal; prints nothing elsewhere."""

    def say(text: str) -> None:
        if terminal:
            show_progress(text)

    return say


def _host() -> str:
    import platform

    return platform.node() or "node"


def _text(path: Path) -> str:
    try:
        with path.open("rb") as stream:
            return stream.read(1 << 16).decode("utf-8", "replace").strip()
    except OSError:
        return ""
