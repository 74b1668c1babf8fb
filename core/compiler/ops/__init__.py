"""What NumPy lacks for learning: convolution, pooling, attention, losses. Public as `delian.ops`.

Every function takes and gives NumPy arrays and runs eagerly; inside a compiled function the same
source is inlined, so both give the same numbers and all have derivatives of any order. The few
that are primitives of the IR (`primitives`) run eagerly by their reference rule. Images are
[N, H, W, C], sequences [N, T, C], kernels [space..., inputs, outputs]. Random functions take a key.
"""

from typing import TYPE_CHECKING

from ...common.lazy_exports import exported, lazily

if TYPE_CHECKING:
    from ..intrinsics import *
    from .activations import *
    from .alignment import *
    from .boxes import *
    from .convolution import *
    from .dropout_masks import *
    from .gathers import *
    from .image_resize import *
    from .losses import *
    from .pooling import *
    from .quantised_weights import *
    from .rotary_positions import *
    from .scaled_attention import *
    from .vocabulary_losses import *

_NAMES = {
    ".intrinsics": "attend conv conv_input_grad dynamic_slice dynamic_update erf grouped_conv "
    "put_add sigmoid stop_gradient",
    "activations": "elu gelu glu hardsigmoid hardswish leaky_relu log_softmax logsumexp mish relu "
    "relu6 selu silu softmax softplus softsign",
    "alignment": "ctc",
    "boxes": "box_area box_iou clip_boxes decode_boxes encode_boxes hard_negatives match_anchors "
    "non_max_suppression",
    "convolution": "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d "
    "depthwise_conv2d",
    "dropout_masks": "dropout",
    "gathers": "embedding one_hot segment_max segment_mean segment_sum top_k",
    "image_resize": "resize",
    "losses": "absolute_error binary_cross_entropy cosine_similarity cross_entropy hinge huber "
    "kl_divergence nll sigmoid_focal squared_error triplet",
    "pooling": "adaptive_avg_pool avg_pool global_avg_pool global_max_pool lp_pool max_pool",
    "quantised_weights": "QuantisedWeight quantise_weight",
    "rotary_positions": "rotary",
    "scaled_attention": "attention causal_mask",
    "vocabulary_losses": "vocabulary_cross_entropy",
}
__getattr__, __dir__ = lazily(__name__, _NAMES)
__all__ = exported(_NAMES)
