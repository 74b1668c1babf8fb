"""What a bundle can disclose, as facts: its programs, inputs and outputs, and dependences.

Everything here follows from the bundle's manifest and programs. What follows from a run's plan
(masks, the size of a cohort, noise that was signed) is not in a bundle.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ...common.errors import DelianError, line_of
from ...common.printable import escaped
from ...compiler.primitives.control import block_cost
from ..bundle import WINDOW_PROGRAMS, Bundle
from .dependence import Analysis, Choice, Dependence, analyse
from .interface import Kind, Port, Ports, ports_of
from .keys import NAME_CHARS_MAX, check_keys

#: Where programs run, in the order in which they are explained.
DEVICE = (
    *("client_update", "evaluate", "personalise", "client_state", "infer"),
    *WINDOW_PROGRAMS,
)
COORDINATOR = ("init", "server_update")
#: What leaves a device, and how; all else that its programs give stays there.
LEAVES = {
    ("client_update", Kind.UPDATE): "sent, as numbers of the ring",
    ("client_update", Kind.FINITE): "one bit: an update that is not finite is not sent",
    ("update_end", Kind.UPDATE): "sent, as numbers of the ring",
    ("update_end", Kind.FINITE): "one bit: an update that is not finite is not sent",
    ("evaluate", Kind.METRICS): "sent, as means over the device's rows",
}
#: An evaluation judges two models, the shared one and the device's own: so what is sent of it
#: depends on all that the device's own depends on. And the carry of a training by windows is what
#: its update is made of.
INNER = (("personalise", Kind.MODEL), ("update_begin", Kind.CARRY), ("update_chunk", Kind.CARRY))
#: Numbers of an evaluation: loss and accuracy of both models and a weight; of each metric of the
#: task's own two numbers for each model.
EVALUATION, EVALUATION_OWN = 5, 4
STAYS = "stays on the device"
#: Places that are named of a program.
LINES_MAX = 1_000


def explained(bundle: Bundle) -> dict[str, Any]:
    """Facts for JSON, texts escaped. Raises DelianError for programs unlike the manifest."""
    manifest = bundle.manifest
    programs = {
        name: _program(bundle, name) for name in (*DEVICE, *COORDINATOR) if name in bundle.programs
    }
    facts: dict[str, Any] = {
        "hash": bundle.content_hash(),
        "task": _text(manifest.task),
        "algorithm": _text(manifest.algorithm),
        "refused": _refused(bundle),
        "data": [_leaf(port) for port in _data(bundle)],
        "programs": programs,
    }
    if "client_update" in programs:
        ring = manifest.ring
        facts["update"] = {
            "numbers": manifest.dimension,
            "bytes": ring.nbytes,
            "clip": manifest.clip,
            "bits": manifest.bits,
            "clients_max": manifest.clients_max,
            "weight_max": manifest.weight_max,
            "noise": manifest.noise,
            "central": manifest.central,
            "rows": _rows(bundle),
        }
        facts["evaluation"] = EVALUATION + EVALUATION_OWN * len(manifest.metrics)
        facts["client_state"] = sum(leaf.size for leaf in manifest.client_state)
        facts["sent"] = _sent(programs)
    return facts


def _refused(bundle: Bundle) -> str | None:
    try:
        check_keys(bundle)
    except DelianError as error:
        return error.message
    return None


def _program(bundle: Bundle, name: str) -> dict[str, Any]:
    function, ports = bundle.programs[name], ports_of(bundle, name)
    found = analyse(function.body, ports.key)
    return {
        "runs": "device" if name in DEVICE else "coordinator",
        "operations": sum(1 for _ in function.body.walk()),
        "flops": block_cost(function.body),
        "inputs": _groups(ports.inputs),
        "outputs": _outputs(name, ports, found),
        "key": _key(ports, found),
        "choices": _lines(found.choices, ports),
        "loops": _loops(ports, found),
    }


def _key(ports: Ports, found: Analysis) -> str:
    if ports.key is None:
        return "none"
    return f"misused: {found.misuses[0].what}" if found.misuses else "random numbers only"


def _outputs(name: str, ports: Ports, found: Analysis) -> list[dict[str, Any]]:
    """The outputs of each kind together."""
    made = []
    for group in _groups(ports.outputs):
        kind = group["kind"]
        of = [
            dependence
            for port, dependence in zip(ports.outputs, found.outputs, strict=True)
            if port.kind == Kind(kind)
        ]
        stays = STAYS if name in DEVICE else "stays at the coordinator"
        made.append(
            {
                **group,
                "goes": LEAVES.get((name, Kind(kind)), stays),
                "leaves": (name, Kind(kind)) in LEAVES,
                **_depends(of, ports),
            }
        )
    return made


def _depends(of: Sequence[Dependence], ports: Ports) -> dict[str, Any]:
    return {
        "values": _kinds(ports, (i for d in of for i in d.values)),
        "selects": _kinds(ports, (i for d in of for i in d.selects)),
        "random": any(d.random for d in of),
        "random_selects": any(d.random_selects for d in of),
    }


def _kinds(ports: Ports, places: Iterable[int]) -> list[str]:
    found = {ports.inputs[i].kind for i in places}
    return [kind.value for kind in Kind if kind in found]


def _groups(ports: Sequence[Port]) -> list[dict[str, Any]]:
    """Ports of one kind together: how many, of how many numbers and bytes."""
    kinds = list(dict.fromkeys(port.kind for port in ports))
    made = []
    for kind in kinds:
        types = [port.type for port in ports if port.kind is kind]
        made.append(
            {
                "kind": kind.value,
                "tensors": len(types),
                "numbers": sum(t.size for t in types),
                "bytes": sum(t.nbytes for t in types),
            }
        )
    return made


def _lines(choices: Sequence[Choice], ports: Ports) -> list[dict[str, Any]]:
    """Choices of one source line together, those by data first."""
    lines: dict[str, list[Choice]] = {}
    for choice in choices:
        lines.setdefault(_text(line_of(choice.locs)), []).append(choice)
    made: list[dict[str, Any]] = [
        {
            "line": line,
            "operations": sorted({c.op for c in of}),
            "by": _kinds(ports, (i for c in of for i in c.inputs)),
            "random": any(c.random for c in of),
        }
        for line, of in lines.items()
    ]
    return sorted(made, key=lambda m: Kind.DATA.value not in m["by"])[:LINES_MAX]


def _loops(ports: Ports, found: Analysis) -> dict[str, Any]:
    counted = [loop for loop in found.loops if loop.op == "for"]
    fixed = [loop for loop in counted if not loop.inputs and not loop.random]
    return {
        "total": len(found.loops),
        "fixed": len(fixed),
        "open": len(found.loops) - len(counted),
        "depend": _kinds(ports, (i for loop in found.loops for i in loop.inputs)),
        "random": any(loop.random for loop in found.loops),
    }


def _data(bundle: Bundle) -> list[Port]:
    name = "client_update" if "client_update" in bundle.programs else "infer"
    return [p for p in ports_of(bundle, name).inputs if p.kind in (Kind.DATA, Kind.EXAMPLE)]


def _leaf(port: Port) -> dict[str, Any]:
    return {"name": _text(port.name), "type": str(port.type), "bytes": port.type.nbytes}


def _rows(bundle: Bundle) -> int:
    """How many rows of a device's data an update has room for, a number of one in a number."""
    rows = [leaf for leaf in bundle.manifest.data if len(leaf.shape) > 1 and leaf.shape[0]]
    if not rows:
        return 0
    largest = max(rows, key=lambda leaf: leaf.size)
    return bundle.manifest.dimension // max(1, largest.size // largest.shape[0])


def _sent(programs: dict[str, Any]) -> dict[str, bool]:
    """What all that leaves the device depends on, and can be chosen by."""
    leaving = [
        output
        for name in DEVICE
        if name in programs
        for output in programs[name]["outputs"]
        if output["leaves"] or (name, output["kind"]) in INNER
    ]
    data = {Kind.DATA.value, Kind.KEPT.value, Kind.CARRY.value}
    return {
        "number": False,
        "key": any(p["key"].startswith("misused") for p in programs.values()),
        "data": any(data & {*o["values"], *o["selects"]} for o in leaving),
        "data_selects": any(data & {*o["selects"]} for o in leaving),
        "random": any(o["random"] or o["random_selects"] for o in leaving),
        "random_selects": any(o["random_selects"] for o in leaving),
    }


def _text(text: str) -> str:
    return escaped(text[:NAME_CHARS_MAX])
