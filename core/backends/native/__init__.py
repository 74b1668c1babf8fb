"""The native back end: a program as machine code, by way of one readable C file.

    passes.fuse     a block becomes loops and calls, in the order they run
    passes.memory   tensors get places: parameters, result buffers, one arena
    emit            writes both as C: `loops`, `kernels`, `control`, `lists`, over the headers *.h
    cache           names the shared object by its content; `toolchain` builds it
    program         loads and calls it

The C of a program lies beside its shared object, `program.report.library`, to be read.
"""
