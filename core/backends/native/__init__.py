"""The native back end: a program as machine code, by way of one readable C file.

    passes.fuse    block -> loops and calls, in order           emit, loops, kernels, control, lists
    passes.memory  tensors -> places in one arena         =>    write them as C, over the headers *.h
                                                                cache, toolchain build it
                                                                program loads and calls it

The C of a program lies beside its shared object, `program.report.library`, to be read.
"""
