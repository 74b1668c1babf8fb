"""The front end: Python source to typed IR. `trace` is its door.

    inspect + ast -> HIR (`syntax`, `escapes`, `liveness`; once a function)
                  -> abstract interpretation (`specialise`, `control`; once a kind of argument) ->
                  IR

Its vocabulary is NumPy's (`vocabulary`).
"""

from .flow.unroll_limits import LoopWanted
from .tracing import trace

__all__ = ["LoopWanted", "trace"]
