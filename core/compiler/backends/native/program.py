"""Compiled programs: built or found in the cache, loaded, called without the interpreter's lock.

Many threads may call one program at once. Each thread has one arena, as large as its largest
program needed, that all programs use in turn: nothing in it outlives a call.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ....common.aligned_arrays import ALIGNMENT
from ....common.errors import DelianError
from ...ir import Array, Function, ListType, TensorType
from ...ir_codec import content_hash
from ..reference import check_arguments, check_out
from . import thread_pool
from .toolchain import artifact, cache, tuning
from .toolchain.artifact import Assembled, Entry, Facts
from .toolchain.toolchain import Toolchain

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Memory that the lists of one call may take; $DELIAN_LIST_BYTES_MAX is another limit.
LIST_BYTES_MAX = 4 << 30
_NOT_LOADED = (
    "delete it and it is made again; from a folder from which nothing may be run (noexec) none"
    " loads: set DELIAN_CACHE to another"
)


@dataclass(frozen=True, slots=True)
class Report:
    """What a compiled program is made of."""

    arena_bytes: int
    """Working memory of one call."""
    tensor_bytes: int
    """What its tensors would take if none shared memory."""
    groups: int
    """Number of fused loops."""
    calls: int
    """Number of other steps."""
    library: Path
    """The shared object; in the cache the C next to it has the suffix .c."""


class _Thread(threading.local):
    """The arena of a thread: its memory and its first aligned address."""

    def __init__(self) -> None:
        self.memory: Array = np.empty(0, np.uint8)
        self.address = 0

    def arena(self, size: int) -> int:
        if size + ALIGNMENT > self.memory.size:
            self.memory = np.empty(0, np.uint8)  # free the old one first
            self.memory = np.empty(size + ALIGNMENT, np.uint8)
            start = self.memory.ctypes.data
            self.address = start + -start % ALIGNMENT
        return self.address


_thread = _Thread()
_BYTE = ctypes.c_char


class NativeProgram:
    """A function that runs as machine code. Safe to call from several threads at once.

    threads: how many one call may use, itself included; $DELIAN_THREADS or 1 unless it is set. The
    results are the same bit for bit.
    """

    def __init__(
        self,
        function: Function,
        library: ctypes.CDLL,
        path: Path,
        entry: Entry,
        constants: Sequence[Array] = (),
    ) -> None:
        self.function = function
        self._library = library
        try:
            self._entry = getattr(library, entry.symbol)
        except AttributeError:
            raise DelianError(f"{path} has no {entry.symbol}: it is damaged", _NOT_LOADED) from None
        self._entry.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_int64]
        self._entry.restype = ctypes.c_int
        self.report = Report(entry.arena_bytes, entry.tensor_bytes, entry.groups, entry.calls, path)
        self._constants = tuple(constants)
        assert len(constants) == len(entry.constants), "the constants are the entry's"
        self._types = [_layout(t) for t in function.param_types]
        self.layouts = [_layout(t) for t in function.result_types]
        self._arguments = ctypes.c_void_p * (len(self._types) + len(self._constants))
        self._buffers = ctypes.c_void_p * len(self.layouts)
        self.constant_pointers = tuple(c.ctypes.data for c in self._constants)
        self.donated = dict(entry.donated)
        self._arena_bytes = self.report.arena_bytes
        self._has_lists = entry.lists
        self.threads = thread_pool.wanted()

    def __call__(self, *args: Array, out: Sequence[Array] | None = None) -> tuple[Array, ...]:
        """Runs it. Results are new arrays, or written into `out`, which no argument may overlap.

        A donated argument is overwritten by the result that takes its memory, and is returned as
        that result. Raises DelianError when an argument or a buffer does not fit, or when lists
        outgrow $DELIAN_LIST_BYTES_MAX.
        """
        arrays = self._check(args)
        if out is None:
            results = self._new_results(arrays)
        else:
            if not all(map(_is_buffer, out, self.layouts)) or len(out) != len(self.layouts):
                check_out(self.function, out)
            results = tuple(out)
        pointers = [_address(a) for a in arrays]
        targets = [_address(r) for r in results]
        if out is not None:
            self._refuse_overlap(arrays, pointers, results, targets)
            for i, j in self.donated.items():
                results[j][...] = arrays[i]
        limit = self.list_bytes_max()
        given = (
            self._arguments(*pointers, *self.constant_pointers),
            self._buffers(*targets),
            _thread.arena(self._arena_bytes),
            limit,
        )
        code = self._entry(*given) if self.threads == 1 else self._parallel(*given)
        if code:
            raise DelianError(
                f"{self.function.name}: its lists outgrew {limit} bytes of memory",
                "a loop saves too much for its derivative: run fewer rounds, or raise"
                " DELIAN_LIST_BYTES_MAX",
            )
        return results

    def list_bytes_max(self) -> int:
        """Memory that the lists of a call may take."""
        if not self._has_lists:
            return LIST_BYTES_MAX
        limit = int(os.environ.get("DELIAN_LIST_BYTES_MAX", LIST_BYTES_MAX))
        return min(limit, sys.maxsize)  # of a 32-bit machine

    @property
    def entry_address(self) -> int:
        """Where the program's function is."""
        return ctypes.cast(self._entry, ctypes.c_void_p).value or 0

    def arena(self, size: int) -> int:
        """The address of this thread's working memory, of so many bytes at least."""
        return _thread.arena(size)

    def _parallel(self, *given: Any) -> int:
        """The call on several threads, where there are any."""
        threads = thread_pool.checked(self.threads)
        workers = thread_pool.pool()
        if workers is None or not workers.serve(self._library):
            return int(self._entry(*given))
        workers.ensure(threads)
        entry = ctypes.cast(self._entry, ctypes.c_void_p)
        return int(workers.call(entry, *given, threads))

    def _new_results(self, arrays: Sequence[Array]) -> tuple[Array, ...]:
        """Memory for the results: that of donated arguments, where it can be written, else new."""
        results = [
            None if j in self.donated.values() else np.empty(shape, dtype)
            for j, (dtype, shape) in enumerate(self.layouts)
        ]
        for i, j in self.donated.items():
            results[j] = arrays[i] if arrays[i].flags.writeable else arrays[i].copy()
        return tuple(results)  # type: ignore[arg-type]

    def _check(self, args: Sequence[Any]) -> list[Array]:
        """The arguments as arrays stored row by row."""
        arrays = []
        if len(args) == len(self._types):
            for arg, (dtype, shape) in zip(args, self._types, strict=True):
                if type(arg) is not np.ndarray or arg.dtype != dtype or arg.shape != shape:
                    break
                arrays.append(arg if arg.flags.c_contiguous else np.ascontiguousarray(arg))
            else:
                return arrays
        args = [np.asarray(a) if isinstance(a, np.generic) else a for a in args]
        check_arguments(self.function, args)
        return [np.asarray(a, order="C") for a in args]

    def _refuse_overlap(
        self,
        arrays: Sequence[Array],
        pointers: Sequence[int],
        out: Sequence[Array],
        targets: Sequence[int],
    ) -> None:
        """Results are written while arguments are still read."""
        spans = [(p, p + a.nbytes, -1) for p, a in zip(pointers, arrays, strict=True)]
        spans += [(p, p + a.nbytes, i) for i, (p, a) in enumerate(zip(targets, out, strict=True))]
        end = end_out = 0  # where the furthest so far ends, and the furthest buffer
        owner_out = -1
        for start, stop, i in sorted(spans):
            if start < (end if i >= 0 else end_out) and stop > start:
                buffer = i if i >= 0 else owner_out
                name = self.function.result_names[buffer]
                raise DelianError(
                    f"{self.function.name}: out[{buffer}] ({name}) overlaps an argument or"
                    " another buffer",
                    "give result buffers memory of their own",
                )
            end = max(end, stop)
            if i >= 0 and stop > end_out:
                end_out, owner_out = stop, i


