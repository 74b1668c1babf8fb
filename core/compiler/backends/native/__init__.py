"""The native back end: a program as machine code, by way of one readable C file.

    passes.fuse     a block becomes loops and calls, in the order they run
    memory_plan     tensors get places: parameters, result buffers, one arena
    emit            writes both as C: `loops`, `kernels`, `control`, `lists`, over the headers *.h
    assemble        the C of several functions, and the facts of the object that it becomes
    cache           names the shared object by its content; `toolchain` builds it
    artifact        an object with its facts, read before it is opened; `targets` are machines
    program         loads and calls it

The C of a program is next to its shared object, `program.report.library`, to be read.
"""
