"""What a node can do, as a file: how fast its kernels are, its memory, its energy.

Rates are kept as they were measured: a class of operations has samples, each the sizes of one
operation and the seconds that it took through the real kernels (`measure`). What lies between the
samples `costs` works out. A profile may also hold the times of whole programs, operation by
operation, by the program's content hash: these are used as they are.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ...common.errors import DelianError

FORMAT = 1
#: A profile is some kilobytes, and a hundred for each program that was timed in it.
BYTES_MAX = 16 << 20
_SAMPLES_MAX = 10_000
_PROGRAMS_MAX = 256
_OPS_MAX = 1_000_000
TEXT_MAX = 256

#: The classes of operations that have samples, each with what the numbers of its sizes are.
CLASSES: Mapping[str, tuple[str, ...]] = {
    # [rows, depth] times [depth, columns]; how many of them in a batch.
    "product": ("rows", "depth", "columns", "batch"),
    # Pixels that come out, channels in and out, height times width of the window.
    "convolution": ("pixels", "inputs", "outputs", "window"),
    "convolution_back": ("pixels", "inputs", "outputs", "window"),
    "depthwise": ("pixels", "channels", "window"),
    "depthwise_back": ("pixels", "channels", "window"),
    # Elements of a fused loop, how far its innermost loop runs, operations and numbers read or
    # written an element. A tile's are those of a product. With reductions: over the innermost loop,
    # or over outer ones alone.
    "loop": ("elements", "inner", "units"),
    "tile": ("elements", "units"),
    "rows": ("elements", "inner", "units"),
    "columns": ("elements", "inner", "units"),
    # Bytes of what is gathered, joined or copied.
    "move": ("bytes",),
}


@dataclass(frozen=True, slots=True)
class Sample:
    """One operation that was measured: its sizes, as its class names them, and its seconds."""

    sizes: tuple[float, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class NodeProfile:
    """A node."""

    name: str
    """Whatever its owner calls it."""
    cpu: str
    """The processor's name."""
    date: str
    """When it was measured, ISO 8601."""
    threads: int
    """How many one call used."""
    samples: Mapping[str, tuple[Sample, ...]]
    """By class (`CLASSES`), what was measured."""
    element_s: Mapping[str, float]
    """By the name of an elementwise function (exp, div...), the seconds that it adds to each
    element of a fused loop.
    """
    bandwidth: float
    """Of memory beyond the caches, bytes a second, read and written together."""
    memory: int | None
    """Bytes that a part may take, weights and working memory; None: not known."""
    call_s: float
    """Seconds that calling a program takes in addition to its steps."""
    argument_s: float
    """Seconds that a call takes for each argument."""
    encode_s: Mapping[str, float]
    """By wire ("f32", "f16", "i8"), seconds that a value's byte in f32 takes to encode and decode
    once.
    """
    joules_per_second: float | None = None
    """Of the processor at work; None: energy is not known."""
    joules_per_byte: float | None = None
    """Of its radio, a byte sent or received; None: energy is not known."""
    programs: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """By content hash, the seconds of each operation of that program's body, in order."""

    def scaled(self, factor: float, name: str = "") -> NodeProfile:
        """A node that takes `factor` times as long for everything: for tests and simulations."""
        samples = {
            c: tuple(Sample(s.sizes, s.seconds * factor) for s in found)
            for c, found in self.samples.items()
        }
        return replace(
            self,
            name=name or self.name,
            samples=samples,
            element_s={k: v * factor for k, v in self.element_s.items()},
            bandwidth=self.bandwidth / factor,
            call_s=self.call_s * factor,
            argument_s=self.argument_s * factor,
            encode_s={k: v * factor for k, v in self.encode_s.items()},
            programs={h: tuple(s * factor for s in t) for h, t in self.programs.items()},
        )

    def with_more(
        self, samples: Mapping[str, tuple[Sample, ...]], element_s: Mapping[str, float]
    ) -> NodeProfile:
        """The profile with samples of more classes, and with the seconds of functions."""
        return replace(self, samples={**self.samples, **samples}, element_s=dict(element_s))

    def with_energy(
        self, joules_per_second: float | None, joules_per_byte: float | None
    ) -> NodeProfile:
        """The profile with what its processor and its radio take."""
        return replace(self, joules_per_second=joules_per_second, joules_per_byte=joules_per_byte)

    def with_program(self, content_hash: str, seconds: tuple[float, ...]) -> NodeProfile:
        """The profile with the times of one more program."""
        return replace(self, programs={**self.programs, content_hash: seconds})

    def to_json(self) -> str:
        body = {
            "format": FORMAT,
            "name": self.name,
            "cpu": self.cpu,
            "date": self.date,
            "threads": self.threads,
            "samples": {
                c: [[*s.sizes, s.seconds] for s in found] for c, found in self.samples.items()
            },
            "element_s": dict(self.element_s),
            "bandwidth": self.bandwidth,
            "memory": self.memory,
            "call_s": self.call_s,
            "argument_s": self.argument_s,
            "encode_s": dict(self.encode_s),
            "joules_per_second": self.joules_per_second,
            "joules_per_byte": self.joules_per_byte,
            "programs": {h: list(t) for h, t in self.programs.items()},
        }
        return json.dumps(body, sort_keys=True, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes, where: str = "profile") -> NodeProfile:
        """Reads what `to_json` wrote.

        It may come from another machine: sizes are limited. Raises DelianError, naming `where`, for
        anything else.
        """
        body = read_object(text, BYTES_MAX, FORMAT, where, "measure it with delian profile")
        try:
            return _profile(body)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise DelianError(
                f"{where}: not a node's profile: {reason(error)}", "measure it with delian profile"
            ) from None

    def digest(self) -> str:
        """SHA-256 of the profile, in hexadecimal."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()


def read_object(
    text: str | bytes, bytes_max: int, version: int, where: str, hint: str
) -> dict[str, Any]:
    """A JSON object of a format's version. Raises DelianError for anything else."""
    if len(text) > bytes_max:
        raise DelianError(f"{where}: more than {bytes_max} bytes", hint)
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DelianError(f"{where}: not JSON: {error}", hint) from None
    if not isinstance(body, dict) or body.get("format") != version:
        raise DelianError(f"{where}: not of format {version}", hint)
    return body