def _layout(type_: Any) -> tuple[np.dtype[Any], tuple[int, ...]]:
    assert isinstance(type_, TensorType), "an entry takes and gives tensors"
    return type_.dtype.numpy, type_.shape


def _is_buffer(array: Any, layout: tuple[np.dtype[Any], tuple[int, ...]]) -> bool:
    """Whether a result of this type and shape can be written there."""
    if type(array) is not np.ndarray or (array.dtype, array.shape) != layout:
        return False
    flags = array.flags
    return bool(flags.c_contiguous and flags.writeable)


def _address(array: Array) -> int:
    """Where an array's memory begins."""
    if array.flags.writeable and array.size and array.dtype.isbuiltin == 1:
        # A third of the time of `array.ctypes.data`.
        return ctypes.addressof(_BYTE.from_buffer(array))  # type: ignore[arg-type]
    return int(array.ctypes.data)


def compile_native(
    functions: Mapping[str, Function],
    toolchain: Toolchain,
    strict: bool = False,
    threads: int | None = None,
) -> dict[str, NativeProgram]:
    """Compiles functions into one shared object, or finds it in the cache, and loads it.

    `strict`: every operation is rounded, so that no product and sum become one instruction.
    threads: as in `NativeProgram`.
    Raises DelianError when a function takes or gives a list, or the compiler fails.
    """
    if threads is not None:
        thread_pool.checked(threads)
    path, facts = compiled_object(functions, toolchain, strict)
    try:
        programs = load_object(functions, path, facts)
    except DelianError:
        if path.exists():
            raise
        # The cache was cleared between the two.
        programs = load_object(functions, *compiled_object(functions, toolchain, strict))
    if threads is not None:
        for program in programs.values():
            program.threads = threads
    return programs


