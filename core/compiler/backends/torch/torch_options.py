"""The name of a torch back end: a device, then switches.

torch:DEVICE[+SWITCH...]        torch:cpu   torch:cuda   torch:cuda:1+tf32+graphs   torch:npu

tf32            products of f32 matrices on CUDA's tensor cores, 10 bits of mantissa
bf16            products of f32 matrices in bf16, operands and results: 8 bits of mantissa
compile         regions without inner loops go through torch.compile: fewer, larger kernels
graphs          on CUDA: the body of an innermost loop is captured once and replayed
deterministic   the same bits each time on one machine; slower where atomics were faster
"""

from __future__ import annotations

from dataclasses import dataclass

from ....common.errors import DelianError

#: What a torch back end's name begins with.
PREFIX = "torch:"
DEVICES = ("cpu", "cuda", "npu")
SWITCHES = ("tf32", "bf16", "compile", "graphs", "deterministic")


@dataclass(frozen=True, slots=True)
class Options:
    """What a name says."""

    device: str
    """As torch spells it ("cuda:1"). The switches are as above."""
    tf32: bool = False
    bf16: bool = False
    compile: bool = False
    graphs: bool = False
    deterministic: bool = False

    @property
    def kind(self) -> str:
        """The device without its number."""
        return self.device.partition(":")[0]


def parse(backend: str) -> Options:
    """The options in a back end's name. Raises DelianError for unknown or conflicting ones."""
    device, *switches = backend.removeprefix(PREFIX).split("+")
    kind, colon, number = device.partition(":")
    if kind not in DEVICES or (colon and not number.isdecimal()):
        raise DelianError(
            f"there is no back end {backend!r}",
            f"torch's devices here are {', '.join(PREFIX + d for d in DEVICES)}",
        )
    for name in switches:
        if name not in SWITCHES:
            raise DelianError(
                f"the back end {backend!r} has no switch {name!r}",
                f"the switches are {', '.join(SWITCHES)}: torch:cuda+tf32+graphs",
            )
    options = Options(device, **dict.fromkeys(switches, True))
    if options.tf32 and options.bf16:
        raise DelianError(
            f"{backend!r}: products are in tf32 or in bf16, not both", "leave one out"
        )
    if options.graphs and options.kind != "cuda":
        raise DelianError(f"{backend!r}: graphs are CUDA's", "leave +graphs out")
    return options
