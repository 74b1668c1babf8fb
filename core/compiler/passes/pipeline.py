"""The compiler's passes, in the order in which they run.

    INDEPENDENT   what every program goes through, for any back end (`pass_manager`)
    NATIVE        what the native back end does to a program before it fuses and emits it

`delian ir passes` lists them, `delian ir show --after NAME` shows a program after one of them.
"""

from __future__ import annotations

from ..ir import DType, Function
from .lowering.attention_products import decompose_attention
from .lowering.element_selects import convert_branches_to_selects
from .lowering.elementwise_slopes import fuse_elementwise_derivatives
from .lowering.empty_products import fold_empty_reductions
from .lowering.grouped_convolutions import split_grouped_convolutions
from .lowering.half_storage import widen_halves
from .lowering.known_numbers import fold_known_ranges
from .lowering.loop_products import batch_loop_products
from .lowering.loop_registers import promote_elements_to_scalars
from .lowering.loop_splits import split_loops
from .lowering.mask_recompute import rematerialize_masks
from .lowering.pointwise_convolutions import pointwise_convolutions_to_products
from .lowering.private_expansions import rematerialize_expansions
from .lowering.scalar_tensors import scalarize
from .lowering.single_term_sums import fold_single_term_sums
from .lowering.stacked_lists import lists_to_tensors
from .lowering.vector_lanes import vectorize_short_axes
from .lowering.window_maxima import expand_pool_windows
from .pass_manager import INDEPENDENT, Pass, on_body, run
from .simplify import simplify

#: Products in f64 stand for the profile whose bits are those of every back end: their order stays.
_BATCHED = frozenset([DType.F32])

_LOOPS = (
    Pass(
        "fold-known-ranges",
        fold_known_ranges,
        "An integer or boolean with one possible value becomes a constant.",
    ),
    Pass(
        "convert-branches-to-selects",
        convert_branches_to_selects,
        "If-conversion: a branch that changes one element of an array becomes a select.",
    ),
    Pass(
        "promote-elements-to-scalars",
        promote_elements_to_scalars,
        "Scalar replacement: an element that a loop changes in place becomes a scalar carry.",
    ),
    Pass(
        "split-loops",
        split_loops,
        "Index-set splitting: a loop is split where it writes an element that it reads each trip.",
    ),
    Pass(
        "lists-to-tensors",
        on_body(lists_to_tensors),
        "A list of known length that loops push and pop becomes a tensor.",
    ),
    Pass(
        "batch-loop-products",
        on_body(lambda body: batch_loop_products(body, _BATCHED)),
        "Matrix products of all trips of a loop become one product outside the loop.",
    ),
)
NATIVE = (
    INDEPENDENT[0],
    Pass(
        "fold-empty-reductions",
        fold_empty_reductions,
        "A sum or product over no terms becomes zeros.",
    ),
    Pass(
        "widen-halves",
        widen_halves,
        "f16 and bf16 are storage types: operations on them are done in f32.",
    ),
    Pass(
        "decompose-attention",
        lambda function: decompose_attention(function, DType.F32),
        "Attention in types without a kernel becomes products, sums and exponentials.",
    ),
    Pass(
        "split-grouped-convolutions",
        split_grouped_convolutions,
        "A grouped convolution becomes dense or depthwise convolutions.",
    ),
    Pass(
        "pointwise-convolutions-to-products",
        pointwise_convolutions_to_products,
        "A 1x1 convolution becomes a matrix product.",
    ),
    *_LOOPS,
    Pass(
        "simplify-loops",
        on_body(simplify),
        "`simplify` once more, where a pass on loops changed something.",
        changed_by=tuple(each.name for each in _LOOPS),
    ),
    Pass(
        "fuse-elementwise-derivatives",
        fuse_elementwise_derivatives,
        "The derivative of a chain of elementwise functions becomes one factor.",
    ),
    Pass(
        "fold-single-term-sums",
        fold_single_term_sums,
        "A sum of which all terms but one are known to be zero becomes that term.",
    ),
    Pass(
        "vectorize-short-axes",
        vectorize_short_axes,
        "A short innermost axis is collapsed into a longer one, so that loops fill vectors.",
    ),
    Pass(
        "expand-pool-windows",
        expand_pool_windows,
        "A small pooling window becomes elementwise maxima, with what its gradient reads.",
    ),
    Pass(
        "rematerialize-masks",
        rematerialize_masks,
        "A comparison is computed again where it is read, instead of stored.",
    ),
    Pass(
        "rematerialize-expansions",
        rematerialize_expansions,
        "A weight in few bits is widened again for each product, while it is packed.",
    ),
    Pass("scalarize", scalarize, "Arithmetic on tensors of one element becomes scalar arithmetic."),
)
#: Every pass once, in the order of a program's way to native code.
PIPELINE: tuple[Pass, ...] = (*INDEPENDENT, *NATIVE[1:])


def lowered(function: Function) -> Function:
    """The function as the native back end fuses and emits it."""
    return run(function, NATIVE)