def compiled_object(
    functions: Mapping[str, Function], toolchain: Toolchain, strict: bool = False
) -> tuple[Path, Facts]:
    """The shared object of functions, built or cached, with its facts. Raises DelianError."""
    _refuse_lists(functions)
    toolchain, key = _keyed([content_hash(f) for f in functions.values()], toolchain, strict)

    def source() -> Assembled:
        from .assemble import assembled

        return assembled(functions, toolchain, strict)

    return cache.shared_object(key, toolchain, source)


def stored_object(hashes: Sequence[str], toolchain: Toolchain) -> Path | None:
    """The cached shared object of functions with these content hashes; compiles nothing."""
    return cache.stored_object(_keyed(hashes, toolchain, False)[1])


def _keyed(hashes: Sequence[str], toolchain: Toolchain, strict: bool) -> tuple[Toolchain, str]:
    """The compiler with what was found to be fastest, and the object's key."""
    toolchain = tuning.applied(toolchain, hashes)
    return toolchain, cache.key_of(toolchain, _key_rows(hashes, strict))


def load_object(
    functions: Mapping[str, Function], path: Path, facts: Facts
) -> dict[str, NativeProgram]:
    """The programs of an object whose entries are those functions, in order."""
    library = _load(str(path))
    constants = artifact.constants_of(path, facts)
    programs = zip(functions.items(), facts.entries, constants, strict=True)
    return {
        name: NativeProgram(function, library, path, entry, arrays)
        for (name, function), entry, arrays in programs
    }


def _key_rows(hashes: Sequence[str], strict: bool) -> list[tuple[str, str]]:
    rows = [(f"{i}", h) for i, h in enumerate(hashes)]
    return [*rows, ("strict", "")] if strict else rows


def load_artifacts(
    functions: Mapping[str, Function],
    paths: Iterable[Path],
    hashes: Mapping[str, str] | None = None,
    strict: bool = False,
) -> dict[str, NativeProgram]:
    """Those of the functions that are in artifacts.

    Each is looked for by its content hash, in the order of the paths. hashes: these hashes by name,
    where they are known. Raises ArtifactError for an artifact that is damaged, and for one that has
    some of the functions but was built for another machine or another Delian.
    """
    _refuse_lists(functions)
    if hashes is None:
        hashes = {name: content_hash(f) for name, f in functions.items()}
    found: dict[str, NativeProgram] = {}
    for path in paths:
        facts = artifact.read(path)
        entries = {e.program: e for e in facts.entries}
        here = [n for n in functions if n not in found and hashes[n] in entries]
        if not here or facts.strict is not strict:
            continue
        artifact.check(facts, str(path))
        constants = artifact.constants_of(path, facts)
        try:
            library = _load(str(path.absolute()))
            for name in here:
                entry = entries[hashes[name]]
                mine = constants[facts.entries.index(entry)]
                found[name] = NativeProgram(functions[name], library, path, entry, mine)
        except DelianError as error:
            todo = f"build {path} again, and keep it where files may be run (not noexec)"
            raise artifact.ArtifactError(error.message, todo) from None
    return found


def _refuse_lists(functions: Mapping[str, Function]) -> None:
    for name, function in functions.items():
        if any(isinstance(t, ListType) for t in (*function.param_types, *function.result_types)):
            raise DelianError(
                f"{name} takes or gives a list, which stays within a native program",
                'run it with backend="reference"',
            )


@functools.cache
def _libm() -> None:
    """Makes libm's functions visible to programs, which are linked with no library."""
    if sys.platform.startswith("linux"):
        try:
            ctypes.CDLL("libm.so.6", ctypes.RTLD_GLOBAL)
        except OSError:  # musl has them in libc, which is there already
            return


def _load(path: str) -> ctypes.CDLL:
    _libm()
    try:
        return ctypes.CDLL(path)
    except OSError as error:
        raise DelianError(f"a compiled program does not load: {error}", _NOT_LOADED) from error
