"""Every primitive with operands worth trying, and what it must give, worked out another way.

A test takes the table by naming an argument `primitive_case`, or `smooth_case` for what can be
differentiated (see tests/support/program_fixtures.py); every back end runs the same ones.
"""

from __future__ import annotations

import numpy as np

from .attending import attention
from .base import Case
from .elementwise import binary, conversions, selections, unary
from .indexing import indexing
from .products import convolutions, grouped_convolutions, products, quantised, random_bits
from .reductions import orders, reductions
from .shapes import shapes
from .stacks import stacks
from .systems import systems


def table() -> list[Case]:
    """Every case, and again in f32 wherever there are f64 operands (stacks are typed f64)."""
    families = (
        *(unary, conversions, binary, selections, shapes, indexing, reductions, orders),
        *(products, attention, systems, convolutions, grouped_convolutions, quantised, random_bits),
    )
    cases = [case for family in families for case in family()]
    wide = [c for c in cases if any(a.dtype == np.float64 for a in c.args) and c.name != "convert"]
    narrow = [c.in_f32() for c in wide if c.name != "bitcast"]
    return [*cases, *narrow, *stacks()]


TABLE = table()
