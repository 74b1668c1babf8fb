"""A differential oracle for the language: random whole programs, run by CPython with NumPy and by
the compiler. What differs and is not refused is a fault.

    program      a program's text, which follows from its number alone
    writer       draws constructs, trying each in CPython as it is written
    expressions, statements, control, functions, classes   the grammar: a row or a function each
    short        programs of one row: NumPy's functions, Python's statements, extreme numbers
    holes        what `<a>`, `<n>` and the others in a row are filled with
    judge        runs a program by both, and compares results, arguments and the module
    causes       differences that docs/language.md states: overflow, rounding
    shrink       the smallest program that still differs
    endless      a limit of processor time for a program
    campaign     many programs, in parts, counted by construct

    cd tests; python -m oracle --seeds 0:10000 --processes 2 --resume oracle.json
    python -m oracle --show 17        # one program
    python -m oracle --shrink 17      # what is left of it that differs

To extend the grammar, add a row to a table or a function with `@construct`; `!` marks what is
refused as a rule, so that few programs hold it.
"""
