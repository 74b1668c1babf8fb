"""The compiled kernels of masks and shares: built for this processor, checked, or done without.

`kernel.c` is compiled once by the C compiler that compiles programs, kept in the same cache, and
trusted only when its first masks equal those of `cryptography`. Where there is no compiler, or
anything fails, everything is computed without it, with the same results; that is logged once.
"""

from __future__ import annotations

import ctypes
import hashlib
import sys
from functools import cache

import numpy as np

from ...common.errors import DelianError
from .kdf import KEY_BYTES, stream

_pointer, _size, _int = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int
_SIGNATURES = {
    "dl_aes": ([], _int),
    "dl_mask": ([_pointer, _size, _size, _pointer, _pointer, _size, _int], _int),
    "dl_split": ([_pointer, _size, _int, _int, _pointer], None),
    "dl_combine": ([_pointer, _pointer, _size, _int, _pointer], None),
}


class Library:
    """The functions of `kernel.c`. The interpreter's lock is free while they run."""

    def __init__(self, path: str) -> None:
        loaded = ctypes.CDLL(path)
        for name, (arguments, result) in _SIGNATURES.items():
            function = getattr(loaded, name, None)
            if function is None:
                raise DelianError(f"{path} has no {name}", "delete it: it is made again")
            function.argtypes, function.restype = arguments, result
        self.mask = loaded.dl_mask
        self.split = loaded.dl_split
        self.combine = loaded.dl_combine
        #: Blocks of AES that one instruction does; 0: masks of suite 1 are not there.
        self.aes_blocks = (0, 1, 2, 4)[loaded.dl_aes()]


_ready: list[Library] = []


@cache
def library() -> Library | None:
    """The kernels, or None. The first call of a machine compiles, for a second or so."""
    try:
        found = _load()
    except (DelianError, OSError) as error:
        import logging

        log = logging.getLogger("delian.secagg")
        log.warning("secure aggregation without compiled code: %s", error)
        return None
    if found is not None:
        _ready.append(found)
    return found


def loaded() -> Library | None:
    """The kernels if `library` has already found them: for callers that cannot wait."""
    return _ready[0] if _ready else None


def _load() -> Library | None:
    # The compiler's package is large, and this one is imported where nothing is compiled.
    from importlib import resources

    from ...compiler.backends.native.toolchain import cache as store
    from ...compiler.backends.native.toolchain import toolchain
    from ...compiler.backends.native.toolchain.artifact import Assembled, Facts

    if sys.byteorder != "little":
        return None
    compiler = toolchain.find()
    if compiler is None:
        return None
    source = resources.files(__package__).joinpath("kernel.c").read_text(encoding="utf-8")
    digest = hashlib.sha256(f"{compiler.identity}\0{source}".encode())
    target = compiler.target
    facts = Facts(target.name, target.machine, compiler.identity, compiler.flags, "", ())
    path, _ = store.shared_object(digest.hexdigest(), compiler, lambda: Assembled(source, facts))
    found = Library(str(path))
    if not _is_right(found):
        raise DelianError(f"{path} computes something else than it should")
    return found


def _is_right(found: Library) -> bool:
    """Whether the kernels give known answers: a miscompiled one would break every sum."""
    words = 150
    for suite in (1, 2) if found.aes_blocks else (2,):
        key = bytes(range(KEY_BYTES))
        vector = np.zeros(words, np.uint32)
        sign = np.array([1], np.int8)
        found.mask(vector.ctypes.data, vector.nbytes, 64, key, sign.ctypes.data, 1, suite)
        if vector.tobytes() != stream(key, suite, 64).update(bytes(vector.nbytes)):
            return False
    # 0x53 + 0xca x in GF(2^8), at 1 and 2.
    shares = ctypes.create_string_buffer(2)
    found.split(b"\x53\xca", 1, 2, 2, shares)
    secret = ctypes.create_string_buffer(1)
    found.combine(b"\x01\x02", b"\x99\xdc", 1, 2, secret)
    return shares.raw == b"\x99\xdc" and secret.raw == b"\x53"
