"""What a program becomes before it is fused: the same, in operations that the back end is good at.

The passes run in this order: custom derivatives go, sums without terms become zeros, halves are
widened, attention on f64 becomes products and sums, convolutions in groups become dense or
depthwise ones, those of single pixels products, numbers with one value constants, branches that
change one number choices, numbers that a loop changes in one place of an array carries, loops are
cut where they change what they read, lists of known length tensors, and products of all trips of a
loop one product; then the whole is simplified once more. Last, derivatives of elementwise functions
become one factor each, sums that follow from others go, short innermost axes become parts of longer
ones, windows of pools are written out, masks are made again where they are read, and tensors of one
element become numbers.
"""

from __future__ import annotations

from ...ir import DType, Function
from ...passes.lowering.attention_products import compose_attention
from ...passes.lowering.element_selects import changes_chosen
from ...passes.lowering.elementwise_slopes import slopes_as_factors
from ...passes.lowering.empty_products import empty_sums
from ...passes.lowering.grouped_convolutions import split_groups
from ...passes.lowering.half_storage import widen_halves
from ...passes.lowering.known_numbers import numbers_known
from ...passes.lowering.loop_products import gather_products
from ...passes.lowering.loop_registers import numbers_carried
from ...passes.lowering.loop_splits import loops_cut
from ...passes.lowering.mask_recompute import masks_again
from ...passes.lowering.pointwise_convolutions import pixels_to_products
from ...passes.lowering.scalar_tensors import one_element_numbers
from ...passes.lowering.single_term_sums import centred_sums
from ...passes.lowering.stacked_lists import lists_to_tensors
from ...passes.lowering.vector_lanes import fill_lanes
from ...passes.lowering.window_maxima import windows_written_out
from ...passes.simplify import simplify
from ...transforms.custom import expanded

#: Sums in f64 stand for the profile whose bits are those of every back end: their order stays.
_GATHERED = frozenset([DType.F32])


def lowered(function: Function) -> Function:
    """The function as it is fused and emitted. The same function gives the same every time."""
    function = compose_attention(widen_halves(empty_sums(expanded(function))), DType.F32)
    function = pixels_to_products(split_groups(function))
    cut = loops_cut(numbers_carried(changes_chosen(numbers_known(function))))
    body = gather_products(lists_to_tensors(cut.body), _GATHERED)
    if body is not function.body:
        function = function.with_body(simplify(body))
    function = centred_sums(slopes_as_factors(function))
    return one_element_numbers(masks_again(windows_written_out(fill_lanes(function))))