def reason(error: Exception) -> str:
    """What is wrong with an object, in words."""
    return f"`{error.args[0]}` is missing" if isinstance(error, KeyError) else str(error)


def _profile(body: Mapping[str, Any]) -> NodeProfile:
    samples = {c: _samples(c, rows) for c, rows in _most(body["samples"], len(CLASSES)).items()}
    programs = {
        _text(h): tuple(_positive(s, zero=True) for s in _most(t, _OPS_MAX))
        for h, t in _most(body["programs"], _PROGRAMS_MAX).items()
    }
    memory = body["memory"]
    joules = [body["joules_per_second"], body["joules_per_byte"]]
    return NodeProfile(
        name=_text(body["name"]),
        cpu=_text(body["cpu"]),
        date=_text(body["date"]),
        threads=int(body["threads"]),
        samples=samples,
        element_s=_numbers(body["element_s"]),
        bandwidth=_positive(body["bandwidth"]),
        memory=None if memory is None else int(_positive(memory)),
        call_s=_positive(body["call_s"], zero=True),
        argument_s=_positive(body["argument_s"], zero=True),
        encode_s=_numbers(body["encode_s"]),
        joules_per_second=None if joules[0] is None else _positive(joules[0], zero=True),
        joules_per_byte=None if joules[1] is None else _positive(joules[1], zero=True),
        programs=programs,
    )


def _samples(name: str, rows: Any) -> tuple[Sample, ...]:
    if name not in CLASSES:
        raise ValueError(f"there is no class of operations {name[:TEXT_MAX]}")
    return tuple(_sample(CLASSES[name], row) for row in _most(rows, _SAMPLES_MAX))


def _sample(sizes: tuple[str, ...], row: Any) -> Sample:
    *numbers, seconds = [_positive(x) for x in _most(row, len(sizes) + 1)]
    if len(numbers) != len(sizes):
        raise ValueError(f"a sample has {', '.join(sizes)} and its seconds")
    return Sample(tuple(numbers), seconds)


def _numbers(body: Any) -> dict[str, float]:
    return {_text(k): _positive(v, zero=True) for k, v in _most(body, _SAMPLES_MAX).items()}


def _most(body: Any, count: int) -> Any:
    if not isinstance(body, list | dict) or len(body) > count:
        raise ValueError(f"a list of at most {count} is expected")
    return body


def _positive(value: Any, zero: bool = False) -> float:
    number = float(value)
    if not math.isfinite(number) or number < 0 or (number == 0 and not zero):
        raise ValueError(f"{value} is no positive number")
    return number


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > TEXT_MAX:
        raise ValueError(f"a text of at most {TEXT_MAX} characters is expected")
    return value
