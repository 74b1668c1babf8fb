"""Compiled programs under AddressSanitizer and UndefinedBehaviorSanitizer, with hostile geometry.

    geometry   draws programs: each primitive of the table, with sizes at the corners
    build      writes their C, and a driver that gives them memory of exactly the size they ask for
    variants   the ways in which the headers are compiled: lanes, threads, plain C
    mutants    errors planted in the headers and the emitter, which a run must find

A program follows from its primitive and a seed. Every buffer of a program lies in memory of its
own: arguments and results in blocks of the heap, tensors and working memory in an arena in which
the gaps between them are poisoned. All arguments are hostile: indices at the ends of their types,
NaN, infinities, subnormal numbers. Results are not looked at here (`differential` judges those): a
program passes when it ends in time without a report of a sanitizer.

    cd tests
    python -m hostile                     # what .ci/run does: always the same seeds
    python -m hostile --minutes 10 --seed 7
    python -m hostile --primitive grouped_conv --seed 7 --show
"""
