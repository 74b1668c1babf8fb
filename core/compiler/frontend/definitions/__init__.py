"""NumPy's functions written in NumPy: what needs no rule of its own, since its parts have theirs.

Each is an ordinary function of the compiled language, named as NumPy names it. A call of NumPy's
function is a call of the one here, inlined; so it has derivatives of every order, runs on every
back end, and costs nothing where it is not used. They run as plain Python too.
"""
