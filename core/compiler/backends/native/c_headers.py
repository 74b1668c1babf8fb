"""The headers of a program's C."""

from __future__ import annotations

#: The headers, in the order in which they stand in the file, with what each needs.
HEADERS: dict[str, tuple[str, ...]] = {
    "vector": (),
    "pool": (),
    "elementwise": (),
    "integers": ("elementwise",),
    "reduce": (),
    "transpose": (),
    "narrow": (),
    "gemm": ("transpose", "pool", "dense"),
    "dense": (),
    "plain": (),
    "conv": ("gemm", "transpose", "plain", "pool"),
    "winograd": ("conv", "dense", "gemm", "transpose", "plain", "pool"),
    "expanded": ("gemm", "dense", "transpose", "pool"),
    "packed": ("gemm", "dense", "transpose", "pool"),
    "descent": ("gemm", "dense", "transpose", "pool"),
    "attention": ("gemm", "dense", "transpose", "pool", "reduce"),
    "depthwise": ("plain",),
    "qgemm": (),
    "order": (),
    "solve": (),
    "lists": (),
    "halves": (),
}
